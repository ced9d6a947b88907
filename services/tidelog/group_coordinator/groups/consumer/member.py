"""One member of a consumer group: its records, in Kafka's formats, and its way to its target assignment.

A member reaches its target assignment in steps (KIP-848; Kafka's CurrentAssignmentBuilder). First it gives up
the partitions that are no longer in its target, and stays in its epoch until it has confirmed this. Then it
moves to the epoch of the target and receives the partitions that are free. It receives the others when their
owners have given them up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple, TypeAlias
from uuid import UUID

from tidelog.group_coordinator.groups.modern_group import (
    NO_PARTITIONS,
    Assignment,
    GroupFormat,
    ModernMember,
    RecordType,
    epochs_by_partition,
    from_message,
    to_message,
)
from tidelog.group_coordinator.groups.shared import GroupKind, memory_of_member
from tidelog.model.errors import ErrorCode, KafkaError
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

OwnedPartitions: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""The partitions that a member owns, by topic id. No topic has an empty mapping.

Each partition maps to the member epoch in which the member received it.
"""

NOTHING_OWNED: Final[OwnedPartitions] = MappingProxyType({})


class MemberState(IntEnum):
    """The state of a member. The value is the byte in its record (Kafka's MemberState)."""

    STABLE = 0
    """The member owns its target assignment, as far as partitions are free."""
    UNREVOKED_PARTITIONS = 1
    """The member has not confirmed yet that it gave up its revoked partitions."""
    UNRELEASED_PARTITIONS = 2
    """The member waits for partitions that other members have not given up."""
    UNKNOWN = 127
    """The record holds a state that this version does not know."""


@dataclass(frozen=True, slots=True)
class ClassicSide:
    """The session timeout and the protocols of a member that speaks the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata) in the member's order of preference."""


@dataclass(frozen=True, slots=True)
class Member(ModernMember):
    """A member as its records describe it. A change replaces the object."""

    instance_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: frozenset[str] = frozenset()
    topic_regex: str = ""
    """The regular expression that the member subscribes to; empty if there is none."""
    server_assignor: str | None = None
    classic: ClassicSide | None = None

    state: MemberState = MemberState.STABLE
    owned: OwnedPartitions = field(default_factory=lambda: NOTHING_OWNED)
    revoking: OwnedPartitions = field(default_factory=lambda: NOTHING_OWNED)
    """Partitions that the member must give up. It owns them until its heartbeat no longer names them."""

    ASSIGNMENT: ClassVar[tuple[str, ...]] = ("member_epoch", "previous_epoch", "state", "owned", "revoking")

    @property
    def memory_bytes(self) -> int:
        protocols = () if self.classic is None else self.classic.protocols
        texts = (
            self.member_id,
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.topic_regex,
            *self.topic_names,
        )
        return memory_of_member(texts) + sum(len(name) + len(metadata) for name, metadata in protocols)

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        """Returns whether the member has reached the target assignment of this epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch


def holds_any(partitions: Assignment, of: OwnedPartitions) -> bool:
    """Returns whether `partitions` contains at least one partition of `of`."""
    return any(
        topic_id in of and not found.isdisjoint(of[topic_id]) for topic_id, found in partitions.items()
    )


def holds_all(owned: OwnedPartitions, partitions: Assignment) -> bool:
    """Returns whether `owned` contains every partition of `partitions`."""
    return all(
        topic_id in owned and found <= owned[topic_id].keys() for topic_id, found in partitions.items()
    )


def _member_value(member: Member) -> ConsumerGroupMemberMetadataValue:
    classic = member.classic
    return ConsumerGroupMemberMetadataValue(
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
    )


def _member_of(member_id: str, value: ConsumerGroupMemberMetadataValue) -> Member:
    classic = value.classic_member_metadata
    return Member(
        member_id,
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


def _target_value(target: Assignment) -> ConsumerGroupTargetAssignmentMemberValue:
    return ConsumerGroupTargetAssignmentMemberValue(to_message(TopicPartition, target))


def _target_of(value: ConsumerGroupTargetAssignmentMemberValue) -> Assignment:
    return from_message(value.topic_partitions)


def _current_value(member: Member) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_with_epochs(member.owned),
        partitions_pending_revocation=_with_epochs(member.revoking),
    )


def _with_epochs(owned: OwnedPartitions) -> list[TopicPartitions]:
    return [
        TopicPartitions(
            topic_id, sorted(partitions), [partitions[partition] for partition in sorted(partitions)]
        )
        for topic_id, partitions in sorted(owned.items())
    ]


def _current_of(member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue) -> Member:
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

    return Member(
        member_id,
        member_epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=state,
        owned=owned(value.assigned_partitions),
        revoking=owned(value.partitions_pending_revocation),
    )


PARTITION_METADATA: Final = RecordType(ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue)
"""Written by Kafka up to 4.0. Only its existence matters: the group deletes it."""
REGEX: Final = RecordType(ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue)
CONSUMER_FORMAT: Final = GroupFormat(
    kind=GroupKind.CONSUMER,
    group=RecordType(ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    member=RecordType(ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    target_epoch=RecordType(
        ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue
    ),
    target=RecordType(ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    current=RecordType(ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    others=(PARTITION_METADATA, REGEX),
    new_member=Member,
    no_target=NO_PARTITIONS,
    member_value=_member_value,
    member_of=_member_of,
    target_value=_target_value,
    target_of=_target_of,
    current_value=_current_value,
    current_of=_current_of,
)


class Goal(NamedTuple):
    """The state that a member has to reach.

    `is_held_by_other(topic_id, partition)` returns whether another member has not given up the partition.
    """

    epoch: int
    target: Assignment
    subscribed: Set[UUID]
    is_held_by_other: Callable[[UUID, int], bool]


def reconcile(
    member: Member, goal: Goal, reported: Assignment | None, *, subscription_changed: bool
) -> Member:
    """Returns the member after one step toward the goal.

    `reported` are the partitions that the member says it owns, None if it does not say. Raises KafkaError
    (FENCED_MEMBER_EPOCH).
    """
    match member.state:
        case MemberState.STABLE if member.member_epoch == goal.epoch:
            if subscription_changed:
                return _without_unsubscribed(member, goal, reported)
            return member
        case MemberState.UNREVOKED_PARTITIONS if _still_holds(reported, member.revoking):
            if subscription_changed:
                return _without_unsubscribed(member, goal, reported)
            return member
        case MemberState.UNKNOWN:
            if reported is None or reported:
                raise unknown_state()
            return _next_step(replace(member, member_epoch=goal.epoch), goal, reported)
    return _next_step(member, goal, reported)


def unknown_state() -> KafkaError:
    """Returns the error for a member whose state this version does not know and that may own partitions."""
    return KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        "The member is in an unknown state; it must abandon all its partitions and rejoin.",
    )


def _still_holds(reported: Assignment | None, revoking: OwnedPartitions) -> bool:
    return reported is None or holds_any(reported, revoking)


def _without_unsubscribed(member: Member, goal: Goal, reported: Assignment | None) -> Member:
    """Returns the member without the topics that it no longer subscribes to, whatever its target says."""
    leaving = {topic_id: found for topic_id, found in member.owned.items() if topic_id not in goal.subscribed}
    if not leaving:
        return member
    owned = {topic_id: found for topic_id, found in member.owned.items() if topic_id in goal.subscribed}
    revoking = {
        topic_id: {**member.revoking.get(topic_id, {}), **leaving.get(topic_id, {})}
        for topic_id in member.revoking.keys() | leaving.keys()
    }
    if _still_holds(reported, revoking):
        return _moved(
            member,
            member.member_epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            owned=owned,
            revoking=revoking,
        )
    return _moved(member, member.member_epoch, state=member.state, owned=owned, revoking=member.revoking)


def _next_step(member: Member, goal: Goal, reported: Assignment | None) -> Member:
    target = {topic_id: found for topic_id, found in goal.target.items() if topic_id in goal.subscribed}
    kept: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    for topic_id, found in member.owned.items():
        wanted = target.get(topic_id, frozenset())
        remaining = {partition: epoch for partition, epoch in found.items() if partition in wanted}
        leaving = {partition: epoch for partition, epoch in found.items() if partition not in wanted}
        if remaining:
            kept[topic_id] = remaining
        if leaving:
            revoking[topic_id] = leaving
    if revoking and _still_holds(reported, revoking):
        return _moved(
            member,
            member.member_epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            owned=kept,
            revoking=revoking,
        )
    waits = False
    for topic_id, wanted in target.items():
        missing = wanted - kept.get(topic_id, {}).keys()
        free = {partition for partition in missing if not goal.is_held_by_other(topic_id, partition)}
        waits = waits or len(free) < len(missing)
        if free:
            kept.setdefault(topic_id, {}).update(dict.fromkeys(sorted(free), goal.epoch))
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return _moved(member, goal.epoch, state=state, owned=kept, revoking={})


def _moved(
    member: Member, epoch: int, *, state: MemberState, owned: OwnedPartitions, revoking: OwnedPartitions
) -> Member:
    return replace(
        member,
        member_epoch=epoch,
        # Within one epoch the previous epoch remains valid, because a response may have been lost.
        previous_epoch=member.previous_epoch if epoch == member.member_epoch else member.member_epoch,
        state=state,
        owned=owned,
        revoking=revoking,
    )
