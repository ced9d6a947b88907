"""The classic protocol's APIs, their timers and records."""

from __future__ import annotations

from typing import Final

from tidelog.group_coordinator.groups.classic.group import ClassicGroup, ClassicState
from tidelog.group_coordinator.groups.classic.group_records import (
    decode_group_id,
    decode_value,
    group_record,
    recorded_members,
)
from tidelog.group_coordinator.groups.classic.joining import Joining
from tidelog.group_coordinator.groups.classic.rebalance import (
    Rebalance,
    answer_sync,
    prolong_session,
    refuse_join,
    remove_member,
    sync_answer,
)
from tidelog.group_coordinator.groups.classic.step import JOIN, SYNC, Step
from tidelog.group_coordinator.groups.shared import Groups, TimerKey, answer
from tidelog.group_coordinator.shard_core import Decision, ReplayedRecord, Reply, ShardRequest
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

BATCHED_LEAVE_FROM: Final = 3
"""Version of LeaveGroup from which it names several members, each with an error of its own."""


class ClassicGroups:
    """Requests for classic groups, and for groups that are not there."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._rebalance = Rebalance(groups.settings.group_initial_rebalance_delay_ms)
        self._joining = Joining(groups, self._rebalance)

    def _find(self, group_id: str) -> ClassicGroup | None:
        group = self._groups.by_id.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def _all(self) -> list[ClassicGroup]:
        return [group for group in self._groups.by_id.values() if isinstance(group, ClassicGroup)]

    def new_simple_group(self, group_id: str, now_ms: int | None) -> ClassicGroup:
        """One that is there for offsets committed without a member."""
        group = self._groups.by_id[group_id] = ClassicGroup(group_id, now_ms)
        return group

    # -- requests

    def join(self, request: ShardRequest, now_ms: int) -> Decision:
        return self._joining.join(request, now_ms)

    def sync(self, request: ShardRequest, now_ms: int) -> Decision:
        message: SyncGroupRequest = request.message
        step = Step(Decision(), now_ms)
        group = self._find(message.group_id)
        error = self._check_sync(group, message)
        if group is None or error is not ErrorCode.NONE:
            return answer(request, SyncGroupResponse(error_code=error))
        member = group.members[message.member_id]
        self._rebalance.synced(group, member, step)
        answer_sync(group, member, step, ErrorCode.REBALANCE_IN_PROGRESS)  # one it has given up
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
        if not message.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check_member(message.member_id, message.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        if message.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if message.protocol_type not in (None, group.protocol_type) or message.protocol_name not in (
            None,
            group.protocol,
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is ClassicState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def heartbeat(self, request: ShardRequest, now_ms: int) -> Decision:
        message: HeartbeatRequest = request.message
        step = Step(Decision(), now_ms)
        step.reply(request.reply_to, HeartbeatResponse(error_code=self._beat(message, step)))
        return step.decision

    def _beat(self, message: HeartbeatRequest, step: Step) -> ErrorCode:
        group = self._find(message.group_id)
        if not message.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check_member(message.member_id, message.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        if message.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        prolong_session(group, group.members[message.member_id], step)
        if group.state is ClassicState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, request: ShardRequest, now_ms: int) -> Decision:
        message: LeaveGroupRequest = request.message
        step = Step(Decision(), now_ms)
        if not message.group_id:
            return answer(request, LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        group = self._find(message.group_id)
        is_batched = request.api_version >= BATCHED_LEAVE_FROM
        leaving = message.members if is_batched else [MemberIdentity(member_id=message.member_id)]
        gone = [self._leave_one(group, member, step) for member in leaving]
        error = ErrorCode.NONE if is_batched else ErrorCode(gone[0].error_code)
        step.reply(
            request.reply_to,
            LeaveGroupResponse(error_code=error, members=gone if is_batched else []),
        )
        has_gone = any(one.error_code == ErrorCode.NONE for one in gone)
        if group is not None and group.state is not ClassicState.EMPTY and has_gone:
            self._rebalance.prepare_or_complete(group, step)
        return step.decision

    @staticmethod
    def _leave_one(group: ClassicGroup | None, leaving: MemberIdentity, step: Step) -> MemberResponse:
        """A tool names only the instance of a static member."""
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        result = MemberResponse(member_id=member_id, group_instance_id=instance_id)
        if group is None:
            result.error_code = ErrorCode.UNKNOWN_MEMBER_ID
            return result
        if not member_id and instance_id is not None:
            member_id = group.static_members.get(instance_id, "")
        if member_id in group.pending_members:
            step.end_session(group.pending_members[member_id], group.group_id, member_id)
            group.remove(member_id)
            return result
        error = group.check_member(member_id, instance_id)
        if error is ErrorCode.NONE:
            remove_member(group, group.members[member_id], step)
        result.error_code = error
        return result

    # -- timers

    def timer_fired(self, key: TimerKey, now_ms: int) -> Decision:
        step = Step(Decision(), now_ms)
        group = self._find(key.group_id)
        if group is None:
            pass
        elif key.what == JOIN:
            self._rebalance.join_time_over(group, step)
        elif key.what == SYNC:
            self._rebalance.sync_time_over(group, step)
        else:
            self._session_time_over(group, key.member_id, step)
        return step.decision

    def _session_time_over(self, group: ClassicGroup, member_id: str, step: Step) -> None:
        member = group.members.get(member_id)
        session = group.pending_members.get(member_id) if member is None else member.session
        if session is None:
            return
        session.timer_ms = None
        if step.now_ms < session.deadline_ms:
            step.set_session_timer(session, group.group_id, member_id)
        elif member is None:
            group.remove(member_id)
            self._rebalance.complete_if_joined(group, step)
        elif member.is_new or (member.join is None and member.sync is None):
            remove_member(group, member, step)
            if group.state is not ClassicState.EMPTY:
                self._rebalance.prepare_or_complete(group, step)
        # else it waits for the group: that ends in a new session

    # -- the shard

    def replay(self, record: ReplayedRecord, offset: int) -> None:
        group_id = decode_group_id(record.key)
        if record.value is None:
            if self._find(group_id) is not None:
                del self._groups.by_id[group_id]
            return
        value = decode_value(record.value)
        since_ms = value.current_state_timestamp
        group = ClassicGroup(group_id, None if since_ms == -1 else since_ms)
        group.is_recorded = True
        group.generation = value.generation
        group.protocol = value.protocol
        for member in recorded_members(value):
            group.add(member, value.protocol_type)
        if group.members:
            group.state = ClassicState.STABLE
        group.protocol_type = value.protocol_type or None
        group.leader = value.leader
        self._groups.by_id[group_id] = group

    def activate(self, now_ms: int) -> Decision:
        """All members have a session's time to be heard."""
        step = Step(Decision(), now_ms)
        for group in self._all():
            for member in group.members.values():
                prolong_session(group, member, step)
            if len(group.members) > self._groups.settings.group_max_size:
                self._rebalance.prepare(group, step)
        return step.decision

    def deactivate(self) -> list[Reply]:
        decision = Decision()
        for group in self._all():
            self._refuse_all(group, Step(decision, 0), ErrorCode.NOT_COORDINATOR)
        return decision.replies

    # -- for consumer groups, which classic groups become and come from

    def adopt(self, group: ClassicGroup, now_ms: int, decision: Decision) -> None:
        """Take over a group whose members are known, in place of one of another kind (KIP-848's downgrade):
        it is recorded as stable, then all join again.
        """
        step = Step(decision, now_ms)
        self._groups.by_id[group.group_id] = group
        step.record(group_record(group))
        for member in group.members.values():
            prolong_session(group, member, step)
        if group.members:
            self._rebalance.prepare(group, step)

    def abandon(self, group: ClassicGroup, now_ms: int, decision: Decision) -> None:
        """Another kind of group takes this one's place: whatever waits is answered, timers end, the group is
        deleted by its tombstone.
        """
        step = Step(decision, now_ms)
        self._refuse_all(group, step, ErrorCode.REBALANCE_IN_PROGRESS)
        for member_id, member in group.members.items():
            step.end_session(member.session, group.group_id, member_id)
        for member_id, session in group.pending_members.items():
            step.end_session(session, group.group_id, member_id)
        step.cancel_timer(JOIN, group.group_id)
        step.cancel_timer(SYNC, group.group_id)
        decision.records += group.tombstones()
        del self._groups.by_id[group.group_id]

    @staticmethod
    def _refuse_all(group: ClassicGroup, step: Step, error: ErrorCode) -> None:
        for member in group.members.values():
            refuse_join(member, step, error, member_id=member.member_id)
            answer_sync(group, member, step, error)
