"""The assignors with random input, and in comparison with Apache Kafka's."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import ItemsView, KeysView, Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from uuid import UUID

import pytest

import grouplab
from brokerlab.kafka_jars import KafkaUnavailableError, find_jars
from grouplab.kafka_answers import ask_java
from tidelog.group_coordinator.groups.consumer.assignors import (
    ASSIGNORS,
    MemberSpec,
    assign_ranges,
    assign_uniformly,
)
from tidelog.group_coordinator.groups.modern_group import Assignment

ORACLE = Path(grouplab.__file__).with_name("KafkaAssignors.java")
CASES = 150
Question = tuple[list[MemberSpec], dict[UUID, int]]


def topic(number: int) -> UUID:
    return UUID(int=number)


def members(
    count: int, topics: Sequence[int], had: Mapping[int, Mapping[int, Sequence[int]]] = {}
) -> list[MemberSpec]:
    return [
        MemberSpec(
            f"m{number}",
            None,
            frozenset(map(topic, topics)),
            {topic(name): frozenset(found) for name, found in had.get(number, {}).items()},
        )
        for number in range(count)
    ]


def plain(assignment: Mapping[str, Assignment]) -> dict[str, dict[int, list[int]]]:
    return {
        member_id: {topic_id.int: sorted(found) for topic_id, found in own.items()}
        for member_id, own in assignment.items()
    }


def test_uniform_assigns_adjacent_partitions_evenly() -> None:
    given = assign_uniformly(members(2, [1, 2]), {topic(1): 3, topic(2): 3})
    assert plain(given) == {"m0": {1: [0, 1, 2]}, "m1": {2: [0, 1, 2]}}


def test_uniform_moves_as_few_partitions_as_possible() -> None:
    had = {0: {1: [0, 1]}, 1: {1: [2, 3, 4]}}
    given = assign_uniformly(members(3, [1], had), {topic(1): 5})
    assert plain(given) == {"m0": {1: [0, 1]}, "m1": {1: [2, 3]}, "m2": {1: [4]}}


def test_uniform_moves_partitions_along_a_chain_if_subscriptions_differ() -> None:
    had = {"a": {1: [0, 1, 2]}, "b": {2: [0, 1]}, "c": {3: [0]}}
    specs = [
        MemberSpec(
            name, None, frozenset(map(topic, topics)), {topic(t): frozenset(p) for t, p in had[name].items()}
        )
        for name, topics in (("a", [1]), ("b", [1, 2]), ("c", [2, 3]))
    ]
    given = assign_uniformly(specs, {topic(1): 3, topic(2): 2, topic(3): 1})
    assert [sum(map(len, own.values())) for own in given.values()] == [2, 2, 2]


def test_range_splits_topics_identically() -> None:
    given = assign_ranges(members(2, [1, 2, 3]), {topic(1): 5, topic(2): 5, topic(3): 2})
    assert plain(given) == {
        "m0": {1: [0, 1, 2], 2: [0, 1, 2], 3: [0]},
        "m1": {1: [3, 4], 2: [3, 4], 3: [1]},
    }


def test_range_orders_static_members_first() -> None:
    specs = members(3, [1])
    specs[2] = specs[2]._replace(instance_id="i")
    assert plain(assign_ranges(specs, {topic(1): 3})) == {"m2": {1: [0]}, "m0": {1: [1]}, "m1": {1: [2]}}


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
def test_no_members_and_no_topics(assign: object) -> None:
    assert callable(assign)
    assert assign([], {}) == {}
    assert assign(members(2, []), {}) == {"m0": {}, "m1": {}}
    gone = members(1, [], {0: {1: [0]}})
    assert assign(gone, {}) == {"m0": {}}


# -- random input


def question(seed: int) -> Question:
    """Returns random members with their topics, and a previous assignment that may no longer fit."""
    chance = random.Random(seed)
    counts = {topic(number): chance.randint(1, 7) for number in range(1, chance.randint(2, 5))}
    all_topics = sorted(counts)
    same = chance.random() < 0.5
    specs: list[MemberSpec] = []
    before = [f"m{number}" for number in range(chance.randint(1, 6))]
    had: dict[str, dict[UUID, set[int]]] = {name: {} for name in before}
    if chance.random() < 0.8:
        for topic_id in all_topics:
            for partition in range(counts[topic_id]):
                if chance.random() < 0.9:
                    had[chance.choice(before)].setdefault(topic_id, set()).add(partition)
    now = [name for name in before if chance.random() < 0.8] + [f"n{n}" for n in range(chance.randint(0, 3))]
    for name in now or ["m0"]:
        wanted = all_topics if same else chance.sample(all_topics, chance.randint(1, len(all_topics)))
        own = {topic_id: frozenset(found) for topic_id, found in had.get(name, {}).items()}
        specs.append(MemberSpec(name, None, frozenset(wanted), own))
    return specs, counts


def flat(own: Assignment) -> set[tuple[UUID, int]]:
    return {(topic_id, partition) for topic_id, found in own.items() for partition in found}


def kept(specs: list[MemberSpec], given: Mapping[str, Assignment]) -> int:
    return sum(len(flat(spec.assigned) & flat(given[spec.member_id])) for spec in specs)


def unevenness(given: Mapping[str, Assignment]) -> int:
    return sum(len(flat(own)) ** 2 for own in given.values())


def topic_loads(given: Mapping[str, Assignment]) -> Counter[tuple[UUID, int]]:
    return Counter((topic_id, len(found)) for own in given.values() for topic_id, found in own.items())


@pytest.mark.parametrize("name", ASSIGNORS)
def test_every_partition_gets_one_subscriber_and_keeps_it(name: str) -> None:
    assign = ASSIGNORS[name]
    for seed in range(CASES):
        specs, counts = question(seed)
        given = assign(specs, counts)
        subscribed = {topic_id for spec in specs for topic_id in spec.topics}
        everything = sorted((t, p) for t in subscribed for p in range(counts[t]))
        assert sorted(one for own in given.values() for one in flat(own)) == everything, seed
        assert all(given[spec.member_id].keys() <= spec.topics for spec in specs), seed
        assert assign(list(reversed(specs)), counts) == given, seed
        stays = [spec._replace(assigned=given[spec.member_id]) for spec in specs]
        assert assign(stays, counts) == given, seed


def can_be_more_even(specs: Sequence[MemberSpec], given: Mapping[str, Assignment]) -> bool:
    """Returns whether a chain of moves leads from a member to one with at least two partitions fewer."""
    loads = {member_id: len(flat(own)) for member_id, own in given.items()}
    for spec in specs:
        reached = [spec.member_id]
        for giver in reached:
            takers = (other for other in specs if other.topics & given[giver].keys())
            reached += [other.member_id for other in takers if other.member_id not in reached]
        if min(loads[member_id] for member_id in reached) < loads[spec.member_id] - 1:
            return True
    return False


def test_uniform_assignments_cannot_be_more_even() -> None:
    for seed in range(2 * CASES):
        specs, counts = question(seed)
        given = assign_uniformly(specs, counts)
        assert not can_be_more_even(specs, given), seed


class CountedId(str):
    """A member id that counts how often a member is looked up."""

    __slots__ = ()
    lookups: ClassVar[list[int]] = [0]

    def __hash__(self) -> int:
        self.lookups[0] += 1
        return super().__hash__()


def lookups_of_uniform(count: int) -> int:
    """Returns the lookups for members of one topic, except for one member of another."""
    specs = [
        MemberSpec(CountedId(f"m{number}"), None, frozenset({topic(1 if number else 2)}), {})
        for number in range(count)
    ]
    CountedId.lookups[0] = 0
    given = assign_uniformly(specs, {topic(1): 4 * count, topic(2): 1})
    assert sum(map(len, map(flat, given.values()))) == 4 * count + 1
    return CountedId.lookups[0]


def test_uniform_examines_members_that_can_give_nothing_once() -> None:
    assert lookups_of_uniform(400) < 2.2 * lookups_of_uniform(200)


def lookups_of_a_shared_topic(count: int) -> int:
    """Returns the lookups for a member that joins one with many topics, of which they share only the last."""
    topics = [topic(number) for number in range(count + 1)]
    counts = dict.fromkeys(topics, 1) | {topics[-1]: count}
    first = MemberSpec(CountedId("m0"), None, frozenset(topics), {})
    first = first._replace(assigned=assign_uniformly([first], counts)["m0"])
    joins = MemberSpec(CountedId("m1"), None, frozenset(topics[-1:]), {})
    CountedId.lookups[0] = 0
    given = assign_uniformly([first, joins], counts)
    assert [len(flat(own)) for own in given.values()] == [count, count]
    return CountedId.lookups[0]


def test_uniform_examines_topics_without_light_subscribers_once() -> None:
    assert lookups_of_a_shared_topic(200) < 2.2 * lookups_of_a_shared_topic(100)


def test_range_loads_differ_by_one_within_a_topic() -> None:
    for seed in range(CASES):
        specs, counts = question(seed)
        given = assign_ranges(specs, counts)
        for topic_id, count in counts.items():
            loads = [len(given[s.member_id].get(topic_id, ())) for s in specs if topic_id in s.topics]
            assert not loads or sorted(set(loads)) in (
                [count // len(loads)],
                [count // len(loads), count // len(loads) + 1],
            ), seed


class CountedTopic(UUID):
    """A topic id that counts how often a topic is looked up or compared with another one."""

    lookups: ClassVar[list[int]] = [0]

    def __hash__(self) -> int:
        self.lookups[0] += 1
        return super().__hash__()

    def __lt__(self, other: UUID) -> bool:
        self.lookups[0] += 1
        return super().__lt__(other)


def test_uniform_swaps_moved_partitions_without_a_search_for_each() -> None:
    """A third member joins two that share all topics but one."""
    topics = [CountedTopic(int=number) for number in range(1, 101)]
    counts: dict[UUID, int] = dict.fromkeys(topics, 6)
    subscriptions = [frozenset[UUID](topics), frozenset[UUID](topics[1:])]
    specs = [MemberSpec(f"m{at}", None, topics_of, {}) for at, topics_of in enumerate(subscriptions)]
    first = assign_uniformly(specs, counts)
    specs = [spec._replace(assigned=first[spec.member_id]) for spec in specs]
    CountedTopic.lookups[0] = 0
    given = assign_uniformly([*specs, MemberSpec("m2", None, subscriptions[1], {})], counts)
    assert [len(flat(own)) for own in given.values()] == [200, 200, 200]
    assert CountedTopic.lookups[0] < 20 * 600


def test_uniform_takes_partitions_from_many_topics_without_a_search_for_each() -> None:
    topics = [CountedTopic(int=number) for number in range(1, 101)]
    counts: dict[UUID, int] = dict.fromkeys(topics, 6)
    alone = MemberSpec("m0", None, frozenset(topics), {})
    alone = alone._replace(assigned=assign_uniformly([alone], counts)["m0"])
    CountedTopic.lookups[0] = 0
    given = assign_uniformly([alone, MemberSpec("m1", None, alone.topics, {})], counts)
    assert CountedTopic.lookups[0] < 20 * 600
    # Each topic gives its last partitions, and the topics are equally large afterwards.
    assert given["m0"] == dict.fromkeys(topics, frozenset(range(3)))


def test_uniform_reads_equal_subscriptions_once() -> None:
    topics = [CountedTopic(int=number) for number in range(1, 101)]
    subscriptions = [frozenset[UUID](topics), frozenset[UUID](topics[1:])]
    specs = [MemberSpec(f"m{at:03}", None, subscriptions[at % 2], {}) for at in range(300)]
    CountedTopic.lookups[0] = 0
    given = assign_uniformly(specs, dict.fromkeys(topics, 2))
    assert sum(len(flat(own)) for own in given.values()) == 200
    assert CountedTopic.lookups[0] < 10_000


@pytest.mark.parametrize("alike", [True, False])
def test_range_does_not_look_for_each_topic_at_each_member(alike: bool) -> None:
    topics = [CountedTopic(int=number) for number in range(1, 201)]
    everything = frozenset[UUID](topics)
    of_all = [everything if alike else frozenset(topics[at : at + 2]) for at in range(199)]
    specs = [MemberSpec(f"m{at:03}", None, of_one, {}) for at, of_one in enumerate(of_all)]
    CountedTopic.lookups[0] = 0
    given = assign_ranges(specs, dict.fromkeys(topics, 2))
    assert sum(len(flat(own)) for own in given.values()) == 400
    assert CountedTopic.lookups[0] < 10_000


class CountedAssigned(dict[UUID, frozenset[int]]):
    """A previous assignment that counts how often it is read as a whole."""

    reads: ClassVar[list[int]] = [0]

    def keys(self) -> KeysView[UUID]:  # type: ignore[override]
        self.reads[0] += 1
        return super().keys()

    def items(self) -> ItemsView[UUID, frozenset[int]]:  # type: ignore[override]
        self.reads[0] += 1
        return super().items()


def test_range_reads_each_previous_assignment_once() -> None:
    topics = [topic(number) for number in range(60)]
    subscriptions = [frozenset(topics[:at] + topics[at + 1 :]) for at in range(60)]
    specs = [MemberSpec(f"m{at:02}", None, of_one, {}) for at, of_one in enumerate(subscriptions)]
    counts = dict.fromkeys(topics, 2)
    first = assign_ranges(specs, counts)
    specs = [spec._replace(assigned=CountedAssigned(first[spec.member_id])) for spec in specs]
    CountedAssigned.reads[0] = 0
    assert assign_ranges(specs, counts) == first
    assert CountedAssigned.reads[0] <= 60


# -- comparison with Apache Kafka


@pytest.fixture(scope="module")
def jars() -> Path:
    try:
        return find_jars()
    except KafkaUnavailableError as error:
        pytest.skip(str(error))


def as_line(name: str, specs: list[MemberSpec], counts: Mapping[UUID, int]) -> str:
    topics = ",".join(f"{topic_id.int}:{count}" for topic_id, count in counts.items())
    told = [
        f"{s.member_id}={','.join(str(t.int) for t in sorted(s.topics))};"
        + ",".join(f"{t.int}.{p}" for t, p in sorted(flat(s.assigned)))
        for s in specs
    ]
    return f"{name} {topics} {'|'.join(told)}"


def from_line(line: str, specs: list[MemberSpec]) -> dict[str, Assignment]:
    assert not line.startswith("error"), line
    given: dict[str, dict[UUID, frozenset[int]]] = {spec.member_id: {} for spec in specs}
    for part in filter(None, line.split("|")):
        member_id, _, partitions = part.partition("=")
        for one in partitions.split(","):
            number, _, partition = one.partition(".")
            own = given[member_id]
            own[topic(int(number))] = own.get(topic(int(number)), frozenset()) | {int(partition)}
    return dict(given)


def fitting(specs: list[MemberSpec], counts: Mapping[UUID, int]) -> list[MemberSpec]:
    """Adapts the previous assignment to the subscriptions, because Kafka's assignors assume that it fits."""
    return [
        spec._replace(assigned={t: found for t, found in spec.assigned.items() if t in spec.topics})
        for spec in specs
    ]


@pytest.mark.java
@pytest.mark.integration
@pytest.mark.parametrize("name", ASSIGNORS)
def test_assignments_are_as_even_as_kafkas_and_move_no_more_partitions(jars: Path, name: str) -> None:
    questions = [(fitting(specs, counts), counts) for specs, counts in map(question, range(CASES))]
    answers = ask_java(jars, ORACLE, [as_line(name, specs, counts) for specs, counts in questions])
    ours_moved = theirs_moved = 0
    for seed, ((specs, counts), answer) in enumerate(zip(questions, answers, strict=True)):
        ours, theirs = ASSIGNORS[name](specs, counts), from_line(answer, specs)
        if name == "range":
            assert topic_loads(ours) == topic_loads(theirs), seed
        else:
            assert unevenness(ours) <= unevenness(theirs), seed
        ours_moved -= kept(specs, ours)
        theirs_moved -= kept(specs, theirs)
        if not any(spec.assigned for spec in specs) and name == "range":
            assert ours == theirs, seed
    assert ours_moved <= theirs_moved
