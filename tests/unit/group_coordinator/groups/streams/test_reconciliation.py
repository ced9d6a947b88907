"""The steps of a member to its target assignment, for any tasks that it has and should have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypothesis import given
from hypothesis import strategies as st

from tidelog.group_coordinator.groups.modern_group import MemberState
from tidelog.group_coordinator.groups.streams.assignor import TaskAssignment
from tidelog.group_coordinator.groups.streams.streams_member import (
    Holders,
    OwnedTasks,
    StreamsMember,
    covers,
    reconcile,
    task_difference,
)

Task = tuple[str, int]
EPOCH = 9
TASKS = st.dictionaries(st.sampled_from("012"), st.frozensets(st.integers(0, 3), min_size=1), max_size=3)
ACTIVE = st.dictionaries(
    st.sampled_from("012"),
    st.dictionaries(st.integers(0, 3), st.integers(1, 5), min_size=1),
    max_size=3,
)
OWNED = st.builds(OwnedTasks, ACTIVE, TASKS, TASKS)
TARGETS = st.builds(TaskAssignment, TASKS, TASKS, TASKS)
HELD = st.frozensets(st.tuples(st.sampled_from("012"), st.integers(0, 3)))
FREE = Holders(lambda *_: False, lambda *_: False, lambda *_: False)


def flat(tasks: Mapping[str, Iterable[int]]) -> set[Task]:
    return {(name, partition) for name, partitions in tasks.items() for partition in partitions}


def roles(owned: OwnedTasks) -> tuple[set[Task], set[Task], set[Task]]:
    return flat(owned.active), flat(owned.standby), flat(owned.warmup)


def said(owned: OwnedTasks) -> TaskAssignment:
    active = {name: frozenset(epochs) for name, epochs in owned.active.items()}
    return TaskAssignment(active, owned.standby, owned.warmup)


def has_no_empty_set(owned: OwnedTasks) -> bool:
    return all(partitions for tasks in owned for partitions in tasks.values())


@given(OWNED, TARGETS, HELD)
def test_a_difference_divides_the_tasks(
    owned: OwnedTasks, target: TaskAssignment, held: frozenset[Task]
) -> None:
    def is_held(name: str, partition: int) -> bool:
        return (name, partition) in held

    found = task_difference(owned, target, EPOCH, Holders(is_held, is_held, is_held))
    waits = False
    for had, wanted, kept, revoked, free in zip(
        roles(owned),
        map(flat, target),
        roles(found.kept),
        roles(found.revoked),
        roles(found.free),
        strict=True,
    ):
        assert kept == had & wanted
        assert revoked == had - wanted
        assert free == wanted - had - held
        waits = waits or bool((wanted - had) & held)
    assert found.waits == waits
    assert all(map(has_no_empty_set, (found.kept, found.revoked, found.free)))
    for name, epochs in found.kept.active.items():
        assert all(owned.active[name][partition] == epoch for partition, epoch in epochs.items())
    assert {epoch for epochs in found.free.active.values() for epoch in epochs.values()} <= {EPOCH}
    both = found.kept.plus(found.revoked)
    assert roles(both) == roles(owned) and both.active == owned.active


@given(OWNED, OWNED)
def test_reports_are_compared_in_each_role(owned: OwnedTasks, other: OwnedTasks) -> None:
    reported = said(other)
    pairs = list(zip(roles(other), roles(owned), strict=True))
    assert owned.holds_any(reported) == any(mine & yours for mine, yours in pairs)
    assert owned.holds_all(reported) == all(mine <= yours for mine, yours in pairs)
    assert covers(reported, owned) == all(mine >= yours for mine, yours in pairs)


@given(OWNED, TARGETS)
def test_an_honest_member_reaches_its_target(owned: OwnedTasks, target: TaskAssignment) -> None:
    member = StreamsMember("m", member_epoch=5, previous_epoch=4, owned=owned)
    reported = said(owned)
    for _ in range(3):
        before = member
        member = reconcile(member, EPOCH, target, FREE, reported)
        assert member.member_epoch in (before.member_epoch, before.member_epoch + 1, EPOCH)
        reported = said(member.owned)
    assert member.state is MemberState.STABLE
    assert (member.member_epoch, said(member.owned)) == (EPOCH, target)
    assert member.revoking.is_empty()


@given(OWNED, TARGETS)
def test_a_member_that_reports_nothing_keeps_its_epoch_until_it_does(
    owned: OwnedTasks, target: TaskAssignment
) -> None:
    member = StreamsMember("m", member_epoch=5, previous_epoch=4, owned=owned)
    for _ in range(3):
        member = reconcile(member, EPOCH, target, FREE, None)
    gives_up = any(had - wanted for had, wanted in zip(roles(owned), map(flat, target), strict=True))
    assert (member.state is MemberState.UNREVOKED) == gives_up
    assert member.member_epoch == (5 if gives_up else EPOCH)
