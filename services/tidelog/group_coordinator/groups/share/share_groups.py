"""The share groups of a shard: ShareGroupHeartbeat v1 and ShareGroupDescribe v1 (KIP-932).

A member's first heartbeat creates the group. Every change of members, subscriptions or topics increases the
group epoch, and the next heartbeat of any member computes the target assignment of that epoch, as in consumer
groups. Only share partitions whose state exists are assigned.
"""

from __future__ import annotations

from dataclasses import replace

from tidelog.group_coordinator.groups.modern_group import JOIN_EPOCH, LEAVE_EPOCH, to_message
from tidelog.group_coordinator.groups.modern_groups import (
    MAX_SUBSCRIBER_BYTES,
    SESSION_TIMER,
    ModernGroups,
    check_epoch,
    check_memory,
    check_not_empty,
    check_room,
    check_size,
    check_texts,
    find_group,
    find_member,
    invalid_request,
)
from tidelog.group_coordinator.groups.share.share_assignor import SIMPLE
from tidelog.group_coordinator.groups.share.share_group import (
    SHARE_FORMAT,
    STATES_TIMER,
    ShareChanges,
    ShareGroup,
    ShareMember,
)
from tidelog.group_coordinator.groups.share.share_states import ShareStates
from tidelog.group_coordinator.groups.shared import GroupKind, Groups, TimerKey
from tidelog.group_coordinator.shard_core import ClusterImage, Reply, ShardDecision, ShardRequest
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.instants import WallMs
from tidelog.wire.messages import share_group_describe as describing
from tidelog.wire.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeResponse,
)
from tidelog.wire.messages.share_group_heartbeat import Assignment as AssignmentMessage
from tidelog.wire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)


class ShareGroups(ModernGroups[ShareGroup]):
    """The handler of requests for share groups."""

    GROUP = ShareGroup
    HEARTBEAT_RESPONSE = ShareGroupHeartbeatResponse
    DESCRIBED_GROUP = DescribedGroup
    DESCRIBE_RESPONSE = ShareGroupDescribeResponse

    def __init__(self, groups: Groups, states: ShareStates) -> None:
        super().__init__(groups)
        self._states = states

    def changes(self, group: ShareGroup, decision: ShardDecision, now_ms: WallMs) -> ShareChanges:
        return ShareChanges(self._groups, group, decision, now_ms)

    def _beat(self, request: ShardRequest[ShareGroupHeartbeatRequest], now_ms: WallMs) -> ShardDecision:
        message = request.message
        _check_request(message)
        if message.member_epoch != LEAVE_EPOCH:
            return self._join_or_update(request, now_ms)
        group = find_group(self._groups, message.group_id, ShareGroup)
        member = find_member(group, message.member_id)
        decision = ShardDecision()
        self.changes(group, decision, now_ms).remove_member(member)
        return self._left(request, member, decision)

    def _join_or_update(
        self, request: ShardRequest[ShareGroupHeartbeatRequest], now_ms: WallMs
    ) -> ShardDecision:
        message = request.message
        group = self._group_for(message)
        before = self._member_for(group, message)
        wanted = _with_request(before, request)
        if wanted != before:
            record = SHARE_FORMAT.member_record(group.group_id, wanted)
            check_size("metadata of a member", record, MAX_SUBSCRIBER_BYTES)
            check_memory(group.members, wanted.member_id, wanted)
        # All checks have passed. From here on the state changes.
        decision = ShardDecision()
        changes = self.changes(group, decision, now_ms)
        self._groups.by_id[group.group_id] = group
        member = changes.update_member(before, wanted)
        self._states.initialize_subscribed(changes)
        changes.extend_session(member)
        is_full = message.member_epoch == JOIN_EPOCH or message.subscribed_topic_names is not None
        settings = self._groups.group_settings.for_group(group.group_id)
        response = ShareGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=settings.share_heartbeat_interval_ms,
            assignment=AssignmentMessage(to_message(TopicPartitions, member.assigned))
            if is_full or member.assigned != before.assigned
            else None,
        )
        decision.replies.append(Reply(request.reply_to, response))
        return decision

    def _group_for(self, message: ShareGroupHeartbeatRequest) -> ShareGroup:
        """Returns the group. A new group is not in `by_id` yet."""
        known = self._groups.by_id.get(message.group_id)
        if known is None:
            if message.member_epoch == JOIN_EPOCH:
                return ShareGroup(message.group_id)
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {message.group_id} not found.")
        return find_group(self._groups, message.group_id, ShareGroup)

    def _member_for(self, group: ShareGroup, message: ShareGroupHeartbeatRequest) -> ShareMember:
        """Returns the member before the heartbeat; it is empty if it is new."""
        if message.member_epoch == JOIN_EPOCH and message.member_id not in group.members:
            check_room(group, self._groups.settings.group_share_max_size)
            return ShareMember(message.member_id)
        member = find_member(group, message.member_id)
        check_epoch(GroupKind.SHARE, member, message.member_epoch)
        return member

    def _describe_group(self, group: ShareGroup, described: DescribedGroup) -> None:
        described.assignor_name = SIMPLE

    def _described_member(self, member: ShareMember, target: object) -> describing.Member:
        assigned = self._named_topics(describing.TopicPartitions, member.assigned)
        return describing.Member(
            member_id=member.member_id,
            rack_id=member.rack_id,
            member_epoch=member.member_epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topic_names),
            assignment=describing.Assignment(assigned),
        )

    def _resume(self, changes: ShareChanges) -> None:
        self._states.resume(changes)

    def image_changed(self, before: ClusterImage, now_ms: WallMs) -> ShardDecision:
        """Marks the groups whose topics changed, and forgets the share partitions of deleted topics, whose
        states their owners delete.
        """
        decision = ShardDecision()
        groups, changed = self.mark_changed(before)
        gone = before.topic_names.keys() - self._groups.image.topic_names.keys() if changed else frozenset()
        for group in groups:
            deleted = group.partitions.topic_ids() & gone
            if deleted:
                changes = self.changes(group, decision, now_ms)
                changes.put_partitions(group.partitions.without(deleted))
        return decision

    def timer_fired(self, key: TimerKey, now_ms: WallMs) -> ShardDecision:
        """Removes a member whose session ended, or repeats questions about states."""
        decision = ShardDecision()
        group = self._groups.by_id.get(key.group_id)
        if not isinstance(group, ShareGroup):
            return decision
        changes = self.changes(group, decision, now_ms)
        if key.kind == STATES_TIMER:
            self._states.resume(changes)
        elif key.kind == SESSION_TIMER and key.member_id in group.members:
            changes.remove_member(group.members[key.member_id])
        return decision


def _check_request(message: ShareGroupHeartbeatRequest) -> None:
    """Raises KafkaError if a ShareGroupHeartbeat is invalid, whatever the group's state is."""
    check_not_empty(GroupId=message.group_id, MemberId=message.member_id, RackId=message.rack_id)
    if message.member_epoch == JOIN_EPOCH and not message.subscribed_topic_names:
        raise invalid_request("SubscribedTopicNames must be set in first request.")
    if message.member_epoch < LEAVE_EPOCH:
        raise invalid_request("MemberEpoch is invalid.")
    check_texts("metadata of a member", message.subscribed_topic_names or (), MAX_SUBSCRIBER_BYTES)


def _with_request(member: ShareMember, request: ShardRequest[ShareGroupHeartbeatRequest]) -> ShareMember:
    """Returns the member with the fields of a heartbeat. Fields that the request omits keep their values."""
    message = request.message
    names = message.subscribed_topic_names
    return replace(
        member,
        rack_id=member.rack_id if message.rack_id is None else message.rack_id,
        client_id=request.client_id or "",
        client_host=f"/{request.host}",  # Java prints addresses with a slash
        topic_names=member.topic_names if names is None else frozenset(names),
    )
