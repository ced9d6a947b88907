"""The assignors of the classic protocol, which the leader of a group runs: Kafka's `range`, `roundrobin`,
`sticky` and `cooperative-sticky`.

`range` and `roundrobin` give what Kafka's classes give, without racks. The sticky ones are as even as Kafka's
and move as few partitions, but they may choose other partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Final, NamedTuple

from tidelog.client.core.cluster_view import partitions_by_topic
from tidelog.model.balanced_assignment import balance
from tidelog.model.topics import TopicPartition


class Subscriber(NamedTuple):
    """A member in an assignor's input.

    `owned` is what the member had in `generation`. Of two members that claim a partition, the one of the
    newer generation keeps it.
    """

    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1

    @property
    def rank(self) -> tuple[bool, str]:
        """The place in Kafka's order of members: static members first."""
        return (self.instance_id is None, self.instance_id or self.member_id)


Assigned = dict[str, list[TopicPartition]]
"""The partitions of each member."""
Assignor = Callable[[Sequence[Subscriber], Mapping[str, int]], Assigned]
"""It gets the members and the numbers of partitions of the topics that exist."""


def assign_ranges(members: Sequence[Subscriber], counts: Mapping[str, int]) -> Assigned:
    """Splits each topic into ranges. The first members get one partition more. Source: RangeAssignor."""
    given: Assigned = {member.member_id: [] for member in members}
    for topic in sorted(counts):
        chosen = sorted((member for member in members if topic in member.topics), key=lambda each: each.rank)
        if not chosen:
            continue
        least, with_one_more = divmod(counts[topic], len(chosen))
        start = 0
        for at, member in enumerate(chosen):
            end = start + least + (at < with_one_more)
            given[member.member_id] += [TopicPartition(topic, index) for index in range(start, end)]
            start = end
    return given


def assign_in_turn(members: Sequence[Subscriber], counts: Mapping[str, int]) -> Assigned:
    """Deals all partitions out, one to each subscriber in turn. Source: RoundRobinAssignor."""
    given: Assigned = {member.member_id: [] for member in members}
    turn = cycle(sorted(members, key=lambda each: each.rank))
    subscribed = {topic for member in members for topic in member.topics}
    for topic in sorted(subscribed & counts.keys()):
        for index in range(counts[topic]):
            member = next(member for member in turn if topic in member.topics)
            given[member.member_id].append(TopicPartition(topic, index))
    return given


def assign_sticky(members: Sequence[Subscriber], counts: Mapping[str, int]) -> Assigned:
    """Balances the partitions and moves as few as possible. Source of the rule: StickyAssignor."""
    if not members:
        return {}
    members = sorted(members, key=lambda each: each.rank)
    kept: dict[str, dict[str, set[int]]] = {member.member_id: {} for member in members}
    for place, owner in _owners(members, counts).items():
        kept[owner].setdefault(place.topic, set()).add(place.partition)
    existing = frozenset(counts)
    balance({member.member_id: member.topics & existing for member in members}, counts, kept)
    return {
        member_id: [TopicPartition(topic, index) for topic in sorted(own) for index in sorted(own[topic])]
        for member_id, own in kept.items()
    }


def assign_cooperatively(members: Sequence[Subscriber], counts: Mapping[str, int]) -> Assigned:
    """Assigns as `sticky` does, but gives a partition that moves to nobody yet, because its owner still reads
    it. The owner gives it up and joins again; the next assignment gives it away. Source:
    CooperativeStickyAssignor.
    """
    given = assign_sticky(members, counts)
    claimed: dict[TopicPartition, set[str]] = {}
    for member in members:
        for place in member.owned:
            claimed.setdefault(place, set()).add(member.member_id)
    return {
        member_id: [place for place in places if member_id in claimed.get(place, (member_id,))]
        for member_id, places in given.items()
    }


def _owners(members: Iterable[Subscriber], counts: Mapping[str, int]) -> dict[TopicPartition, str]:
    """Returns who may keep which partition. A partition that two members claim for the same generation has no
    owner.
    """
    owners: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        for place in member.owned:
            if place.topic not in member.topics or place.partition >= counts.get(place.topic, 0):
                continue
            generation = owners.get(place, (member.generation - 1, None))[0]
            if member.generation > generation:
                owners[place] = (member.generation, member.member_id)
            elif member.generation == generation:
                owners[place] = (generation, None)
    return {place: owner for place, (_, owner) in owners.items() if owner is not None}


class Strategy(NamedTuple):
    """An assignor and the rebalances that it permits."""

    assign: Assignor
    is_cooperative: bool = False
    """Whether members may keep partitions while they join (KIP-429)."""


STRATEGIES: Final[Mapping[str, Strategy]] = {
    "range": Strategy(assign_ranges),
    "roundrobin": Strategy(assign_in_turn),
    "sticky": Strategy(assign_sticky),
    "cooperative-sticky": Strategy(assign_cooperatively, is_cooperative=True),
}
"""The assignors by the names that members exchange."""
CLASSES: Final[Mapping[str, str]] = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.StickyAssignor": "sticky",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}
"""The names of Kafka's classes, which `partition.assignment.strategy` accepts, too."""


def assignment_rows(places: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Groups partitions by topic, in order."""
    return sorted((topic, sorted(found)) for topic, found in partitions_by_topic(places).items())
