"""The share groups of a shard: ShareGroupHeartbeat v1 and ShareGroupDescribe v1 (KIP-932).

A member's first heartbeat creates the group. Every change of members, subscriptions or topics increases the
group epoch, and the next heartbeat of any member computes the target assignment of that epoch, as in consumer
groups. Only share partitions whose state exists are assigned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from uuid import UUID

from tidelog.group_coordinator.answer_room import described_within_bound
from tidelog.group_coordinator.groups.consumer.consumer_group import changed_topics
from tidelog.group_coordinator.groups.consumer.member import JOIN_EPOCH, LEAVE_EPOCH, to_message
from tidelog.group_coordinator.groups.modern import (
    MAX_SUBSCRIBER_BYTES,
    check_memory,
    check_not_empty,
    check_room,
    check_size,
    check_texts,
    fenced_member,
    find_group,
    invalid_request,
    unknown_member,
)
from tidelog.group_coordinator.groups.share.share_assignor import SIMPLE
from tidelog.group_coordinator.groups.share.share_changes import SESSION_TIMER, STATES_TIMER, ShareChanges
from tidelog.group_coordinator.groups.share.share_group import ShareGroup
from tidelog.group_coordinator.groups.share.share_member import ShareMember
from tidelog.group_coordinator.groups.share.share_records import FORMATS, member_record
from tidelog.group_coordinator.groups.share.share_states import ShareStates
from tidelog.group_coordinator.groups.shared import GroupKind, Groups, TimerKey, answer
from tidelog.group_coordinator.shard_core import (
    ClusterImage,
    ReplayedRecord,
    Reply,
    ShardDecision,
    ShardRequest,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.instants import WallMs
from tidelog.timing.steps import Steps
from tidelog.wire.messages import share_group_describe as describing
from tidelog.wire.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from tidelog.wire.messages.share_group_heartbeat import Assignment as AssignmentMessage
from tidelog.wire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)


class ShareGroups:
    """The handler of requests for share groups. Every request is answered by its own decision."""

    def __init__(self, groups: Groups, states: ShareStates) -> None:
        self._groups = groups
        self._states = states

    def heartbeat(self, request: ShardRequest[ShareGroupHeartbeatRequest], now_ms: WallMs) -> ShardDecision:
        try:
            _check_request(request.message)
            if request.message.member_epoch == LEAVE_EPOCH:
                return self._leave(request, now_ms)
            return self._join_or_update(request, now_ms)
        except KafkaError as error:
            refusal = ShareGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
            return answer(request, refusal)

    def _join_or_update(
        self, request: ShardRequest[ShareGroupHeartbeatRequest], now_ms: WallMs
    ) -> ShardDecision:
        message = request.message
        group = self._group_for(message)
        before = self._member_for(group, message)
        wanted = _with_request(before, request)
        if wanted != before:
            check_size("metadata of a member", member_record(group.group_id, wanted), MAX_SUBSCRIBER_BYTES)
            check_memory(group.members, wanted.member_id, wanted)
        # All checks have passed. From here on the state changes.
        decision = ShardDecision()
        changes = ShareChanges(self._groups, group, decision, now_ms)
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
        return found_group(self._groups, message.group_id)

    def _member_for(self, group: ShareGroup, message: ShareGroupHeartbeatRequest) -> ShareMember:
        """Returns the member before the heartbeat; it is empty if it is new."""
        member = group.members.get(message.member_id)
        if member is None:
            if message.member_epoch != JOIN_EPOCH:
                raise unknown_member(group, message.member_id)
            check_room(group, self._groups.settings.group_share_max_size)
            return ShareMember(message.member_id)
        epoch = message.member_epoch
        if (
            epoch not in (JOIN_EPOCH, member.member_epoch, member.previous_epoch)
            or epoch > member.member_epoch
        ):
            raise fenced_member(GroupKind.SHARE, epoch, member.member_epoch)
        return member

    def _leave(self, request: ShardRequest[ShareGroupHeartbeatRequest], now_ms: WallMs) -> ShardDecision:
        message = request.message
        group = found_group(self._groups, message.group_id)
        member = group.members.get(message.member_id)
        if member is None:
            raise unknown_member(group, message.member_id)
        decision = ShardDecision()
        ShareChanges(self._groups, group, decision, now_ms).remove_member(member)
        response = ShareGroupHeartbeatResponse(member_id=member.member_id, member_epoch=LEAVE_EPOCH)
        decision.replies.append(Reply(request.reply_to, response))
        return decision

    def describe(self, request: ShardRequest[ShareGroupDescribeRequest], now_ms: WallMs) -> ShardDecision:
        described = described_within_bound(
            request.message.group_ids,
            self._described,
            lambda group_id, error: DescribedGroup(error_code=error, group_id=group_id),
            lambda groups: ShareGroupDescribeResponse(groups=groups),
        )
        return answer(request, described)

    def _described(self, group_id: str) -> Steps[DescribedGroup]:
        """Describes a group as it is at the first step."""
        try:
            group = found_group(self._groups, group_id)
        except KafkaError as error:
            return DescribedGroup(error_code=error.code, error_message=error.message, group_id=group_id)
        names = self._groups.image.topic_names
        described = DescribedGroup(
            group_id=group_id,
            group_state=group.state,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=SIMPLE,
        )
        for member in list(group.members.values()):
            described.members.append(
                describing.Member(
                    member_id=member.member_id,
                    rack_id=member.rack_id,
                    member_epoch=member.member_epoch,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    subscribed_topic_names=sorted(member.topic_names),
                    assignment=_described_assignment(names, member.assigned),
                )
            )
            yield
        return described

    def replay(self, record: ReplayedRecord) -> None:
        """Applies a record of kind 10 to 15. Raises MalformedMessageError, UnsupportedVersionError."""
        FORMATS.replay(record, self._groups.by_id, ShareGroup, ShareGroup)

    def activate(self, now_ms: WallMs) -> ShardDecision:
        """Starts a full session for every member, and resumes what an earlier owner has not completed."""
        decision = ShardDecision()
        for group in self._all():
            changes = ShareChanges(self._groups, group, decision, now_ms)
            for member in group.members.values():
                changes.extend_session(member)
            self._states.resume(changes)
        return decision

    def image_changed(self, before: ClusterImage, now_ms: WallMs) -> ShardDecision:
        """Marks the groups whose topics changed, and forgets the share partitions of deleted topics, whose
        states their owners delete.
        """
        decision = ShardDecision()
        groups = self._all()
        changed = changed_topics(before, self._groups.image) if groups else frozenset()
        gone = before.topic_names.keys() - self._groups.image.topic_names.keys() if changed else frozenset()
        for group in groups:
            if not changed.isdisjoint(group.subscribed_names()):
                group.topics_changed = True
            deleted = group.partitions.topic_ids() & gone
            if deleted:
                changes = ShareChanges(self._groups, group, decision, now_ms)
                changes.put_partitions(group.partitions.without(deleted))
        return decision

    def timer_fired(self, key: TimerKey, now_ms: WallMs) -> ShardDecision:
        """Removes a member whose session ended, or repeats questions about states."""
        decision = ShardDecision()
        group = self._groups.by_id.get(key.group_id)
        if not isinstance(group, ShareGroup):
            return decision
        changes = ShareChanges(self._groups, group, decision, now_ms)
        if key.kind == STATES_TIMER:
            self._states.resume(changes)
        elif key.kind == SESSION_TIMER and key.member_id in group.members:
            changes.remove_member(group.members[key.member_id])
        return decision

    def _all(self) -> list[ShareGroup]:
        return [group for group in self._groups.by_id.values() if isinstance(group, ShareGroup)]


def found_group(groups: Groups, group_id: str) -> ShareGroup:
    """Returns a share group. Raises KafkaError (GROUP_ID_NOT_FOUND, INVALID_GROUP_ID)."""
    return find_group(groups, group_id, ShareGroup, GroupKind.SHARE)


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


def _described_assignment(
    names: Mapping[UUID, str], partitions: Mapping[UUID, Iterable[int]]
) -> describing.Assignment:
    """Returns an assignment without deleted topics, which have no name anymore."""
    return describing.Assignment(
        [
            describing.TopicPartitions(topic_id, names[topic_id], sorted(found))
            for topic_id, found in sorted(partitions.items())
            if topic_id in names
        ]
    )
