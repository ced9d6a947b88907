"""Which brokers a partition's replicas are put on.

The aims are those of Kafka's `AdminUtils`: leaders spread evenly, replicas spread evenly, the followers of
one broker's leaders spread over all others, and each partition on as many racks as there are, if every
broker has a rack. Kafka strides round a ring, which is even over whole rounds only; here each place goes to
the broker that has least so far, so it is even at any number of partitions. More partitions of a topic go
where the ones it has are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from tidelog.controller.core.context import Chance
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.errors import ErrorCode, KafkaError

Assignments = tuple[tuple[int, ...], ...]


def place_replicas(
    brokers: Sequence[BrokerRegistration],
    partition_count: int,
    replication_factor: int,
    chance: Chance,
    *,
    existing: Collection[tuple[int, ...]] = (),
) -> Assignments:
    """The replicas of `partition_count` partitions, preferred leaders first.

    `brokers` are those to choose from, `existing` what the topic has already. Raises
    KafkaError(INVALID_REPLICATION_FACTOR) if there are too few brokers.
    """
    count = len(brokers)
    if replication_factor > count:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor "
            f"of {replication_factor} cannot be reached because only {count} broker(s) are registered.",
        )
    start = chance.below(count)
    spread = _Spread([*brokers[start:], *brokers[:start]])
    for replicas in existing:
        spread.count(replicas)
    return tuple(spread.place(replication_factor) for _ in range(partition_count))


class _Spread:
    """What each broker has been given; ties go to the one that comes first in the ring."""

    def __init__(self, ring: Sequence[BrokerRegistration]) -> None:
        knows_racks = all(broker.rack is not None for broker in ring)
        self._racks = {b.broker_id: b.rack if knows_racks else None for b in ring}
        self._ring = _alternating(ring) if knows_racks else [broker.broker_id for broker in ring]
        self._place = {broker_id: index for index, broker_id in enumerate(self._ring)}
        self._leaders: Counter[int] = Counter()
        self._replicas: Counter[int] = Counter()
        # (leader, place after it, follower): who takes over from a leader that dies is to differ as well.
        self._followers: Counter[tuple[int, int, int]] = Counter()

    def place(self, replication_factor: int) -> tuple[int, ...]:
        leader = min(self._ring, key=lambda b: (self._leaders[b], self._replicas[b], self._place[b]))
        chosen = [leader]
        racks = Counter([self._racks[leader]])
        while len(chosen) < replication_factor:
            follower = min(
                (broker_id for broker_id in self._ring if broker_id not in chosen),
                key=lambda b: (
                    racks[self._racks[b]],
                    self._replicas[b],
                    self._followers[leader, len(chosen), b],
                    self._distance(leader, b),
                ),
            )
            chosen.append(follower)
            racks[self._racks[follower]] += 1
        replicas = tuple(chosen)
        self.count(replicas)
        return replicas

    def count(self, replicas: tuple[int, ...]) -> None:
        leader = replicas[0]
        self._leaders[leader] += 1
        for place, broker_id in enumerate(replicas):
            self._replicas[broker_id] += 1
            self._followers[leader, place, broker_id] += 1

    def _distance(self, leader: int, broker_id: int) -> int:
        return (self._place[broker_id] - self._place[leader]) % len(self._ring)


def _alternating(brokers: Sequence[BrokerRegistration]) -> list[int]:
    """One broker of each rack, then the second of each, and so on."""
    by_rack: dict[str | None, list[int]] = {}
    for broker in brokers:
        by_rack.setdefault(broker.rack, []).append(broker.broker_id)
    longest = max(map(len, by_rack.values()), default=0)
    return [members[i] for i in range(longest) for members in by_rack.values() if i < len(members)]
