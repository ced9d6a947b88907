"""The rules of membership: which heartbeats are valid, and which member a request belongs to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final, NamedTuple

from tidelog.group_coordinator.groups.consumer.consumer_group import ConsumerGroup
from tidelog.group_coordinator.groups.consumer.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    Assignment,
    Member,
    MemberState,
    holds_all,
)
from tidelog.group_coordinator.groups.consumer.topic_regex import check_expression
from tidelog.group_coordinator.groups.modern import (
    MAX_SUBSCRIBER_BYTES,
    check_not_empty,
    check_texts,
    fenced_member,
    invalid_request,
    unknown_member,
)
from tidelog.group_coordinator.groups.shared import GroupKind
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

_MEMBER_CHOOSES_ITS_ID: Final = 1
"""The version from which a member chooses its own id (KIP-1082)."""


def check_request(message: ConsumerGroupHeartbeatRequest, version: int, assignors: Collection[str]) -> None:
    """Raises KafkaError if a ConsumerGroupHeartbeat is invalid, whatever the group's state is."""
    check_not_empty(GroupId=message.group_id, InstanceId=message.instance_id, RackId=message.rack_id)
    epoch = message.member_epoch
    if (epoch != JOIN_EPOCH or version >= _MEMBER_CHOOSES_ITS_ID) and not message.member_id.strip():
        raise invalid_request("MemberId can't be empty.")
    if epoch == JOIN_EPOCH:
        _check_join(message)
    elif epoch == STATIC_LEAVE_EPOCH and message.instance_id is None:
        raise invalid_request("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise invalid_request(f"MemberEpoch is invalid: {epoch}.")
    if message.server_assignor is not None and message.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {message.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )
    check_expression(message.subscribed_topic_regex or "")
    check_texts("metadata of a member", message.subscribed_topic_names or (), MAX_SUBSCRIBER_BYTES)


def _check_join(message: ConsumerGroupHeartbeatRequest) -> None:
    if message.rebalance_timeout_ms == -1:
        raise invalid_request("RebalanceTimeoutMs must be provided in first request.")
    if message.topic_partitions is None or message.topic_partitions:
        raise invalid_request("TopicPartitions must be empty when (re-)joining.")
    if message.subscribed_topic_names is None and message.subscribed_topic_regex is None:
        raise invalid_request(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        )


class FoundMember(NamedTuple):
    """The member of a request."""

    member: Member
    """The member before the request; empty if it is new."""
    replaced: Member | None = None
    """The static member that this one replaces."""


def find_member(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    reported: Assignment | None,
) -> FoundMember:
    """Returns the member that sends a heartbeat.

    `reported` are the partitions that the member says it owns. Raises KafkaError if the member does not exist
    or is fenced.
    """
    joins = epoch == JOIN_EPOCH
    if instance_id is None:
        member = group.members.get(member_id)
        if member is None:
            if not joins:
                raise unknown_member(group, member_id)
            return FoundMember(Member(member_id))
        _check_epoch(member, epoch, reported)
        return FoundMember(member)
    static = group.static_member(instance_id)
    if joins:
        return join_as_static(group, static, member_id, instance_id, speaks_classic=False)
    checked = check_static(static, member_id, instance_id)
    _check_epoch(checked, epoch, reported)
    return FoundMember(checked)


def join_as_static(
    group: ConsumerGroup, static: Member | None, member_id: str, instance_id: str, *, speaks_classic: bool
) -> FoundMember:
    """Returns the member for a join with an instance id, of which `static` is the current member.

    Raises KafkaError (UNRELEASED_INSTANCE_ID) if a running member holds the instance id.
    """
    if static is None:
        return FoundMember(group.members.get(member_id, Member(member_id)))
    if static.member_id == member_id and static.member_epoch != STATIC_LEAVE_EPOCH:
        return FoundMember(static)  # the same process, which missed a response or was fenced
    both_consumer = not speaks_classic and static.classic is None
    if both_consumer and static.member_epoch != STATIC_LEAVE_EPOCH:
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
            f"instance id is owned by {static.member_id} member.",
        )
    return FoundMember(replace(static, member_id=member_id, member_epoch=0, previous_epoch=0), static)


def check_static(static: Member | None, member_id: str, instance_id: str) -> Member:
    """Returns `static`, the member with this instance id. Raises KafkaError if its member id differs."""
    if static is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if static.member_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{static.member_id}.",
        )
    return static


def _check_epoch(member: Member, epoch: int, reported: Assignment | None) -> None:
    if epoch == JOIN_EPOCH:
        return
    if epoch > member.member_epoch:
        raise fenced_member(GroupKind.CONSUMER, epoch, member.member_epoch)
    # The response with the new epoch may have been lost. The previous epoch is therefore valid as long as
    # the member claims no partition that it does not own.
    if epoch < member.member_epoch and (
        epoch != member.previous_epoch or reported is None or not holds_all(member.owned, reported)
    ):
        raise fenced_member(GroupKind.CONSUMER, epoch, member.member_epoch)
    if member.state is MemberState.UNKNOWN and reported != {}:
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The member is in an unknown state; it must abandon all its partitions and rejoin.",
        )


def is_leaving(epoch: int) -> bool:
    """Returns whether a heartbeat with this epoch announces that the member leaves."""
    return epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH)
