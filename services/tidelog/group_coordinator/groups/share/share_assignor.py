"""The assignor of share groups, `simple`: each partition has a consumer, and the consumers have equal loads.

Unlike a consumer group, a share group may give one partition to several members, and does so if there are
more members than partitions. The result follows from the subscriptions and the assignment before; it moves as
little as the balance allows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from tidelog.group_coordinator.groups.consumer.member import Assignment

SIMPLE: Final = "simple"

_A = TypeVar("_A", bound=Hashable)
_B = TypeVar("_B", bound=Hashable)

_Partition = tuple[UUID, int]


class ShareMemberSpec(NamedTuple):
    """A member as the assignor sees it."""

    member_id: str
    topic_ids: frozenset[UUID]
    before: Assignment
    """The target assignment until now."""


def assign(
    members: Sequence[ShareMemberSpec], partitions: Mapping[UUID, frozenset[int]]
) -> dict[str, Assignment]:
    """Returns the target assignment of each member. `partitions` are the initialized share partitions.

    Members with equal subscriptions share all their topics together. If subscriptions differ, the members of
    each topic share that topic.
    """
    members = sorted(members)
    found: dict[str, dict[UUID, set[int]]] = {member.member_id: {} for member in members}
    subscriptions = {member.topic_ids for member in members}
    if len(subscriptions) <= 1:
        pools: list[frozenset[UUID]] = list(subscriptions)
    else:
        pools = [frozenset({topic_id}) for topic_id in sorted(frozenset[UUID]().union(*subscriptions))]
    for topic_ids in pools:
        pool = [
            (topic_id, partition)
            for topic_id in sorted(topic_ids)
            for partition in sorted(partitions.get(topic_id, ()))
        ]
        sharing = [member for member in members if topic_ids <= member.topic_ids]
        for member_id, (topic_id, partition) in _pairs(sharing, pool):
            found[member_id].setdefault(topic_id, set()).add(partition)
    return {
        member_id: {topic_id: frozenset(owned) for topic_id, owned in topics.items()}
        for member_id, topics in found.items()
    }


def _pairs(
    members: Sequence[ShareMemberSpec], pool: Sequence[_Partition]
) -> Iterable[tuple[str, _Partition]]:
    """Returns pairs of members and partitions. The side with more elements has each element in one pair."""
    in_pool = set(pool)
    before: list[tuple[str, _Partition]] = [
        (member.member_id, (topic_id, partition))
        for member in members
        for topic_id in sorted(member.before)
        for partition in sorted(member.before[topic_id])
        if (topic_id, partition) in in_pool
    ]
    ids = [member.member_id for member in members]
    if len(pool) >= len(ids):
        return [(member_id, place) for place, member_id in _spread(pool, ids, [(p, m) for m, p in before])]
    return _spread(ids, pool, before)


def _spread(many: Sequence[_A], few: Sequence[_B], before: Iterable[tuple[_A, _B]]) -> list[tuple[_A, _B]]:
    """Gives each of `many` one of `few`, whose loads differ by at most one. Keeps pairs of `before`."""
    if not few:
        return []
    base, extra = divmod(len(many), len(few))
    kept: dict[_A, _B] = {}
    loads = dict.fromkeys(few, 0)
    over = 0
    """The number of elements of `few` that carry one more than `base`."""
    for one, other in before:
        load = loads[other]
        if one in kept or load > base or (load == base and over == extra):
            continue
        kept[one] = other
        loads[other] = load + 1
        over += load == base
    free = (one for one in many if one not in kept)
    for other in few:
        while loads[other] < base:
            kept[next(free)] = other
            loads[other] += 1
    light = (other for other in few if loads[other] == base)
    for one in free:
        kept[one] = next(light)
    return [(one, kept[one]) for one in many]
