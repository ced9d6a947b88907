"""The assignor of streams groups, `sticky` (KIP-1071).

Each task gets one member that runs it, its active task. A task with state also gets standby tasks, which copy
its state, in processes other than that of the active task. Members keep the tasks that they had as far as the
balance allows, and a task moves where its state is, if it has to move.

Like Kafka 4.3's `StickyTaskAssignor`, this assignor makes no warm-up tasks and does not consider racks and
client tags. Unlike there, the result does not depend on the order of a hash table, and no member gets two
active tasks more than another member.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from typing import Final, NamedTuple

from tidelog.group_coordinator.groups.streams.topology import ConfiguredSubtopology, Tasks

STICKY: Final = "sticky"

BALANCING_PASSES: Final = 4
"""The largest number of passes over the standby tasks that make the loads more even."""

_NO_TASKS: Final[Tasks] = {}
_Task = tuple[str, int]
"""The subtopology id and the partition of a task."""


class StreamsMemberSpec(NamedTuple):
    """A member in the assignor's input. The tasks are those of its previous target assignment."""

    member_id: str
    process_id: str
    active_tasks: Tasks = _NO_TASKS
    standby_tasks: Tasks = _NO_TASKS


class TaskAssignment(NamedTuple):
    """The tasks of a member."""

    active_tasks: Tasks = _NO_TASKS
    standby_tasks: Tasks = _NO_TASKS
    warmup_tasks: Tasks = _NO_TASKS


def assign(
    members: Iterable[StreamsMemberSpec],
    subtopologies: Mapping[str, ConfiguredSubtopology],
    num_standby_replicas: int,
) -> dict[str, TaskAssignment]:
    """Returns the target assignment of each member, all at once. `assignment_steps` computes it in slices."""
    steps = assignment_steps(members, subtopologies, num_standby_replicas)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: dict[str, TaskAssignment] = ended.value
            return result


def assignment_steps(
    members: Iterable[StreamsMemberSpec],
    subtopologies: Mapping[str, ConfiguredSubtopology],
    num_standby_replicas: int,
) -> Generator[None, None, dict[str, TaskAssignment]]:
    """Computes the target assignment of each member, and yields wherever it may be interrupted.

    `num_standby_replicas` is the group's `streams.num.standby.replicas`. The result is empty without members.
    """
    ordered = sorted(members, key=lambda member: member.member_id)
    if not ordered:
        return {}
    assignment = _Assignment()
    try:
        yield from assignment.add_members(ordered)
        yield from assignment.add_tasks(subtopologies)
        yield from assignment.assign_active()
        yield from assignment.assign_standby(num_standby_replicas)
        return (yield from assignment.result())
    finally:
        assignment.free()


class _Process:
    """A process of the application. Its members are threads that share its state directory."""

    __slots__ = ("_queue", "members", "tasks")

    def __init__(self) -> None:
        self.members: list[_Member] = []
        self.tasks: set[_Task] = set()
        self._queue: list[tuple[int, int, _Member]] = []
        """The members by load. An entry is outdated if its load is not that of its member."""

    def load(self) -> float:
        return len(self.tasks) / len(self.members)

    def enqueue(self, member: _Member) -> None:
        """Notes the load of a member for `least_loaded`."""
        heapq.heappush(self._queue, (member.task_count, member.at, member))

    def least_loaded(self) -> _Member:
        while True:
            task_count, _, member = self._queue[0]
            if task_count == member.task_count:
                return member
            heapq.heappop(self._queue)

    def free(self) -> None:
        self.members.clear()
        self._queue.clear()


class _Member:
    __slots__ = ("active", "at", "member_id", "process", "standby", "task_count")

    def __init__(self, at: int, member_id: str, process: _Process) -> None:
        self.at = at
        self.member_id = member_id
        self.process = process
        self.active: list[_Task] = []
        self.standby: dict[_Task, None] = {}
        """The standby tasks as an ordered set. The last one came last."""
        self.task_count = 0

    def load(self) -> tuple[int, float, int]:
        """Returns a key by which the member that should get the next task comes first."""
        return self.task_count, self.process.load(), self.at

    def add_active(self, task: _Task) -> None:
        self.active.append(task)
        self.process.tasks.add(task)
        self.task_count += 1

    def add_standby(self, task: _Task) -> None:
        self.standby[task] = None
        self.process.tasks.add(task)
        self.task_count += 1

    def remove_standby(self, task: _Task) -> None:
        del self.standby[task]
        self.process.tasks.remove(task)
        self.task_count -= 1

    def assignment(self) -> TaskAssignment:
        return TaskAssignment(_by_subtopology(self.active), _by_subtopology(self.standby))


def _by_partition(task: _Task) -> tuple[int, str]:
    subtopology_id, partition = task
    return partition, subtopology_id


def _by_subtopology(tasks: Iterable[_Task]) -> Tasks:
    found: dict[str, set[int]] = defaultdict(set)
    for subtopology_id, partition in tasks:
        found[subtopology_id].add(partition)
    return {subtopology_id: frozenset(found[subtopology_id]) for subtopology_id in sorted(found)}


def _tasks_of(tasks: Tasks) -> Iterable[_Task]:
    return ((subtopology_id, partition) for subtopology_id, found in tasks.items() for partition in found)


class _Quota:
    """The number of active tasks up to which a member keeps those that it had.

    It is the average, rounded up, until as many members have reached it as the division leaves a remainder.
    From then on it is the average, rounded down.
    """

    def __init__(self, tasks: int, members: int) -> None:
        self.count, self._larger = divmod(tasks, members)
        if self._larger:
            self.count += 1

    def reached(self, task_count: int) -> None:
        """Notes that a member now has this number of tasks."""
        if self._larger and task_count == self.count:
            self._larger -= 1
            if not self._larger:
                self.count -= 1


class _LeastLoaded:
    """A queue of all members by load. It passes over the members of a process together."""

    def __init__(self, processes: Iterable[_Process]) -> None:
        self._queue: list[tuple[tuple[int, float, int], _Process]] = []
        """An entry is outdated if its load is not that of the least loaded member of the process."""
        for process in processes:
            for member in process.members:
                process.enqueue(member)
            self._queue.append((process.least_loaded().load(), process))
        heapq.heapify(self._queue)

    def changed(self, member: _Member) -> None:
        """Notes that the number of the member's tasks has changed."""
        process = member.process
        process.enqueue(member)
        heapq.heappush(self._queue, (process.least_loaded().load(), process))

    def member_without(self, task: _Task) -> _Member | None:
        """Returns the least loaded member of a process without the task, or None if all processes have it."""
        passed = []
        self._drop_outdated()
        while self._queue and task in self._queue[0][1].tasks:
            passed.append(heapq.heappop(self._queue))
            self._drop_outdated()
        found = self._queue[0][1].least_loaded() if self._queue else None
        for entry in passed:
            heapq.heappush(self._queue, entry)
        return found

    def smallest_task_count(self) -> int:
        self._drop_outdated()
        (task_count, _, _), _ = self._queue[0]
        return task_count

    def _drop_outdated(self) -> None:
        while self._queue and self._queue[0][0] != self._queue[0][1].least_loaded().load():
            heapq.heappop(self._queue)


class _Assignment:
    """The state of one computation."""

    def __init__(self) -> None:
        self._members: list[_Member] = []
        self._processes: dict[str, _Process] = {}
        self._previous_active: dict[_Task, _Member] = {}
        self._previous_standby: dict[_Task, list[_Member]] = defaultdict(list)
        self._tasks: list[_Task] = []
        self._stateful_tasks: list[_Task] = []

    def free(self) -> None:
        """Ends the references of processes to their members, which refer to them."""
        for process in self._processes.values():
            process.free()

    def add_members(self, specs: Iterable[StreamsMemberSpec]) -> Generator[None, None, None]:
        for at, spec in enumerate(specs):
            yield
            process = self._processes.get(spec.process_id)
            if process is None:
                process = self._processes[spec.process_id] = _Process()
            member = _Member(at, spec.member_id, process)
            process.members.append(member)
            self._members.append(member)
            for task in _tasks_of(spec.active_tasks):
                self._previous_active[task] = member
            for task in _tasks_of(spec.standby_tasks):
                self._previous_standby[task].append(member)

    def add_tasks(self, subtopologies: Mapping[str, ConfiguredSubtopology]) -> Generator[None, None, None]:
        for subtopology_id, subtopology in sorted(subtopologies.items()):
            yield
            tasks = [(subtopology_id, partition) for partition in range(subtopology.task_count)]
            self._tasks += tasks
            if subtopology.is_stateful:
                self._stateful_tasks += tasks

    def assign_active(self) -> Generator[None, None, None]:
        """Leaves tasks with their members, moves others to their standby tasks, and then assigns the rest."""
        quota = _Quota(len(self._tasks), len(self._members))
        moved: list[_Task] = []
        # A member that has to give up tasks keeps some of each subtopology.
        for task in sorted(self._tasks, key=_by_partition):
            yield
            member = self._previous_active.get(task)
            if member is None or member.task_count >= quota.count:
                moved.append(task)
            else:
                member.add_active(task)
                quota.reached(member.task_count)
        free: list[_Task] = []
        for task in moved:
            yield
            holders = [
                member for member in self._previous_standby.get(task, ()) if member.task_count < quota.count
            ]
            if holders:
                member = min(holders, key=_Member.load)
                member.add_active(task)
                quota.reached(member.task_count)
            else:
                free.append(task)
        least_loaded = _LeastLoaded(self._processes.values())
        for task in sorted(free):
            yield
            receiver = least_loaded.member_without(task)
            assert receiver is not None  # no process has the task yet
            receiver.add_active(task)
            least_loaded.changed(receiver)

    def assign_standby(self, num_standby_replicas: int) -> Generator[None, None, None]:
        """Leaves copies where the state is, adds the missing ones, and then makes the loads more even."""
        replicas = min(num_standby_replicas, len(self._processes) - 1)  # each in a process of its own
        if replicas <= 0:
            return
        missing: list[_Task] = []
        for task in sorted(self._stateful_tasks, key=_by_partition, reverse=True):
            yield
            kept = 0
            for member in self._with_state(task):
                if kept < replicas and task not in member.process.tasks:
                    member.add_standby(task)
                    kept += 1
            missing += [task] * (replicas - kept)
        least_loaded = _LeastLoaded(self._processes.values())
        for task in sorted(missing, reverse=True):
            yield
            receiver = least_loaded.member_without(task)
            assert receiver is not None  # there are more processes than copies of a task
            receiver.add_standby(task)
            least_loaded.changed(receiver)
        for _ in range(BALANCING_PASSES):
            if not (yield from self._balance_standby(least_loaded)):
                break

    def _with_state(self, task: _Task) -> list[_Member]:
        """Returns the members that have had this task, beginning with those that should keep it."""
        members = sorted(self._previous_standby.get(task, ()), key=_Member.load)
        active = self._previous_active.get(task)
        return members if active is None else [active, *members]

    def _balance_standby(self, least_loaded: _LeastLoaded) -> Generator[None, None, bool]:
        """Moves standby tasks to members that have at least two tasks less. Returns whether it moved any.

        The tasks that a member got last move first, because it does not have their state yet.
        """
        moved = False
        for giver in sorted(self._members, key=_Member.load, reverse=True):
            for task in reversed(list(giver.standby)):
                yield
                if giver.task_count < least_loaded.smallest_task_count() + 2:
                    break
                receiver = giver.process.least_loaded()
                elsewhere = least_loaded.member_without(task)
                if elsewhere is not None and elsewhere.load() < receiver.load():
                    receiver = elsewhere
                if receiver.task_count + 2 <= giver.task_count:
                    giver.remove_standby(task)
                    receiver.add_standby(task)
                    least_loaded.changed(giver)
                    least_loaded.changed(receiver)
                    moved = True
        return moved

    def result(self) -> Generator[None, None, dict[str, TaskAssignment]]:
        assignments: dict[str, TaskAssignment] = {}
        for member in self._members:
            yield
            assignments[member.member_id] = member.assignment()
        return assignments
