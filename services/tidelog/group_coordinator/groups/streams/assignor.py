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
    yield from assignment.add_members(ordered)
    yield from assignment.add_tasks(subtopologies)
    yield from assignment.assign_active()
    yield from assignment.assign_standby(num_standby_replicas)
    return (yield from assignment.result())


class _Process:
    """A process of the application. Its members are threads that share its state directory."""

    __slots__ = ("members", "tasks")

    def __init__(self) -> None:
        self.members: list[_Member] = []
        self.tasks: set[_Task] = set()

    def load(self) -> float:
        return len(self.tasks) / len(self.members)


class _Member:
    __slots__ = ("active", "at", "member_id", "process", "standby", "task_count")

    def __init__(self, at: int, member_id: str, process: _Process) -> None:
        self.at = at
        self.member_id = member_id
        self.process = process
        self.task_count = 0
        self.active: list[_Task] = []
        self.standby: list[_Task] = []

    def add(self, task: _Task, kept: list[_Task]) -> None:
        """Adds a task. `kept` is this member's `active` or `standby`."""
        kept.append(task)
        self.task_count += 1
        self.process.tasks.add(task)

    def load(self) -> tuple[int, float, int]:
        """Returns a key by which the member that should get the next task comes first."""
        return self.task_count, self.process.load(), self.at

    def assignment(self) -> TaskAssignment:
        return TaskAssignment(_by_subtopology(self.active), _by_subtopology(self.standby))


def _by_subtopology(tasks: Iterable[_Task]) -> Tasks:
    found: dict[str, set[int]] = defaultdict(set)
    for subtopology_id, partition in tasks:
        found[subtopology_id].add(partition)
    return {subtopology_id: frozenset(found[subtopology_id]) for subtopology_id in sorted(found)}


class _Quota:
    """The number of tasks up to which a member keeps the tasks that it had.

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


class _Assignment:
    """The state of one computation."""

    def __init__(self) -> None:
        self._members: list[_Member] = []
        self._processes: dict[str, _Process] = {}
        self._previous_active: dict[_Task, _Member] = {}
        self._previous_standby: dict[_Task, list[_Member]] = defaultdict(list)
        self._tasks: list[_Task] = []
        self._stateful_tasks: list[_Task] = []

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
        quota = _Quota(len(self._tasks), len(self._members))
        moved: list[_Task] = []
        for task in self._tasks:
            yield
            member = self._previous_active.get(task)
            if member is None or member.task_count >= quota.count:
                moved.append(task)
            else:
                member.add(task, member.active)
                quota.reached(member.task_count)
        free: list[_Task] = []
        for task in moved:
            yield
            holders = [
                member for member in self._previous_standby.get(task, ()) if member.task_count < quota.count
            ]
            if holders:
                member = min(holders, key=_Member.load)
                member.add(task, member.active)
                quota.reached(member.task_count)
            else:
                free.append(task)
        least = _LeastLoaded(self._processes.values())
        for task in free:
            yield
            receiver = least.take(task)
            assert receiver is not None  # no process has the task
            receiver.add(task, receiver.active)
            least.put_back()

    def assign_standby(self, num_standby_replicas: int) -> Generator[None, None, None]:
        # A process has at most one copy of a task's state.
        replicas = min(num_standby_replicas, len(self._processes) - 1)
        if replicas <= 0:
            return
        quota = _Quota(len(self._tasks) + replicas * len(self._stateful_tasks), len(self._members))
        for member in self._members:
            quota.reached(member.task_count)
        missing: list[tuple[_Task, int]] = []
        # Kafka goes through these tasks backwards, so that other members keep the last ones than in actives.
        for task in reversed(self._stateful_tasks):
            yield
            found = 0
            for member in self._with_state(task):
                if found < replicas and member.task_count < quota.count and task not in member.process.tasks:
                    member.add(task, member.standby)
                    quota.reached(member.task_count)
                    found += 1
            if found < replicas:
                missing.append((task, replicas - found))
        least = _LeastLoaded(self._processes.values())
        for task, count in missing:
            for _ in range(count):
                yield
                receiver = least.take(task)
                if receiver is not None:
                    receiver.add(task, receiver.standby)
                least.put_back()

    def result(self) -> Generator[None, None, dict[str, TaskAssignment]]:
        assignments: dict[str, TaskAssignment] = {}
        for member in self._members:
            yield
            assignments[member.member_id] = member.assignment()
        return assignments

    def _with_state(self, task: _Task) -> list[_Member]:
        """Returns the members that have had this task, those first that should keep it."""
        members = sorted(self._previous_standby.get(task, ()), key=_Member.load)
        active = self._previous_active.get(task)
        return members if active is None else [active, *members]


def _tasks_of(tasks: Tasks) -> Iterable[_Task]:
    return ((subtopology_id, partition) for subtopology_id, found in tasks.items() for partition in found)


class _LeastLoaded:
    """A queue of members by load, in which members of one process are passed over together."""

    def __init__(self, processes: Iterable[_Process]) -> None:
        self._queue: list[tuple[tuple[int, float, int], list[tuple[int, int, _Member]]]] = []
        for process in processes:
            members = [(member.task_count, member.at, member) for member in process.members]
            heapq.heapify(members)
            self._queue.append((members[0][2].load(), members))
        heapq.heapify(self._queue)
        self._taken: list[list[tuple[int, int, _Member]]] = []

    def take(self, task: _Task) -> _Member | None:
        """Returns the member that should get the task, or None if all processes have it.

        The caller adds the task to the member and then calls `put_back`.
        """
        while self._queue:
            _, members = heapq.heappop(self._queue)
            self._taken.append(members)
            member = members[0][2]
            if task not in member.process.tasks:
                return member
        return None

    def put_back(self) -> None:
        for members in self._taken:
            member = members[0][2]
            heapq.heapreplace(members, (member.task_count, member.at, member))
            heapq.heappush(self._queue, (members[0][2].load(), members))
        self._taken.clear()
