"""The assignor of share groups, `simple`: each partition has a consumer, and the consumers have equal loads.

Unlike a consumer group, a share group may give one partition to several members, and does so if there are
more members than partitions. The result follows from the subscriptions and the assignment before; it moves as
little as the balance allows.

A group can have 100,000 pairs of members and topics, of which a new member changes few. So an assignment
finds the changes to what each member had. It looks up few topic ids, because their hashes take long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, repeat
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from tidelog.group_coordinator.groups.modern_group import Assignment

SIMPLE: Final = "simple"

_Places: TypeAlias = frozenset[int]
"""Some of the places that members share: the partitions of a topic, or of all topics, by number."""
_NOTHING: Final[_Places] = frozenset()
_Change: TypeAlias = tuple[int, _Places]
"""The position of a member among those that share the places, and its new places."""


class ShareMemberSpec(NamedTuple):
    """A member as the assignor sees it."""

    member_id: str
    topic_names: frozenset[str]
    """The existing topics to which the member subscribes."""
    before: Assignment
    """The target assignment until now."""


class SharedTopic(NamedTuple):
    """A topic, and its initialized share partitions."""

    topic_id: UUID
    partitions: frozenset[int]


def assign(members: Sequence[ShareMemberSpec], topics: Mapping[str, SharedTopic]) -> dict[str, Assignment]:
    """Returns the target assignment of each member, and the same object as before if it does not change.

    Members with equal subscriptions share all their topics together. If subscriptions differ, the members of
    each topic share that topic.
    """
    members = sorted(members)
    subscriptions = {member.topic_names for member in members}
    if len(subscriptions) > 1:
        return _share_each_topic(members, subscriptions, topics)
    return {
        member_id: target
        for names in subscriptions
        for member_id, target in _share_together(members, [topics[name] for name in names if name in topics])
    }


def _share_together(
    members: Sequence[ShareMemberSpec], topics: Iterable[SharedTopic]
) -> Iterable[tuple[str, Assignment]]:
    numbered = _NumberedTopics(topics)
    befores = [numbered.places_of(member.before) for member in members]
    changed = dict(_changes(numbered.places, befores))
    for at, member in enumerate(members):
        if at not in changed and len(befores[at]) == sum(map(len, member.before.values())):
            yield member.member_id, member.before
        else:
            yield member.member_id, numbered.assignment_of(changed.get(at, befores[at]))


class _NumberedTopics:
    """Topics whose partitions are numbered as places, in the order of topic ids and partitions."""

    def __init__(self, topics: Iterable[SharedTopic]) -> None:
        self.places: list[int] = []
        self._topic_ids: list[UUID] = []
        self._firsts: list[int] = []
        """For each topic, the place of partition 0. Not every partition exists, so places may be missing."""
        self._numbered: dict[UUID, tuple[int, frozenset[int]]] = {}
        """The place of partition 0 of each topic, and the partitions."""
        end = 0
        for topic_id, partitions in sorted(topics, key=lambda topic: topic.topic_id.int):
            if partitions:
                self._topic_ids.append(topic_id)
                self._firsts.append(end)
                self._numbered[topic_id] = end, partitions
                self.places += [end + partition for partition in sorted(partitions)]
                end = self.places[-1] + 1

    def places_of(self, assignment: Assignment) -> _Places:
        """Returns the places of the partitions that exist."""
        found: list[int] = []
        for topic_id, had in assignment.items():
            numbered = self._numbered.get(topic_id)
            if numbered is not None:
                first, existing = numbered
                found += [first + partition for partition in had & existing]
        return frozenset(found)

    def assignment_of(self, places: _Places) -> Assignment:
        found: dict[UUID, frozenset[int]] = {}
        ordered = sorted(places)
        at = 0
        while at < len(ordered):
            number = bisect_right(self._firsts, ordered[at]) - 1
            first, is_last = self._firsts[number], number + 1 == len(self._firsts)
            end = len(ordered) if is_last else bisect_left(ordered, self._firsts[number + 1], at)
            found[self._topic_ids[number]] = frozenset([place - first for place in ordered[at:end]])
            at = end
        return found


class _Pool:
    """A topic, and the members that share its partitions."""

    __slots__ = ("befores", "members", "partitions", "topic_id")

    def __init__(self, topic: SharedTopic) -> None:
        self.topic_id = topic.topic_id
        self.partitions = sorted(topic.partitions)
        self.members: list[int] = []
        """The positions of the subscribers among all members."""
        self.befores: list[_Places] = []
        """The partitions that each of them had."""


def _share_each_topic(
    members: Sequence[ShareMemberSpec],
    subscriptions: Iterable[frozenset[str]],
    topics: Mapping[str, SharedTopic],
) -> dict[str, Assignment]:
    pools = {name: _Pool(topic) for name, topic in topics.items() if topic.partitions}
    shared = frozenset(pools)
    pools_of = {names: [pools[name] for name in names & shared] for names in subscriptions}
    ids_of = {names: [pool.topic_id for pool in found] for names, found in pools_of.items()}
    have_only_these: list[bool] = []
    """For each member, whether it had only partitions of its topics."""
    for at, member in enumerate(members):
        befores = list(map(member.before.get, ids_of[member.topic_names], repeat(_NOTHING)))
        have_only_these.append(len(befores) - befores.count(_NOTHING) == len(member.before))
        for pool, before in zip(pools_of[member.topic_names], befores, strict=True):
            pool.members.append(at)
            pool.befores.append(before)
    changes: list[dict[UUID, _Places]] = [{} for _ in members]
    for pool in pools.values():
        if pool.members:
            for position, found in _changes(pool.partitions, pool.befores):
                changes[pool.members[position]][pool.topic_id] = found
    targets: dict[str, Assignment] = {}
    for member, changed, has_only_these in zip(members, changes, have_only_these, strict=True):
        had = member.before
        if not has_only_these:
            these = set(ids_of[member.topic_names])
            had = {topic_id: owned for topic_id, owned in had.items() if topic_id in these}
        # Every topic has places for all its members, so nobody loses one that it subscribes to.
        targets[member.member_id] = {**had, **changed} if changed else had
    return targets


def _changes(places: Sequence[int], befores: Sequence[_Places]) -> Iterable[_Change]:
    """Returns who has to have other places than before.

    If there are fewer places than members, each member has one, and otherwise each place has one member. The
    loads of the fewer ones differ by at most one.
    """
    if not places:
        return []
    return _one_each(places, befores) if len(places) < len(befores) else _several_each(places, befores)


def _one_each(places: Sequence[int], befores: Sequence[_Places]) -> Iterable[_Change]:
    base, extra = divmod(len(befores), len(places))
    loads = _loads(places, befores, base, extra)
    changed: list[_Change] = []
    if loads is not None:
        without = [at for at, before in enumerate(befores) if not before]
    else:
        loads, without, over = dict.fromkeys(places, 0), [], 0
        for at, before in enumerate(befores):
            for place in sorted(before):
                load = loads.get(place)
                if load is not None and (load < base or (load == base and over < extra)):
                    loads[place] = load + 1
                    over += load == base
                    if len(before) > 1:
                        changed.append((at, frozenset((place,))))
                    break
            else:
                without.append(at)
    free = iter(without)
    for place in places:
        if loads[place] < base:
            alone = frozenset((place,))
            changed += [(at, alone) for at in islice(free, base - loads[place])]
            loads[place] = base
    light = (place for place in places if loads[place] == base)
    changed += [(at, frozenset((next(light),))) for at in free]
    return changed


def _loads(places: Sequence[int], befores: Sequence[_Places], base: int, extra: int) -> dict[int, int] | None:
    """Returns the number of members of each place if everybody can keep what it had, and otherwise None."""
    loads = dict.fromkeys(places, 0)
    for before, load in Counter(befores).items():
        for place in before:
            if len(before) > 1 or place not in loads or load > base + 1:
                return None
            loads[place] = load
    return loads if sum(load > base for load in loads.values()) <= extra else None


def _several_each(places: Sequence[int], befores: Sequence[_Places]) -> Iterable[_Change]:
    base, extra = divmod(len(places), len(befores))
    existing = frozenset(places)
    taken: set[int] = set()
    found: list[_Places] = []
    over = 0
    for before in befores:
        own = before
        if before:
            if not (before <= existing and taken.isdisjoint(before)):
                own = (before & existing) - taken
            room = base + (over < extra)
            if len(own) > room:
                own = frozenset(sorted(own)[:room])
            over += len(own) > base
            taken |= own
        found.append(own)
    if len(taken) < len(places):
        free = iter(sorted(existing - taken))
        for at, own in enumerate(found):
            if len(own) < base:
                found[at] = own.union(islice(free, base - len(own)))
        light = (at for at, own in enumerate(found) if len(own) == base)
        for place in free:
            at = next(light)
            found[at] = found[at].union((place,))
    return [(at, own) for at, own in enumerate(found) if own is not befores[at]]
