"""The load of partitions and brokers, how uneven it is, and a reassignment plan that balances what brokers
store, write and lead, and that copies few bytes. The module does no I/O.

`tidelog rebalance` counts replicas. This plan weighs them by the metrics' history. The load of a broker is
its share of all stored bytes plus its share of all written bytes. A partition stays on as many racks as
before. The algorithm is a local search that moves single replicas or exchanges two, as long as this reduces
the load of the most loaded broker.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Final

from tidelog.client.admin.reassignments import Assignment, Move, PlanError, after_moves, plan_moves
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.analytics.facts import SILENT_INTERVALS, Point

TOLERANCE: Final = 0.1
"""A broker may exceed the mean load by this factor."""
MAX_CHANGES: Final = 1000
_LEAST_GAIN: Final = 0.02
"""The minimum gain of a move, as a fraction of the mean load. A smaller gain is not worth a copy."""
_EXCHANGE_WORTH: Final = 0.8
"""The minimum gain of an exchange. An exchange copies two replicas, so it must gain more than a move."""
_CANDIDATES: Final = 200
_EPSILON: Final = 1e-9


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """`holders` are the brokers with a replica, with the preferred leader first if it is known."""

    topic: str
    partition: int
    leader: int | None
    replicas: int
    holders: tuple[int, ...]
    bytes: float
    records: float
    records_per_s: float
    bytes_per_s: float

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class TopicSkew:
    """`*_over_mean` is the largest partition's share over an equal share. 1 means even."""

    topic: str
    partitions: int
    bytes: float
    records_per_s: float
    bytes_over_mean: float
    rate_over_mean: float
    rate_variation: float
    hottest_partition: int


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """`written_bytes_per_s` counts writes to all replicas, `led_bytes_per_s` writes to the preferred
    leaders.
    """

    broker: int
    replicas: int
    leaders: int
    bytes: float
    written_bytes_per_s: float
    led_bytes_per_s: float


def holders_of(
    told: Mapping[int, Sequence[Point]],
    replicas: int,
    leader: int | None,
    *,
    leads_as_preferred: bool,
    history_end_ms: int,
    interval_ms: int,
) -> tuple[int, ...]:
    """Returns the brokers with a replica: those that last reported the size of the log, as many as there are
    replicas.

    Only the preferred leader's place in the order can be known. The other brokers are sorted.
    """
    newest = {broker: points[-1][0] for broker, points in told.items() if points}
    recent_ms = history_end_ms - SILENT_INTERVALS * interval_ms
    holders = [broker for broker, at_ms in newest.items() if at_ms >= recent_ms]
    silent = sorted((b for b in newest if b not in holders), key=lambda b: -newest[b])
    holders += silent[: max(0, replicas - len(holders))]
    holders.sort()
    if leads_as_preferred and leader in holders:
        holders.remove(leader)
        holders.insert(0, leader)
    return tuple(holders)


def topic_skews(loads: Iterable[PartitionLoad]) -> list[TopicSkew]:
    """Returns the skew of each topic, the most uneven first."""
    by_topic: dict[str, list[PartitionLoad]] = defaultdict(list)
    for load in loads:
        by_topic[load.topic].append(load)
    found = []
    for topic, rows in by_topic.items():
        rates = [row.records_per_s for row in rows]
        mean_rate, mean_bytes = fmean(rates), fmean(row.bytes for row in rows)
        found.append(
            TopicSkew(
                topic,
                len(rows),
                sum(row.bytes for row in rows),
                sum(rates),
                max(row.bytes for row in rows) / mean_bytes if mean_bytes else 1.0,
                max(rates) / mean_rate if mean_rate else 1.0,
                pstdev(rates) / mean_rate if mean_rate else 0.0,
                max(rows, key=lambda row: (row.records_per_s, row.bytes)).partition,
            )
        )
    return sorted(found, key=lambda skew: (-skew.rate_over_mean, -skew.bytes_over_mean, skew.topic))


def broker_loads(
    assignment: Assignment, loads: Mapping[TopicPartition, PartitionLoad], brokers: Iterable[int]
) -> list[BrokerLoad]:
    """Returns the load of each broker with this assignment, if each partition is led by its preferred
    leader.
    """
    replicas, leaders = Counter[int](), Counter[int]()
    stored, written, led = (defaultdict[int, float](float) for _ in range(3))
    for key, members in assignment.items():
        load = loads.get(key)
        for place, broker in enumerate(members):
            replicas[broker] += 1
            leaders[broker] += place == 0
            if load is not None:
                stored[broker] += load.bytes
                written[broker] += load.bytes_per_s
                led[broker] += load.bytes_per_s if place == 0 else 0.0
    return [
        BrokerLoad(b, replicas[b], leaders[b], stored[b], written[b], led[b])
        for b in sorted({*brokers, *replicas})
    ]


def over_mean(values: Sequence[float]) -> float:
    """Returns the greatest value over the mean. 1 means even. The result is 1 for no load at all."""
    mean = fmean(values) if values else 0.0
    return max(values) / mean if mean else 1.0


@dataclass(slots=True)
class _Scale:
    """The current assignment during the search, and the load of each broker."""

    racks: Mapping[int, str | None]
    weights: Mapping[TopicPartition, float]
    replicas: dict[TopicPartition, list[int]]
    load: dict[int, float] = field(default_factory=dict)
    held: dict[int, set[TopicPartition]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.load = dict.fromkeys(self.racks, 0.0)
        self.held = {broker: set() for broker in self.racks}
        for key, members in self.replicas.items():
            for broker in members:
                self.load[broker] += self.weights.get(key, 0.0)
                self.held[broker].add(key)

    def may_move(self, key: TopicPartition, old: int, new: int) -> bool:
        """Returns True if broker `new` has no replica of the partition yet and the partition stays on as many
        racks.
        """
        members = self.replicas[key]
        if new in members:
            return False
        return self._rack_count([new if b == old else b for b in members]) >= self._rack_count(members)

    def _rack_count(self, members: Collection[int]) -> int:
        return len({self.racks.get(b) or f"\0{b}" for b in members})

    def move(self, key: TopicPartition, old: int, new: int) -> None:
        members = self.replicas[key]
        members[members.index(old)] = new
        weight = self.weights.get(key, 0.0)
        self.load[old] -= weight
        self.load[new] += weight
        self.held[old].remove(key)
        self.held[new].add(key)


def plan_by_load(
    current: Assignment,
    racks: Mapping[int, str | None],
    loads: Mapping[TopicPartition, PartitionLoad],
    leaving: Collection[int] = (),
) -> list[Move]:
    """Plans moves. `racks` names the live brokers. Replicas leave the brokers in `leaving` first. A partition
    without a load weighs nothing.

    Raises PlanError like `plan_moves`.
    """
    forced = plan_moves(current, racks, leaving, evens_out=False) if leaving else []
    if not leaving:
        plan_moves(current, racks, evens_out=False)  # raises PlanError if no plan is possible
    staying = {broker: rack for broker, rack in sorted(racks.items()) if broker not in leaving}
    assignment = {key: list(members) for key, members in sorted(after_moves(current, forced).items())}
    scale = _Scale(staying, weights_of(loads), assignment)
    for _ in range(MAX_CHANGES):
        if not _improve(scale):
            break
    _even_leaders(scale.replicas, loads, staying)
    return [
        Move(*place, tuple(current[place]), tuple(members))
        for place, members in scale.replicas.items()
        if tuple(members) != tuple(current[place])
    ]


def weights_of(loads: Mapping[TopicPartition, PartitionLoad]) -> dict[TopicPartition, float]:
    """Returns the weight of one replica: its share of all stored bytes plus its share of all written
    bytes.
    """
    stored = sum(load.bytes for load in loads.values())
    written = sum(load.bytes_per_s for load in loads.values())
    return {
        key: (load.bytes / stored if stored else 0.0) + (load.bytes_per_s / written if written else 0.0)
        for key, load in loads.items()
    }


def copied_bytes(moves: Collection[Move], loads: Mapping[TopicPartition, PartitionLoad]) -> float:
    """Returns the number of bytes that brokers copy for the plan."""
    return sum(len(move.adding) * loads[move.place].bytes for move in moves if move.place in loads)


def _improve(scale: _Scale) -> bool:
    """Makes one useful change for the most loaded broker that has one. Returns False if no broker has one."""
    mean = sum(scale.load.values()) / len(scale.load)
    for hot in sorted(scale.load, key=lambda b: (-scale.load[b], b)):
        if scale.load[hot] <= mean * (1 + TOLERANCE):
            return False
        for cold in sorted(scale.load, key=lambda b: (scale.load[b], b)):
            if scale.load[cold] >= mean:
                break
            change = _best_change(scale, hot, cold, _LEAST_GAIN * mean)
            if change is not None:
                given, taken = change
                scale.move(given, hot, cold)
                if taken is not None:
                    scale.move(taken, cold, hot)
                return True
    return False


def _best_change(
    scale: _Scale, hot: int, cold: int, least_gain: float
) -> tuple[TopicPartition, TopicPartition | None] | None:
    """Returns the change that brings the two brokers' loads closest: a replica moved, or exchanged for a
    lighter one.
    """
    gap = scale.load[hot] - scale.load[cold]
    found: tuple[float, TopicPartition, TopicPartition | None] | None = None
    gives = sorted(
        (key for key in scale.held[hot] if scale.may_move(key, hot, cold)),
        key=lambda key: (-scale.weights.get(key, 0.0), key),
    )[:_CANDIDATES]
    takes = sorted(
        (key for key in scale.held[cold] if scale.may_move(key, cold, hot)),
        key=lambda key: (scale.weights.get(key, 0.0), key),
    )[:_CANDIDATES]
    for given in gives:
        for taken in (None, *takes):
            shift = scale.weights.get(given, 0.0) - (0.0 if taken is None else scale.weights.get(taken, 0.0))
            # Both loads approach their mean only if less than the whole difference changes sides.
            gain = min(shift, gap - shift)
            if gain < max(least_gain, _EPSILON):
                continue
            rated = gain if taken is None else gain * _EXCHANGE_WORTH
            if found is None or rated > found[0]:
                found = (rated, given, taken)
    return None if found is None else found[1:]


def _even_leaders(
    replicas: dict[TopicPartition, list[int]],
    loads: Mapping[TopicPartition, PartitionLoad],
    brokers: Collection[int],
) -> None:
    """Reorders replicas, heavy partitions first, as long as this reduces the larger of two leaders' loads.

    The load of a leader is the bytes written to its partitions plus a small amount for each partition.
    """
    heaviest = max((load.bytes_per_s for load in loads.values()), default=0.0) or 1.0
    weight = {key: (loads[key].bytes_per_s if key in loads else 0.0) + heaviest / 1000 for key in replicas}
    led: dict[int, float] = dict.fromkeys(brokers, 0.0)
    for key, members in replicas.items():
        led[members[0]] += weight[key]
    mean = sum(led.values()) / len(led)
    order = sorted(replicas, key=lambda key: (-weight[key], key))
    for _ in range(len(led)):
        is_changed = False
        for key in order:
            members = replicas[key]
            least = min(members, key=lambda b: (led[b], b))
            gain = led[members[0]] - led[least] - weight[key]
            if led[members[0]] > mean * (1 + TOLERANCE) and gain > _LEAST_GAIN * mean:
                led[members[0]] -= weight[key]
                led[least] += weight[key]
                members.remove(least)
                members.insert(0, least)
                is_changed = True
        if not is_changed:
            return


@dataclass(frozen=True, slots=True)
class Proposal:
    """`refused` is the reason why there is no plan. `left_out` counts partitions whose replicas are not all
    known.
    """

    moves: tuple[Move, ...]
    before: tuple[BrokerLoad, ...]
    after: tuple[BrokerLoad, ...]
    copied_bytes: float
    left_out: int
    refused: str | None = None


def told_assignment(loads: Iterable[PartitionLoad]) -> tuple[dict[TopicPartition, tuple[int, ...]], int]:
    """Returns the assignment of partitions whose replicas are all known, and the number of the other
    partitions.
    """
    found: dict[TopicPartition, tuple[int, ...]] = {}
    left_out = 0
    for load in loads:
        if load.holders and len(load.holders) == load.replicas:
            found[load.key] = load.holders
        else:
            left_out += 1
    return found, left_out


def propose(
    loads: Collection[PartitionLoad],
    racks: Mapping[int, str | None],
    *,
    assignment: Assignment | None = None,
    leaving: Collection[int] = (),
) -> Proposal:
    """Proposes a plan. `assignment` is the cluster's assignment, or None to use the metrics. `racks` names
    the live brokers.
    """
    left_out = 0
    if assignment is None:
        assignment, left_out = told_assignment(loads)
    by_key = {load.key: load for load in loads}
    refused = None
    moves: list[Move] = []
    try:
        moves = plan_by_load(assignment, racks, by_key, leaving)
    except PlanError as error:
        refused = str(error)
    after = after_moves(assignment, moves)
    return Proposal(
        tuple(moves),
        tuple(broker_loads(assignment, by_key, racks)),
        tuple(broker_loads(after, by_key, racks)),
        copied_bytes(moves, by_key),
        left_out,
        refused,
    )
