"""Members of a streams group (KIP-1071), which send StreamsGroupHeartbeat, and the checks of the group.

The tasks of the group are those of the records in the committed log of its shard. Members have a view of
their own: the tasks that they run. A member that does not hear of anything keeps its tasks, as in Kafka.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Final, Protocol, TypeAlias

from sim.group_members import CoordinatorAddress, CoordinatorClient
from sim.histories import Fail
from sim.network import Network
from sim.plan import TOPIC
from tidelog.group_coordinator.groups.streams.streams_member import STREAMS_FORMAT
from tidelog.group_coordinator.shard_core import ReplayedRecord
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import BatchHeader
from tidelog.records.record import iterate_records
from tidelog.wire.messages.records.streams_group_current_member_assignment import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
)
from tidelog.wire.messages.records.streams_group_metadata import StreamsGroupMetadataValue
from tidelog.wire.messages.records.streams_group_target_assignment_metadata import (
    StreamsGroupTargetAssignmentMetadataValue,
)
from tidelog.wire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    Topology,
)

HEARTBEAT_VERSION: Final = 1
GROUP: Final = "streams-group"
SUBTOPOLOGIES: Final = 3
"""Each one reads the topic of the cluster and has a task for each of its partitions."""
REBALANCE_TIMEOUT_MS: Final = 3000
INTERVAL_S: Final = 0.5
STAYS_S: Final = 12.0
AWAY_S: Final = 2.0
JOIN_EPOCH, LEAVE_EPOCH = 0, -1
LEAST_GIVEN: Final = 5
REJOIN: Final = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
)
"""The errors after which a member abandons its tasks and joins again."""
RETRY: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REQUEST_TIMED_OUT,
)
_NO_TIME: Final = WallMs(0)
_KINDS: Final = {kind.to_bytes(2, "big") for kind in STREAMS_FORMAT.types}
Task: TypeAlias = tuple[str, int]
"""The subtopology and the partition."""


class _Tasks(Protocol):
    """The tasks of one subtopology: TaskIds of a message or of a record."""

    subtopology_id: str
    partitions: list[int]


class StreamsHistory:
    """Compares what the committed log says about the group with what its members believe."""

    def __init__(self, fail: Fail) -> None:
        self.given = 0
        """The number of times that a member received other tasks than it had."""
        self.running: dict[str, set[Task]] = {}
        """The tasks that each member runs, by member id."""
        self.held: dict[str, set[Task]] = {}
        """The tasks that each member has by the committed log, also those that it has to give up."""
        self.epoch = 0
        self._fail = fail
        self._assignment_epoch = 0
        self._member_epochs: dict[str, int] = {}

    def batch_committed(self, header: BatchHeader, data: bytes) -> None:
        """Checks the records of one decision or of several, which are in the log as a whole."""
        if header.is_control or GROUP.encode() not in data:
            return
        for record in iterate_records(data):
            if record.key is None or bytes(record.key[:2]) not in _KINDS:
                continue
            _, key, value = STREAMS_FORMAT.read(ReplayedRecord(record.key, record.value, _NO_TIME, None))
            if key.group_id == GROUP:
                self._record_committed(key, value)
        holders: dict[Task, str] = {}
        for member_id, tasks in self.held.items():
            for task in tasks:
                if holders.setdefault(task, member_id) != member_id:
                    self._fail("a task is active at one member", f"{task}: {holders[task]} and {member_id}")

    def _record_committed(self, key: object, value: object) -> None:
        match value:
            case StreamsGroupMetadataValue():
                self._grows("the group epoch grows", value.epoch, self.epoch)
                self.epoch = value.epoch
            case StreamsGroupTargetAssignmentMetadataValue():
                self._grows("the assignment epoch grows", value.assignment_epoch, self._assignment_epoch)
                self._grows("no assignment is newer than its group", self.epoch, value.assignment_epoch)
                self._assignment_epoch = value.assignment_epoch
            case _ if isinstance(key, StreamsGroupCurrentMemberAssignmentKey):
                assert value is None or isinstance(value, StreamsGroupCurrentMemberAssignmentValue)
                self._assigned(key.member_id, value)

    def _assigned(self, member_id: str, value: StreamsGroupCurrentMemberAssignmentValue | None) -> None:
        if value is None:
            self.held.pop(member_id, None)
            self._member_epochs.pop(member_id, None)
            return
        self._grows("member epochs grow", value.member_epoch, self._member_epochs.get(member_id, 0))
        self._grows("no member is newer than its group", self.epoch, value.member_epoch)
        self._member_epochs[member_id] = value.member_epoch
        tasks = tasks_of(value.active_tasks) | tasks_of(value.active_tasks_pending_revocation)
        taken = self.held.get(member_id, set()) - tasks
        if taken & self.running.get(member_id, set()):
            self._fail("a member gives up a task before it is taken", f"{member_id} runs {sorted(taken)}")
        self.held[member_id] = tasks

    def _grows(self, invariant: str, now: int, before: int) -> None:
        if now < before:
            self._fail(invariant, f"{now} after {before}")

    def was_given(self, member_id: str, tasks: set[Task]) -> None:
        self.given += tasks != self.running.get(member_id, set())
        self.running[member_id] = tasks

    def gave_up(self, member_id: str) -> None:
        self.running.pop(member_id, None)

    def unexpected(self, member_id: str, error: ErrorCode, message: str | None) -> None:
        self._fail("valid heartbeats are accepted", f"{member_id}: {error.name} {message}")

    def missing(self, partitions: int) -> str | None:
        """Returns what is missing until each task runs at one member, None if nothing is."""
        wanted = {(str(name), part) for name in range(SUBTOPOLOGIES) for part in range(partitions)}
        running = [task for tasks in self.running.values() for task in tasks]
        if sorted(running) == sorted(wanted) and self.held == self.running:
            return None
        return f"streams group epoch {self.epoch}: run {self.running}, log {self.held}"


def tasks_of(found: Iterable[_Tasks] | None) -> set[Task]:
    return {(one.subtopology_id, part) for one in found or () for part in one.partitions}


class SimStreamsMember(CoordinatorClient):
    """A member. It leaves and comes back under another id until `is_stopped`, and stays then."""

    def __init__(
        self,
        name: str,
        address: CoordinatorAddress,
        network: Network,
        history: StreamsHistory,
        chance: random.Random,
    ) -> None:
        super().__init__(name, address, network, chance)
        self._history = history
        self._lives = 0
        self._member_id = ""
        self._epoch = JOIN_EPOCH

    async def run(self) -> None:
        while True:
            self._lives += 1
            self._member_id, self._epoch = f"{self.name}.{self._lives}", JOIN_EPOCH
            leaves_s = self._now_s + self._chance.expovariate(1 / STAYS_S)
            while self.is_stopped or self._now_s < leaves_s:
                await self._heartbeat()
                await asyncio.sleep(INTERVAL_S * (0.5 + self._chance.random()))
            self._history.gave_up(self._member_id)
            if self._epoch != JOIN_EPOCH and self._chance.random() < 0.7:
                leave = StreamsGroupHeartbeatRequest(GROUP, self._member_id, LEAVE_EPOCH)
                await self.ask(leave, HEARTBEAT_VERSION)
            await asyncio.sleep(self._chance.expovariate(1 / AWAY_S))

    async def _heartbeat(self) -> None:
        answer: StreamsGroupHeartbeatResponse | None = await self.ask(self._request(), HEARTBEAT_VERSION)
        if answer is None:
            return
        error = ErrorCode(answer.error_code)
        if error in REJOIN:
            self._history.gave_up(self._member_id)
            self._epoch = JOIN_EPOCH
        elif error in RETRY:
            self.last_error = error.name
            self._address.forget()
            await self._pause()
        elif error:
            self._history.unexpected(self._member_id, error, answer.error_message)
        else:
            self._epoch = answer.member_epoch
            if answer.active_tasks is not None:
                self._history.was_given(self._member_id, tasks_of(answer.active_tasks))

    def _request(self) -> StreamsGroupHeartbeatRequest:
        if self._epoch == JOIN_EPOCH:
            subtopologies = [Subtopology(str(name), [TOPIC]) for name in range(SUBTOPOLOGIES)]
            return StreamsGroupHeartbeatRequest(
                GROUP,
                self._member_id,
                JOIN_EPOCH,
                endpoint_information_epoch=-1,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                topology=Topology(0, subtopologies),
                active_tasks=[],
                standby_tasks=[],
                warmup_tasks=[],
                process_id=self.name,
            )
        running: dict[str, list[int]] = {}
        for name, partition in sorted(self._history.running.get(self._member_id, ())):
            running.setdefault(name, []).append(partition)
        return StreamsGroupHeartbeatRequest(
            GROUP,
            self._member_id,
            self._epoch,
            endpoint_information_epoch=-1,
            active_tasks=[TaskIds(name, partitions) for name, partitions in running.items()],
            standby_tasks=[],
            warmup_tasks=[],
        )
