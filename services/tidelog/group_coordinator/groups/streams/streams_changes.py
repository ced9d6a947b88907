"""Changes of one streams group: each writes a record and applies the record to the state at once."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final, NamedTuple

from tidelog.group_coordinator.groups.shared import Groups, TimerKey, may_assign
from tidelog.group_coordinator.groups.streams import streams_records as records
from tidelog.group_coordinator.groups.streams.assignor import (
    StreamsMemberSpec,
    TaskAssignment,
    assignment_steps,
)
from tidelog.group_coordinator.groups.streams.owned_tasks import NO_ASSIGNMENT
from tidelog.group_coordinator.groups.streams.streams_group import (
    NOT_VALIDATED,
    StreamsGroup,
    UnfinishedAssignment,
)
from tidelog.group_coordinator.groups.streams.streams_member import (
    StreamsMember,
    StreamsMemberState,
    reconcile,
)
from tidelog.group_coordinator.groups.streams.streams_records import RecordKind
from tidelog.group_coordinator.groups.streams.topology import ConfiguredTopology, StreamsStatus, Topology
from tidelog.group_coordinator.shard_core import CancelTimer, CoordinatorRecord, SetTimer, ShardDecision
from tidelog.model.instants import WallMs
from tidelog.wire.messages.streams_group_heartbeat import Status

TIMER_OWNER: Final = "streams"
SESSION_TIMER: Final = "session"
REBALANCE_TIMER: Final = "rebalance"
FIRST_ASSIGNMENT_TIMER: Final = "first assignment"
"""The timer of a group that waits for more members before its first assignment."""
ASSIGNMENT_TIMER: Final = "assignment"
"""The timer of the next slice of a long computation of an assignment."""
STEPS_AT_ONCE: Final = 1_000
"""The steps of an assignment in one event. They take up to 30 ms. Each task takes about two steps."""
NUM_STANDBY_REPLICAS: Final = "num.standby.replicas"
"""The setting in the record of a group on which its assignment depends."""


class AppliedTopology(NamedTuple):
    """A topology, and what it means for the topics that exist."""

    topology: Topology
    configured: ConfiguredTopology
    metadata_hash: int
    """The hash of the topics that the result depends on."""


class StreamsChanges:
    """The changes that one event makes to one group. The caller keeps `groups.by_id` up to date."""

    def __init__(self, groups: Groups, group: StreamsGroup, decision: ShardDecision, now_ms: WallMs) -> None:
        self.group = group
        self.decision = decision
        self.now_ms = now_ms
        self._groups = groups
        self._settings = groups.group_settings.for_group(group.group_id)

    def put_group(
        self, epoch: int, metadata_hash: int, validated_topology_epoch: int, configs: Mapping[str, str]
    ) -> None:
        group = self.group
        group.epoch, group.metadata_hash = epoch, metadata_hash
        group.validated_topology_epoch, group.assignment_configs = validated_topology_epoch, configs
        record = records.group_record(group.group_id, epoch, metadata_hash, validated_topology_epoch, configs)
        self._write(record)

    def put_topology(self, topology: Topology) -> None:
        self.group.put_topology(topology)
        self._write(records.topology_record(self.group.group_id, topology))

    def put_metadata(self, member: StreamsMember) -> None:
        self.group.put_metadata(member)
        self._write(records.member_record(self.group.group_id, member))

    def put_target(self, member_id: str, target: TaskAssignment) -> None:
        self.group.targets[member_id] = target
        self._write(records.target_record(self.group.group_id, member_id, target))

    def put_assignment_epoch(self, epoch: int) -> None:
        self.group.assignment_epoch, self.group.assignment_timestamp_ms = epoch, self.now_ms
        self._write(records.target_epoch_record(self.group.group_id, epoch, self.now_ms))

    def put_current_assignment(self, member: StreamsMember) -> None:
        self.group.put_current_assignment(member)
        self._write(records.current_record(self.group.group_id, member))

    def _write(self, record: CoordinatorRecord) -> None:
        self.decision.records.append(record)

    def update_member(
        self,
        before: StreamsMember,
        wanted: StreamsMember,
        applied: AppliedTopology,
        reported: TaskAssignment | None,
        statuses: list[Status],
    ) -> StreamsMember:
        """Applies a member's heartbeat, and returns the member after one step of its reconciliation.

        `reported` are the tasks that the member says it has, None if it does not say. Statuses of the
        assignment are added to `statuses`.
        """
        group = self.group
        is_first = not group.members
        is_new = before.member_id not in group.members
        has_changed = is_new or not wanted.has_metadata_of(before)
        if has_changed:
            self.put_metadata(wanted)
        if group.topology is None:
            self.put_topology(applied.topology)
        group.configured, group.topics_changed = applied.configured, False
        self.update_epoch(applied, must_grow=has_changed)
        if is_first and self._settings.streams_initial_rebalance_delay_ms > 0:
            self._delay_first_assignment()
        self.update_target(statuses)
        target = NO_ASSIGNMENT if group.is_first_assignment_delayed else group.target_of(wanted.member_id)
        return self._reconcile(wanted.member_id, target, reported)

    def update_epoch(self, applied: AppliedTopology, *, must_grow: bool) -> None:
        """Increases the group epoch if members, the topology, topics or settings changed, so that another
        target is computed.
        """
        group = self.group
        validated = applied.topology.epoch if applied.configured.is_ready else NOT_VALIDATED
        configs = {NUM_STANDBY_REPLICAS: str(self._settings.streams_num_standby_replicas)}
        if (
            must_grow
            or applied.metadata_hash != group.metadata_hash
            or validated != group.validated_topology_epoch
            or configs != group.assignment_configs
        ):
            self.put_group(group.epoch + 1, applied.metadata_hash, validated, configs)

    def _delay_first_assignment(self) -> None:
        if not self.group.is_first_assignment_delayed:
            self.group.is_first_assignment_delayed = True
            self.set_timer(FIRST_ASSIGNMENT_TIMER, "", self._settings.streams_initial_rebalance_delay_ms)

    def update_target(self, statuses: list[Status]) -> None:
        """Computes the target assignment of the group epoch if it does not exist yet and may be computed."""
        group = self.group
        if group.is_first_assignment_delayed:
            statuses.append(_delayed("the configured initial rebalance delay"))
            return
        if group.epoch <= group.assignment_epoch:
            return
        interval_ms = self._settings.streams_assignment_interval_ms
        if not may_assign(group.assignment_timestamp_ms, interval_ms, self.now_ms):
            statuses.append(_delayed("the configured assignment interval"))
            return
        if group.unfinished_assignment is None:
            group.unfinished_assignment = UnfinishedAssignment(group.epoch, self._assignment_steps())
            self.continue_assignment()
        if group.unfinished_assignment is not None:
            statuses.append(_delayed("the number of tasks"))

    def continue_assignment(self) -> None:
        """Computes a slice of an assignment and carries out a complete one. A timer continues the others."""
        group, unfinished = self.group, self.group.unfinished_assignment
        if unfinished is None:
            return
        try:
            for _ in range(STEPS_AT_ONCE):
                next(unfinished.steps)
        except StopIteration as ended:
            targets: dict[str, TaskAssignment] = ended.value
        else:
            self.set_timer(ASSIGNMENT_TIMER, "", 0)
            return
        group.unfinished_assignment = None
        for member_id in group.members:
            # A member that has joined since gets its tasks in the epoch of its join.
            target = targets.get(member_id, NO_ASSIGNMENT)
            if member_id not in group.targets or group.targets[member_id] != target:
                self.put_target(member_id, target)
        self.put_assignment_epoch(unfinished.epoch)

    def _assignment_steps(self) -> Generator[None, None, dict[str, TaskAssignment]]:
        group, configured = self.group, self.group.configured
        if configured is None or not configured.is_ready or configured.subtopologies is None:
            return _no_tasks()
        specs = []
        for member in group.members.values():
            target = group.target_of(member.member_id)
            specs.append(
                StreamsMemberSpec(
                    member.member_id, member.process_id, target.active_tasks, target.standby_tasks
                )
            )
        return assignment_steps(specs, configured.subtopologies, self._settings.streams_num_standby_replicas)

    def _reconcile(
        self, member_id: str, target: TaskAssignment, reported: TaskAssignment | None
    ) -> StreamsMember:
        """Moves the member one step toward its target assignment and returns it."""
        group = self.group
        before = group.members[member_id]
        if before.is_reconciled_to(group.assignment_epoch):
            return before
        holders = group.holders_for(before.process_id)
        after = reconcile(before, group.assignment_epoch, target, holders, reported)
        if not after.has_assignment_of(before):
            self.put_current_assignment(after)
            if after.state is StreamsMemberState.UNREVOKED_TASKS:
                self.set_timer(REBALANCE_TIMER, member_id, after.rebalance_timeout_ms)
            else:
                self.cancel_timer(REBALANCE_TIMER, member_id)
        return after

    def remove_member(self, member: StreamsMember) -> None:
        """Removes a member with its tasks and its timers. The other members get another target."""
        group = self.group
        group.remove_member(member.member_id)
        group.targets.pop(member.member_id, None)
        for kind in (RecordKind.CURRENT, RecordKind.TARGET, RecordKind.MEMBER):
            self._write(records.tombstone(kind, group.group_id, member.member_id))
        for timer in (SESSION_TIMER, REBALANCE_TIMER):
            self.cancel_timer(timer, member.member_id)
        if not group.members:
            group.shutdown_requested_by = None
        self.put_group(
            group.epoch + 1, group.metadata_hash, group.validated_topology_epoch, group.assignment_configs
        )

    def set_timer(self, kind: str, member_id: str, delay_ms: int) -> None:
        key = TimerKey(TIMER_OWNER, kind, self.group.group_id, member_id)
        self.decision.timers.append(SetTimer(key, delay_ms))

    def cancel_timer(self, kind: str, member_id: str) -> None:
        self.decision.timers.append(CancelTimer(TimerKey(TIMER_OWNER, kind, self.group.group_id, member_id)))

    def extend_session(self, member: StreamsMember) -> None:
        """Restarts the member's session timeout."""
        self.set_timer(SESSION_TIMER, member.member_id, self._settings.streams_session_timeout_ms)


def _no_tasks() -> Generator[None, None, dict[str, TaskAssignment]]:
    """Assigns no tasks to anybody."""
    yield
    return {}


def _delayed(reason: str) -> Status:
    return Status(StreamsStatus.ASSIGNMENT_DELAYED, f"Assignment delayed due to {reason}.")
