"""Members that speak the classic protocol in a consumer group, and the conversion of groups (KIP-848).

While a group is upgraded member by member, its old members continue to use JoinGroup, SyncGroup, Heartbeat
and LeaveGroup. The generation in their responses is their member epoch. A JoinGroup is one step of
reconciliation and is answered at once. The SyncGroup that follows returns the partitions that the member then
owns.

`group.consumer.migration.policy` controls whether a classic group can become a consumer group and back while
its members are running.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from struct import unpack_from
from typing import Final
from uuid import UUID

from tidelog.group_coordinator.groups.classic.classic_group import (
    MAX_GROUP_BYTES,
    ClassicGroup,
    ClassicMember,
    MemberProtocol,
    protocols_bytes,
)
from tidelog.group_coordinator.groups.classic.classic_groups import ClassicGroups
from tidelog.group_coordinator.groups.classic.rebalance import NULLABLE_PROTOCOL_FROM
from tidelog.group_coordinator.groups.consumer.consumer_group import (
    CONSUMER_FORMAT,
    ClassicSide,
    ConsumerGroup,
    ConsumerMember,
)
from tidelog.group_coordinator.groups.consumer.group_changes import (
    JOIN_TIMER,
    SYNC_TIMER,
    FoundMember,
    GroupChanges,
    check_static,
    join_as_static,
)
from tidelog.group_coordinator.groups.modern_group import MemberState
from tidelog.group_coordinator.groups.modern_groups import (
    SESSION_TIMER,
    check_memory,
    check_room,
    find_member,
)
from tidelog.group_coordinator.groups.shared import CONSUMER_PROTOCOL_TYPE, Group, Groups, answer, merge
from tidelog.group_coordinator.shard_core import ClusterImage, Reply, ShardDecision, ShardRequest
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.codec import MalformedMessageError, UnsupportedVersionError, record_codec
from tidelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from tidelog.wire.messages.records.consumer_protocol_assignment import (
    ConsumerProtocolAssignment,
    TopicPartition,
)
from tidelog.wire.messages.records.consumer_protocol_subscription import ConsumerProtocolSubscription
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tidelog.wire.schema import Buffer

_MEMBER_ID_REQUIRED_FROM: Final = 4
"""The version of JoinGroup from which a new member first obtains an id (KIP-394)."""
_BATCHED_LEAVE_FROM: Final = 3
"""The version of LeaveGroup from which a request names several members."""
_UPGRADE_POLICIES: Final = ("upgrade", "bidirectional")
_DOWNGRADE_POLICIES: Final = ("downgrade", "bidirectional")

_subscription_codec: Final = record_codec(ConsumerProtocolSubscription)
_assignment_codec: Final = record_codec(ConsumerProtocolAssignment)


class ClassicMembers:
    """The handler of the classic protocol's requests for consumer groups."""

    def __init__(self, groups: Groups, classic: ClassicGroups) -> None:
        self._groups = groups
        self._classic = classic

    def _group(self, group_id: str) -> ConsumerGroup:
        group = self._groups.by_id[group_id]
        assert isinstance(group, ConsumerGroup)
        return group

    def join(self, request: ShardRequest[JoinGroupRequest], now_ms: WallMs) -> ShardDecision:
        message = request.message
        group = self._group(message.group_id)
        if not group.members:
            # A classic group replaces the empty consumer group and inherits its offsets.
            decision = ShardDecision(records=group.end())
            del self._groups.by_id[group.group_id]
            merge(decision, self._classic.join(request, now_ms))
            return decision
        try:
            return self._join(group, request, now_ms)
        except KafkaError as error:
            return answer(request, _refusal(request, error.code, message.member_id))

    def _join(
        self, group: ConsumerGroup, request: ShardRequest[JoinGroupRequest], now_ms: WallMs
    ) -> ShardDecision:
        message = request.message
        settings = self._groups.settings
        min_ms, max_ms = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
        if not min_ms <= message.session_timeout_ms <= max_ms:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        member_id = message.member_id or self._groups.new_member_uuid()
        if member_id not in group.members:
            check_room(group, settings.group_consumer_max_size)
        subscription = _check_protocols(group, message)
        is_new = not message.member_id
        if is_new and message.group_instance_id is None and request.api_version >= _MEMBER_ID_REQUIRED_FROM:
            return answer(request, _refusal(request, ErrorCode.MEMBER_ID_REQUIRED, member_id))
        found = _find_joining(group, member_id, message.group_instance_id, is_new=is_new)
        wanted = _with_request(found.member, request, subscription)
        check_memory(group.members, wanted.member_id, wanted)
        # All checks have passed. From here on the state changes.
        decision = ShardDecision()
        changes = GroupChanges(self._groups, group, decision, now_ms, request.describable)
        if found.replaced is not None:
            changes.replace_static_member(found.replaced, found.member)
        reported = owned_partitions(subscription, self._groups.image)
        member = changes.update_member(found.member, wanted, reported, {})
        response = JoinGroupResponse(
            generation_id=member.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=message.protocols[0].name,
            member_id=member.member_id,
        )
        decision.replies.append(Reply(request.reply_to, response))
        if found.replaced is not None and may_become_classic(self._groups, group, ()):
            to_classic(self._groups, self._classic, group, decision, now_ms)
            return decision
        changes.joined(member.member_id)
        changes.extend_session(member)
        changes.set_timer(SYNC_TIMER, member.member_id, member.rebalance_timeout_ms)
        return decision

    def sync(self, request: ShardRequest[SyncGroupRequest], now_ms: WallMs) -> ShardDecision:
        message = request.message
        group = self._group(message.group_id)
        decision = ShardDecision()
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
            if group.epoch > member.member_epoch and member.state is not MemberState.UNREVOKED:
                changes.expect_join(member)
                raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        except KafkaError as error:
            decision.replies.append(Reply(request.reply_to, SyncGroupResponse(error_code=error.code)))
            return decision
        changes.cancel_timer(SYNC_TIMER, member.member_id)
        changes.extend_session(member)
        response = SyncGroupResponse(
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=protocol,
            assignment=encode_assignment(member.owned, subscription, self._groups.image),
        )
        decision.replies.append(Reply(request.reply_to, response))
        return decision

    def heartbeat(self, request: ShardRequest[HeartbeatRequest], now_ms: WallMs) -> ShardDecision:
        """Extends the session, and asks the member to rejoin if it has a step of reconciliation to do."""
        message = request.message
        group = self._group(message.group_id)
        decision = ShardDecision()
        changes = GroupChanges(self._groups, group, decision, now_ms, request.describable)
        try:
            member = _find(group, message.member_id, message.group_instance_id)
            _classic_side(member)
            _check_generation(member, message.generation_id)
        except KafkaError as error:
            return answer(request, HeartbeatResponse(error_code=error.code))
        changes.extend_session(member)
        changes.update_epoch(must_grow=changes.resolve_regexes({}))
        result = ErrorCode.NONE
        if (
            member.member_epoch < group.epoch
            or member.state is MemberState.UNREVOKED
            or (member.state is MemberState.UNRELEASED and not group.is_waiting_for_others(member))
        ):
            result = ErrorCode.REBALANCE_IN_PROGRESS
            changes.expect_join(member)
        decision.replies.append(Reply(request.reply_to, HeartbeatResponse(error_code=result)))
        return decision

    def leave(self, request: ShardRequest[LeaveGroupRequest], now_ms: WallMs) -> ShardDecision:
        message = request.message
        group = self._group(message.group_id)
        is_batched = request.api_version >= _BATCHED_LEAVE_FROM
        leaving = message.members if is_batched else [MemberIdentity(member_id=message.member_id)]
        found: dict[str, ConsumerMember] = {}
        results = [_find_leaving(group, identity, found) for identity in leaving]
        decision = ShardDecision()
        remove_members(self._groups, self._classic, group, list(found.values()), decision, now_ms)
        response = (
            LeaveGroupResponse(members=results)
            if is_batched
            else LeaveGroupResponse(error_code=results[0].error_code)
        )
        decision.replies.append(Reply(request.reply_to, response))
        return decision


def _refusal(request: ShardRequest[JoinGroupRequest], error: ErrorCode, member_id: str) -> JoinGroupResponse:
    protocol = None if request.api_version >= NULLABLE_PROTOCOL_FROM else ""
    return JoinGroupResponse(error_code=error, protocol_name=protocol, member_id=member_id)


def _check_protocols(group: ConsumerGroup, message: JoinGroupRequest) -> ConsumerProtocolSubscription:
    """Returns the subscription, which is the same in all protocols of a consumer.

    Raises KafkaError if the other classic members support none of the protocols.
    """
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
        # The group does not know a member yet that obtained its id by MEMBER_ID_REQUIRED.
        return FoundMember(group.members.get(member_id, ConsumerMember(member_id)))
    static = group.static_member(instance_id)
    if is_new:
        return join_as_static(group, static, member_id, instance_id, speaks_classic=True)
    return FoundMember(check_static(static, member_id, instance_id))


def _with_request(
    member: ConsumerMember,
    request: ShardRequest[JoinGroupRequest],
    subscription: ConsumerProtocolSubscription,
) -> ConsumerMember:
    """Returns the member with the subscription and the timeouts of a JoinGroup."""
    message = request.message
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


def _find(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    """Returns the member that sends a request. Raises KafkaError."""
    if instance_id is not None:
        return check_static(group.static_member(instance_id), member_id, instance_id)
    return find_member(group, member_id)


def _classic_side(member: ConsumerMember) -> ClassicSide:
    if member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member.classic


def _check_generation(member: ConsumerMember, generation: int) -> None:
    if generation != member.member_epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)


def _find_leaving(
    group: ConsumerGroup, identity: MemberIdentity, found: dict[str, ConsumerMember]
) -> MemberResponse:
    """Adds the member that leaves to `found` and returns its result.

    An admin tool names a static member only by its instance id, and may remove members of either protocol.
    """
    result = MemberResponse(identity.member_id, identity.group_instance_id)
    static = group.static_member(identity.group_instance_id)
    try:
        if static is not None and not identity.member_id:
            member = static
        else:
            member = _find(group, identity.member_id, identity.group_instance_id)
        found[member.member_id] = member
    except KafkaError as error:
        result.error_code = error.code
    return result


def remove_members(
    groups: Groups,
    classic: ClassicGroups,
    group: ConsumerGroup,
    members: Collection[ConsumerMember],
    decision: ShardDecision,
    now_ms: WallMs,
) -> None:
    """Removes members that leave or are fenced. Their partitions are free at once.

    If only classic members remain, the group may become a classic group.
    """
    if not members:
        return
    changes = GroupChanges(groups, group, decision, now_ms)
    removed_ids = {member.member_id for member in members}
    becomes_classic = may_become_classic(groups, group, removed_ids)
    for member in members:
        changes.remove_member(member)
    if becomes_classic:
        to_classic(groups, classic, group, decision, now_ms)
        return
    changes.update_epoch(must_grow=True)


def from_classic(groups: Groups, known: Group) -> ConsumerGroup:
    """Returns a consumer group with the members, epoch and assignment of a classic group.

    Nothing is changed yet. Raises KafkaError (GROUP_ID_NOT_FOUND) if the group can't be upgraded.
    """
    if not isinstance(known, ClassicGroup):
        reason = f"Group {known.group_id} has another type than a group of consumers."
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, reason)
    if not known.members:
        return ConsumerGroup(known.group_id)
    settings = groups.settings
    if settings.group_consumer_migration_policy.lower() not in _UPGRADE_POLICIES:
        raise _refused_upgrade(known, "online upgrade is disabled")
    if not known.uses_consumer_protocol:
        raise _refused_upgrade(known, "it does not use the consumer embedded protocol")
    if len(known.members) > settings.group_consumer_max_size:
        raise _refused_upgrade(known, "its size exceeds the consumer group maximum size")
    group = ConsumerGroup(known.group_id)
    group.epoch = group.assignment_epoch = known.generation
    for classic in known.members.values():
        try:
            member, assigned = _from_classic_member(groups, known, classic, group.owners)
        except ValueError as error:
            raise _refused_upgrade(known, str(error)) from None
        group.put_subscription(member)
        group.put_current_assignment(member)
        group.targets[member.member_id] = assigned
    return group


def _refused_upgrade(known: Group, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {known.group_id} to consumer group because {reason}.",
    )


def _from_classic_member(
    groups: Groups,
    group: ClassicGroup,
    classic: ClassicMember,
    taken: Mapping[UUID, Mapping[int, str]],
) -> tuple[ConsumerMember, dict[UUID, frozenset[int]]]:
    """Returns the member and its assignment, without partitions in `taken`. Raises ValueError."""
    subscription = read_subscription(classic.metadata(group.protocol) or classic.protocols[0].metadata)
    assigned = read_assignment(classic.assignment, groups.image)
    if not assigned:
        # During a rebalance the assignments are empty. A cooperative member still holds what it reports.
        assigned = owned_partitions(subscription, groups.image)
    assigned = {
        topic_id: free
        for topic_id, found in assigned.items()
        if (free := found - taken.get(topic_id, {}).keys())
    }
    protocols = tuple((protocol.name, protocol.metadata) for protocol in classic.protocols)
    member = ConsumerMember(
        classic.member_id,
        instance_id=classic.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=classic.client_id,
        client_host=classic.client_host,
        rebalance_timeout_ms=classic.rebalance_timeout_ms,
        topic_names=frozenset(subscription.topics),
        classic=ClassicSide(classic.session_timeout_ms, protocols),
        member_epoch=group.generation,
        previous_epoch=group.generation,
        owned={topic: dict.fromkeys(found, group.generation) for topic, found in assigned.items()},
    )
    return member, assigned


def take_over(classic: ClassicGroups, known: Group, changes: GroupChanges) -> None:
    """Writes the records that end the classic group and begin the one that `from_classic` returned."""
    assert isinstance(known, ClassicGroup)
    classic.abandon(known, changes.now_ms, changes.decision)
    group, form, write = changes.group, CONSUMER_FORMAT, changes.write
    if not group.members:
        return
    for name, member in group.members.items():
        write(form.member, form.member_value(member), name)
    write(form.group, form.group.value(group.epoch, group.metadata_hash))
    for name, target in group.targets.items():
        write(form.target, form.target_value(target), name)
    write(form.target_epoch, form.target_epoch.value(group.assignment_epoch, changes.now_ms))
    for name, member in group.members.items():
        write(form.current, form.current_value(member), name)


def may_become_classic(groups: Groups, group: ConsumerGroup, removed_ids: Collection[str]) -> bool:
    """Returns whether only classic members remain after the removal, and the policy allows a downgrade.

    The one record of a classic group must have room for the metadata of all of them.
    """
    remaining = [member for member in group.members.values() if member.member_id not in removed_ids]
    return (
        bool(remaining)
        and all(member.classic is not None for member in remaining)
        and groups.settings.group_consumer_migration_policy.lower() in _DOWNGRADE_POLICIES
        and len(remaining) <= groups.settings.group_max_size
        and sum(protocols_bytes(member.classic.protocols) for member in remaining if member.classic)
        <= MAX_GROUP_BYTES
    )


def to_classic(
    groups: Groups, classic: ClassicGroups, group: ConsumerGroup, decision: ShardDecision, now_ms: WallMs
) -> None:
    """Replaces a group of classic members by a classic group, whose members then have to rejoin."""
    changes = GroupChanges(groups, group, decision, now_ms)
    made = ClassicGroup(group.group_id, now_ms)
    made.generation = group.epoch
    for member in group.members.values():
        for timer in (SESSION_TIMER, JOIN_TIMER, SYNC_TIMER):
            changes.cancel_timer(timer, member.member_id)
        made.add(_to_classic_member(groups, member), CONSUMER_PROTOCOL_TYPE)
    made.protocol = made.select_protocol()
    made.restore_stable()
    decision.records += group.end()
    classic.adopt(made, now_ms, decision)


def _to_classic_member(groups: Groups, member: ConsumerMember) -> ClassicMember:
    assert member.classic is not None
    protocols = tuple(MemberProtocol(name, data) for name, data in member.classic.protocols)
    return ClassicMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=protocols,
        assignment=encode_assignment(member.owned, protocols[0].metadata, groups.image),
    )


def read_subscription(data: Buffer) -> ConsumerProtocolSubscription:
    """Decodes a subscription. Raises ValueError."""
    try:
        return _subscription_codec.decode(data, newer_as_newest=True)
    except (MalformedMessageError, UnsupportedVersionError) as error:
        raise ValueError("the embedded consumer protocol is malformed") from error


def owned_partitions(
    subscription: ConsumerProtocolSubscription, image: ClusterImage
) -> dict[UUID, frozenset[int]]:
    """Returns the partitions that the member says it owns, without those of deleted topics."""
    return _by_id({topic.topic: topic.partitions for topic in subscription.owned_partitions}, image)


def read_assignment(data: Buffer, image: ClusterImage) -> dict[UUID, frozenset[int]]:
    """Decodes an assignment.

    Raises ValueError if the assignment is malformed, or holds data of a client's own assignor.
    """
    if not data:
        return {}
    try:
        assignment = _assignment_codec.decode(data, newer_as_newest=True)
    except (MalformedMessageError, UnsupportedVersionError) as error:
        raise ValueError("the embedded consumer protocol is malformed") from error
    if assignment.user_data:
        raise ValueError("an unsupported custom assignor is in use")
    return _by_id({topic.topic: topic.partitions for topic in assignment.assigned_partitions}, image)


def _by_id(topics: Mapping[str, Iterable[int]], image: ClusterImage) -> dict[UUID, frozenset[int]]:
    return {
        image.topics[name].topic_id: frozenset(partitions)
        for name, partitions in topics.items()
        if name in image.topics and partitions
    }


def encode_assignment(
    owned: Mapping[UUID, Iterable[int]], subscription: Buffer, image: ClusterImage
) -> bytes:
    """Encodes an assignment in the version of the member's subscription."""
    topics = [
        TopicPartition(image.topic_names[topic_id], sorted(partitions))
        for topic_id, partitions in owned.items()
        if topic_id in image.topic_names
    ]
    topics.sort(key=lambda topic: topic.topic)
    version: int = unpack_from(">h", subscription)[0] if len(subscription) >= 2 else 0
    first, last = ConsumerProtocolAssignment.VERSIONS
    return _assignment_codec.encode(
        ConsumerProtocolAssignment(topics, None), version=min(max(version, first), last)
    )
