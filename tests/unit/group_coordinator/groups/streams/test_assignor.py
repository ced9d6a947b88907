"""The sticky assignor of streams groups with random members and topologies."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import grouplab
from brokerlab.kafka_jars import KafkaUnavailableError, find_jars
from grouplab.kafka_answers import ask_java
from tidelog.group_coordinator.groups.streams.assignor import (
    StreamsMemberSpec,
    TaskAssignment,
    assign,
    assignment_steps,
)
from tidelog.group_coordinator.groups.streams.topology import (
    ConfiguredSubtopology,
    InternalTopic,
    Tasks,
)

ORACLE = Path(grouplab.__file__).with_name("KafkaStreamsGroups.java")
CASES = 300
ROUNDS = 3
"""The number of assignments of each group. The members change before each but the first."""

Task = tuple[str, int]
Subtopologies = dict[str, ConfiguredSubtopology]
Question = tuple[list[StreamsMemberSpec], Subtopologies, int]


def subtopology(task_count: int, stateful: bool = True) -> ConfiguredSubtopology:
    changelogs = {"changelog": InternalTopic("changelog", task_count, -1, ())} if stateful else {}
    return ConfiguredSubtopology(task_count, ("source",), (), {}, changelogs)


def flat(tasks: Tasks) -> set[Task]:
    return {(name, partition) for name, found in tasks.items() for partition in found}


def with_tasks(
    members: Sequence[StreamsMemberSpec], assignments: Mapping[str, TaskAssignment]
) -> list[StreamsMemberSpec]:
    """Returns the members as they are after this assignment. New members have no tasks."""
    nothing = TaskAssignment()
    return [
        member._replace(
            active_tasks=assignments.get(member.member_id, nothing).active_tasks,
            standby_tasks=assignments.get(member.member_id, nothing).standby_tasks,
        )
        for member in members
    ]


def kept_active(members: Sequence[StreamsMemberSpec], assignments: Mapping[str, TaskAssignment]) -> int:
    return sum(
        len(flat(member.active_tasks) & flat(assignments[member.member_id].active_tasks))
        for member in members
    )


def task_count(assignment: TaskAssignment) -> int:
    return len(flat(assignment.active_tasks)) + len(flat(assignment.standby_tasks))


def active_counts(assignments: Mapping[str, TaskAssignment]) -> list[int]:
    return sorted(len(flat(assignment.active_tasks)) for assignment in assignments.values())


subtopologies_of_groups = st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=4).map(
    lambda found: {str(at): subtopology(*one) for at, one in enumerate(found)}
)


@st.composite
def members_of_groups(draw: st.DrawFn) -> list[StreamsMemberSpec]:
    """Draws members with arbitrary tasks, of which some no longer exist and some have several owners."""
    tasks = st.dictionaries(st.sampled_from("0123"), st.frozensets(st.integers(0, 9), min_size=1), max_size=3)
    processes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=7))
    return [
        StreamsMemberSpec(f"m{at}", f"p{process}", draw(tasks), draw(tasks))
        for at, process in enumerate(processes)
    ]


@given(members_of_groups(), subtopologies_of_groups, st.integers(0, 3))
def test_every_task_runs_once_and_its_copies_are_in_different_processes(
    members: list[StreamsMemberSpec], subtopologies: Subtopologies, replicas: int
) -> None:
    assignments = assign(members, subtopologies, replicas)
    assert assignments.keys() == {member.member_id for member in members}
    process_of = {member.member_id: member.process_id for member in members}
    active: Counter[Task] = Counter()
    processes_of: dict[Task, list[str]] = defaultdict(list)
    for member_id, assignment in assignments.items():
        active.update(flat(assignment.active_tasks))
        for task in [*flat(assignment.active_tasks), *flat(assignment.standby_tasks)]:
            processes_of[task].append(process_of[member_id])
        assert not assignment.warmup_tasks
    copies = min(1 + replicas, len(set(process_of.values())))
    assert active == Counter(
        {(name, partition): 1 for name, one in subtopologies.items() for partition in range(one.task_count)}
    )
    for (name, _), processes in processes_of.items():
        assert len(processes) == len(set(processes))
        assert len(processes) == (copies if subtopologies[name].is_stateful else 1)


@given(members_of_groups(), subtopologies_of_groups, st.integers(0, 3))
def test_active_tasks_differ_by_at_most_one(
    members: list[StreamsMemberSpec], subtopologies: Subtopologies, replicas: int
) -> None:
    counts = active_counts(assign(members, subtopologies, replicas))
    assert counts[-1] - counts[0] <= 1


@given(members_of_groups(), subtopologies_of_groups, st.integers(0, 3))
def test_the_order_of_the_members_does_not_matter(
    members: list[StreamsMemberSpec], subtopologies: Subtopologies, replicas: int
) -> None:
    assert assign(members[::-1], subtopologies, replicas) == assign(members, subtopologies, replicas)


@given(members_of_groups(), subtopologies_of_groups, st.integers(0, 3))
def test_an_assignment_stays_as_it_is(
    members: list[StreamsMemberSpec], subtopologies: Subtopologies, replicas: int
) -> None:
    assignments = assign(members, subtopologies, replicas)
    assert assign(with_tasks(members, assignments), subtopologies, replicas) == assignments


@given(st.integers(2, 7), st.integers(1, 30), st.integers(0, 3))
def test_all_tasks_differ_by_at_most_one_if_each_member_is_a_process(
    count: int, tasks: int, replicas: int
) -> None:
    """Tasks without state and processes with several members may make this impossible."""
    members = [StreamsMemberSpec(f"m{at}", f"p{at}") for at in range(count)]
    assignments: dict[str, TaskAssignment] = {}
    for now in (members, members[1:], [*members, StreamsMemberSpec("new", "p9")]):
        assignments = assign(with_tasks(now, assignments), {"0": subtopology(tasks)}, replicas)
        counts = [task_count(one) for one in assignments.values()]
        assert max(counts) - min(counts) <= 1


@given(members_of_groups(), subtopologies_of_groups, st.integers(0, 3))
def test_active_tasks_move_no_more_than_the_balance_demands(
    members: list[StreamsMemberSpec], subtopologies: Subtopologies, replicas: int
) -> None:
    before = with_tasks(members, assign(members, subtopologies, replicas))
    assert kept_active(before, assign(before, subtopologies, replicas)) == sum(
        one.task_count for one in subtopologies.values()
    )
    total = sum(one.task_count for one in subtopologies.values())
    for now in (before[1:], [*before, StreamsMemberSpec("new", "p9")]):
        if not now:
            continue
        # The members with the most tasks keep the larger shares.
        least, larger = divmod(total, len(now))
        had = sorted((len(flat(member.active_tasks)) for member in now), reverse=True)
        best = sum(min(count, least + (at < larger)) for at, count in enumerate(had))
        assert kept_active(now, assign(now, subtopologies, replicas)) == best


def test_a_group_without_members_has_no_assignment() -> None:
    assert assign([], {"0": subtopology(2)}, 1) == {}


def test_a_task_moves_to_its_standby() -> None:
    members = [
        StreamsMemberSpec("a", "p1", standby_tasks={"0": frozenset({1})}),
        StreamsMemberSpec("b", "p2", standby_tasks={"0": frozenset({0})}),
    ]
    assignments = assign(members, {"0": subtopology(2)}, 0)
    assert assignments["a"].active_tasks == {"0": {1}}
    assert assignments["b"].active_tasks == {"0": {0}}


def test_the_work_for_a_large_group_can_be_interrupted_after_each_task() -> None:
    members = [StreamsMemberSpec(f"m{at}", f"p{at // 4}") for at in range(1_000)]
    subtopologies = {str(at): subtopology(1_000) for at in range(10)}
    steps = assignment_steps(members, subtopologies, 1)
    count = sum(1 for _ in steps)
    assert count >= 2 * 10_000 + 2 * 1_000  # an active and a standby task each; members as input and result


# -- comparison with Apache Kafka


def question(seed: int) -> Question:
    chance = random.Random(seed)
    processes = chance.randint(1, 6)
    return (
        [
            StreamsMemberSpec(f"m{at}", f"p{chance.randrange(processes)}")
            for at in range(chance.randint(1, 8))
        ],
        {
            str(at): subtopology(chance.randint(1, 12), chance.random() < 0.7)
            for at in range(chance.randint(1, 4))
        },
        chance.randint(0, 2),
    )


def next_question(asked: Question, assignments: Mapping[str, TaskAssignment], seed: int) -> Question:
    """Returns a question after some members have left and others have joined."""
    chance = random.Random(seed)
    members, subtopologies, replicas = asked
    stay = [member for member in members if chance.random() < 0.8] or members[:1]
    new = [
        StreamsMemberSpec(f"n{seed}-{at}", f"p{chance.randrange(7)}") for at in range(chance.randint(0, 2))
    ]
    return [*with_tasks(stay, assignments), *new], subtopologies, replicas


def as_line(asked: Question) -> str:
    members, subtopologies, replicas = asked
    told = {
        member.member_id: {
            "process": member.process_id,
            "active": {name: sorted(found) for name, found in member.active_tasks.items()},
            "standby": {name: sorted(found) for name, found in member.standby_tasks.items()},
        }
        for member in members
    }
    sizes = {name: [one.task_count, one.is_stateful] for name, one in subtopologies.items()}
    return json.dumps({"members": told, "subtopologies": sizes, "replicas": replicas})


def from_line(line: str) -> dict[str, TaskAssignment]:
    return {
        member_id: TaskAssignment(
            *({name: frozenset(partitions) for name, partitions in tasks.items()} for tasks in told)
        )
        for member_id, told in json.loads(line).items()
    }


def unevenness(counts: Sequence[int]) -> int:
    return sum(count * count for count in counts)


def kept_state(members: Sequence[StreamsMemberSpec], assignments: Mapping[str, TaskAssignment]) -> int:
    """Returns the number of tasks whose process has had a copy of their state, active or standby."""
    had: dict[str, set[Task]] = defaultdict(set)
    for member in members:
        had[member.process_id] |= flat(member.active_tasks) | flat(member.standby_tasks)
    return sum(
        len(had[member.process_id] & (flat(one.active_tasks) | flat(one.standby_tasks)))
        for member in members
        for one in [assignments[member.member_id]]
    )


@pytest.mark.java
@pytest.mark.integration
def test_assignments_are_as_even_as_kafkas_and_keep_as_much() -> None:
    try:
        jars = find_jars()
    except KafkaUnavailableError as error:
        pytest.skip(str(error))
    questions = [question(seed) for seed in range(CASES)]
    for turn in range(ROUNDS):
        answers = ask_java(jars, ORACLE, [as_line(asked) for asked in questions])
        uneven, state = Counter[str](), Counter[str]()
        following = []
        for seed, (asked, line) in enumerate(zip(questions, answers, strict=True)):
            members, subtopologies, replicas = asked
            ours, kafkas = assign(members, subtopologies, replicas), from_line(line)
            for name, assignments in (("ours", ours), ("kafka", kafkas)):
                uneven[name] += unevenness([task_count(one) for one in assignments.values()])
                state[name] += kept_state(members, assignments)
            assert sum(map(task_count, ours.values())) == sum(map(task_count, kafkas.values())), seed
            assert unevenness(active_counts(ours)) <= unevenness(active_counts(kafkas)), seed
            if active_counts(ours) == active_counts(kafkas):
                assert kept_active(members, ours) >= kept_active(members, kafkas), seed
            before = ours if turn % 2 else kafkas
            following.append(next_question(asked, before, seed * ROUNDS + turn))
        assert uneven["ours"] <= uneven["kafka"]
        assert state["ours"] >= state["kafka"]
        questions = following
