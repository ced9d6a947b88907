"""The coordinator's own assignors, `uniform` and `range` (KIP-848).

Both assign every partition of a subscribed topic to exactly one subscriber, move as few partitions as balance
allows, and return the same result for the same input. They ignore racks, as Kafka 4.3's assignors do. A
change of racks only causes another assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from tidelog.group_coordinator.groups.consumer.member import Assignment
from tidelog.model.balanced_assignment import balance


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
    balance({member.member_id: member.topics for member in members}, counts, kept)
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
    subscriptions: dict[frozenset[UUID], list[int]] = {}
    for at, member in enumerate(members):
        subscriptions.setdefault(member.topics, []).append(at)
    positions = list(subscriptions.values())
    containing: dict[UUID, list[int]] = {}
    for number, topics in enumerate(subscriptions):
        for topic_id in topics:
            containing.setdefault(topic_id, []).append(number)
    # Topics in the same subscriptions have the same subscribers.
    alike: dict[tuple[int, tuple[int, ...]], list[UUID]] = {}
    for topic_id in sorted(containing):
        alike.setdefault((counts[topic_id], tuple(containing[topic_id])), []).append(topic_id)
    for (count, numbers), topic_ids in alike.items():
        chosen = [members[at] for at in sorted(chain.from_iterable(positions[n] for n in numbers))]
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
    wanted = set(topic_ids)  # not a frozenset, all of which `&` would read
    for at, member in enumerate(members):
        for topic_id in member.assigned.keys() & wanted:
            for partition in member.assigned[topic_id]:
                if partition < count:
                    votes[partition][at] = votes[partition].get(at, 0) + 1
    kept: list[set[int]] = [set() for _ in members]
    for partition, voted in enumerate(votes):
        if voted:
            kept[max(voted, key=lambda at: (voted[at], -at))].add(partition)
    return kept


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniformly, "range": assign_ranges}
"""The assignors by the names that members request and that `group.consumer.assignors` lists."""
