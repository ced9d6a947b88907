"""The changes of a cluster between two readings of it: rates, missing replicas and lag. It does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Final, NamedTuple

from tidelog.client.core.cluster_view import Partition
from tidelog.kernel.instants import MonotonicMs
from tidelog.model.text import counted
from tidelog.model.topics import TopicPartition
from tidelog.observe.lag import PartitionLag, beyond_end_count, total_of
from tidelog.observe.number_texts import short


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """A partition of a topic. What was not read, or not answered, is None. `size_bytes` is the size of the
    leader's replica.
    """

    topic: str
    partition: Partition
    log_start_offset: int | None = None
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    size_bytes: int | None = None

    @property
    def missing_replicas(self) -> int:
        return len(self.partition.replicas) - len(self.partition.isr)


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """A live broker. `disk_bytes` are those of all its replicas, None if it did not report them."""

    address: str
    rack: str | None
    disk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A group. For a share group, `committed` has the start offsets and `share_lags` the lags that its
    coordinator states, as far as it knows them. `group_type` is empty if the broker does not state it.
    `uncommitted` counts the partitions of its topics without a committed offset.
    """

    group_type: str
    state: str
    committed: Mapping[TopicPartition, int]
    share_lags: Mapping[TopicPartition, int] | None = None
    uncommitted: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a cluster at one time of the monotonic clock."""

    at_ms: MonotonicMs
    controller: str
    """The id of the active controller, `none` or `unknown`."""
    brokers: Mapping[int, BrokerFacts]
    partitions: Mapping[TopicPartition, PartitionFacts]
    groups: Mapping[str, GroupFacts] = field(default_factory=dict)
    omitted_groups: int = 0


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """A broker. `role` is None, or `dead`. `records_per_s` and `bytes_per_s` are those of the partitions that
    it leads.
    """

    broker_id: int
    address: str
    role: str | None
    leaders: int
    replicas: int
    missing_replicas: int
    disk_bytes: int | None
    records_per_s: float | None
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic. `missing_replicas` are not in sync, and `offline` counts partitions without a leader."""

    topic: str
    partitions: int
    missing_replicas: int
    offline: int
    size_bytes: int | None
    records_per_s: float | None
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group. `catch_up_s` is the time until its lag is gone at the present rates, None if it never is.

    `lag` leaves out partitions without a committed offset, of which there are `uncommitted`, and those whose
    committed offset is beyond the end of the log, of which there are `beyond_end`. `max_lag` is negative if
    all lags are.
    """

    group: str
    group_type: str | None
    state: str
    partitions: int
    lag: int | None
    max_lag: int | None
    uncommitted: int
    beyond_end: int
    records_per_s: float | None
    catch_up_s: float | None


COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "brokers": (
        "#broker", "address", "role", "#leaders", "#replicas", "#missing", "#disk", "#records/s", "#bytes/s",
    ),
    "topics": ("topic", "#partitions", "#missing", "#offline", "#size", "#records/s", "#bytes/s"),
    "groups": (
        "group", "type", "state", "#partitions", "#lag", "#max lag", "#uncommitted", "#beyond end",
        "#records/s", "#catch-up s",
    ),
}  # fmt: skip
"""The columns of the three tables, in the order of the fields of their rows. `#` marks numbers."""


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    brokers: int
    controller: str
    topics: int
    partitions: int
    missing_replicas: int
    offline: int
    records_per_s: float | None
    bytes_per_s: float | None


def per_second(before: int | None, after: int | None, elapsed_ms: int) -> float | None:
    """Returns the growth per second.

    It is None if a value is unknown, if no time has passed, or if the value has shrunk: a topic was created
    again, records were deleted, or offsets were reset.
    """
    if before is None or after is None or elapsed_ms <= 0 or after < before:
        return None
    return (after - before) * 1000 / elapsed_ms


def total(values: Iterable[float | None]) -> float | None:
    """Returns the sum of the known values, None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


class ClusterRates:
    """The changes between two snapshots. Without a previous one, all rates are None."""

    def __init__(self, previous: Snapshot | None, current: Snapshot) -> None:
        self.current = current
        self._elapsed_ms = 0 if previous is None else current.at_ms - previous.at_ms
        self._groups_before = {} if previous is None else previous.groups
        before = {} if previous is None else previous.partitions
        self._records: dict[TopicPartition, float | None] = {}
        self._bytes: dict[TopicPartition, float | None] = {}
        for place, after in current.partitions.items():
            known = before.get(place)
            self._records[place] = self._bytes[place] = None
            if known is not None:
                self._records[place] = self._rate(known.high_watermark, after.high_watermark)
                self._bytes[place] = self._rate(known.size_bytes, after.size_bytes)

    def _rate(self, before: int | None, after: int | None) -> float | None:
        return per_second(before, after, self._elapsed_ms)

    def summary(self) -> ClusterSummary:
        found = self.current.partitions.values()
        return ClusterSummary(
            len(self.current.brokers),
            self.current.controller,
            len({place.topic for place in self.current.partitions}),
            len(self.current.partitions),
            sum(facts.missing_replicas for facts in found),
            sum(facts.partition.is_offline for facts in found),
            total(self._records.values()),
            total(self._bytes.values()),
        )

    def tables(self) -> dict[str, list[tuple[object, ...]]]:
        """Returns the cells of the tables in COLUMNS."""
        return {
            "brokers": [astuple(row) for row in self.brokers()],
            "topics": [astuple(row) for row in self.topics()],
            "groups": [astuple(row) for row in self.groups()],
        }

    def brokers(self) -> list[BrokerRow]:
        """Returns the live brokers, and the dead ones that have replicas, by their ids."""
        held = {broker for facts in self.current.partitions.values() for broker in facts.partition.replicas}
        return [self._broker(broker_id) for broker_id in sorted(held | self.current.brokers.keys())]

    def _broker(self, broker_id: int) -> BrokerRow:
        alive = self.current.brokers.get(broker_id)
        led = [
            place for place, facts in self.current.partitions.items() if facts.partition.leader == broker_id
        ]
        held = [facts for facts in self.current.partitions.values() if broker_id in facts.partition.replicas]
        return BrokerRow(
            broker_id,
            "" if alive is None else alive.address,
            "dead" if alive is None else None,
            len(led),
            len(held),
            sum(broker_id not in facts.partition.isr for facts in held),
            None if alive is None else alive.disk_bytes,
            total(self._records[place] for place in led),
            total(self._bytes[place] for place in led),
        )

    def topics(self) -> list[TopicRow]:
        """Returns the topics, those with faults first, then those with the most records per second."""
        by_topic: dict[str, list[TopicPartition]] = {}
        for place in self.current.partitions:
            by_topic.setdefault(place.topic, []).append(place)
        rows = [self._topic(topic, places) for topic, places in by_topic.items()]
        return sorted(
            rows, key=lambda row: (-row.offline, -row.missing_replicas, -(row.records_per_s or 0), row.topic)
        )

    def _topic(self, topic: str, places: list[TopicPartition]) -> TopicRow:
        facts = [self.current.partitions[place] for place in places]
        sizes = [each.size_bytes for each in facts if each.size_bytes is not None]
        return TopicRow(
            topic,
            len(places),
            sum(each.missing_replicas for each in facts),
            sum(each.partition.is_offline for each in facts),
            sum(sizes) if sizes else None,
            total(self._records[place] for place in places),
            total(self._bytes[place] for place in places),
        )

    def groups(self) -> list[GroupRow]:
        """Returns the groups, those with the greatest lag first."""
        rows = [self._group(name, facts) for name, facts in self.current.groups.items()]
        return sorted(rows, key=lambda row: (-(row.lag or 0), row.group))

    def _group(self, name: str, facts: GroupFacts) -> GroupRow:
        before = self._groups_before.get(name)
        lags = list(self._lags(facts))
        earlier = {} if before is None else before.committed
        consumed = total(self._rate(earlier.get(place), offset) for place, offset in facts.committed.items())
        produced = total(self._records.get(place) for place in facts.committed)
        lag = total_of(lags)
        return GroupRow(
            name,
            facts.group_type or None,
            facts.state,
            len({*facts.committed, *(facts.share_lags or ())}),
            lag,
            max(lags, default=None),
            facts.uncommitted,
            beyond_end_count(lags),
            consumed,
            catch_up_s(lag, consumed, produced),
        )

    def _lags(self, facts: GroupFacts) -> Iterator[int]:
        if facts.share_lags is not None:
            yield from facts.share_lags.values()
            return
        for place, committed in facts.committed.items():
            partition = self.current.partitions.get(place)
            end = None if partition is None else partition.high_watermark
            lag = PartitionLag(committed, end, end).lag
            if lag is not None:
                yield lag


def catch_up_s(lag: int | None, consumed_per_s: float | None, produced_per_s: float | None) -> float | None:
    """Returns the seconds until the lag is gone: 0 without lag, None if it is unknown or never."""
    if lag is None:
        return None
    if lag == 0:
        return 0.0
    gained = (consumed_per_s or 0) - (produced_per_s or 0)
    return lag / gained if gained > 0 else None


class EndOffsets(NamedTuple):
    """The end offsets of partitions at one time."""

    at_ms: MonotonicMs
    ends: Mapping[TopicPartition, int]


def records_per_second(before: EndOffsets | None, now: EndOffsets) -> dict[str, float]:
    """Returns the rate of each topic, from the partitions that both readings know.

    A partition whose end went back belongs to a topic that was created again, and counts as 0.
    """
    if before is None or now.at_ms <= before.at_ms:
        return {}
    grown: dict[str, int] = {}
    for partition, end in now.ends.items():
        if partition in before.ends:
            more = max(0, end - before.ends[partition])
            grown[partition.topic] = grown.get(partition.topic, 0) + more
    seconds = (now.at_ms - before.at_ms) / 1000
    return {topic: count / seconds for topic, count in grown.items()}


def summary_text(found: ClusterSummary) -> str:
    """Returns one line about the whole cluster."""
    faults = []
    if found.missing_replicas:
        faults.append(f"{counted(found.missing_replicas, 'replica')} missing")
    if found.offline:
        faults.append(f"{counted(found.offline, 'partition')} offline")
    return (
        f"{counted(found.brokers, 'broker')}, controller {found.controller}, "
        f"{counted(found.topics, 'topic')}, "
        f"{counted(found.partitions, 'partition')}, {', '.join(faults) or 'all replicas in sync'}, "
        f"{short(found.records_per_s)} records/s, {short(found.bytes_per_s)}B/s"
    )
