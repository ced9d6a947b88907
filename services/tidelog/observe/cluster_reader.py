"""Reads a running cluster for the console, the commands and the doctor: each reading is made in one place."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.client.admin.brokers import describe_log_dirs, describe_quorum
from tidelog.client.admin.groups import (
    ANY_DURATION,
    OPEN_STATES,
    SHARE,
    ListedGroup,
    Transaction,
    committed_offsets,
    describe_transaction,
    list_groups,
    list_transactions,
)
from tidelog.client.admin.offsets import describe_share_offsets, offsets_of_topics, start_offsets
from tidelog.client.admin.reassignments import list_reassignments
from tidelog.client.admin.topics import describe_topics_setting
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.errors import UnsupportedApiError
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import LATEST_TIMESTAMP
from tidelog.model.topics import TopicPartition
from tidelog.observe.availability import PartitionView, merge_views
from tidelog.observe.rates import BrokerFacts, ClusterRates, GroupFacts, PartitionFacts, Snapshot

MAX_GROUPS: Final = 100
"""The number of groups of a snapshot. Each needs two requests."""
MIN_ISR: Final = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction and its age in milliseconds, None if it is not known."""

    transaction: Transaction
    age_ms: int | None


class ClusterReader:
    """The readings of a cluster. All calls block. They raise KafkaError and ClientError.

    With a set `silent`, the brokers in it are not asked, and those that do not answer join it instead of
    raising an error.
    """

    def __init__(self, cluster: Cluster, silent: set[int] | None = None) -> None:
        self._cluster = cluster
        self._silent = silent

    def availability(self) -> tuple[frozenset[int], list[PartitionView]]:
        """Returns the live brokers, all of which are asked, and the partitions as they see them together."""
        live = frozenset(broker.broker_id for broker in self._cluster.describe().brokers)
        views = [self._cluster.topics(seen_by=broker_id) for broker_id in sorted(live)]
        return live, self.partitions_of(views)

    def partitions_of(self, views: Sequence[Mapping[str, Topic]]) -> list[PartitionView]:
        """Returns the partitions from the views of several brokers, as `merge_views` does."""
        names = {name for view in views for name in view}
        found = describe_topics_setting(self._cluster, names, MIN_ISR) if names else {}
        min_isr = {name: int(value or 1) for name, value in found.items()}
        adding = {key: move.adding for key, move in list_reassignments(self._cluster).items()}
        return merge_views(views, min_isr, adding)

    def open_transactions(self, now_ms: WallMs, limit: int) -> tuple[list[OpenTransaction], int]:
        """Returns the open transactions in the order of their ids, and the number of those above `limit`."""
        listed = list_transactions(self._cluster, list(OPEN_STATES), ANY_DURATION, silent=self._silent)
        found: list[OpenTransaction] = []
        for row in listed[:limit]:
            try:
                transaction = describe_transaction(self._cluster, row.transactional_id)
            except KafkaError as error:
                if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:  # it has expired in between
                    continue
                raise
            if transaction.state in OPEN_STATES:
                began_ms = transaction.start_time_ms
                age_ms = max(0, now_ms - began_ms) if began_ms >= 0 else None
                found.append(OpenTransaction(transaction, age_ms))
        return found, max(0, len(listed) - limit)


def take_snapshot(
    cluster: Cluster,
    now_ms: MonotonicMs,
    *,
    topics: Iterable[str] | None = None,
    max_groups: int = MAX_GROUPS,
) -> Snapshot:
    """Returns the state of the cluster, or of the named topics. Raises KafkaError, ClientError.

    It needs three requests, and two for each group, and three for each broker.
    """
    view = cluster.describe()
    found = cluster.topics(None if topics is None else list(topics))
    # The commits come before the ends. Otherwise, a group that keeps up would seem to be beyond the end.
    groups, omitted = _groups(cluster, found, max_groups)
    ends = offsets_of_topics(cluster, found.values(), LATEST_TIMESTAMP)
    disk_bytes, sizes = _sizes(cluster, [broker.broker_id for broker in view.brokers], found.values())
    partitions = {
        (place := TopicPartition(topic.name, part.index)): PartitionFacts(
            part.leader, part.replicas, part.isr, ends.get(place), sizes.get((part.leader, place))
        )
        for topic in found.values()
        for part in topic.partitions
    }
    return Snapshot(
        now_ms,
        describe_quorum(cluster).active_text,
        {
            broker.broker_id: BrokerFacts(str(broker.address), broker.rack, disk_bytes.get(broker.broker_id))
            for broker in view.brokers
        },
        partitions,
        groups,
        omitted,
    )


def rates_now(cluster: Cluster, topics: Collection[str], before: ClusterRates | None = None) -> ClusterRates:
    """Takes a snapshot, of all topics if none is named, and returns what changed since `before`.

    Raises KafkaError, ClientError.
    """
    now_ms = MonotonicMs(time.monotonic_ns() // 1_000_000)
    snapshot = take_snapshot(cluster, now_ms, topics=topics or None)
    return ClusterRates(None if before is None else before.current, snapshot)


def next_offsets(cluster: Cluster, group_id: str, *, is_share: bool) -> dict[TopicPartition, int]:
    """Returns the committed offsets of a group, or the start offsets of a share group. Raises KafkaError,
    ClientError.
    """
    if is_share:
        return start_offsets(describe_share_offsets(cluster, group_id))
    return committed_offsets(cluster, group_id)


def uncommitted_count(
    topics: Mapping[str, Topic], committed: Collection[TopicPartition], owned: Collection[TopicPartition] = ()
) -> int:
    """Returns the number of partitions without a committed offset in the topics of a group: those of `topics`
    in which it has committed an offset, or has a partition that a member owns. Their records are in no lag.
    """
    names = {place.topic for place in (*committed, *owned)}
    return sum(
        TopicPartition(name, partition.index) not in committed
        for name in names & topics.keys()
        for partition in topics[name].partitions
    )


def _sizes(
    cluster: Cluster, broker_ids: list[int], topics: Iterable[Topic]
) -> tuple[dict[int, int], dict[tuple[int, TopicPartition], int]]:
    """Returns the bytes of each broker, and of each replica by broker and partition."""
    disk_bytes = dict.fromkeys(broker_ids, 0)
    sizes: dict[tuple[int, TopicPartition], int] = {}
    for directory in describe_log_dirs(cluster, broker_ids, topics):
        disk_bytes[directory.broker_id] += directory.size_bytes
        for replica in directory.current_replicas:
            sizes[directory.broker_id, replica.place] = replica.size_bytes
    return disk_bytes, sizes


def _groups(cluster: Cluster, topics: Mapping[str, Topic], limit: int) -> tuple[dict[str, GroupFacts], int]:
    """Returns the groups, at most `limit`, and the number of omitted ones."""
    listed = list_groups(cluster, [], [])
    found: dict[str, GroupFacts] = {}
    for group in listed[:limit]:
        try:
            found[group.group_id] = _facts_of(cluster, topics, group)
        except KafkaError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:  # it was deleted in between
                raise
    return found, max(0, len(listed) - limit)


def _facts_of(cluster: Cluster, topics: Mapping[str, Topic], group: ListedGroup) -> GroupFacts:
    if group.group_type != SHARE:
        committed = committed_offsets(cluster, group.group_id)
        uncommitted = uncommitted_count(topics, committed)
        return GroupFacts(group.group_type, group.state, committed, uncommitted=uncommitted)
    try:
        offsets = describe_share_offsets(cluster, group.group_id)
    except UnsupportedApiError:  # Kafka 4.0 does not serve the offsets of share groups
        offsets = {}
    starts = {place: row.start_offset for place, row in offsets.items() if row.start_offset is not None}
    lags = {place: row.lag for place, row in offsets.items() if row.lag is not None}
    return GroupFacts(group.group_type, group.state, starts, lags)
