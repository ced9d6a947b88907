"""Members of the classic protocol in a consumer group: while a group is upgraded one by one, its old members
go on with JoinGroup, SyncGroup, Heartbeat and LeaveGroup (KIP-848).

The generation they are told is their member epoch. A join is one step of reconciliation, and answered at
once; what a sync gives is what the member owns by then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidelog.group_coordinator.groups.classic.classic_groups import ClassicGroups
from tidelog.group_coordinator.groups.classic.rebalance import NULLABLE_PROTOCOL_FROM
from tidelog.group_coordinator.groups.consumer import migration
from tidelog.group_coordinator.groups.consumer.classic_protocol import (
    encode_assignment,
    owned_partitions,
    read_subscription,
)
from tidelog.group_coordinator.groups.consumer.consumer_group import CONSUMER_PROTOCOL_TYPE, ConsumerGroup
from tidelog.group_coordinator.groups.consumer.departures import fence
from tidelog.group_coordinator.groups.consumer.group_changes import SYNC, GroupChanges
from tidelog.group_coordinator.groups.consumer.heartbeat_rules import (
    FoundMember,
    check_room,
    check_static,
    join_as_static,
    unknown_member,
)
from tidelog.group_coordinator.groups.consumer.member import ClassicSide, Member, MemberState
from tidelog.group_coordinator.groups.shared import Groups, answer, merge
from tidelog.group_coordinator.shard_core import Decision, Reply, ShardRequest
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from tidelog.wire.messages.records.consumer_protocol_subscription import ConsumerProtocolSubscription
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_MEMBER_ID_REQUIRED_FROM: Final = 4
"""Version of JoinGroup (KIP-394)."""
_BATCHED_LEAVE_FROM: Final = 3
"""Version of LeaveGroup."""


class ClassicMembers:
    def __init__(self, groups: Groups, classic: ClassicGroups) -> None:
        self._groups = groups
        self._classic = classic

    def _group(self, group_id: str) -> ConsumerGroup:
        group = self._groups.by_id[group_id]
        assert isinstance(group, ConsumerGroup)
        return group

    # -- joining

    def join(self, request: ShardRequest, now_ms: int) -> Decision:
        message: JoinGroupRequest = request.message
        group = self._group(message.group_id)
        if not group.members:
            # Nobody is there: a classic group takes its place, and its offsets.
            decision = Decision(records=group.tombstones())
            del self._groups.by_id[group.group_id]
            merge(decision, self._classic.join(request, now_ms))
            return decision
        try:
            return self._join(group, request, message, now_ms)
        except KafkaError as error:
            return answer(request, _refusal(request, error.code, message.member_id))

    def _join(
        self, group: ConsumerGroup, request: ShardRequest, message: JoinGroupRequest, now_ms: int
    ) -> Decision:
        settings = self._groups.settings
        least, most = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
        if not least <= message.session_timeout_ms <= most:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        member_id = message.member_id or self._groups.new_member_uuid()
        check_room(group, member_id, settings.group_consumer_max_size)
        subscription = _check_protocols(group, message)
        is_new = not message.member_id
        if is_new and message.group_instance_id is None and request.api_version >= _MEMBER_ID_REQUIRED_FROM:
            return answer(request, _refusal(request, ErrorCode.MEMBER_ID_REQUIRED, member_id))
        found = _find_joining(group, member_id, message.group_instance_id, is_new=is_new)
        wanted = _wanted(found.member, request, subscription)
        # Nothing is refused from here on: the state changes.
        decision = Decision()
        changes = GroupChanges(self._groups, group, decision, now_ms)
        if found.replaced is not None:
            changes.replace_static_member(found.replaced, found.member)
        told = owned_partitions(subscription, self._groups.image)
        member = changes.update_member(found.member, wanted, told, {})
        response = JoinGroupResponse(
            generation_id=member.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=message.protocols[0].name,
            member_id=member.member_id,
        )
        decision.replies.append(Reply(request.reply_to, response))
        if found.replaced is not None and migration.may_become_classic(self._groups, group, ()):
            migration.to_classic(self._groups, self._classic, group, decision, now_ms)
            return decision
        changes.joined(member.member_id)
        changes.prolong_session(member)
        changes.set_timer(SYNC, member.member_id, member.rebalance_timeout_ms)
        return decision

    # -- syncing

    def sync(self, request: ShardRequest, now_ms: int) -> Decision:
        message: SyncGroupRequest = request.message
        group = self._group(message.group_id)
        decision = Decision()
        changes = GroupChanges(self._groups, group, decision, now_ms)
        try:
            member = _find(group, message.member_id, message.group_instance_id)
            classic = _classic_side(member)
            _check_generation(member, message.generation_id)
            protocol, subscription = classic.protocols[0]
            if message.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or message.protocol_name not in (
                None,
                protocol,
            ):
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if group.epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
                changes.expect_join(member)
                raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        except KafkaError as error:
            decision.replies.append(Reply(request.reply_to, SyncGroupResponse(error_code=error.code)))
            return decision
        changes.cancel_timer(SYNC, member.member_id)
        changes.prolong_session(member)
        response = SyncGroupResponse(
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=protocol,
            assignment=encode_assignment(member.owned, subscription, self._groups.image),
        )
        decision.replies.append(Reply(request.reply_to, response))
        return decision

    # -- in between

    def heartbeat(self, request: ShardRequest, now_ms: int) -> Decision:
        """Calls the member to join again where a heartbeat of the consumer protocol would be a step."""
        message: HeartbeatRequest = request.message
        group = self._group(message.group_id)
        decision = Decision()
        changes = GroupChanges(self._groups, group, decision, now_ms)
        try:
            member = _find(group, message.member_id, message.group_instance_id)
            _classic_side(member)
            _check_generation(member, message.generation_id)
        except KafkaError as error:
            return answer(request, HeartbeatResponse(error_code=error.code))
        changes.prolong_session(member)
        changes.update_epoch(must_grow=changes.resolve_regexes({}))
        result = ErrorCode.NONE
        if (
            member.member_epoch < group.epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.is_waiting_for_others(member))
        ):
            result = ErrorCode.REBALANCE_IN_PROGRESS
            changes.expect_join(member)
        decision.replies.append(Reply(request.reply_to, HeartbeatResponse(error_code=result)))
        return decision

    # -- leaving

    def leave(self, request: ShardRequest, now_ms: int) -> Decision:
        message: LeaveGroupRequest = request.message
        group = self._group(message.group_id)
        is_batched = request.api_version >= _BATCHED_LEAVE_FROM
        leaving = message.members if is_batched else [MemberIdentity(member_id=message.member_id)]
        gone: dict[str, Member] = {}
        results = [_leave_one(group, identity, gone) for identity in leaving]
        decision = Decision()
        fence(self._groups, self._classic, group, list(gone.values()), decision, now_ms)
        response = (
            LeaveGroupResponse(members=results)
            if is_batched
            else LeaveGroupResponse(error_code=results[0].error_code)
        )
        decision.replies.append(Reply(request.reply_to, response))
        return decision


def _refusal(request: ShardRequest, error: ErrorCode, member_id: str) -> JoinGroupResponse:
    protocol = None if request.api_version >= NULLABLE_PROTOCOL_FROM else ""
    return JoinGroupResponse(error_code=error, protocol_name=protocol, member_id=member_id)


def _check_protocols(group: ConsumerGroup, message: JoinGroupRequest) -> ConsumerProtocolSubscription:
    """Raises KafkaError. All protocols of a consumer hold the same subscription."""
    names = {protocol.name for protocol in message.protocols}
    common: set[str] | None = None
    for member in group.members.values():
        if member.classic is not None and member.member_id != message.member_id:
            known = {name for name, _ in member.classic.protocols}
            common = known if common is None else common & known
    if (
        message.protocol_type != CONSUMER_PROTOCOL_TYPE
        or not names
        or (common is not None and common.isdisjoint(names))
    ):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    try:
        return read_subscription(message.protocols[0].metadata)
    except ValueError as error:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from error


def _find_joining(
    group: ConsumerGroup, member_id: str, instance_id: str | None, *, is_new: bool
) -> FoundMember:
    if instance_id is None:
        # A member that was given its id by MEMBER_ID_REQUIRED is not known yet.
        return FoundMember(group.members.get(member_id, Member(member_id)))
    static = group.static_member(instance_id)
    if is_new:
        return join_as_static(group, static, member_id, instance_id, speaks_classic=True)
    return FoundMember(check_static(static, member_id, instance_id))


def _wanted(member: Member, request: ShardRequest, subscription: ConsumerProtocolSubscription) -> Member:
    message: JoinGroupRequest = request.message
    timeout_ms = message.rebalance_timeout_ms
    return replace(
        member,
        instance_id=message.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=request.client_id or "",
        client_host=f"/{request.host}",
        rebalance_timeout_ms=message.session_timeout_ms if timeout_ms == -1 else timeout_ms,
        topic_names=frozenset(subscription.topics),
        topic_regex="",
        classic=ClassicSide(
            message.session_timeout_ms,
            tuple((protocol.name, bytes(protocol.metadata)) for protocol in message.protocols),
        ),
    )


def _find(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Member:
    if instance_id is not None:
        return check_static(group.static_member(instance_id), member_id, instance_id)
    member = group.members.get(member_id)
    if member is None:
        raise unknown_member(group, member_id)
    return member


def _classic_side(member: Member) -> ClassicSide:
    if member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member.classic


def _check_generation(member: Member, generation: int) -> None:
    if generation != member.member_epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)


def _leave_one(group: ConsumerGroup, identity: MemberIdentity, gone: dict[str, Member]) -> MemberResponse:
    """A tool names only the instance of a static member; it may put out members of either protocol."""
    result = MemberResponse(identity.member_id, identity.group_instance_id)
    static = group.static_member(identity.group_instance_id)
    try:
        if static is not None and not identity.member_id:
            member = static
        else:
            member = _find(group, identity.member_id, identity.group_instance_id)
        gone[member.member_id] = member
    except KafkaError as error:
        result.error_code = error.code
    return result
