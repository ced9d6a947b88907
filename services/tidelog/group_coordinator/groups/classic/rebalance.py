"""JoinGroup and the steps of a rebalance: members join, receive a generation, and receive their
assignments.

Source: the classic part of Kafka's GroupMetadataManager. Unlike Kafka, these functions never wait for an
append, because the runtime holds back the replies.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from tidelog.group_coordinator.groups.classic.classic_group import (
    MAX_GROUP_BYTES,
    TIMER_OWNER,
    ClassicGroup,
    ClassicMember,
    ClassicState,
    InitialDelay,
    MemberProtocol,
    ParkedJoin,
    group_record,
    protocols_bytes,
    session_key,
)
from tidelog.group_coordinator.groups.shared import Groups, TimerKey, memory_of_member
from tidelog.group_coordinator.shard_core import (
    CancelTimer,
    CoordinatorRecord,
    Reply,
    SetTimer,
    ShardDecision,
    ShardRequest,
)
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
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


NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""The session timeout of a member that does not know its id yet and therefore can't send heartbeats."""
KNOWN_MEMBER_ID_FROM: Final = 4
"""The version from which a new member first obtains an id and then joins with it (KIP-394)."""
SKIPPED_ASSIGNMENT_FROM: Final = 9
"""The version whose response can tell the leader to skip the assignment (KIP-814)."""
REBALANCE_TIMEOUT_FROM: Final = 1
"""The version from which a request has a rebalance timeout."""
MAX_PENDING_BYTES: Final = 4 * 1024 * 1024
"""About the memory of the members of a shard that got their ids last: some 3,500. An older one that has not
joined is forgotten. Clients join at once, but may ask for ids without end.
"""


class Joining:
    """The decisions on JoinGroup requests."""

    def __init__(self, groups: Groups, rebalance: Rebalance) -> None:
        self._groups = groups
        self._rebalance = rebalance
        self._issued: dict[tuple[str, str], int] = {}
        """Maps the groups and ids of the members that got their ids last to the bytes that they take."""
        self._issued_bytes = 0

    def join(self, request: ShardRequest[JoinGroupRequest], now_ms: WallMs) -> ShardDecision:
        step = Step(ShardDecision(), now_ms)
        message = request.message
        error, group = self._find(message, now_ms)
        if group is None:
            _refuse(request, step, error, message.member_id)
        elif not self._has_room(group, message.member_id):
            self._reject(group, request, step)
        elif not group.supports(message.protocol_type, [p.name for p in message.protocols]):
            _refuse(request, step, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message.member_id)
        elif _bytes_with(group, request) > MAX_GROUP_BYTES:
            _refuse(request, step, ErrorCode.INVALID_REQUEST, message.member_id)
        else:
            self._groups.by_id[group.group_id] = group  # adds the group if it is new
            if message.member_id:
                self._join_known(group, request, step)
            else:
                self._join_new(group, request, step)
        return step.decision

    def _find(self, message: JoinGroupRequest, now_ms: WallMs) -> tuple[ErrorCode, ClassicGroup | None]:
        """Returns the group to join, newly constructed if it does not exist, or an error."""
        settings = self._groups.settings
        if not message.group_id:
            return ErrorCode.INVALID_GROUP_ID, None
        if not (
            settings.group_min_session_timeout_ms
            <= message.session_timeout_ms
            <= settings.group_max_session_timeout_ms
        ):
            return ErrorCode.INVALID_SESSION_TIMEOUT, None
        group = self._groups.by_id.get(message.group_id)
        if group is None:
            if message.member_id:
                return ErrorCode.UNKNOWN_MEMBER_ID, None
            return ErrorCode.NONE, ClassicGroup(message.group_id, now_ms)
        if not isinstance(group, ClassicGroup):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL, None
        return ErrorCode.NONE, group

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        """Returns whether the member may join under `group.max.size`.

        During a rebalance only joined members count. If the limit was lowered, the members that rejoin last
        are rejected.
        """
        member = group.members.get(member_id)
        limit = self._groups.settings.group_max_size
        if group.state is ClassicState.EMPTY:
            return True
        if group.state is ClassicState.PREPARING_REBALANCE:
            return (member is not None and member.join is not None) or group.joined_count() < limit
        return member is not None or len(group.members) < limit

    def _reject(self, group: ClassicGroup, request: ShardRequest[JoinGroupRequest], step: Step) -> None:
        """Rejects a member because the group is full, and removes the member if the group knows it."""
        _refuse(request, step, ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        member_id = request.message.member_id
        member = group.members.get(member_id)
        if member is not None:
            remove_member(group, member, step)
        elif member_id in group.pending_members:
            forget_pending(self._groups, group, member_id, step)
        self._rebalance.complete_if_joined(group, step)

    def _join_new(self, group: ClassicGroup, request: ShardRequest[JoinGroupRequest], step: Step) -> None:
        message = request.message
        instance_id = message.group_instance_id
        prefix = (request.client_id or "") if instance_id is None else instance_id
        member_id = f"{prefix}-{self._groups.new_member_uuid()}"
        if instance_id is not None:
            old_id = group.static_members.get(instance_id)
            if old_id is None:
                self._add(group, member_id, request, step)
            else:
                self._replace_static(group, group.members[old_id], member_id, request, step)
        elif request.api_version >= KNOWN_MEMBER_ID_FROM:
            group.pending_members.add(member_id)
            step.extend_session(group.group_id, member_id, message.session_timeout_ms)
            _refuse(request, step, ErrorCode.MEMBER_ID_REQUIRED, member_id)
            self._remember(group.group_id, member_id, step)
        else:
            self._add(group, member_id, request, step)

    def _remember(self, group_id: str, member_id: str, step: Step) -> None:
        """Remembers an id that was given to a member, and forgets the oldest ids if there are too many."""
        size_bytes = self._issued[group_id, member_id] = memory_of_member((group_id, member_id))
        self._issued_bytes += size_bytes
        while self._issued_bytes > MAX_PENDING_BYTES:
            oldest = next(iter(self._issued))
            self._issued_bytes -= self._issued.pop(oldest)
            of_group, old_id = oldest
            group = self._groups.by_id.get(of_group)
            if isinstance(group, ClassicGroup) and old_id in group.pending_members:
                forget_pending(self._groups, group, old_id, step)
                self._rebalance.complete_if_joined(group, step)

    def _add(
        self, group: ClassicGroup, member_id: str, request: ShardRequest[JoinGroupRequest], step: Step
    ) -> None:
        message = request.message
        member = ClassicMember(
            member_id=member_id,
            group_instance_id=message.group_instance_id,
            client_id=request.client_id or "",
            client_host=request.host if request.host.startswith("/") else f"/{request.host}",
            rebalance_timeout_ms=_rebalance_timeout_ms(request),
            session_timeout_ms=message.session_timeout_ms,
            protocols=_protocols(message),
            is_new=True,
            join=ParkedJoin(request.reply_to, request.api_version),
        )
        if group.initial_delay is not None:
            group.has_new_member = True
        group.add(member, message.protocol_type)
        step.extend_session(group.group_id, member_id, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance.prepare_or_complete(group, step)

    def _replace_static(
        self,
        group: ClassicGroup,
        member: ClassicMember,
        member_id: str,
        request: ShardRequest[JoinGroupRequest],
        step: Step,
    ) -> None:
        """Gives a static member another member id (KIP-345).

        A stable group does not rebalance, unless the member's protocols select another protocol.
        """
        old_leader = group.leader
        step.end_session(group.group_id, member.member_id)
        refuse_join(member, step, ErrorCode.FENCED_INSTANCE_ID, member_id=member.member_id)
        answer_sync(group, member, step, ErrorCode.FENCED_INSTANCE_ID)
        group.rename(member, member_id)
        extend_session(group, member, step)
        _update(group, member, request, step)
        if group.state is ClassicState.STABLE and group.select_protocol() == group.protocol:
            step.record(group_record(group))
            member.join = None
            answer = self._unchanged_generation(group, member, old_leader, request.api_version)
            step.reply(request.reply_to, answer)
        else:
            self._rebalance.prepare_or_complete(group, step)

    @staticmethod
    def _unchanged_generation(
        group: ClassicGroup, member: ClassicMember, old_leader: str | None, api_version: int
    ) -> JoinGroupResponse:
        """Returns the response to a static member that rejoins without a rebalance.

        A client that can skip the assignment (KIP-814) learns that it is the leader. An older client would
        compute another assignment. Its response therefore names the leader's previous member id.
        """
        if api_version >= SKIPPED_ASSIGNMENT_FROM:
            leads = group.leader == member.member_id
            return generation_answer(group, member, api_version, with_members=leads, skip=leads)
        answer = generation_answer(group, member, api_version, with_members=False)
        answer.leader = old_leader or ""
        return answer

    def _join_known(self, group: ClassicGroup, request: ShardRequest[JoinGroupRequest], step: Step) -> None:
        message = request.message
        member_id = message.member_id
        if member_id in group.pending_members and message.group_instance_id is None:
            self._add(group, member_id, request, step)
            return
        error = group.check_member(member_id, message.group_instance_id)
        if error is ErrorCode.NONE and group.state is ClassicState.EMPTY:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is not ErrorCode.NONE:
            _refuse(request, step, error, member_id)
            return
        member = group.members[member_id]
        if _is_repeated(group, member, message):
            leads = group.leader == member_id
            with_members = leads and group.state is ClassicState.COMPLETING_REBALANCE
            step.reply(
                request.reply_to,
                generation_answer(group, member, request.api_version, with_members=with_members),
            )
            return
        _update(group, member, request, step)
        self._rebalance.prepare_or_complete(group, step)


def _bytes_with(group: ClassicGroup, request: ShardRequest[JoinGroupRequest]) -> int:
    """Returns the bytes of all members' metadata if this client joins."""
    message = request.message
    instance_id = message.group_instance_id
    known_id = message.member_id if instance_id is None else group.static_members.get(instance_id, "")
    known = group.members.get(known_id)
    added = protocols_bytes(_protocols(message))
    if known is not None:
        return group.metadata_bytes - protocols_bytes(known.protocols) + added
    # The id of a new member begins with one of the other two.
    texts = (request.client_id or "", instance_id or "")
    return group.metadata_bytes + added + 2 * sum(len(text.encode()) for text in texts)


def _is_repeated(group: ClassicGroup, member: ClassicMember, message: JoinGroupRequest) -> bool:
    """Returns whether the client repeats its last join, perhaps because the response was lost.

    The leader of a stable group joins again to begin a rebalance, so its join is never a repetition.
    """
    if group.state is ClassicState.PREPARING_REBALANCE or member.protocols != _protocols(message):
        return False
    return group.state is ClassicState.COMPLETING_REBALANCE or group.leader != member.member_id


def _update(
    group: ClassicGroup, member: ClassicMember, request: ShardRequest[JoinGroupRequest], step: Step
) -> None:
    """Updates a member with its new JoinGroup. Its previous JoinGroup, if still waiting, fails."""
    refuse_join(member, step, ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
    group.replace_protocols(member, _protocols(request.message))
    member.rebalance_timeout_ms = _rebalance_timeout_ms(request)
    member.session_timeout_ms = request.message.session_timeout_ms
    member.join = ParkedJoin(request.reply_to, request.api_version)


def _rebalance_timeout_ms(request: ShardRequest[JoinGroupRequest]) -> int:
    message = request.message
    if request.api_version >= REBALANCE_TIMEOUT_FROM and message.rebalance_timeout_ms != -1:
        return message.rebalance_timeout_ms
    return message.session_timeout_ms


def _protocols(message: JoinGroupRequest) -> tuple[MemberProtocol, ...]:
    return tuple(MemberProtocol(protocol.name, bytes(protocol.metadata)) for protocol in message.protocols)


def _refuse(request: ShardRequest[JoinGroupRequest], step: Step, error: ErrorCode, member_id: str) -> None:
    step.reply(request.reply_to, join_refusal(error, member_id, request.api_version))
