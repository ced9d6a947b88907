"""The steps of a rebalance: members join, get a generation, get their assignments.

Source: Kafka's GroupMetadataManager, its classic part. Here nothing waits for an append: the runtime holds
what is answered.
"""

from __future__ import annotations

from tidelog.group_coordinator.groups.classic.group import ClassicGroup, ClassicState, InitialDelay
from tidelog.group_coordinator.groups.classic.group_records import group_record
from tidelog.group_coordinator.groups.classic.member import ClassicMember
from tidelog.group_coordinator.groups.classic.step import JOIN, SYNC, Step
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from tidelog.wire.messages.sync_group import SyncGroupResponse

NULLABLE_PROTOCOL_FROM = 7
"""Version of JoinGroup."""


class Rebalance:
    def __init__(self, initial_delay_ms: int) -> None:
        self._initial_delay_ms = initial_delay_ms

    # -- joining

    def prepare_or_complete(self, group: ClassicGroup, step: Step) -> None:
        """Something about the members has changed."""
        if group.state is ClassicState.PREPARING_REBALANCE:
            self.complete_if_joined(group, step)
        else:
            self.prepare(group, step)

    def prepare(self, group: ClassicGroup, step: Step) -> None:
        """All members are to join again."""
        if group.state is ClassicState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
                if member.sync is not None:
                    answer_sync(group, member, step, ErrorCode.REBALANCE_IN_PROGRESS)
                    prolong_session(group, member, step)
        if group.pending_sync:
            group.pending_sync.clear()
            step.cancel_timer(SYNC, group.group_id)
        is_initial = group.state is ClassicState.EMPTY
        _enter(group, ClassicState.PREPARING_REBALANCE, step)
        if is_initial:
            remaining_ms = max(group.rebalance_timeout_ms() - self._initial_delay_ms, 0)
            group.initial_delay = InitialDelay(self._initial_delay_ms, remaining_ms)
            group.has_new_member = False
            step.set_timer(JOIN, group.group_id, self._initial_delay_ms)
        elif group.all_joined():
            self.complete(group, step)
        else:
            step.set_timer(JOIN, group.group_id, group.rebalance_timeout_ms())

    def complete_if_joined(self, group: ClassicGroup, step: Step) -> None:
        if (
            group.state is ClassicState.PREPARING_REBALANCE
            and group.initial_delay is None
            and group.all_joined()
        ):
            self.complete(group, step)

    def join_time_over(self, group: ClassicGroup, step: Step) -> None:
        """The timer of the initial delay, or of the members' rebalance time-out."""
        if group.state is not ClassicState.PREPARING_REBALANCE:
            return
        initial = group.initial_delay
        if initial is not None and group.has_new_member and initial.remaining_ms > 0:
            group.has_new_member = False
            delay_ms = min(self._initial_delay_ms, initial.remaining_ms)
            group.initial_delay = InitialDelay(delay_ms, max(initial.remaining_ms - initial.delay_ms, 0))
            step.set_timer(JOIN, group.group_id, delay_ms)
        else:
            self.complete(group, step)

    def complete(self, group: ClassicGroup, step: Step) -> None:
        """Whoever has joined by now makes the next generation; static members stay even if they have not."""
        step.cancel_timer(JOIN, group.group_id)
        group.initial_delay = None
        for member in list(group.members.values()):
            if member.join is None and not member.is_static:
                remove_member(group, member, step)
        if group.members and not group.elect_joined_leader():
            # Only static members, none of which came. Their sessions will end, or one comes.
            step.set_timer(JOIN, group.group_id, group.rebalance_timeout_ms())
            return
        group.generation += 1
        group.pending_sync.clear()
        if not group.members:
            group.protocol = None
            _enter(group, ClassicState.EMPTY, step)
            step.record(group_record(group))
            return
        group.protocol = group.select_protocol()
        _enter(group, ClassicState.COMPLETING_REBALANCE, step)
        for member in group.members.values():
            answer_join(group, member, step)
            prolong_session(group, member, step)
            member.is_new = False
            group.pending_sync.add(member.member_id)
        step.set_timer(SYNC, group.group_id, group.rebalance_timeout_ms())

    # -- syncing

    def synced(self, group: ClassicGroup, member: ClassicMember, step: Step) -> None:
        """The member has asked for its assignment."""
        if member.member_id in group.pending_sync:
            group.pending_sync.remove(member.member_id)
            if not group.pending_sync:
                step.cancel_timer(SYNC, group.group_id)

    def assigned(self, group: ClassicGroup, assignments: dict[str, bytes], step: Step) -> None:
        """The leader has said who gets what."""
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        step.record(group_record(group))
        _enter(group, ClassicState.STABLE, step)
        for member in group.members.values():
            if member.sync is not None:
                answer_sync(group, member, step, ErrorCode.NONE)
                prolong_session(group, member, step)

    def sync_time_over(self, group: ClassicGroup, step: Step) -> None:
        """Who has not asked for its assignment by now is out."""
        if group.state is ClassicState.PREPARING_REBALANCE or not group.pending_sync:
            return
        for member_id in sorted(group.pending_sync):
            remove_member(group, group.members[member_id], step)
        self.prepare(group, step)


def _enter(group: ClassicGroup, state: ClassicState, step: Step) -> None:
    group.state = state
    group.state_since_ms = step.now_ms


def prolong_session(group: ClassicGroup, member: ClassicMember, step: Step) -> None:
    step.prolong(member.session, group.group_id, member.member_id, member.session_timeout_ms)


def remove_member(group: ClassicGroup, member: ClassicMember, step: Step) -> None:
    """Whatever it waits for is answered with UNKNOWN_MEMBER_ID: it may come again as a new one."""
    refuse_join(member, step, ErrorCode.UNKNOWN_MEMBER_ID, member_id="")
    answer_sync(group, member, step, ErrorCode.UNKNOWN_MEMBER_ID)
    step.end_session(member.session, group.group_id, member.member_id)
    group.remove(member.member_id)


def generation_answer(
    group: ClassicGroup, member: ClassicMember, api_version: int, *, with_members: bool, skip: bool = False
) -> JoinGroupResponse:
    """The group's generation, as a member that has joined is told it."""
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
    if member.join is not None:
        reply_to, api_version = member.join
        member.join = None
        is_leader = member.member_id == group.leader
        step.reply(reply_to, generation_answer(group, member, api_version, with_members=is_leader))


def refuse_join(member: ClassicMember, step: Step, error: ErrorCode, *, member_id: str) -> None:
    if member.join is not None:
        reply_to, api_version = member.join
        member.join = None
        step.reply(reply_to, join_refusal(error, member_id, api_version))


def join_refusal(error: ErrorCode, member_id: str, api_version: int) -> JoinGroupResponse:
    protocol = None if api_version >= NULLABLE_PROTOCOL_FROM else ""
    return JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=protocol)


def answer_sync(group: ClassicGroup, member: ClassicMember, step: Step, error: ErrorCode) -> None:
    if member.sync is not None:
        reply_to, member.sync = member.sync, None
        step.reply(reply_to, sync_answer(group, member, error))


def sync_answer(group: ClassicGroup, member: ClassicMember, error: ErrorCode) -> SyncGroupResponse:
    if error is not ErrorCode.NONE:
        return SyncGroupResponse(error_code=error)
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
    )
