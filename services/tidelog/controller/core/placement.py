"""Which brokers a partition's replicas are put on.

The aims are those of Kafka's `AdminUtils`: leaders spread evenly, replicas spread evenly, the followers of
one broker's leaders spread over all others, and each partition on as many racks as there are, if every
broker has a rack.

The brokers stand in a ring that alternates between racks, and are dealt like cards: each partition takes the
next ones. So replicas are even at any number of partitions, not only over whole rounds, and neighbours are
on different racks. Who of the hand leads goes round as well. Racks of different sizes can't be dealt so:
there each place is given to the rack, then to the broker, that has least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from math import gcd
from typing import TypeVar

from tidelog.controller.core.decision import Chance
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.errors import ErrorCode, KafkaError

Assignments = tuple[tuple[int, ...], ...]
_Card = TypeVar("_Card")


def place_replicas(
    brokers: Sequence[BrokerRegistration],
    partition_count: int,
    replication_factor: int,
    chance: Chance,
    *,
    existing: Collection[tuple[int, ...]] = (),
) -> Assignments:
    """The replicas of `partition_count` partitions, preferred leaders first.

    `brokers` are those to choose from, `existing` what the topic has already: more partitions go where those
    are not. Raises KafkaError(INVALID_REPLICATION_FACTOR) if there are too few brokers.
    """
    count = len(brokers)
    if replication_factor > count:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor "
            f"of {replication_factor} cannot be reached because only {count} broker(s) are registered.",
        )
    start = chance.below(count)
    table = _Table([*brokers[start:], *brokers[:start]])
    for replicas in existing:
        table.count(replicas)
    if table.has_even_racks:
        return tuple(table.deal(replication_factor, turn) for turn in range(partition_count))
    return tuple(table.give(replication_factor) for _ in range(partition_count))


class _Table:
    """The racks, their brokers, and what each broker has been given so far."""

    def __init__(self, brokers: Sequence[BrokerRegistration]) -> None:
        knows_racks = all(broker.rack is not None for broker in brokers)
        self._rack_of = {b.broker_id: b.rack if knows_racks else None for b in brokers}
        self._racks: dict[str | None, list[int]] = {}
        for broker in brokers:
            self._racks.setdefault(self._rack_of[broker.broker_id], []).append(broker.broker_id)
        self._order = list(self._racks)
        self._leaders: Counter[int] = Counter()
        self._replicas: Counter[int] = Counter()
        # (leader, place after it, follower): who takes over from a leader that dies is to differ as well.
        self._followers: Counter[tuple[int, int, int]] = Counter()
        self._ring: list[int] = []

    @property
    def has_even_racks(self) -> bool:
        return len({len(members) for members in self._racks.values()}) == 1

    def count(self, replicas: tuple[int, ...]) -> None:
        leader = replicas[0]
        self._leaders[leader] += 1
        for place, broker_id in enumerate(replicas):
            self._replicas[broker_id] += 1
            self._followers[leader, place, broker_id] += 1

    def deal(self, replication_factor: int, turn: int) -> tuple[int, ...]:
        """The next hand. In as many turns as there are brokers each gets as many replicas as the others, and
        leads once.
        """
        size = len(self._rack_of)
        if turn % size == 0:
            self._ring = self._next_ring()
        hands = [self._ring[(turn * replication_factor + i) % size] for i in range(replication_factor)]
        # The same hand comes again after size / gcd turns; its next member leads then.
        repeats = gcd(size, replication_factor)
        due = hands[turn % size * repeats // size]
        leader = min(hands, key=lambda b: (self._leaders[b], b != due))
        return self._in_order(leader, [broker_id for broker_id in hands if broker_id != leader])

    def give(self, replication_factor: int) -> tuple[int, ...]:
        """Least first, for racks of different sizes."""
        leader = min(self._rack_of, key=lambda b: (self._leaders[b], self._replicas[b]))
        chosen = [leader]
        on_rack = Counter([self._rack_of[leader]])
        while len(chosen) < replication_factor:
            others = [broker_id for broker_id in self._rack_of if broker_id not in chosen]
            follower = min(others, key=lambda b: (on_rack[self._rack_of[b]], self._replicas[b]))
            chosen.append(follower)
            on_rack[self._rack_of[follower]] += 1
        return self._in_order(leader, chosen[1:])

    def _next_ring(self) -> list[int]:
        """One broker of each rack, then the next of each; those that have least come first. Each time
        another order, so that other brokers are neighbours.
        """
        racks = self._order = _shuffled(self._order)
        for steps, rack in enumerate(racks):
            members = self._racks[rack]
            turned = _shuffled(members[steps % len(members) :] + members[: steps % len(members)])
            self._racks[rack] = sorted(turned, key=lambda broker_id: self._replicas[broker_id])
        return [b for block in zip(*(self._racks[rack] for rack in racks), strict=True) for b in block]

    def _in_order(self, leader: int, followers: list[int]) -> tuple[int, ...]:
        replicas = [leader]
        while followers:
            place = len(replicas)
            following = min(followers, key=lambda b: self._followers[leader, place, b])
            followers.remove(following)
            replicas.append(following)
        self.count(tuple(replicas))
        return tuple(replicas)


def _shuffled(deck: list[_Card]) -> list[_Card]:
    """As a deck that is cut into every second card: without chance, and no neighbours stay neighbours."""
    return deck[1::2] + deck[::2]
