"""The records of share groups, in Kafka's formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import IntEnum
from functools import partial
from typing import Final, TypeAlias
from uuid import UUID

from tidelog.group_coordinator.groups.consumer.member import Assignment, from_message, to_message
from tidelog.group_coordinator.groups.modern import MemberKinds, RecordFormats, new_record
from tidelog.group_coordinator.groups.share.share_member import ShareMember
from tidelog.group_coordinator.groups.share.share_partitions import SharePartitions, TopicShare
from tidelog.group_coordinator.shard_core import CoordinatorRecord
from tidelog.model.instants import WallMs
from tidelog.wire.messages.records.share_group_current_member_assignment import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from tidelog.wire.messages.records.share_group_member_metadata import (
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
)
from tidelog.wire.messages.records.share_group_metadata import ShareGroupMetadataKey, ShareGroupMetadataValue
from tidelog.wire.messages.records.share_group_state_partition_metadata import (
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    TopicInfo,
    TopicPartitionsInfo,
)
from tidelog.wire.messages.records.share_group_target_assignment_member import (
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    TopicPartition,
)
from tidelog.wire.messages.records.share_group_target_assignment_metadata import (
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)


class RecordKind(IntEnum):
    """The kind of a record: the int16 before its key."""

    MEMBER = 10
    GROUP = 11
    TARGET_EPOCH = 12
    TARGET = 13
    CURRENT = 14
    STATES = 15


RecordKey: TypeAlias = (
    ShareGroupMemberMetadataKey
    | ShareGroupMetadataKey
    | ShareGroupTargetAssignmentMetadataKey
    | ShareGroupTargetAssignmentMemberKey
    | ShareGroupCurrentMemberAssignmentKey
    | ShareGroupStatePartitionMetadataKey
)
RecordValue: TypeAlias = (
    ShareGroupMemberMetadataValue
    | ShareGroupMetadataValue
    | ShareGroupTargetAssignmentMetadataValue
    | ShareGroupTargetAssignmentMemberValue
    | ShareGroupCurrentMemberAssignmentValue
    | ShareGroupStatePartitionMetadataValue
)

FORMATS: Final[RecordFormats[RecordKey, RecordValue]] = RecordFormats(
    {
        RecordKind.MEMBER: (ShareGroupMemberMetadataKey, ShareGroupMemberMetadataValue),
        RecordKind.GROUP: (ShareGroupMetadataKey, ShareGroupMetadataValue),
        RecordKind.TARGET_EPOCH: (
            ShareGroupTargetAssignmentMetadataKey,
            ShareGroupTargetAssignmentMetadataValue,
        ),
        RecordKind.TARGET: (ShareGroupTargetAssignmentMemberKey, ShareGroupTargetAssignmentMemberValue),
        RecordKind.CURRENT: (ShareGroupCurrentMemberAssignmentKey, ShareGroupCurrentMemberAssignmentValue),
        RecordKind.STATES: (ShareGroupStatePartitionMetadataKey, ShareGroupStatePartitionMetadataValue),
    }
)
tombstone = FORMATS.tombstone
"""Returns a tombstone of a kind. The names are the group, and the member of the record."""
member_tombstones = partial(
    FORMATS.member_tombstones,
    MemberKinds(RecordKind.CURRENT, RecordKind.TARGET, RecordKind.TARGET_EPOCH, RecordKind.MEMBER),
)
"""Returns the tombstones of a group's members. Takes the group and two collections of ids."""


def group_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """Returns the record of a group's epoch."""
    return new_record(ShareGroupMetadataKey(group_id), ShareGroupMetadataValue(epoch, metadata_hash))


def member_record(group_id: str, member: ShareMember) -> CoordinatorRecord:
    """Returns the record of a member's subscription."""
    return new_record(
        ShareGroupMemberMetadataKey(group_id, member.member_id),
        ShareGroupMemberMetadataValue(
            member.rack_id, member.client_id, member.client_host, sorted(member.topic_names)
        ),
    )


def with_subscription(member: ShareMember, value: ShareGroupMemberMetadataValue) -> ShareMember:
    """Returns the member with the subscription of a record."""
    return replace(
        member,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topic_names=frozenset(value.subscribed_topic_names),
    )


def target_epoch_record(group_id: str, assignment_epoch: int, now_ms: WallMs) -> CoordinatorRecord:
    """Returns the record of the epoch of a group's target assignment."""
    return new_record(
        ShareGroupTargetAssignmentMetadataKey(group_id),
        ShareGroupTargetAssignmentMetadataValue(assignment_epoch, now_ms),
    )


def target_record(group_id: str, member_id: str, assignment: Assignment) -> CoordinatorRecord:
    """Returns the record of a member's target assignment."""
    return new_record(
        ShareGroupTargetAssignmentMemberKey(group_id, member_id),
        ShareGroupTargetAssignmentMemberValue(to_message(TopicPartition, assignment)),
    )


def target_of(value: ShareGroupTargetAssignmentMemberValue) -> Assignment:
    """Returns the target assignment of a record."""
    return from_message(value.topic_partitions)


def current_record(group_id: str, member: ShareMember) -> CoordinatorRecord:
    """Returns the record of a member's epoch and partitions. Its state is always 0 (STABLE)."""
    return new_record(
        ShareGroupCurrentMemberAssignmentKey(group_id, member.member_id),
        ShareGroupCurrentMemberAssignmentValue(
            member_epoch=member.member_epoch,
            previous_member_epoch=member.previous_epoch,
            assigned_partitions=to_message(TopicPartitions, member.assigned),
        ),
    )


def with_current_assignment(
    member: ShareMember, value: ShareGroupCurrentMemberAssignmentValue
) -> ShareMember:
    """Returns the member with the epoch and partitions of a record."""
    return replace(
        member,
        member_epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        assigned=from_message(value.assigned_partitions),
    )


def partitions_record(group_id: str, partitions: SharePartitions) -> CoordinatorRecord:
    """Returns the record of the group's share partitions."""
    return new_record(
        ShareGroupStatePartitionMetadataKey(group_id),
        ShareGroupStatePartitionMetadataValue(
            _topics(partitions.initializing),
            _topics(partitions.initialized),
            [TopicInfo(topic_id, name) for topic_id, name in sorted(partitions.deleting.items())],
        ),
    )


def _topics(topics: Mapping[UUID, TopicShare]) -> list[TopicPartitionsInfo]:
    return [
        TopicPartitionsInfo(topic_id, topic.name, sorted(topic.partitions))
        for topic_id, topic in sorted(topics.items())
    ]


def partitions_of(value: ShareGroupStatePartitionMetadataValue) -> SharePartitions:
    """Returns the share partitions of a record."""
    return SharePartitions(
        _shares(value.initializing_topics),
        _shares(value.initialized_topics),
        {topic.topic_id: topic.topic_name for topic in value.deleting_topics},
    )


def _shares(topics: Iterable[TopicPartitionsInfo]) -> dict[UUID, TopicShare]:
    return {topic.topic_id: TopicShare(topic.topic_name, frozenset(topic.partitions)) for topic in topics}
