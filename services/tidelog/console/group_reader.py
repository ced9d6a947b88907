"""Reads groups and open transactions for the pages. All calls block and belong to one thread."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from tidelog.client.admin.groups import (
    SHARE,
    Group,
    ListedGroup,
    committed_offsets,
    committed_offsets_of_groups,
    describe_group,
    list_groups,
)
from tidelog.client.admin.logs import fetch_batches
from tidelog.client.admin.offsets import ShareOffset, describe_share_offsets, start_offsets
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.errors import ClientError
from tidelog.console.readings import (
    GroupList,
    GroupPartition,
    GroupReading,
    GroupRow,
    SilentBrokers,
    TransactionList,
    unless_denied,
)
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.observe.cluster_reader import ClusterReader, leader_sizes, uncommitted_count
from tidelog.observe.lag import (
    LogEnds,
    Observation,
    beyond_end_count,
    forecast,
    total_of,
)
from tidelog.records.batch import iterate_headers
from tidelog.records.record import iterate_records

MAX_GROUPS: Final = 500
MAX_LAG_MS: Final = 3_000
"""The time after which the list asks for the lag of no more groups."""
GROUPS_A_REQUEST: Final = 200
MAX_PARTITIONS: Final = 500
MAX_TIMED: Final = 100
"""The most partitions of a group whose next record is read for its time."""
MAX_TIMING_MS: Final = 2_000
"""The time after which no more records are read for their times."""
MAX_TRANSACTIONS: Final = 100
MAX_REMEMBERED_GROUPS: Final = 64
MAX_OBSERVATIONS: Final = 12
OBSERVED_MS: Final = 600_000
"""The age above which an observation says nothing about the present speed of a group."""
_LEAST_BYTES: Final = 1  # a broker then sends one batch

Observations = dict[TopicPartition, Observation]


class GroupReader:
    """A reader of groups. It remembers what it observed, for the speeds of the groups."""

    def __init__(
        self, wall: Callable[[], WallMs], monotonic: Callable[[], MonotonicMs], silent: SilentBrokers
    ) -> None:
        self._silent = silent
        self._wall = wall
        self._monotonic = monotonic
        self._observed: OrderedDict[str, deque[tuple[WallMs, Observations]]] = OrderedDict()

    def groups(self, cluster: Cluster) -> GroupList:
        """Returns the groups with the greatest lag, and then those without a known lag."""
        with self._silent.asking() as silent:
            return self._groups(cluster, silent)

    def _groups(self, cluster: Cluster, silent: set[int]) -> GroupList:
        listed = list_groups(cluster, [], [], silent=silent)
        committed, share_lags = self._progress_of(cluster, listed, silent)
        topics = _existing(cluster, (each for offsets in committed.values() for each in offsets))
        by_name = {topic.name: topic for topic in topics}
        ends = ClusterReader(cluster, silent).log_ends(topics)
        rows = [
            _group_row(group, committed.get(group.group_id), ends, share_lags.get(group.group_id), by_name)
            for group in listed
        ]
        rows.sort(key=lambda row: (row.lag_uncommitted is None, -(row.lag_uncommitted or 0)))
        without_lag = len(listed) - len(committed) - len(share_lags)
        more_groups = max(0, len(rows) - MAX_GROUPS)
        return GroupList(tuple(rows[:MAX_GROUPS]), more_groups, without_lag, tuple(sorted(silent)))

    def _progress_of(
        self, cluster: Cluster, listed: list[ListedGroup], silent: set[int]
    ) -> tuple[dict[str, dict[TopicPartition, int]], dict[str, int | None]]:
        """Returns the offsets of groups, and the lags of share groups, until the time for them is used up."""
        reader = ClusterReader(cluster, silent)
        began_ms = self._monotonic()
        committed: dict[str, dict[TopicPartition, int]] = {}
        share_lags: dict[str, int | None] = {}
        others = [group for group in listed if group.group_type != SHARE]
        for start in range(0, len(others), GROUPS_A_REQUEST):
            if self._monotonic() - began_ms > MAX_LAG_MS:
                return committed, share_lags
            asked = others[start : start + GROUPS_A_REQUEST]
            committed |= committed_offsets_of_groups(cluster, asked, silent=silent)
        for group in listed:
            if self._monotonic() - began_ms > MAX_LAG_MS:
                break
            if group.group_type == SHARE:
                share_lags[group.group_id] = total_of(
                    offset.lag for offset in reader.share_offsets(group.group_id).values()
                )
        return committed, share_lags

    def group(self, cluster: Cluster, group_id: str) -> GroupReading:
        """Returns a group with its members and lags. Raises KafkaError GROUP_ID_NOT_FOUND."""
        with self._silent.asking() as silent:
            return self._group(cluster, group_id, silent)

    def _group(self, cluster: Cluster, group_id: str, silent: set[int]) -> GroupReading:
        group = describe_group(cluster, group_id)
        shares: dict[TopicPartition, ShareOffset] = {}
        if group.group_type == SHARE:
            shares = describe_share_offsets(cluster, group_id)
            committed = start_offsets(shares)
        else:
            committed = committed_offsets(cluster, group_id)
        owners = _owners(group)
        partitions = sorted({*committed, *shares, *owners})
        shown = partitions[:MAX_PARTITIONS]
        topics = {topic.name: topic for topic in _existing(cluster, shown)}
        denied: list[KafkaError] = []
        observations = self._observe(
            cluster, topics, {each: committed[each] for each in shown if each in committed}, silent, denied
        )
        before = self._remember(group_id, observations)
        retentions = {
            name: unless_denied(partial(ClusterReader(cluster).retentions, [name]), denied) for name in topics
        }
        rows = []
        for each in shown:
            observation = observations.get(each)
            retention = (retentions.get(each.topic) or {}).get(each.topic)
            outlook = (
                None
                if observation is None or retention is None
                else forecast(observation, before.get(each), retention)
            )
            share_lag = shares[each].lag if each in shares else None
            rows.append(
                GroupPartition(
                    each, committed.get(each), observation, outlook, owners.get(each, ""), share_lag
                )
            )
        more_partitions = len(partitions) - len(shown)
        uncommitted = 0 if shares else uncommitted_count(topics, committed, owners)
        return GroupReading(
            group, tuple(rows), more_partitions, tuple(sorted(silent)), tuple(denied), uncommitted
        )

    def transactions(self, cluster: Cluster) -> TransactionList:
        """Returns the open transactions, those that have been open for the longest time first."""
        with self._silent.asking() as silent:
            found, more = ClusterReader(cluster, silent).open_transactions(self._wall(), MAX_TRANSACTIONS)
            found.sort(key=lambda each: -(each.age_ms or 0))
            return TransactionList(tuple(found), more, tuple(sorted(silent)))

    def _observe(
        self,
        cluster: Cluster,
        topics: dict[str, Topic],
        committed: dict[TopicPartition, int],
        silent: set[int],
        denied: list[KafkaError],
    ) -> Observations:
        reader = ClusterReader(cluster, silent)
        starts, ends = reader.log_starts(topics.values()), reader.log_ends(topics.values())
        directories = unless_denied(lambda: reader.log_dirs(topics.values()), denied)
        sizes = leader_sizes(topics.values(), directories or [])
        times = _Times(cluster, self._monotonic)
        found: Observations = {}
        for each, offset in committed.items():
            lag = ends.lag_of(each, offset)
            high_watermark, last_stable_offset = lag.high_watermark, lag.last_stable_offset
            if each not in starts or high_watermark is None or last_stable_offset is None:
                continue
            first = max(offset, starts[each])
            found[each] = Observation(
                self._wall(),
                offset,
                starts[each],
                high_watermark,
                last_stable_offset,
                times.of(topics[each.topic], each.partition, first) if first < high_watermark else None,
                sizes.get(each),
            )
        return found

    def _remember(self, group_id: str, observations: Observations) -> Observations:
        """Remembers observations, and returns the oldest ones that still count."""
        now_ms = self._wall()
        history = self._observed.setdefault(group_id, deque(maxlen=MAX_OBSERVATIONS))
        self._observed.move_to_end(group_id)
        if len(self._observed) > MAX_REMEMBERED_GROUPS:
            self._observed.popitem(last=False)
        while history and not 0 <= now_ms - history[0][0] <= OBSERVED_MS:
            history.popleft()
        before = history[0][1] if history else {}
        history.append((now_ms, observations))
        return before


class _Times:
    """Reads the times of records, of a bounded number and for a bounded time."""

    def __init__(self, cluster: Cluster, monotonic: Callable[[], MonotonicMs]) -> None:
        self._cluster = cluster
        self._monotonic = monotonic
        self._began_ms = monotonic()
        self._left = MAX_TIMED

    def of(self, topic: Topic, partition: int, offset: int) -> int | None:
        """Returns the timestamp of the first record from `offset` on, None if it is not known."""
        if not self._left or self._monotonic() - self._began_ms > MAX_TIMING_MS:
            return None
        self._left -= 1
        try:
            raw = fetch_batches(
                self._cluster, topic, partition, offset, isolation_level=0, max_bytes=_LEAST_BYTES
            ).data
            for position, header in iterate_headers(raw):
                if header.is_control:
                    continue
                for record in iterate_records(raw, position, max_headers=0):
                    if record.offset >= offset:
                        return record.timestamp if record.timestamp >= 0 else None
        except (ClientError, KafkaError, ValueError):  # the leader has moved, or the batch is damaged
            return None
        return None


def _existing(cluster: Cluster, partitions: Iterable[TopicPartition]) -> list[Topic]:
    names = sorted({each.topic for each in partitions})
    return list(cluster.topics(names).values()) if names else []


def _group_row(
    group: ListedGroup,
    committed: dict[TopicPartition, int] | None,
    ends: LogEnds,
    share_lag: int | None,
    topics: dict[str, Topic],
) -> GroupRow:
    """Returns a group with its lags over the partitions whose leaders answered."""
    if committed is None:
        return GroupRow(group, share_lag, None)
    lags = [ends.lag_of(each, offset) for each, offset in committed.items()]
    return GroupRow(
        group,
        total_of(each.lag for each in lags),
        total_of(each.stable_lag for each in lags),
        uncommitted_count(topics, committed),
        beyond_end_count(each.lag for each in lags),
    )


def _owners(group: Group) -> dict[TopicPartition, str]:
    """Returns the member that has each partition. In a share group there may be several."""
    names: dict[TopicPartition, list[str]] = {}
    for member in group.members:
        for partition in member.partitions:
            names.setdefault(partition, []).append(member.instance_id or member.member_id)
    return {partition: ", ".join(found) for partition, found in names.items()}
