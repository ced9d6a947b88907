"""The metrics of a group coordinator: the lag of its groups, its shards, its transactions.

Lag has the names of kafka_exporter (`kafka_consumergroup_lag`) and of kafka-lag-exporter
(`kafka_consumergroup_group_lag`, with seconds), so that dashboards for either continue to work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from tidelog.model.coordinator_shards import ShardKind

if TYPE_CHECKING:
    from tidelog.group_coordinator.groups.streams.streams_group import TaskCounts
    from tidelog.kernel.instants import WallMs
    from tidelog.metrics.families import Families


class UncommittedLag(NamedTuple):
    """The lag of read_uncommitted consumers, and the age of their first unread record."""

    lag: int
    lag_seconds: float


class GroupLag(NamedTuple):
    """The lag of a group in one partition.

    `lag` is counted up to the last stable offset, which limits read_committed consumers. It is negative if
    the committed offset is beyond the end of the log. `lag_seconds` is the
    age of the first unread record, or 0 if the group has read all records. `expires_seconds` is the time
    until retention may delete that record, or None if no record can expire. `read_uncommitted` is the lag up
    to the high watermark, or None if it is the same.
    """

    group: str
    topic: str
    partition: int
    committed_offset: int
    lag: int
    lag_seconds: float
    expires_seconds: float | None = None
    read_uncommitted: UncommittedLag | None = None

    @property
    def greatest(self) -> int:
        """The lag of the readers that have more to read."""
        return self.lag if self.read_uncommitted is None else self.read_uncommitted.lag


class GroupSummary(NamedTuple):
    """The state of one group. `generation` is the group epoch if the group is not classic. `tasks` is None if
    it is not a streams group.
    """

    group: str
    protocol: str
    state: str
    members: int
    generation: int
    tasks: TaskCounts | None = None


class TransactionsSummary(NamedTuple):
    """The number of transactions by state.

    `oldest_open_ms` is when the oldest open transaction began, and `oldest_ending_ms` is when the oldest
    ending transaction was decided (wall clock). Each is None if there is none.
    """

    counts: Mapping[str, int] = {}
    oldest_open_ms: WallMs | None = None
    oldest_ending_ms: WallMs | None = None


class ShardLoads(NamedTuple):
    """The loads of the shards of one kind since the start."""

    kind: str
    loaded: int
    longest_ms: int
    lost: int


class CoordinatorCounts:
    """Counters of one coordinator. Only the event loop changes them, and any thread may read them."""

    __slots__ = ("ended", "loads", "longest_load_ms", "lost")

    def __init__(self) -> None:
        self.ended = {True: 0, False: 0}
        """The numbers of committed (True) and aborted (False) transactions whose markers are all written."""
        self.loads = dict.fromkeys(ShardKind, 0)
        self.longest_load_ms = dict.fromkeys(ShardKind, 0)
        self.lost = dict.fromkeys(ShardKind, 0)

    def loaded(self, kind: ShardKind, load_ms: int) -> None:
        """Counts the load of a shard."""
        self.loads[kind] += 1
        self.longest_load_ms[kind] = max(self.longest_load_ms[kind], load_ms)


class CoordinatorView(Protocol):
    """The part of a coordinator that its metrics show. Its values are replaced as a whole, never changed."""

    @property
    def lags(self) -> Sequence[GroupLag]: ...

    @property
    def groups(self) -> Sequence[GroupSummary]: ...

    @property
    def transactions(self) -> TransactionsSummary: ...

    @property
    def shard_counts(self) -> Mapping[tuple[str, str], int]:
        """The number of shards by kind and state."""
        ...

    @property
    def shard_loads(self) -> Sequence[ShardLoads]: ...

    @property
    def broker_session_count(self) -> int: ...

    @property
    def ended_transactions(self) -> tuple[int, int]:
        """The numbers of committed and of aborted transactions."""
        ...

    @property
    def ending_transaction_count(self) -> int: ...

    def now_ms(self) -> WallMs:
        """Returns the wall clock's time."""
        ...


_CLASSIC_STATES: Final = ("Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Dead")
_CONSUMER_STATES: Final = ("Empty", "Assigning", "Reconciling", "Stable", "Dead")
_STREAMS_STATES: Final = {
    "Empty": "empty",
    "NotReady": "not_ready",
    "Assigning": "assigning",
    "Reconciling": "reconciling",
    "Stable": "stable",
    "Dead": "dead",
}
"""The states of streams groups, as ListGroups and as Kafka's metrics name them."""
_PROTOCOLS: Final = ("classic", "consumer", "streams")
MAX_SHOWN_PARTITIONS: Final = 2_000
"""The partitions with series of their own, over all groups: those with the greatest lag. Clients choose names
of groups and commit offsets, so that without a limit they choose the size of a scrape.
"""
MAX_SHOWN_GROUPS: Final = 1_000
"""The groups with series of their own, and the pairs of group and topic: those with the greatest lag."""
_Key = TypeVar("_Key", str, tuple[str, str])


class CoordinatorMetrics:
    """The collector of a coordinator's metrics."""

    def __init__(self, view: CoordinatorView) -> None:
        self._view = view

    def collect(self, families: Families) -> None:
        """Adds the current samples."""
        _add_coordinator(families, self._view)


def _add_coordinator(families: Families, view: CoordinatorView) -> None:
    lags, groups = view.lags, view.groups
    _add_partitions(families, lags)
    shown = _add_groups(families, lags)
    _add_group_summaries(families, groups, shown)
    prefix = "kafka_coordinator_group_groupmetadatamanager"
    families.gauge(f"{prefix}_numgroups", "Groups of this coordinator", len(groups))
    families.gauge(f"{prefix}_numoffsets", "Committed offsets of this coordinator's groups", len(lags))
    for state in _CLASSIC_STATES:
        count = sum(group.state == state for group in groups)
        families.gauge(f"{prefix}_numgroups{state.lower()}", f"Groups in the state {state}", count)
    prefix = "kafka_server_group_coordinator_metrics"
    for protocol in _PROTOCOLS:
        count = sum(group.protocol == protocol for group in groups)
        families.gauge(f"{prefix}_group_count", "Groups by protocol", count, protocol=protocol)
    for state in _CONSUMER_STATES:
        count = sum(group.protocol == "consumer" and group.state == state for group in groups)
        doc = "Groups of the consumer protocol by state"
        families.gauge(f"{prefix}_consumer_group_count", doc, count, state=state.lower())
    for state, name in _STREAMS_STATES.items():
        count = sum(group.protocol == "streams" and group.state == state for group in groups)
        doc = "Groups of the streams protocol by state"
        families.gauge(f"{prefix}_streams_group_count", doc, count, state=name)
    _add_shards(families, view)
    _add_transactions(families, view)


def _add_group_summaries(
    families: Families, groups: Sequence[GroupSummary], with_lag: frozenset[str]
) -> None:
    """Adds the members and states of at most MAX_SHOWN_GROUPS groups, first of those whose lag is shown."""
    shown = nlargest(MAX_SHOWN_GROUPS, groups, key=lambda group: group.group in with_lag)
    for group in sorted(shown):
        families.gauge(
            "kafka_consumergroup_members", "Members of a group", group.members, consumergroup=group.group
        )
        labels = {"consumergroup": group.group, "protocol": group.protocol, "state": group.state}
        families.gauge("tidelog_consumergroup_info", "Protocol and state of a group", 1, **labels)
        doc = "Generation or group epoch; each rebalance increments it"
        name = "tidelog_consumergroup_generation"
        families.gauge(name, doc, group.generation, consumergroup=group.group)
        if group.tasks is not None:
            _add_tasks(families, group.group, group.tasks)


def _add_tasks(families: Families, group: str, tasks: TaskCounts) -> None:
    doc = "Tasks that the members of a streams group have"
    for role, count in (("active", tasks.active), ("standby", tasks.standby), ("warmup", tasks.warmup)):
        families.gauge("tidelog_streams_group_tasks", doc, count, consumergroup=group, role=role)
    if tasks.wanted is not None:
        doc = "Active tasks that the topology of a streams group has"
        families.gauge("tidelog_streams_group_topology_tasks", doc, tasks.wanted, consumergroup=group)


def _add_shards(families: Families, view: CoordinatorView) -> None:
    for (kind, state), count in sorted(view.shard_counts.items()):
        families.gauge(
            "tidelog_coordinator_shards", "Shards that this coordinator owns", count, kind=kind, state=state
        )
    for loads in view.shard_loads:
        prefix, kind = "tidelog_coordinator", loads.kind
        families.counter(f"{prefix}_loads", "Shards loaded", loads.loaded, kind=kind)
        longest_s = loads.longest_ms / 1000
        families.gauge(
            f"{prefix}_load_seconds_max", "The longest load of a shard so far", longest_s, kind=kind
        )
        families.counter(f"{prefix}_shards_lost", "Shards dropped from memory", loads.lost, kind=kind)
    sessions = view.broker_session_count
    families.gauge(
        "tidelog_coordinator_broker_sessions", "Brokers that this coordinator has a session with", sessions
    )


def _add_transactions(families: Families, view: CoordinatorView) -> None:
    summary = view.transactions
    for state, count in sorted(summary.counts.items()):
        doc = "Transactional ids by their transaction's state"
        families.gauge("tidelog_transactions", doc, count, state=state)
    for name, doc, since_ms in (
        ("open", "Age of the oldest open transaction; 0 without one", summary.oldest_open_ms),
        (
            "ending",
            "Time since the oldest transaction with unwritten markers was decided; 0 without one",
            summary.oldest_ending_ms,
        ),
    ):
        age_s = 0.0 if since_ms is None else max(0, view.now_ms() - since_ms) / 1000
        families.gauge(f"tidelog_transactions_oldest_{name}_seconds", doc, age_s)
    for outcome, count in zip(("committed", "aborted"), view.ended_transactions, strict=True):
        families.counter("tidelog_transactions_ended", "Transactions decided", count, outcome=outcome)
    doc = "Decided transactions whose markers are not all written"
    families.gauge("tidelog_transactions_ending", doc, view.ending_transaction_count)


def _add_partitions(families: Families, lags: Sequence[GroupLag]) -> None:
    records, seconds, offset = (
        "Records between the committed offset and the last readable one",
        "Age of the first unread record",
        "Committed offset",
    )
    shown = nlargest(MAX_SHOWN_PARTITIONS, lags, key=lambda lag: abs(lag.greatest))
    doc = "Partitions of groups without series of their own, because others have a greater lag"
    families.gauge("tidelog_consumergroup_partitions_omitted", doc, len(lags) - len(shown))
    for lag in sorted(shown):
        labels = {"consumergroup": lag.group, "topic": lag.topic, "partition": str(lag.partition)}
        families.gauge("kafka_consumergroup_lag", records, lag.lag, **labels)
        families.gauge("kafka_consumergroup_lag_seconds", seconds, lag.lag_seconds, **labels)
        if lag.read_uncommitted is not None:
            name = "tidelog_consumergroup_read_uncommitted_lag"
            doc = "Records between the committed offset and the high watermark"
            families.gauge(name, doc, lag.read_uncommitted.lag, **labels)
            doc = "Age of the first record that read_uncommitted consumers have not read"
            families.gauge(f"{name}_seconds", doc, lag.read_uncommitted.lag_seconds, **labels)
        if lag.expires_seconds is not None:
            doc = "Time until retention may delete the first unread record"
            name = "tidelog_consumergroup_unread_expires_seconds"
            families.gauge(name, doc, lag.expires_seconds, **labels)
        families.gauge("kafka_consumergroup_current_offset", offset, lag.committed_offset, **labels)
        labels = {"group": lag.group, "topic": lag.topic, "partition": str(lag.partition)}
        families.gauge("kafka_consumergroup_group_lag", records, lag.lag, **labels)
        families.gauge("kafka_consumergroup_group_lag_seconds", seconds, lag.lag_seconds, **labels)
        families.gauge("kafka_consumergroup_group_offset", offset, lag.committed_offset, **labels)


def _add_groups(families: Families, lags: Sequence[GroupLag]) -> frozenset[str]:
    """Returns the groups with series of their own."""
    by_topic: dict[tuple[str, str], list[GroupLag]] = defaultdict(list)
    by_group: dict[str, list[GroupLag]] = defaultdict(list)
    for lag in lags:
        by_topic[lag.group, lag.topic].append(lag)
        by_group[lag.group].append(lag)
    for (group, topic), of_topic in _with_greatest_lag(by_topic):
        families.gauge(
            "kafka_consumergroup_lag_sum",
            "Lag over all partitions of a topic",
            _unread(of_topic),
            consumergroup=group,
            topic=topic,
        )
        families.gauge(
            "kafka_consumergroup_current_offset_sum",
            "Committed offsets over all partitions of a topic",
            sum(lag.committed_offset for lag in of_topic),
            consumergroup=group,
            topic=topic,
        )
    shown = _with_greatest_lag(by_group)
    for group, of_group in shown:
        prefix = "kafka_consumergroup_group"
        total, most = _unread(of_group), max(lag.lag for lag in of_group)
        oldest = max(lag.lag_seconds for lag in of_group)
        families.gauge(f"{prefix}_sum_lag", "Lag over all partitions of a group", total, group=group)
        families.gauge(f"{prefix}_max_lag", "Greatest lag of a group's partitions", most, group=group)
        families.gauge(
            f"{prefix}_max_lag_seconds", "Age of a group's oldest unread record", oldest, group=group
        )
    return frozenset(group for group, _ in shown)


def _unread(lags: Sequence[GroupLag]) -> int:
    """Returns the number of unread records. A commit beyond the end of a partition does not make up for
    others.
    """
    return sum(max(0, lag.lag) for lag in lags)


def _with_greatest_lag(
    lags: Mapping[_Key, Sequence[GroupLag]],
) -> list[tuple[_Key, Sequence[GroupLag]]]:
    """Returns the MAX_SHOWN_GROUPS entries with the greatest lag, sorted by key."""

    def total(entry: tuple[_Key, Sequence[GroupLag]]) -> int:
        return _unread(entry[1])

    return sorted(nlargest(MAX_SHOWN_GROUPS, lags.items(), key=total), key=lambda entry: entry[0])
