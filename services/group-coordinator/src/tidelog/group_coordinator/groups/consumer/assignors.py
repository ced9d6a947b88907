"""The coordinator's own assignors, `uniform` and `range` (KIP-848).

Both give every partition of a subscribed topic to exactly one subscriber, leave partitions where they were
as far as balance allows, and give the same answer for the same question. Racks play no part, as in Kafka
4.3's; they only have the group assigned anew when they change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from tidelog.group_coordinator.groups.consumer.assignment import Assignment
from tidelog.group_coordinator.groups.consumer.uneven_subscriptions import assign_unevenly


class MemberSpec(NamedTuple):
    """`topics` holds only topics that exist; `assigned` is the target of before."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    assigned: Assignment


PartitionCounts: TypeAlias = Mapping[UUID, int]
Assignor: TypeAlias = Callable[[Sequence[MemberSpec], PartitionCounts], dict[str, Assignment]]


def assign_uniformly(members: Sequence[MemberSpec], counts: PartitionCounts) -> dict[str, Assignment]:
    """Loads that differ by one at most if all subscribe to the same; otherwise as even as subscriptions
    allow.
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
    """Of the assignment of before, what still exists and is subscribed to. Each partition is held once."""
    kept: dict[str, dict[UUID, set[int]]] = {}
    taken: dict[UUID, set[int]] = {}
    for member in members:
        own = kept[member.member_id] = {}
        for topic_id, partitions in member.assigned.items():
            if topic_id not in member.topics:
                continue
            count = counts[topic_id]
            of_topic = taken.setdefault(topic_id, set())
            still = {partition for partition in partitions if partition < count} - of_topic
            if still:
                of_topic |= still
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
    # Who has most already gets one more than the others: fewer partitions move.
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
    """From the topics it has most of: what is left is spread over topics."""
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
    """Each topic is split over its own subscribers, sizes differing by one at most. Topics with the same
    subscribers and number of partitions are split alike (they can be joined); a first assignment gives each
    member neighbouring partitions.
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
    """The partitions of each member, the same for all of the topics."""
    kept = _majority_owners(members, topic_ids, count)
    least, with_one_more = divmod(count, len(members))
    # Stable: among equals the first members get one more.
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
"""By the name that members ask for and `group.consumer.assignors` lists."""
