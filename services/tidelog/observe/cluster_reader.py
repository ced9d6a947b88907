"""Reads a running cluster for the console, the commands and the doctor: each reading is made in one place."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidelog.client.admin.brokers import LogDir, Quorum, describe_log_dirs, describe_quorum
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
from tidelog.client.admin.offsets import (
    OffsetAt,
    ShareOffset,
    describe_share_offsets,
    offsets_at,
    offsets_of_topics,
    start_offsets,
)
from tidelog.client.admin.reassignments import list_reassignments
from tidelog.client.admin.topics import describe_topics_setting, describe_topics_settings
from tidelog.client.cluster import Broker, Cluster, ClusterView, Topic, holders
from tidelog.client.errors import UnsupportedApiError, topic_error_of
from tidelog.kernel.instants import HOUR_MS, MonotonicMs, WallMs
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    UNKNOWN_OFFSET,
)
from tidelog.model.topics import TopicPartition
from tidelog.observe.availability import PartitionView, merge_views
from tidelog.observe.lag import AGEING, NO_LIMIT, RETENTION, LogEnds, LogOffsets, Retention
from tidelog.observe.rates import BrokerFacts, ClusterRates, GroupFacts, PartitionFacts, Snapshot

MAX_GROUPS: Final = 100
"""The number of groups of a snapshot. Each needs two requests."""
MIN_ISR: Final = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction and its age in milliseconds, None if it is not known."""

    transaction: Transaction
    age_ms: int | None


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The registered brokers, the topics and the controllers."""

    view: ClusterView
    topics: Mapping[str, Topic]
    quorum: Quorum

    @property
    def alive(self) -> dict[int, Broker]:
        return {broker.broker_id: broker for broker in self.view.brokers}

    @property
    def down(self) -> set[int]:
        """The brokers that have replicas and are not registered."""
        return holders(self.topics.values()) - self.alive.keys()

    @property
    def partitions(self) -> list[PartitionFacts]:
        return [
            PartitionFacts(topic.name, each) for topic in self.topics.values() for each in topic.partitions
        ]


class ClusterReader:
    """The readings of a cluster. All calls block. They raise KafkaError and ClientError.

    With a set `silent`, the readings of logs, directories and transactions do not ask the brokers in it, and
    those that do not answer join it instead of raising an error.
    """

    def __init__(self, cluster: Cluster, silent: set[int] | None = None) -> None:
        self._cluster = cluster
        self._silent = silent

    def state(self, names: Collection[str] = ()) -> ClusterState:
        """Returns the state of the cluster, with all topics if none is named."""
        if names:
            view, topics = self._cluster.describe(), self._cluster.topics(names)
        else:
            view, topics = self._cluster.describe_with_topics()
        return ClusterState(view, topics, describe_quorum(self._cluster))

    def availability(self) -> tuple[frozenset[int], list[PartitionView]]:
        """Returns the live brokers, all of which are asked, and the partitions as they see them together."""
        live = frozenset(broker.broker_id for broker in self._cluster.describe().brokers)
        views = [self._cluster.topics(seen_by=broker_id) for broker_id in sorted(live)]
        return live, self.partitions_of(views)

    def partitions_of(self, views: Sequence[Mapping[str, Topic]]) -> list[PartitionView]:
        """Returns the partitions from the views of several brokers, as `merge_views` does."""
        names = {name for view in views for name in view}
        found = describe_topics_setting(self._cluster, names, MIN_ISR)
        min_isr = {name: int(value or 1) for name, value in found.items()}
        adding = {key: move.adding for key, move in list_reassignments(self._cluster).items()}
        return merge_views(views, min_isr, adding)

    def log_starts(self, topics: Collection[Topic]) -> dict[TopicPartition, int]:
        return offsets_of_topics(self._cluster, topics, EARLIEST_TIMESTAMP, silent=self._silent)

    def high_watermarks(self, topics: Collection[Topic]) -> dict[TopicPartition, int]:
        return offsets_of_topics(self._cluster, topics, LATEST_TIMESTAMP, silent=self._silent)

    def log_ends(self, topics: Collection[Topic]) -> LogEnds:
        # The last stable offsets come first, so that they are not above the high watermarks.
        stable = offsets_of_topics(
            self._cluster, topics, LATEST_TIMESTAMP, silent=self._silent, isolation_level=READ_COMMITTED
        )
        return LogEnds(self.high_watermarks(topics), stable)

    def retentions(self, topics: Iterable[str]) -> dict[str, Retention]:
        found = describe_topics_settings(self._cluster, topics, RETENTION)
        return {topic: Retention.of(values) for topic, values in found.items()}

    def log_offsets(
        self, topics: Mapping[str, Topic], now_ms: WallMs, without: Collection[int]
    ) -> dict[TopicPartition, LogOffsets]:
        """Returns what the growth of logs is forecast from, of the partitions that no broker of `without`
        leads.
        """
        retentions = self.retentions(topics)
        leaders = {
            TopicPartition(topic.name, partition.index): partition.leader
            for topic in topics.values()
            for partition in topic.partitions
            if partition.leader not in without
        }

        def ask(
            timestamps: dict[TopicPartition, int], isolation_level: int = READ_UNCOMMITTED
        ) -> dict[TopicPartition, OffsetAt]:
            return offsets_at(self._cluster, timestamps, leaders, isolation_level=isolation_level)

        starts = ask(dict.fromkeys(leaders, EARLIEST_TIMESTAMP))
        recents = ask(dict.fromkeys(leaders, now_ms - HOUR_MS))
        limits = {name: found.retention_ms for name, found in retentions.items() if found.retention_ms > 0}
        ageing = ask({key: now_ms - int(AGEING * limits[key[0]]) for key in leaders if key[0] in limits})
        # The ends are read last, so that no offset is above them.
        ends = ask(dict.fromkeys(leaders, LATEST_TIMESTAMP))
        stable = ask(dict.fromkeys(ends, LATEST_TIMESTAMP), READ_COMMITTED)
        found: dict[TopicPartition, LogOffsets] = {}
        for key in starts.keys() & ends.keys():
            start, end = starts[key].offset, ends[key].offset
            recent = recents.get(key)
            is_recent = recent is not None and recent.offset != UNKNOWN_OFFSET
            old = ageing.get(key)
            found[key] = LogOffsets(
                log_start_offset=start,
                log_end_offset=end,
                recent_offset=recent.offset if recent is not None and is_recent else end,
                recent_ms=max(0, now_ms - recent.timestamp) if recent is not None and is_recent else 0,
                ageing_offset=start if old is None else end if old.offset == UNKNOWN_OFFSET else old.offset,
                last_stable_offset=stable[key].offset if key in stable else end,
                retention=retentions.get(key[0], Retention(NO_LIMIT, NO_LIMIT, is_deleting=False)),
            )
        return found

    def log_dirs(self, topics: Collection[Topic] | None = None) -> list[LogDir]:
        """Returns the directories of the live brokers with the replicas of `topics`, None for all topics."""
        brokers = [broker.broker_id for broker in self._cluster.describe().brokers]
        return describe_log_dirs(self._cluster, brokers, topics, silent=self._silent)

    def share_offsets(self, group_id: str) -> dict[TopicPartition, ShareOffset]:
        """Returns the offsets of a share group. A broker of Kafka 4.0 does not serve them: there are none."""
        try:
            return describe_share_offsets(self._cluster, group_id)
        except UnsupportedApiError:
            return {}

    def snapshot(self, now_ms: MonotonicMs, names: Collection[str] = ()) -> Snapshot:
        """Returns the brokers, topics and groups with what rates are computed from.

        It needs three requests or, with names, four; two for each group; and three for each broker.
        """
        state = self.state(names)
        topics = state.topics.values()
        # The commits come before the ends. Otherwise, a group that keeps up would seem to be beyond the end.
        groups, omitted = self._groups(state.topics)
        ends = self.high_watermarks(topics)
        # The brokers of `state`: another one may have registered since.
        directories = describe_log_dirs(self._cluster, state.alive, topics, silent=self._silent)
        sizes = leader_sizes(topics, directories)
        disk_bytes = dict.fromkeys(state.alive, 0)
        for directory in directories:
            disk_bytes[directory.broker_id] += directory.size_bytes
        places = {TopicPartition(each.topic, each.partition.index): each for each in state.partitions}
        return Snapshot(
            now_ms,
            state.quorum.active_text,
            {
                broker_id: BrokerFacts(str(broker.address), broker.rack, disk_bytes[broker_id])
                for broker_id, broker in state.alive.items()
            },
            {
                place: replace(facts, high_watermark=ends.get(place), size_bytes=sizes.get(place))
                for place, facts in places.items()
            },
            groups,
            omitted,
        )

    def _groups(self, topics: Mapping[str, Topic]) -> tuple[dict[str, GroupFacts], int]:
        """Returns at most MAX_GROUPS groups, and the number of omitted ones."""
        listed = list_groups(self._cluster, [], [])
        found: dict[str, GroupFacts] = {}
        for group in listed[:MAX_GROUPS]:
            try:
                found[group.group_id] = self._facts_of(topics, group)
            except KafkaError as error:
                if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:  # it was deleted in between
                    raise
        return found, max(0, len(listed) - MAX_GROUPS)

    def _facts_of(self, topics: Mapping[str, Topic], group: ListedGroup) -> GroupFacts:
        if group.group_type != SHARE:
            committed = committed_offsets(self._cluster, group.group_id)
            uncommitted = uncommitted_count(topics, committed)
            return GroupFacts(group.group_type, group.state, committed, uncommitted=uncommitted)
        offsets = self.share_offsets(group.group_id)
        lags = {place: row.lag for place, row in offsets.items() if row.lag is not None}
        return GroupFacts(group.group_type, group.state, start_offsets(offsets), lags)

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


def rates_now(cluster: Cluster, topics: Collection[str], before: ClusterRates | None = None) -> ClusterRates:
    """Takes a snapshot, of all topics if none is named, and returns what changed since `before`.

    Raises KafkaError, ClientError.
    """
    now_ms = MonotonicMs(time.monotonic_ns() // 1_000_000)
    snapshot = ClusterReader(cluster).snapshot(now_ms, topics)
    return ClusterRates(None if before is None else before.current, snapshot)


def existing_topics(cluster: Cluster, names: Collection[str]) -> dict[str, Topic]:
    """Returns the named topics, also if partitions have no leader. Raises KafkaError
    UNKNOWN_TOPIC_OR_PARTITION for the first one that does not exist.
    """
    topics = cluster.topics(names)
    for name in names:
        if name not in topics:
            raise topic_error_of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
    return topics


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


def leader_sizes(topics: Iterable[Topic], directories: Iterable[LogDir]) -> dict[TopicPartition, int]:
    """Returns the size of each partition on its leader."""
    leaders = {
        TopicPartition(topic.name, part.index): part.leader for topic in topics for part in topic.partitions
    }
    return {
        replica.place: replica.size_bytes
        for directory in directories
        for replica in directory.current_replicas
        if leaders.get(replica.place) == directory.broker_id
    }
