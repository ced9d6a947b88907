"""Measures how unevenly partitions and brokers are loaded. The module does no I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from tidelog.client.rebalance_plan import Assignment, PartitionKey
from tidelog.pipeline.analytics.series import SILENT_INTERVALS, Point


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
    def key(self) -> PartitionKey:
        return self.topic, self.partition


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
    assignment: Assignment, loads: Mapping[PartitionKey, PartitionLoad], brokers: Iterable[int]
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
