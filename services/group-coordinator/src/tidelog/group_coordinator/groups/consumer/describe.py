"""ConsumerGroupDescribe (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from tidelog.group_coordinator.groups.consumer.consumer_group import ConsumerGroup
from tidelog.group_coordinator.groups.consumer.group_changes import default_assignor
from tidelog.group_coordinator.groups.consumer.member import Member as GroupMember
from tidelog.group_coordinator.groups.shared import Groups
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


def describe(groups: Groups, message: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(groups=[_described(groups, name) for name in message.group_ids])


def _described(groups: Groups, group_id: str) -> DescribedGroup:
    if not group_id:
        return DescribedGroup(error_code=ErrorCode.INVALID_GROUP_ID, group_id=group_id)
    group = groups.by_id.get(group_id)
    if not isinstance(group, ConsumerGroup):
        what = "not found" if group is None else "is not a consumer group"
        return DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} {what}.",
            group_id=group_id,
        )
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor(default_assignor(groups.settings.group_consumer_assignors)),
        members=[_member(groups, group, member) for member in group.members.values()],
    )


def _member(groups: Groups, group: ConsumerGroup, member: GroupMember) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.topic_regex or None,
        assignment=_assignment(groups, _held(member)),
        target_assignment=_assignment(groups, group.target_of(member.member_id)),
        member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    )


def _held(member: GroupMember) -> dict[UUID, set[int]]:
    """Also what it has yet to give up."""
    held: dict[UUID, set[int]] = {}
    for owned in (member.owned, member.revoking):
        for topic_id, partitions in owned.items():
            held.setdefault(topic_id, set()).update(partitions)
    return held


def _assignment(groups: Groups, partitions: Mapping[UUID, Iterable[int]]) -> Assignment:
    """Topics that are gone have no name any more, and are left out."""
    names = groups.image.topic_names
    return Assignment(
        [
            TopicPartitions(topic_id, names[topic_id], sorted(found))
            for topic_id, found in sorted(partitions.items())
            if topic_id in names
        ]
    )
