"""The steps of a rebalance: members join, receive a generation, and receive their assignments.

Source: the classic part of Kafka's GroupMetadataManager. Unlike Kafka, these functions never wait for an
append, because the runtime holds back the replies.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from tidelog.group_coordinator.groups.classic.classic_group import (
    TIMER_OWNER,
    ClassicGroup,
    ClassicMember,
    ClassicState,
    InitialDelay,
    group_record,
    session_key,
)
from tidelog.group_coordinator.groups.shared import Groups, TimerKey
from tidelog.group_coordinator.shard_core import (
    CancelTimer,
    CoordinatorRecord,
    Reply,
    SetTimer,
    ShardDecision,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.instants import WallMs
from tidelog.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from tidelog.wire.messages.sync_group import SyncGroupResponse

JOIN_TIMER: Final = "join"
SYNC_TIMER: Final = "sync"
NULLABLE_PROTOCOL_FROM: Final = 7
"""The version of JoinGroup from which the protocol name may be null."""


class Step:
    """A decision while it is made, and the time of the event."""

    __slots__ = ("decision", "now_ms")

    def __init__(self, decision: ShardDecision, now_ms: WallMs) -> None:
        self.decision = decision
        self.now_ms = now_ms

    def reply(self, reply_to: Hashable, message: object) -> None:
        """Adds a reply."""
        self.decision.replies.append(Reply(reply_to, message))

    def record(self, record: CoordinatorRecord) -> None:
        self.decision.records.append(record)

    def set_timer(self, kind: str, group_id: str, delay_ms: int) -> None:
        self.decision.timers.append(SetTimer(TimerKey(TIMER_OWNER, kind, group_id), delay_ms))

    def cancel_timer(self, kind: str, group_id: str) -> None:
        self.decision.timers.append(CancelTimer(TimerKey(TIMER_OWNER, kind, group_id)))

    def extend_session(self, group_id: str, member_id: str, timeout_ms: int) -> None:
        """Gives a member `timeout_ms` from now to send its next request."""
        self.decision.timers.append(SetTimer(session_key(group_id, member_id), timeout_ms))

    def end_session(self, group_id: str, member_id: str) -> None:
        self.decision.timers.append(CancelTimer(session_key(group_id, member_id)))


class Rebalance:
    """The transitions of classic groups between their states."""

    def __init__(self, initial_delay_ms: int) -> None:
        self._initial_delay_ms = initial_delay_ms

    # -- joining

    def prepare_or_complete(self, group: ClassicGroup, step: Step) -> None:
        """Reacts to a change of the members: begins a rebalance, or completes it if all have joined."""
        if group.state is ClassicState.PREPARING_REBALANCE:
            self.complete_if_joined(group, step)
        else:
            self.prepare(group, step)

    def prepare(self, group: ClassicGroup, step: Step) -> None:
        """Begins a rebalance, in which all members have to join again."""
        if group.state is ClassicState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
                if member.sync is not None:
                    answer_sync(group, member, step, ErrorCode.REBALANCE_IN_PROGRESS)
                    extend_session(group, member, step)
        if group.pending_sync:
            group.pending_sync.clear()
            step.cancel_timer(SYNC_TIMER, group.group_id)
        is_initial = group.state is ClassicState.EMPTY
        group.enter(ClassicState.PREPARING_REBALANCE, step.now_ms)
        if is_initial:
            remaining_ms = max(group.rebalance_timeout_ms() - self._initial_delay_ms, 0)
            group.initial_delay = InitialDelay(self._initial_delay_ms, remaining_ms)
            group.has_new_member = False
            step.set_timer(JOIN_TIMER, group.group_id, self._initial_delay_ms)
        elif group.all_joined():
            self.complete(group, step)
        else:
            step.set_timer(JOIN_TIMER, group.group_id, group.rebalance_timeout_ms())

    def complete_if_joined(self, group: ClassicGroup, step: Step) -> None:
        """Completes the rebalance if all members have joined and no initial delay is running."""
        if (
            group.state is ClassicState.PREPARING_REBALANCE
            and group.initial_delay is None
            and group.all_joined()
        ):
            self.complete(group, step)

    def join_timed_out(self, group: ClassicGroup, step: Step) -> None:
        """Handles the end of the initial delay or of the members' rebalance timeout."""
        if group.state is not ClassicState.PREPARING_REBALANCE:
            return
        initial = group.initial_delay
        if initial is not None and group.has_new_member and initial.remaining_ms > 0:
            group.has_new_member = False
            delay_ms = min(self._initial_delay_ms, initial.remaining_ms)
            group.initial_delay = InitialDelay(delay_ms, max(initial.remaining_ms - initial.delay_ms, 0))
            step.set_timer(JOIN_TIMER, group.group_id, delay_ms)
        else:
            self.complete(group, step)

    def complete(self, group: ClassicGroup, step: Step) -> None:
        """Forms the next generation from the members that have joined.

        Static members remain in the group even if they have not joined.
        """
        step.cancel_timer(JOIN_TIMER, group.group_id)
        group.initial_delay = None
        for member in list(group.members.values()):
            if member.join is None and not member.is_static:
                remove_member(group, member, step)
        if group.members and not group.elect_joined_leader():
            # All members are static and none has joined: wait until one joins or their sessions end.
            step.set_timer(JOIN_TIMER, group.group_id, group.rebalance_timeout_ms())
            return
        group.generation += 1
        group.pending_sync.clear()
        if not group.members:
            group.protocol = None
            group.enter(ClassicState.EMPTY, step.now_ms)
            step.record(group_record(group))
            return
        group.protocol = group.select_protocol()
        group.enter(ClassicState.COMPLETING_REBALANCE, step.now_ms)
        for member in group.members.values():
            answer_join(group, member, step)
            extend_session(group, member, step)
            member.is_new = False
            group.pending_sync.add(member.member_id)
        step.set_timer(SYNC_TIMER, group.group_id, group.rebalance_timeout_ms())

    # -- syncing

    def synced(self, group: ClassicGroup, member: ClassicMember, step: Step) -> None:
        """Notes that the member has asked for its assignment."""
        if member.member_id in group.pending_sync:
            group.pending_sync.remove(member.member_id)
            if not group.pending_sync:
                step.cancel_timer(SYNC_TIMER, group.group_id)

    def assigned(self, group: ClassicGroup, assignments: dict[str, bytes], step: Step) -> None:
        """Applies the leader's assignments, which makes the group stable."""
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        step.record(group_record(group))
        group.enter(ClassicState.STABLE, step.now_ms)
        for member in group.members.values():
            if member.sync is not None:
                answer_sync(group, member, step, ErrorCode.NONE)
                extend_session(group, member, step)

    def sync_timed_out(self, group: ClassicGroup, step: Step) -> None:
        """Removes the members that have not asked for their assignment, and begins another rebalance."""
        if group.state is ClassicState.PREPARING_REBALANCE or not group.pending_sync:
            return
        for member_id in sorted(group.pending_sync):
            remove_member(group, group.members[member_id], step)
        self.prepare(group, step)


def extend_session(group: ClassicGroup, member: ClassicMember, step: Step) -> None:
    """Restarts the member's session timeout."""
    step.extend_session(group.group_id, member.member_id, member.session_timeout_ms)


def forget_pending(groups: Groups, group: ClassicGroup, member_id: str, step: Step) -> None:
    """Removes a member that got its id and has not joined. A group that holds nothing else ends with it."""
    step.end_session(group.group_id, member_id)
    group.remove(member_id)
    is_unused = group.state is ClassicState.EMPTY and not group.has_members() and not group.is_recorded
    if is_unused and not groups.offsets.has_offsets(group.group_id):
        del groups.by_id[group.group_id]


def remove_member(group: ClassicGroup, member: ClassicMember, step: Step) -> None:
    """Removes a member and answers its waiting requests with UNKNOWN_MEMBER_ID.

    The client may then join as a new member.
    """
    refuse_join(member, step, ErrorCode.UNKNOWN_MEMBER_ID, member_id="")
    answer_sync(group, member, step, ErrorCode.UNKNOWN_MEMBER_ID)
    step.end_session(group.group_id, member.member_id)
    group.remove(member.member_id)


def generation_answer(
    group: ClassicGroup, member: ClassicMember, api_version: int, *, with_members: bool, skip: bool = False
) -> JoinGroupResponse:
    """Returns the successful response to a member's JoinGroup, which describes the generation."""
    protocol = group.protocol
    if protocol is None and api_version < NULLABLE_PROTOCOL_FROM:
        protocol = ""
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=protocol,
        leader=group.leader or "",
        skip_assignment=skip,
        member_id=member.member_id,
        members=_members_for_leader(group) if with_members else [],
    )


def _members_for_leader(group: ClassicGroup) -> list[JoinGroupResponseMember]:
    return [
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            metadata=member.metadata(group.protocol),
        )
        for member in group.members.values()
    ]


def answer_join(group: ClassicGroup, member: ClassicMember, step: Step) -> None:
    """Answers the member's waiting JoinGroup, if there is one, with the new generation."""
    if member.join is not None:
        reply_to, api_version = member.join
        member.join = None
        is_leader = member.member_id == group.leader
        step.reply(reply_to, generation_answer(group, member, api_version, with_members=is_leader))


def refuse_join(member: ClassicMember, step: Step, error: ErrorCode, *, member_id: str) -> None:
    """Answers the member's waiting JoinGroup, if there is one, with an error."""
    if member.join is not None:
        reply_to, api_version = member.join
        member.join = None
        step.reply(reply_to, join_refusal(error, member_id, api_version))


def join_refusal(error: ErrorCode, member_id: str, api_version: int) -> JoinGroupResponse:
    """Returns the JoinGroup response that reports `error`."""
    protocol = None if api_version >= NULLABLE_PROTOCOL_FROM else ""
    return JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=protocol)


def answer_sync(group: ClassicGroup, member: ClassicMember, step: Step, error: ErrorCode) -> None:
    """Answers the member's waiting SyncGroup, if there is one."""
    if member.sync is not None:
        reply_to, member.sync = member.sync, None
        step.reply(reply_to, sync_answer(group, member, error))


def sync_answer(group: ClassicGroup, member: ClassicMember, error: ErrorCode) -> SyncGroupResponse:
    """Returns the SyncGroup response with the member's assignment, or with `error`."""
    if error is not ErrorCode.NONE:
        return SyncGroupResponse(error_code=error)
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
    )
