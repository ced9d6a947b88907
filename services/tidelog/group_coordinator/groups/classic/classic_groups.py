"""The classic groups of a shard: SyncGroup, Heartbeat, LeaveGroup, timers, and the records' replay."""

from __future__ import annotations

from typing import Final

from tidelog.group_coordinator.groups.classic.classic_group import (
    MAX_GROUP_BYTES,
    ClassicGroup,
    ClassicState,
    decode_group_id,
    group_from_record,
    group_record,
)
from tidelog.group_coordinator.groups.classic.rebalance import (
    JOIN_TIMER,
    SYNC_TIMER,
    Joining,
    Rebalance,
    Step,
    answer_sync,
    extend_session,
    forget_pending,
    refuse_join,
    remove_member,
    sync_answer,
)
from tidelog.group_coordinator.groups.shared import Groups, TimerKey, answer
from tidelog.group_coordinator.shard_core import ReplayedRecord, Reply, ShardDecision, ShardRequest
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.wire.messages.join_group import JoinGroupRequest
from tidelog.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

BATCHED_LEAVE_FROM: Final = 3
"""The version of LeaveGroup from which a request names several members, each with its own error."""


class ClassicGroups:
    """The handler of requests for classic groups, and for groups that do not exist."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._rebalance = Rebalance(groups.settings.group_initial_rebalance_delay_ms)
        self._joining = Joining(groups, self._rebalance)

    def _find(self, group_id: str) -> ClassicGroup | None:
        group = self._groups.by_id.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def _all(self) -> list[ClassicGroup]:
        return [group for group in self._groups.by_id.values() if isinstance(group, ClassicGroup)]

    def new_simple_group(self, group_id: str, now_ms: WallMs | None) -> ClassicGroup:
        """Adds a group for offsets that a client commits without joining."""
        group = self._groups.by_id[group_id] = ClassicGroup(group_id, now_ms)
        return group

    def join(self, request: ShardRequest[JoinGroupRequest], now_ms: WallMs) -> ShardDecision:
        return self._joining.join(request, now_ms)

    def sync(self, request: ShardRequest[SyncGroupRequest], now_ms: WallMs) -> ShardDecision:
        message = request.message
        step = Step(ShardDecision(), now_ms)
        group = self._find(message.group_id)
        error = self._check_sync(group, message)
        if group is None or error is not ErrorCode.NONE:
            return answer(request, SyncGroupResponse(error_code=error))
        member = group.members[message.member_id]
        self._rebalance.synced(group, member, step)
        # If an earlier SyncGroup still waits, its client has given it up.
        answer_sync(group, member, step, ErrorCode.REBALANCE_IN_PROGRESS)
        if group.state is ClassicState.STABLE:
            step.reply(request.reply_to, sync_answer(group, member, ErrorCode.NONE))
            return step.decision
        member.sync = request.reply_to
        if group.leader == member.member_id:
            assignments = {given.member_id: bytes(given.assignment) for given in message.assignments}
            self._rebalance.assigned(group, assignments, step)
        return step.decision

    @staticmethod
    def _check_sync(group: ClassicGroup | None, message: SyncGroupRequest) -> ErrorCode:
        error = _check_generation(group, message)
        if error is not ErrorCode.NONE or group is None:
            return error
        if message.protocol_type not in (None, group.protocol_type) or message.protocol_name not in (
            None,
            group.protocol,
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is ClassicState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if group.state is ClassicState.COMPLETING_REBALANCE and group.leader == message.member_id:
            given_bytes = sum(len(given.assignment) for given in message.assignments)
            if group.metadata_bytes + given_bytes > MAX_GROUP_BYTES:
                return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def heartbeat(self, request: ShardRequest[HeartbeatRequest], now_ms: WallMs) -> ShardDecision:
        step = Step(ShardDecision(), now_ms)
        error = self._check_heartbeat(request.message, step)
        step.reply(request.reply_to, HeartbeatResponse(error_code=error))
        return step.decision

    def _check_heartbeat(self, message: HeartbeatRequest, step: Step) -> ErrorCode:
        """Extends the member's session, and returns whether the member has to join again."""
        group = self._find(message.group_id)
        error = _check_generation(group, message)
        if error is not ErrorCode.NONE or group is None:
            return error
        extend_session(group, group.members[message.member_id], step)
        if group.state is ClassicState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, request: ShardRequest[LeaveGroupRequest], now_ms: WallMs) -> ShardDecision:
        message = request.message
        step = Step(ShardDecision(), now_ms)
        if not message.group_id:
            return answer(request, LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        group = self._find(message.group_id)
        is_batched = request.api_version >= BATCHED_LEAVE_FROM
        leaving = message.members if is_batched else [MemberIdentity(member_id=message.member_id)]
        results = [self._remove_leaving(group, member, step) for member in leaving]
        error = ErrorCode.NONE if is_batched else ErrorCode(results[0].error_code)
        step.reply(
            request.reply_to,
            LeaveGroupResponse(error_code=error, members=results if is_batched else []),
        )
        has_left = any(result.error_code == ErrorCode.NONE for result in results)
        if group is not None and group.state is not ClassicState.EMPTY and has_left:
            self._rebalance.prepare_or_complete(group, step)
        return step.decision

    def _remove_leaving(
        self, group: ClassicGroup | None, leaving: MemberIdentity, step: Step
    ) -> MemberResponse:
        """Removes a member that leaves. An admin tool names a static member only by its instance id."""
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        result = MemberResponse(member_id=member_id, group_instance_id=instance_id)
        if group is None:
            result.error_code = ErrorCode.UNKNOWN_MEMBER_ID
            return result
        if not member_id and instance_id is not None:
            member_id = group.static_members.get(instance_id, "")
        if member_id in group.pending_members:
            forget_pending(self._groups, group, member_id, step)
            return result
        error = group.check_member(member_id, instance_id)
        if error is ErrorCode.NONE:
            remove_member(group, group.members[member_id], step)
        result.error_code = error
        return result

    def timer_fired(self, key: TimerKey, now_ms: WallMs) -> ShardDecision:
        step = Step(ShardDecision(), now_ms)
        group = self._find(key.group_id)
        if group is None:
            pass
        elif key.kind == JOIN_TIMER:
            self._rebalance.join_timed_out(group, step)
        elif key.kind == SYNC_TIMER:
            self._rebalance.sync_timed_out(group, step)
        else:
            self._session_timed_out(group, key.member_id, step)
        return step.decision

    def _session_timed_out(self, group: ClassicGroup, member_id: str, step: Step) -> None:
        member = group.members.get(member_id)
        if member is None:
            if member_id in group.pending_members:
                forget_pending(self._groups, group, member_id, step)
                self._rebalance.complete_if_joined(group, step)
        elif member.is_new or (member.join is None and member.sync is None):
            remove_member(group, member, step)
            if group.state is not ClassicState.EMPTY:
                self._rebalance.prepare_or_complete(group, step)
        # Otherwise the member waits for the group. The reply to its request starts a new session.

    def replay(self, record: ReplayedRecord) -> None:
        """Applies a GroupMetadata record. Raises MalformedMessageError, UnsupportedVersionError."""
        group_id = decode_group_id(record.key)
        if record.value is not None:
            self._groups.by_id[group_id] = group_from_record(group_id, record.value)
        elif self._find(group_id) is not None:
            del self._groups.by_id[group_id]

    def activate(self, now_ms: WallMs) -> ShardDecision:
        """Starts a full session for every member, because the time of its last request is unknown."""
        step = Step(ShardDecision(), now_ms)
        for group in self._all():
            for member in group.members.values():
                extend_session(group, member, step)
            if len(group.members) > self._groups.settings.group_max_size:
                self._rebalance.prepare(group, step)
        return step.decision

    def deactivate(self) -> list[Reply]:
        """Returns a reply to every waiting request."""
        step = Step(ShardDecision(), WallMs(0))
        for group in self._all():
            self._refuse_all(group, step, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return step.decision.replies

    def adopt(self, group: ClassicGroup, now_ms: WallMs, decision: ShardDecision) -> None:
        """Replaces a consumer group by a classic group of the same members (KIP-848's downgrade).

        The group is recorded as stable. Then all members have to join again.
        """
        step = Step(decision, now_ms)
        self._groups.by_id[group.group_id] = group
        step.record(group_record(group))
        for member in group.members.values():
            extend_session(group, member, step)
        if group.members:
            self._rebalance.prepare(group, step)

    def abandon(self, group: ClassicGroup, now_ms: WallMs, decision: ShardDecision) -> None:
        """Deletes a group that a consumer group replaces.

        Waiting requests fail with REBALANCE_IN_PROGRESS, and all timers end.
        """
        step = Step(decision, now_ms)
        self._refuse_all(group, step, ErrorCode.REBALANCE_IN_PROGRESS)
        for member_id in (*group.members, *sorted(group.pending_members)):
            step.end_session(group.group_id, member_id)
        step.cancel_timer(JOIN_TIMER, group.group_id)
        step.cancel_timer(SYNC_TIMER, group.group_id)
        decision.records += group.end()
        del self._groups.by_id[group.group_id]

    @staticmethod
    def _refuse_all(group: ClassicGroup, step: Step, join_error: ErrorCode) -> None:
        """Refuses the joins that wait. Members that wait for their assignment have to join again: most other
        errors are final for them.
        """
        for member in group.members.values():
            refuse_join(member, step, join_error, member_id=member.member_id)
            answer_sync(group, member, step, ErrorCode.REBALANCE_IN_PROGRESS)


def _check_generation(group: ClassicGroup | None, message: SyncGroupRequest | HeartbeatRequest) -> ErrorCode:
    """Returns whether the sender is a member of the group's generation."""
    if not message.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = group.check_member(message.member_id, message.group_instance_id)
    if error is ErrorCode.NONE and message.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return error
