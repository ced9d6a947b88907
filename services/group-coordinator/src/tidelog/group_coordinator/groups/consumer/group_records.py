"""Records of consumer groups in Kafka's formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from tidelog.group_coordinator.groups.consumer.assignment import (
    Assignment,
    OwnedPartitions,
    from_message,
    to_message,
)
from tidelog.group_coordinator.groups.consumer.member import ClassicSide, Member, MemberState
from tidelog.group_coordinator.groups.consumer.topic_regex import ResolvedRegex
from tidelog.group_coordinator.shard_core import CoordinatorRecord
from tidelog.wire.codec import record_codec
from tidelog.wire.messages.records import consumer_group_current_member_assignment as current
from tidelog.wire.messages.records import consumer_group_member_metadata as metadata
from tidelog.wire.messages.records import consumer_group_metadata as group_metadata
from tidelog.wire.messages.records import consumer_group_partition_metadata as partition_metadata
from tidelog.wire.messages.records import consumer_group_regular_expression as regex
from tidelog.wire.messages.records import consumer_group_target_assignment_member as target
from tidelog.wire.messages.records import consumer_group_target_assignment_metadata as target_metadata

GROUP_KIND: Final = 3
PARTITION_METADATA_KIND: Final = 4
"""Kafka's up to 4.0; read as nothing."""
MEMBER_KIND: Final = 5
TARGET_EPOCH_KIND: Final = 6
TARGET_KIND: Final = 7
CURRENT_KIND: Final = 8
REGEX_KIND: Final = 16

KEY_CLASSES: Final[Mapping[int, type[Any]]] = {
    GROUP_KIND: group_metadata.ConsumerGroupMetadataKey,
    PARTITION_METADATA_KIND: partition_metadata.ConsumerGroupPartitionMetadataKey,
    MEMBER_KIND: metadata.ConsumerGroupMemberMetadataKey,
    TARGET_EPOCH_KIND: target_metadata.ConsumerGroupTargetAssignmentMetadataKey,
    TARGET_KIND: target.ConsumerGroupTargetAssignmentMemberKey,
    CURRENT_KIND: current.ConsumerGroupCurrentMemberAssignmentKey,
    REGEX_KIND: regex.ConsumerGroupRegularExpressionKey,
}
VALUE_CLASSES: Final[Mapping[int, type[Any]]] = {
    GROUP_KIND: group_metadata.ConsumerGroupMetadataValue,
    PARTITION_METADATA_KIND: partition_metadata.ConsumerGroupPartitionMetadataValue,
    MEMBER_KIND: metadata.ConsumerGroupMemberMetadataValue,
    TARGET_EPOCH_KIND: target_metadata.ConsumerGroupTargetAssignmentMetadataValue,
    TARGET_KIND: target.ConsumerGroupTargetAssignmentMemberValue,
    CURRENT_KIND: current.ConsumerGroupCurrentMemberAssignmentValue,
    REGEX_KIND: regex.ConsumerGroupRegularExpressionValue,
}


def _record(key: Any, value: Any) -> CoordinatorRecord:
    return CoordinatorRecord(
        record_codec(type(key)).encode(key),
        None if value is None else record_codec(type(value)).encode(value),
    )


def tombstone(kind: int, *names: str) -> CoordinatorRecord:
    """`names`: the group, and the member or regular expression if it is of one."""
    return _record(KEY_CLASSES[kind](*names), None)


def group_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    return _record(
        group_metadata.ConsumerGroupMetadataKey(group_id),
        group_metadata.ConsumerGroupMetadataValue(epoch, metadata_hash),
    )


def member_record(group_id: str, member: Member) -> CoordinatorRecord:
    classic = member.classic
    return _record(
        metadata.ConsumerGroupMemberMetadataKey(group_id, member.member_id),
        metadata.ConsumerGroupMemberMetadataValue(
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
            else metadata.ClassicMemberMetadata(
                classic.session_timeout_ms,
                [metadata.ClassicProtocol(name, data) for name, data in classic.protocols],
            ),
        ),
    )


def with_subscription(member: Member, value: metadata.ConsumerGroupMemberMetadataValue) -> Member:
    """As the record says it."""
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


def target_epoch_record(group_id: str, assignment_epoch: int, now_ms: int) -> CoordinatorRecord:
    return _record(
        target_metadata.ConsumerGroupTargetAssignmentMetadataKey(group_id),
        target_metadata.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch, now_ms),
    )


def target_record(group_id: str, member_id: str, assignment: Assignment) -> CoordinatorRecord:
    return _record(
        target.ConsumerGroupTargetAssignmentMemberKey(group_id, member_id),
        target.ConsumerGroupTargetAssignmentMemberValue(to_message(target.TopicPartition, assignment)),
    )


def target_of(value: target.ConsumerGroupTargetAssignmentMemberValue) -> Assignment:
    return from_message(value.topic_partitions)


def current_record(group_id: str, member: Member) -> CoordinatorRecord:
    return _record(
        current.ConsumerGroupCurrentMemberAssignmentKey(group_id, member.member_id),
        current.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.member_epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state,
            assigned_partitions=_with_epochs(member.owned),
            partitions_pending_revocation=_with_epochs(member.revoking),
        ),
    )


def _with_epochs(owned: OwnedPartitions) -> list[current.TopicPartitions]:
    return [
        current.TopicPartitions(
            topic_id, sorted(partitions), [partitions[partition] for partition in sorted(partitions)]
        )
        for topic_id, partitions in sorted(owned.items())
    ]


def with_standing(member: Member, value: current.ConsumerGroupCurrentMemberAssignmentValue) -> Member:
    """As the record says it. Without epochs of partitions (before Kafka 4.3): the member's own."""
    try:
        state = MemberState(value.state)
    except ValueError:
        state = MemberState.UNKNOWN

    def owned(topics: list[current.TopicPartitions]) -> dict[UUID, dict[int, int]]:
        return {
            topic.topic_id: dict(
                zip(topic.partitions, topic.assignment_epochs, strict=True)
                if topic.assignment_epochs and len(topic.assignment_epochs) == len(topic.partitions)
                else zip(topic.partitions, [value.member_epoch] * len(topic.partitions), strict=True)
            )
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
    return _record(
        regex.ConsumerGroupRegularExpressionKey(group_id, expression),
        regex.ConsumerGroupRegularExpressionValue(
            sorted(resolved.topics), resolved.version, resolved.timestamp_ms
        ),
    )


def resolved_of(value: regex.ConsumerGroupRegularExpressionValue) -> ResolvedRegex:
    return ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
