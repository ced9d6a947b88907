"""JoinGroup: which clients may join, and what a join causes. Source: Kafka's GroupMetadataManager."""

from __future__ import annotations

from typing import Final

from tidelog.group_coordinator.groups.classic.classic_group import (
    MAX_GROUP_BYTES,
    ClassicGroup,
    ClassicMember,
    ClassicState,
    MemberProtocol,
    ParkedJoin,
    group_record,
    protocols_bytes,
)
from tidelog.group_coordinator.groups.classic.rebalance import (
    Rebalance,
    Step,
    answer_sync,
    extend_session,
    forget_pending,
    generation_answer,
    join_refusal,
    refuse_join,
    remove_member,
)
from tidelog.group_coordinator.groups.shared import Groups, memory_of_member
from tidelog.group_coordinator.shard_core import ShardDecision, ShardRequest
from tidelog.model.errors import ErrorCode
from tidelog.model.instants import WallMs
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse

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

    # -- group.max.size

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

    # -- members without an id

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

    # -- static members that rejoin

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

    # -- members with an id

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
