"""The assignor of share groups: everything is assigned, loads are equal, and little moves."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.group_coordinator.groups.share.share_assignor import SharedTopic, ShareMemberSpec
from tidelog.group_coordinator.groups.share.share_assignor import assign as assign_by_name

TOPICS = [UUID(int=number) for number in range(1, 4)]
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1)
Targets = Mapping[str, Mapping[UUID, frozenset[int]]]
A = TypeVar("A", bound=Hashable)
B = TypeVar("B", bound=Hashable)


class Spec(NamedTuple):
    """A member whose topics are given by their ids."""

    member_id: str
    topic_ids: frozenset[UUID]
    before: Mapping[UUID, frozenset[int]]


def assign(members: Sequence[Spec], parts: Mapping[UUID, frozenset[int]]) -> Targets:
    """Returns the target assignments of members. The name of a topic is its number."""
    named = [
        ShareMemberSpec(
            member.member_id, frozenset(str(topic_id.int) for topic_id in member.topic_ids), member.before
        )
        for member in members
    ]
    topics = {str(topic_id.int): SharedTopic(topic_id, existing) for topic_id, existing in parts.items()}
    return assign_by_name(named, topics)


def specs(subscriptions: dict[str, frozenset[UUID]], before: Targets | None = None) -> list[Spec]:
    return [
        Spec(member_id, topics, (before or {}).get(member_id, {}))
        for member_id, topics in subscriptions.items()
    ]


def partitions(counts: dict[UUID, int]) -> dict[UUID, frozenset[int]]:
    return {topic_id: frozenset(range(count)) for topic_id, count in counts.items()}


def pairs(targets: Targets) -> set[tuple[str, UUID, int]]:
    return {(m, t, p) for m, topics in targets.items() for t, owned in topics.items() for p in owned}


SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(12)]),
    st.frozensets(st.sampled_from(TOPICS), min_size=1),
    min_size=1,
)


@given(SUBSCRIPTIONS, COUNTS)
def test_everything_is_assigned_to_subscribers_only(
    subscriptions: dict[str, frozenset[UUID]], counts: dict[UUID, int]
) -> None:
    targets = assign(specs(subscriptions), partitions(counts))
    found = pairs(targets)
    assert all(topic_id in subscriptions[member_id] for member_id, topic_id, _ in found)
    for topic_id, count in counts.items():
        if any(topic_id in topics for topics in subscriptions.values()):
            assert {p for _, t, p in found if t == topic_id} == set(range(count))
    for member_id, topics in subscriptions.items():
        assert bool(targets[member_id]) == any(topic_id in counts for topic_id in topics)


@given(st.integers(1, 15), COUNTS)
def test_loads_are_equal_with_equal_subscriptions(members: int, counts: dict[UUID, int]) -> None:
    subscriptions = {f"m{number}": frozenset(TOPICS) for number in range(members)}
    found = pairs(assign(specs(subscriptions), partitions(counts)))
    loads = [sum(m == member_id for m, _, _ in found) for member_id in subscriptions]
    assert max(loads) - min(loads) <= 1
    shared = [
        sum((t, p) == (topic_id, partition) for _, t, p in found)
        for topic_id, count in counts.items()
        for partition in range(count)
    ]
    assert max(shared) - min(shared) <= 1


@given(SUBSCRIPTIONS, COUNTS)
def test_nothing_moves_without_a_change(
    subscriptions: dict[str, frozenset[UUID]], counts: dict[UUID, int]
) -> None:
    first = assign(specs(subscriptions), partitions(counts))
    assert assign(specs(subscriptions, first), partitions(counts)) == first


def test_a_new_member_takes_its_part_from_the_others() -> None:
    subscriptions = {"a": frozenset(TOPICS[:1]), "b": frozenset(TOPICS[:1])}
    everything = {TOPICS[0]: frozenset(range(6))}
    first = assign(specs(subscriptions), everything)
    second = assign(specs(subscriptions | {"c": frozenset(TOPICS[:1])}, first), everything)
    assert len(pairs(first) - pairs(second)) == 2


def assign_naively(members: list[Spec], parts: dict[UUID, frozenset[int]]) -> Targets:
    """Returns what `assign` has to return. It looks at every member's whole assignment for each topic."""
    members = sorted(members)
    subscribed = frozenset[UUID]().union(*(member.topic_ids for member in members))
    differ = len({member.topic_ids for member in members}) > 1
    found: dict[str, dict[UUID, set[int]]] = {member.member_id: {} for member in members}
    for topics in [[topic_id] for topic_id in sorted(subscribed)] if differ else [sorted(subscribed)]:
        pool = [(topic_id, p) for topic_id in topics for p in sorted(parts.get(topic_id, ()))]
        sharing = [member for member in members if member.topic_ids.issuperset(topics)]
        ids = [member.member_id for member in sharing]
        before = [
            (member.member_id, (topic_id, partition))
            for member in sharing
            for topic_id in sorted(member.before)
            for partition in sorted(member.before[topic_id])
            if (topic_id, partition) in pool
        ]
        if len(pool) >= len(ids):
            shared = [(m, place) for place, m in spread(pool, ids, [(place, m) for m, place in before])]
        else:
            shared = spread(ids, pool, before)
        for member_id, (topic_id, partition) in shared:
            found[member_id].setdefault(topic_id, set()).add(partition)
    return {m: {t: frozenset(owned) for t, owned in topics.items()} for m, topics in found.items()}


def spread(many: Sequence[A], few: Sequence[B], before: Iterable[tuple[A, B]]) -> list[tuple[A, B]]:
    """Gives each of `many` one of `few`, whose loads differ by at most one. Keeps pairs of `before`."""
    if not few:
        return []
    base, extra = divmod(len(many), len(few))
    kept: dict[A, B] = {}
    loads = dict.fromkeys(few, 0)
    over = 0
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


BEFORE = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(12)]),
    st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.integers(0, 9), min_size=1)),
)


PARTITIONS = st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.integers(0, 9)))
"""The partitions whose states exist. They may be any of a topic."""
TOGETHER = st.lists(st.sampled_from([f"m{number}" for number in range(12)]), min_size=1, unique=True).map(
    lambda ids: dict.fromkeys(ids, frozenset(TOPICS))
)


@given(SUBSCRIPTIONS | TOGETHER, BEFORE, PARTITIONS)
@settings(max_examples=300)
def test_the_assignment_is_that_of_a_search_for_each_topic(
    subscriptions: dict[str, frozenset[UUID]], before: Targets, parts: dict[UUID, frozenset[int]]
) -> None:
    members = specs(subscriptions, before)
    assert assign(members, parts) == assign_naively(members, parts)


@given(st.lists(st.tuples(SUBSCRIPTIONS | TOGETHER, PARTITIONS), min_size=2, max_size=6))
def test_so_are_the_assignments_of_a_history(
    history: list[tuple[dict[str, frozenset[UUID]], dict[UUID, frozenset[int]]]],
) -> None:
    targets: Targets = {}
    for subscriptions, parts in history:
        members = specs(subscriptions, targets)
        targets = assign(members, parts)
        assert targets == assign_naively(members, parts)


class CountedAssignment(Mapping[UUID, frozenset[int]]):
    """An assignment that counts how often one of its topics is read."""

    reads = 0

    def __init__(self, topics: dict[UUID, frozenset[int]]) -> None:
        self._topics = topics

    def __getitem__(self, topic_id: UUID) -> frozenset[int]:
        CountedAssignment.reads += 1
        return self._topics[topic_id]

    def __iter__(self) -> Iterator[UUID]:
        for topic_id in self._topics:
            CountedAssignment.reads += 1
            yield topic_id

    def __len__(self) -> int:
        return len(self._topics)


def test_the_assignment_before_is_read_once_although_subscriptions_differ() -> None:
    topics = [UUID(int=number) for number in range(1, 31)]
    everything = {topic_id: frozenset(range(4)) for topic_id in topics}
    subscriptions = {f"m{number}": frozenset(topics[number % 2 :]) for number in range(20)}
    first = assign(specs(subscriptions), everything)
    members = [
        member._replace(before=CountedAssignment(dict(member.before)))
        for member in specs(subscriptions, first)
    ]
    CountedAssignment.reads = 0
    assert assign(members, everything) == first
    assert CountedAssignment.reads <= 4 * sum(map(len, first.values()))


class CountedUUID(UUID):
    """A topic id that counts how often its hash, which takes long, is computed."""

    hashes = 0

    def __hash__(self) -> int:
        CountedUUID.hashes += 1
        return super().__hash__()


@pytest.mark.parametrize("count", [1, 4, 30])
def test_a_join_reads_each_topic_id_of_a_member_rarely(count: int) -> None:
    topics: list[UUID] = [CountedUUID(int=number) for number in range(1, 31)]
    everything = {topic_id: frozenset(range(count)) for topic_id in topics}
    subscriptions = {f"m{at:02}": frozenset(topics[:at] + topics[at + 1 :]) for at in range(20)}
    first = assign(specs(subscriptions), everything)
    members = specs(subscriptions | {"m10x": frozenset(topics[1:])}, first)
    CountedUUID.hashes = 0
    targets = assign(members, everything)
    assert CountedUUID.hashes <= 2 * 21 * 29
    assert targets == assign_naively(members, everything)
    # Who joined is the only one that changes, unless the loads have to become equal.
    if count < 20:
        assert all(targets[member_id] is first[member_id] for member_id in subscriptions)
