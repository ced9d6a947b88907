"""The tasks that a member of a streams group has, and those that it must give up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from tidelog.group_coordinator.groups.streams.assignor import TaskAssignment
from tidelog.group_coordinator.groups.streams.topology import Tasks

ActiveTasks: TypeAlias = Mapping[str, Mapping[int, int]]
"""Active tasks: by subtopology id and partition, the member epoch in which the member received the task. No
subtopology has an empty mapping.
"""

_NO_ACTIVE_TASKS: Final[ActiveTasks] = {}
_NO_TASKS: Final[Tasks] = {}
NO_ASSIGNMENT: Final = TaskAssignment()


class OwnedTasks(NamedTuple):
    """Tasks of a member. Only active tasks have epochs, because only they commit offsets."""

    active: ActiveTasks = _NO_ACTIVE_TASKS
    standby: Tasks = _NO_TASKS
    warmup: Tasks = _NO_TASKS

    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)


NO_OWNED_TASKS: Final = OwnedTasks()

IsHeld = Callable[[str, int], bool]
"""Returns whether the task (subtopology id, partition) cannot be given to the member yet."""


class Holders(NamedTuple):
    """Tells which tasks a member cannot receive yet, because a member or a process has not given them up."""

    active: IsHeld
    standby: IsHeld
    warmup: IsHeld


class Difference(NamedTuple):
    """The way from the tasks that a member has to its target assignment."""

    kept: OwnedTasks
    """The tasks that it has and should have."""
    revoked: OwnedTasks
    """The tasks that it has and should not have."""
    free: OwnedTasks
    """The tasks that it should have, does not have, and that nobody holds."""
    waits: bool
    """Whether somebody holds a task that it should have."""


def difference(owned: OwnedTasks, target: TaskAssignment, epoch: int, holders: Holders) -> Difference:
    """Returns the way to a target assignment, whose epoch `free` active tasks get."""
    waits = False
    kept_active: dict[str, Mapping[int, int]] = {}
    revoked_active: dict[str, Mapping[int, int]] = {}
    for name, epochs in owned.active.items():
        wanted = target.active_tasks.get(name, frozenset())
        kept = {partition: given for partition, given in epochs.items() if partition in wanted}
        revoked = {partition: given for partition, given in epochs.items() if partition not in wanted}
        _put(kept_active, name, kept)
        _put(revoked_active, name, revoked)
    free_active: dict[str, Mapping[int, int]] = {}
    for name, wanted in target.active_tasks.items():
        missing = wanted - kept_active.get(name, {}).keys()
        free = {partition for partition in missing if not holders.active(name, partition)}
        waits = waits or len(free) < len(missing)
        _put(free_active, name, dict.fromkeys(sorted(free), epoch))
    standby = _passive_difference(owned.standby, target.standby_tasks, holders.standby)
    warmup = _passive_difference(owned.warmup, target.warmup_tasks, holders.warmup)
    return Difference(
        OwnedTasks(kept_active, standby.kept, warmup.kept),
        OwnedTasks(revoked_active, standby.revoked, warmup.revoked),
        OwnedTasks(free_active, standby.free, warmup.free),
        waits or standby.waits or warmup.waits,
    )


class _PassiveDifference(NamedTuple):
    kept: Tasks
    revoked: Tasks
    free: Tasks
    waits: bool


def _passive_difference(owned: Tasks, target: Tasks, is_held: IsHeld) -> _PassiveDifference:
    kept: dict[str, frozenset[int]] = {}
    revoked: dict[str, frozenset[int]] = {}
    free: dict[str, frozenset[int]] = {}
    waits = False
    for name in owned.keys() | target.keys():
        had, wanted = owned.get(name, frozenset()), target.get(name, frozenset())
        missing = wanted - had
        found = frozenset(partition for partition in missing if not is_held(name, partition))
        waits = waits or len(found) < len(missing)
        _put(kept, name, had & wanted)
        _put(revoked, name, had - wanted)
        _put(free, name, found)
    return _PassiveDifference(kept, revoked, free, waits)


_Partitions = TypeVar("_Partitions", bound=Set[int] | Mapping[int, int])


def _put(tasks: dict[str, _Partitions], name: str, partitions: _Partitions) -> None:
    if partitions:
        tasks[name] = partitions


def merged(first: OwnedTasks, second: OwnedTasks) -> OwnedTasks:
    """Returns the tasks of both."""
    return OwnedTasks(
        {
            name: {**first.active.get(name, {}), **second.active.get(name, {})}
            for name in first.active.keys() | second.active.keys()
        },
        _merged_passive(first.standby, second.standby),
        _merged_passive(first.warmup, second.warmup),
    )


def _merged_passive(first: Tasks, second: Tasks) -> Tasks:
    return {
        name: first.get(name, frozenset()) | second.get(name, frozenset())
        for name in first.keys() | second.keys()
    }


def holds_any(reported: TaskAssignment, of: OwnedTasks) -> bool:
    """Returns whether `reported` contains at least one task of `of`, in the same role."""
    return (
        _overlap(reported.active_tasks, of.active)
        or _overlap(reported.standby_tasks, of.standby)
        or _overlap(reported.warmup_tasks, of.warmup)
    )


def _overlap(reported: Tasks, of: Mapping[str, Iterable[int]]) -> bool:
    return any(name in of and not found.isdisjoint(of[name]) for name, found in reported.items())


def holds_all(owned: OwnedTasks, reported: TaskAssignment) -> bool:
    """Returns whether `owned` contains every task of `reported`, in the same role."""
    return (
        all(found <= owned.active.get(name, {}).keys() for name, found in reported.active_tasks.items())
        and all(
            found <= owned.standby.get(name, frozenset()) for name, found in reported.standby_tasks.items()
        )
        and all(found <= owned.warmup.get(name, frozenset()) for name, found in reported.warmup_tasks.items())
    )


def covers(reported: TaskAssignment, owned: OwnedTasks) -> bool:
    """Returns whether `reported` contains every task of `owned`, in the same role."""
    return all(
        tasks.keys() <= found.keys() and all(found[name].issuperset(tasks[name]) for name in tasks)
        for tasks, found in (
            (owned.active, reported.active_tasks),
            (owned.standby, reported.standby_tasks),
            (owned.warmup, reported.warmup_tasks),
        )
    )


class _TaskIds(Protocol):
    """A generated class that holds the tasks of one subtopology."""

    subtopology_id: str
    partitions: list[int]


T = TypeVar("T", bound=_TaskIds)


def from_message(tasks: Iterable[_TaskIds]) -> Tasks:
    """Returns the tasks of a message, which may name a subtopology more than once."""
    found: dict[str, frozenset[int]] = {}
    for of_subtopology in tasks:
        if of_subtopology.partitions:
            name = of_subtopology.subtopology_id
            found[name] = found.get(name, frozenset()) | frozenset(of_subtopology.partitions)
    return found


def to_message(task_class: type[T], tasks: Mapping[str, Iterable[int]]) -> list[T]:
    """Returns the tasks as message objects.

    They are sorted by subtopology id and partition, so that equal assignments have equal bytes.
    """
    messages = []
    for name in sorted(tasks):
        message = task_class()
        message.subtopology_id = name
        message.partitions = sorted(tasks[name])
        messages.append(message)
    return messages
