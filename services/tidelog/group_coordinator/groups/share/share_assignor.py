"""The assignor of share groups, `simple`: each partition has a consumer, and the consumers have equal loads.

Unlike a consumer group, a share group may give one partition to several members, and does so if there are
more members than partitions. The result follows from the subscriptions and the assignment before; it moves as
little as the balance allows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from tidelog.group_coordinator.groups.consumer.member import Assignment

SIMPLE: Final = "simple"

_A = TypeVar("_A", bound=Hashable)
_B = TypeVar("_B", bound=Hashable)


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
    pools = _pools(members, partitions)
    pool_of = {topic_id: pool for pool in pools for topic_id in pool.topic_ids}
    for member in members:
        # Only one walk over the assignment before, however many topics and pools there are.
        for topic_id in sorted(member.topic_ids.intersection(member.before), key=attrgetter("int")):
            pool_of[topic_id].had(member.member_id, topic_id, member.before[topic_id])
    for pool in pools:
        for member_id, place in _pairs(pool):
            topic_id, partition = pool.partitions[place]
            found[member_id].setdefault(topic_id, set()).add(partition)
    return {
        member_id: {topic_id: frozenset(owned) for topic_id, owned in topics.items()}
        for member_id, topics in found.items()
    }


class _Pool:
    """Partitions that the same members share, and the pairs of both in the assignment before.

    A partition is known by its place in the pool, because the hash of a UUID takes long.
    """

    __slots__ = ("_places", "before", "member_ids", "partitions", "topic_ids")

    def __init__(
        self,
        topic_ids: Sequence[UUID],
        member_ids: Sequence[str],
        partitions: Mapping[UUID, frozenset[int]],
    ) -> None:
        self.topic_ids = topic_ids
        self.member_ids = member_ids
        self.partitions: list[tuple[UUID, int]] = []
        self._places: dict[UUID, dict[int, int]] = {}
        for topic_id in topic_ids:
            existing = sorted(partitions.get(topic_id, ()))
            first = len(self.partitions)
            self._places[topic_id] = {partition: first + at for at, partition in enumerate(existing)}
            self.partitions += [(topic_id, partition) for partition in existing]
        self.before: list[tuple[str, int]] = []

    def had(self, member_id: str, topic_id: UUID, before: frozenset[int]) -> None:
        """Adds the partitions of this topic that the member had and that still exist."""
        places = self._places[topic_id]
        self.before += [(member_id, places[partition]) for partition in sorted(before) if partition in places]


def _pools(members: Sequence[ShareMemberSpec], partitions: Mapping[UUID, frozenset[int]]) -> list[_Pool]:
    """Returns one pool of all topics if the subscriptions are equal, or else one for each topic."""
    subscriptions: dict[frozenset[UUID], list[int]] = {}
    for at, member in enumerate(members):
        subscriptions.setdefault(member.topic_ids, []).append(at)
    if len(subscriptions) <= 1:
        ids = [member.member_id for member in members]
        return [_Pool(sorted(topic_ids), ids, partitions) for topic_ids in subscriptions]
    subscribers: dict[UUID, list[int]] = {}
    for topic_ids, positions in subscriptions.items():
        for topic_id in topic_ids:
            subscribers.setdefault(topic_id, []).extend(positions)
    return [
        _Pool([topic_id], [members[at].member_id for at in sorted(subscribers[topic_id])], partitions)
        for topic_id in sorted(subscribers)
    ]


def _pairs(pool: _Pool) -> Iterable[tuple[str, int]]:
    """Returns pairs of members and places. The side with more elements has each element in one pair."""
    ids, places = pool.member_ids, range(len(pool.partitions))
    if len(places) >= len(ids):
        before = [(place, member_id) for member_id, place in pool.before]
        return [(member_id, place) for place, member_id in _spread(places, ids, before)]
    return _spread(ids, places, pool.before)


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
