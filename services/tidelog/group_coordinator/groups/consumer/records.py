"""The records of consumer groups, in Kafka's formats."""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from functools import partial
from typing import Final, TypeAlias
from uuid import UUID

from tidelog.group_coordinator.groups.consumer.member import (
    Assignment,
    ClassicSide,
    Member,
    MemberState,
    OwnedPartitions,
    from_message,
    to_message,
)
from tidelog.group_coordinator.groups.consumer.topic_regex import ResolvedRegex
from tidelog.group_coordinator.groups.modern import (
    MemberKinds,
    RecordFormats,
    epochs_by_partition,
    new_record,
)
from tidelog.group_coordinator.shard_core import CoordinatorRecord
from tidelog.model.instants import WallMs
from tidelog.wire.messages.records.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from tidelog.wire.messages.records.consumer_group_member_metadata import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from tidelog.wire.messages.records.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from tidelog.wire.messages.records.consumer_group_partition_metadata import (
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
)
from tidelog.wire.messages.records.consumer_group_regular_expression import (
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)
from tidelog.wire.messages.records.consumer_group_target_assignment_member import (
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    TopicPartition,
)
from tidelog.wire.messages.records.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)


class RecordKind(IntEnum):
    """The kind of a record: the int16 before its key."""

    GROUP = 3
    PARTITION_METADATA = 4
    """Written by Kafka up to 4.0. Only its existence matters: the group deletes it."""
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    REGEX = 16


RecordKey: TypeAlias = (
    ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
RecordValue: TypeAlias = (
    ConsumerGroupMetadataValue
    | ConsumerGroupPartitionMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)

FORMATS: Final[RecordFormats[RecordKey, RecordValue]] = RecordFormats(
    {
        RecordKind.GROUP: (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
        RecordKind.PARTITION_METADATA: (
            ConsumerGroupPartitionMetadataKey,
            ConsumerGroupPartitionMetadataValue,
        ),
        RecordKind.MEMBER: (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
        RecordKind.TARGET_EPOCH: (
            ConsumerGroupTargetAssignmentMetadataKey,
            ConsumerGroupTargetAssignmentMetadataValue,
        ),
        RecordKind.TARGET: (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
        RecordKind.CURRENT: (
            ConsumerGroupCurrentMemberAssignmentKey,
            ConsumerGroupCurrentMemberAssignmentValue,
        ),
        RecordKind.REGEX: (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
    }
)
tombstone = FORMATS.tombstone
"""Returns a tombstone of a kind. The names are the group, and the member or expression of the record."""
member_tombstones = partial(
    FORMATS.member_tombstones,
    MemberKinds(RecordKind.CURRENT, RecordKind.TARGET, RecordKind.TARGET_EPOCH, RecordKind.MEMBER),
)
"""Returns the tombstones of a group's members. Takes the group and two collections of ids."""


def group_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """Returns the record of a group's epoch."""
    return new_record(ConsumerGroupMetadataKey(group_id), ConsumerGroupMetadataValue(epoch, metadata_hash))


def member_record(group_id: str, member: Member) -> CoordinatorRecord:
    """Returns the record of a member's subscription."""
    classic = member.classic
    return new_record(
        ConsumerGroupMemberMetadataKey(group_id, member.member_id),
        ConsumerGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topic_names),
            subscribed_topic_regex=member.topic_regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            server_assignor=member.server_assignor,
            classic_member_metadata=None
            if classic is None
            else ClassicMemberMetadata(
                classic.session_timeout_ms,
                [ClassicProtocol(name, data) for name, data in classic.protocols],
            ),
        ),
    )


def with_subscription(member: Member, value: ConsumerGroupMemberMetadataValue) -> Member:
    """Returns the member with the subscription of a record."""
    classic = value.classic_member_metadata
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        topic_names=frozenset(value.subscribed_topic_names),
        topic_regex=value.subscribed_topic_regex or "",
        server_assignor=value.server_assignor,
        classic=None
        if classic is None
        else ClassicSide(
            classic.session_timeout_ms,
            tuple((protocol.name, bytes(protocol.metadata)) for protocol in classic.supported_protocols),
        ),
    )


def target_epoch_record(group_id: str, assignment_epoch: int, now_ms: WallMs) -> CoordinatorRecord:
    """Returns the record of the epoch of a group's target assignment."""
    return new_record(
        ConsumerGroupTargetAssignmentMetadataKey(group_id),
        ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch, now_ms),
    )


def target_record(group_id: str, member_id: str, assignment: Assignment) -> CoordinatorRecord:
    """Returns the record of a member's target assignment."""
    return new_record(
        ConsumerGroupTargetAssignmentMemberKey(group_id, member_id),
        ConsumerGroupTargetAssignmentMemberValue(to_message(TopicPartition, assignment)),
    )


def target_of(value: ConsumerGroupTargetAssignmentMemberValue) -> Assignment:
    """Returns the target assignment of a record."""
    return from_message(value.topic_partitions)


def current_record(group_id: str, member: Member) -> CoordinatorRecord:
    """Returns the record of a member's epoch and partitions."""
    return new_record(
        ConsumerGroupCurrentMemberAssignmentKey(group_id, member.member_id),
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.member_epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state,
            assigned_partitions=_with_epochs(member.owned),
            partitions_pending_revocation=_with_epochs(member.revoking),
        ),
    )


def _with_epochs(owned: OwnedPartitions) -> list[TopicPartitions]:
    return [
        TopicPartitions(
            topic_id, sorted(partitions), [partitions[partition] for partition in sorted(partitions)]
        )
        for topic_id, partitions in sorted(owned.items())
    ]


def with_current_assignment(member: Member, value: ConsumerGroupCurrentMemberAssignmentValue) -> Member:
    """Returns the member with the epoch and partitions of a record."""
    try:
        state = MemberState(value.state)
    except ValueError:
        state = MemberState.UNKNOWN

    def owned(topics: list[TopicPartitions]) -> dict[UUID, dict[int, int]]:
        return {
            topic.topic_id: epochs_by_partition(topic.partitions, topic.assignment_epochs, value.member_epoch)
            for topic in topics
            if topic.partitions
        }

    return replace(
        member,
        member_epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=state,
        owned=owned(value.assigned_partitions),
        revoking=owned(value.partitions_pending_revocation),
    )


def regex_record(group_id: str, expression: str, resolved: ResolvedRegex) -> CoordinatorRecord:
    """Returns the record of the topics that a regular expression matches."""
    return new_record(
        ConsumerGroupRegularExpressionKey(group_id, expression),
        ConsumerGroupRegularExpressionValue(sorted(resolved.topics), resolved.version, resolved.timestamp_ms),
    )


def resolved_of(value: ConsumerGroupRegularExpressionValue) -> ResolvedRegex:
    """Returns the resolved regular expression of a record."""
    return ResolvedRegex(frozenset(value.topics), value.version, WallMs(value.timestamp))
