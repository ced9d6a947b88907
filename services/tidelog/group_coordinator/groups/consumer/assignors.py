"""The coordinator's own assignors, `uniform` and `range` (KIP-848).

Both assign every partition of a subscribed topic to exactly one subscriber, move as few partitions as balance
allows, and return the same result for the same input. They ignore racks, as Kafka 4.3's assignors do. A
change of racks only causes another assignment.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from tidelog.group_coordinator.groups.consumer.member import Assignment


class MemberSpec(NamedTuple):
    """A member in an assignor's input.

    `topics` holds only existing topics. `assigned` is the member's previous target assignment.
    """

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    assigned: Assignment


PartitionCounts: TypeAlias = Mapping[UUID, int]
Assignor: TypeAlias = Callable[[Sequence[MemberSpec], PartitionCounts], dict[str, Assignment]]


def assign_uniformly(members: Sequence[MemberSpec], counts: PartitionCounts) -> dict[str, Assignment]:
    """Assigns partitions so that all members have nearly equal numbers of partitions.

    The numbers differ by at most one if all members subscribe to the same topics. Otherwise they are as even
    as the subscriptions allow.
    """
    if not members:
        return {}
    members = sorted(members, key=lambda member: member.member_id)
    kept = _kept_partitions(members, counts)
    if all(member.topics == members[0].topics for member in members):
        _assign_evenly(members, counts, kept)
    else:
        assign_unevenly({member.member_id: member.topics for member in members}, counts, kept)
    return {member_id: _frozen(partitions) for member_id, partitions in kept.items()}


def _kept_partitions(
    members: Sequence[MemberSpec], counts: PartitionCounts
) -> dict[str, dict[UUID, set[int]]]:
    """Returns the previously assigned partitions that still exist and are subscribed to, each only once."""
    kept: dict[str, dict[UUID, set[int]]] = {}
    taken: dict[UUID, set[int]] = {}
    for member in members:
        own = kept[member.member_id] = {}
        for topic_id, partitions in member.assigned.items():
            if topic_id not in member.topics:
                continue
            count = counts[topic_id]
            taken_of_topic = taken.setdefault(topic_id, set())
            still = {partition for partition in partitions if partition < count} - taken_of_topic
            if still:
                taken_of_topic |= still
                own[topic_id] = still
    return kept


def _assign_evenly(
    members: Sequence[MemberSpec], counts: PartitionCounts, kept: dict[str, dict[UUID, set[int]]]
) -> None:
    topics = sorted(members[0].topics)
    least, with_one_more = divmod(sum(counts[topic_id] for topic_id in topics), len(members))
    loads = {
        member_id: sum(len(partitions) for partitions in own.values()) for member_id, own in kept.items()
    }
    # The members with the most partitions get one more than the others, so that fewer partitions move.
    by_load = sorted(kept, key=lambda member_id: -loads[member_id])
    quotas = {member_id: least + (at < with_one_more) for at, member_id in enumerate(by_load)}
    for member_id, own in kept.items():
        _give_up(own, loads[member_id] - quotas[member_id])
    free = _free_partitions(topics, counts, kept)
    at = 0
    for member_id, own in kept.items():
        for topic_id, partition in free[at : at + max(0, quotas[member_id] - loads[member_id])]:
            own.setdefault(topic_id, set()).add(partition)
            at += 1


def _give_up(own: dict[UUID, set[int]], excess: int) -> None:
    """Removes `excess` partitions, always from the topic with the most, so that the rest is spread evenly."""
    for _ in range(excess):
        topic_id = max(own, key=lambda candidate: (len(own[candidate]), candidate))
        own[topic_id].remove(max(own[topic_id]))
        if not own[topic_id]:
            del own[topic_id]


def _free_partitions(
    topics: Sequence[UUID], counts: PartitionCounts, kept: Mapping[str, Mapping[UUID, set[int]]]
) -> list[tuple[UUID, int]]:
    taken: dict[UUID, set[int]] = {topic_id: set() for topic_id in topics}
    for own in kept.values():
        for topic_id, partitions in own.items():
            taken[topic_id] |= partitions
    return [
        (topic_id, partition)
        for topic_id in topics
        for partition in range(counts[topic_id])
        if partition not in taken[topic_id]
    ]


def _frozen(partitions: Mapping[UUID, set[int]]) -> Assignment:
    return {topic_id: frozenset(found) for topic_id, found in partitions.items() if found}


def assign_ranges(members: Sequence[MemberSpec], counts: PartitionCounts) -> dict[str, Assignment]:
    """Splits each topic over its subscribers, whose numbers of partitions differ by at most one.

    Topics with the same subscribers and number of partitions are split identically, so that a client can join
    them. A first assignment gives each member adjacent partitions.
    """
    members = sorted(
        members, key=lambda member: (member.instance_id is None, member.instance_id or "", member.member_id)
    )
    given: dict[str, dict[UUID, frozenset[int]]] = {member.member_id: {} for member in members}
    alike: dict[tuple[int, tuple[int, ...]], list[UUID]] = {}
    for topic_id in sorted({topic_id for member in members for topic_id in member.topics}):
        subscribers = tuple(at for at, member in enumerate(members) if topic_id in member.topics)
        alike.setdefault((counts[topic_id], subscribers), []).append(topic_id)
    for (count, subscribers), topic_ids in alike.items():
        chosen = [members[at] for at in subscribers]
        for member, partitions in zip(chosen, _split(chosen, topic_ids, count), strict=True):
            if partitions:
                given[member.member_id].update(dict.fromkeys(topic_ids, frozenset(partitions)))
    return dict(given)


def _split(members: Sequence[MemberSpec], topic_ids: Sequence[UUID], count: int) -> list[set[int]]:
    """Returns the partitions of each member, which are the same for all of the topics."""
    kept = _majority_owners(members, topic_ids, count)
    least, with_one_more = divmod(count, len(members))
    # The sort is stable: among members with equal loads the first ones get one more.
    by_load = sorted(range(len(members)), key=lambda at: -len(kept[at]))
    quotas = [least] * len(members)
    for at in by_load[:with_one_more]:
        quotas[at] += 1
    split = [set(sorted(own)[:quota]) for own, quota in zip(kept, quotas, strict=True)]
    free = iter(sorted(set(range(count)).difference(*split)))
    for own, quota in zip(split, quotas, strict=True):
        while len(own) < quota:
            own.add(next(free))
    return split


def _majority_owners(members: Sequence[MemberSpec], topic_ids: Sequence[UUID], count: int) -> list[set[int]]:
    """Gives each partition to the member that owned it in most of the topics."""
    votes: list[dict[int, int]] = [{} for _ in range(count)]
    for at, member in enumerate(members):
        for topic_id in topic_ids:
            for partition in member.assigned.get(topic_id, ()):
                if partition < count:
                    votes[partition][at] = votes[partition].get(at, 0) + 1
    kept: list[set[int]] = [set() for _ in members]
    for partition, voted in enumerate(votes):
        if voted:
            kept[max(voted, key=lambda at: (voted[at], -at))].add(partition)
    return kept


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniformly, "range": assign_ranges}
"""The assignors by the names that members request and that `group.consumer.assignors` lists."""


def assign_unevenly(
    subscriptions: Mapping[str, frozenset[UUID]],
    counts: Mapping[UUID, int],
    kept: dict[str, dict[UUID, set[int]]],
) -> None:
    """Completes and balances `kept`, the previous assignments of the members in `subscriptions`.

    This is an optimal semi-matching (Harvey, Ladner, Lovász, Tamir 2003). Partitions move along chains of
    members as long as the last member of a chain has at least two partitions fewer than the first. The result
    has the minimum sum of squared loads.
    """
    _Balancer(subscriptions, kept).run(counts)


class _Balancer:
    """The state of one balancing run."""

    def __init__(
        self, subscriptions: Mapping[str, frozenset[UUID]], owned: dict[str, dict[UUID, set[int]]]
    ) -> None:
        self._subscriptions = subscriptions
        self._owned = owned
        self._loads = {member_id: sum(map(len, own.values())) for member_id, own in owned.items()}
        self._subscribers: dict[UUID, list[str]] = {}
        for member_id, topics in subscriptions.items():
            for topic_id in topics:
                self._subscribers.setdefault(topic_id, []).append(member_id)
        self._before = {
            (topic_id, partition): member_id
            for member_id, own in owned.items()
            for topic_id, partitions in own.items()
            for partition in partitions
        }

    def run(self, counts: Mapping[UUID, int]) -> None:
        self._fill(counts)
        while any(map(self._reduce_load, sorted(self._loads, key=lambda member_id: -self._loads[member_id]))):
            pass
        self._return_moved()

    def _fill(self, counts: Mapping[UUID, int]) -> None:
        """Assigns free partitions. Topics with few subscribers come first, because they have least choice."""
        for topic_id in sorted(
            self._subscribers, key=lambda topic_id: (len(self._subscribers[topic_id]), topic_id)
        ):
            least = [(self._loads[member_id], member_id) for member_id in self._subscribers[topic_id]]
            heapq.heapify(least)
            for partition in range(counts[topic_id]):
                if (topic_id, partition) not in self._before:
                    load, member_id = least[0]
                    self._give(member_id, topic_id, partition)
                    heapq.heapreplace(least, (load + 1, member_id))

    def _give(self, member_id: str, topic_id: UUID, partition: int) -> None:
        self._owned[member_id].setdefault(topic_id, set()).add(partition)
        self._loads[member_id] += 1

    def _reduce_load(self, loaded: str) -> bool:
        """Moves partitions along a chain that begins at this member, if that improves the balance."""
        if self._loads[loaded] < min(self._loads.values()) + 2:
            return False
        reached_by: dict[str, tuple[str, UUID] | None] = {loaded: None}
        seen_topics: set[UUID] = set()
        waiting = deque([loaded])
        while waiting:
            giver = waiting.popleft()
            for topic_id, partitions in self._owned[giver].items():
                if not partitions or topic_id in seen_topics:
                    continue
                seen_topics.add(topic_id)
                for taker in self._subscribers[topic_id]:
                    if taker in reached_by:
                        continue
                    reached_by[taker] = (giver, topic_id)
                    if self._loads[taker] + 2 <= self._loads[loaded]:
                        self._move_along_chain(taker, reached_by)
                        return True
                    waiting.append(taker)
        return False

    def _move_along_chain(self, last: str, reached_by: Mapping[str, tuple[str, UUID] | None]) -> None:
        taker = last
        while (step := reached_by[taker]) is not None:
            giver, topic_id = step
            partition = self._cheapest(giver, taker, topic_id)
            self._move(giver, taker, topic_id, partition)
            taker = giver

    def _return_moved(self) -> None:
        """Returns moved partitions to their previous owners where the balance stays the same.

        A partition returns alone if the previous owner has fewer partitions. Otherwise the two members swap
        it for a partition that the previous owner did not own before.
        """
        for taker in sorted(self._owned):
            own = self._owned[taker]
            for topic_id in sorted(own):
                for partition in sorted(own[topic_id]):
                    before = self._before.get((topic_id, partition), taker)
                    if before == taker:
                        continue
                    if self._loads[before] < self._loads[taker]:
                        self._move(taker, before, topic_id, partition)
                    elif (other := self._newly_owned(before, taker)) is not None:
                        self._move(taker, before, topic_id, partition)
                        self._move(before, taker, *other)

    def _move(self, giver: str, taker: str, topic_id: UUID, partition: int) -> None:
        self._owned[giver][topic_id].remove(partition)
        self._loads[giver] -= 1
        self._give(taker, topic_id, partition)

    def _newly_owned(self, giver: str, taker: str) -> tuple[UUID, int] | None:
        for topic_id in sorted(self._owned[giver].keys() & self._subscriptions[taker]):
            for partition in sorted(self._owned[giver][topic_id]):
                if self._before.get((topic_id, partition)) != giver:
                    return topic_id, partition
        return None

    def _cheapest(self, giver: str, taker: str, topic_id: UUID) -> int:
        """Returns a partition that the taker owned before, or else one that the giver did not own before."""

        def cost(partition: int) -> tuple[int, int]:
            owner = self._before.get((topic_id, partition))
            return (0 if owner == taker else 1 if owner != giver else 2, -partition)

        return min(self._owned[giver][topic_id], key=cost)
