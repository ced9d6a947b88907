"""The coordinator's own assignors, `uniform` and `range` (KIP-848).

Both assign every partition of a subscribed topic to exactly one subscriber, move as few partitions as balance
allows, and return the same result for the same input. They ignore racks, as Kafka 4.3's assignors do. A
change of racks only causes another assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from tidelog.group_coordinator.groups.modern_group import Assignment
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
    owners = _owners(members)
    for (count, numbers), topic_ids in alike.items():
        subscribers = sorted(chain.from_iterable(positions[n] for n in numbers))
        kept = _majority_owners([owners.get(topic_id, ()) for topic_id in topic_ids], count)
        for at, partitions in _split(subscribers, kept, count).items():
            given[members[at].member_id].update(dict.fromkeys(topic_ids, frozenset(partitions)))
    return dict(given)


_Owner: TypeAlias = tuple[int, frozenset[int]]
"""The position of a member, and its partitions of a topic."""


def _owners(members: Sequence[MemberSpec]) -> dict[UUID, list[_Owner]]:
    """Returns the previous owners of each topic that still subscribe to it, in their order."""
    found: dict[UUID, list[_Owner]] = {}
    for at, member in enumerate(members):
        for topic_id, partitions in member.assigned.items():
            if topic_id in member.topics:
                found.setdefault(topic_id, []).append((at, partitions))
    return found


def _split(subscribers: Sequence[int], kept: Mapping[int, set[int]], count: int) -> dict[int, set[int]]:
    """Returns the partitions of each subscriber that gets some, which are the same for all alike topics.

    `kept` has the partitions that previous owners may keep.
    """
    least, with_one_more = divmod(count, len(subscribers))
    # Among members with equal loads the first ones get one more.
    by_load = sorted(kept, key=lambda at: (-len(kept[at]), at))
    others = (at for at in subscribers if at not in kept)
    more = set(islice(chain(by_load, others), with_one_more))
    nothing: set[int] = set()
    split = {
        at: set(sorted(kept.get(at, nothing))[: least + (at in more)])
        for at in (subscribers if least else sorted(more))
    }
    free = iter(sorted(set(range(count)).difference(*split.values())))
    for at, own in split.items():
        own.update(islice(free, least + (at in more) - len(own)))
    return split


def _majority_owners(owners: Sequence[Sequence[_Owner]], count: int) -> dict[int, set[int]]:
    """Gives each partition to the member that owned it in most of the topics."""
    votes: list[dict[int, int]] = [{} for _ in range(count)]
    for of_topic in owners:
        for at, partitions in of_topic:
            for partition in partitions:
                if partition < count:
                    votes[partition][at] = votes[partition].get(at, 0) + 1
    kept: dict[int, set[int]] = {}
    for partition, voted in enumerate(votes):
        if voted:
            kept.setdefault(max(voted, key=lambda at: (voted[at], -at)), set()).add(partition)
    return kept


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniformly, "range": assign_ranges}
"""The assignors by the names that members request and that `group.consumer.assignors` lists."""
