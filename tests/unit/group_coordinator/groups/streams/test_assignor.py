"""The sticky assignor of streams groups with random members and topologies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from tidelog.group_coordinator.groups.streams.assignor import StreamsMemberSpec, TaskAssignment, assign
from tidelog.group_coordinator.groups.streams.topology import (
    ConfiguredSubtopology,
    InternalTopic,
    Tasks,
)

Task = tuple[str, int]
Subtopologies = dict[str, ConfiguredSubtopology]


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
