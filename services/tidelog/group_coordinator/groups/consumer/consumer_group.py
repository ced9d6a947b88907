"""One consumer group (KIP-848): its members with their records in Kafka's formats, and its state.

A member reaches its target assignment in steps (Kafka's CurrentAssignmentBuilder). First it gives up the
partitions that are no longer in its target, and stays in its epoch until it has confirmed this. Then it moves
to the epoch of the target and receives the partitions that are free. It receives the others when their owners
have given them up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias
from uuid import UUID

from tidelog.group_coordinator.groups.consumer.topic_regex import RegexSweep, ResolvedRegex
from tidelog.group_coordinator.groups.modern_group import (
    NO_PARTITIONS,
    Assignment,
    GroupFormat,
    MemberState,
    ModernGroup,
    ModernMember,
    Owned,
    RecordType,
    byte_of_state,
    difference,
    epochs_by_partition,
    from_message,
    holds_any,
    merged,
    state_of_byte,
    to_message,
    with_epochs,
)
from tidelog.group_coordinator.groups.shared import GroupKind, OffsetCommitter, memory_of_member
from tidelog.group_coordinator.shard_core import ClusterImage, CoordinatorRecord
from tidelog.kernel.instants import WallMs
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

OwnedPartitions: TypeAlias = Owned[UUID]

NOTHING_OWNED: Final[OwnedPartitions] = MappingProxyType({})
_STABLE: Final = 0
"""The byte of a stable member in its record."""


@dataclass(frozen=True, slots=True)
class ClassicSide:
    """The session timeout and the protocols of a member that speaks the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata) in the member's order of preference."""


@dataclass(frozen=True, slots=True)
class ConsumerMember(ModernMember):
    """A member as its records describe it. A change replaces the object."""

    instance_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: frozenset[str] = frozenset()
    topic_regex: str = ""
    """The regular expression that the member subscribes to; empty if there is none."""
    server_assignor: str | None = None
    classic: ClassicSide | None = None

    owned: OwnedPartitions = field(default_factory=lambda: NOTHING_OWNED)
    revoking: OwnedPartitions = field(default_factory=lambda: NOTHING_OWNED)
    """Partitions that the member must give up. It owns them until its heartbeat no longer names them."""

    ASSIGNMENT: ClassVar[tuple[str, ...]] = (*ModernMember.ASSIGNMENT, "owned", "revoking")

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


def _member_value(member: ConsumerMember) -> ConsumerGroupMemberMetadataValue:
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


def _member_of(member_id: str, value: ConsumerGroupMemberMetadataValue) -> ConsumerMember:
    classic = value.classic_member_metadata
    return ConsumerMember(
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


def _current_value(member: ConsumerMember) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_epoch,
        state=byte_of_state(member.state, _STABLE),
        assigned_partitions=with_epochs(TopicPartitions, member.owned),
        partitions_pending_revocation=with_epochs(TopicPartitions, member.revoking),
    )


def _current_of(member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue) -> ConsumerMember:
    def owned(topics: list[TopicPartitions]) -> dict[UUID, dict[int, int]]:
        return {
            topic.topic_id: epochs_by_partition(topic.partitions, topic.assignment_epochs, value.member_epoch)
            for topic in topics
            if topic.partitions
        }

    return ConsumerMember(
        member_id,
        member_epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=state_of_byte(value.state, _STABLE),
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
    new_member=ConsumerMember,
    no_target=NO_PARTITIONS,
    member_value=_member_value,
    member_of=_member_of,
    target_value=lambda target: ConsumerGroupTargetAssignmentMemberValue(to_message(TopicPartition, target)),
    target_of=lambda value: from_message(value.topic_partitions),
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
    member: ConsumerMember, goal: Goal, reported: Assignment | None, *, subscription_changed: bool
) -> ConsumerMember:
    """Returns the member after one step toward the goal.

    `reported` are the partitions that the member says it owns, None if it does not say. Raises KafkaError
    (FENCED_MEMBER_EPOCH).
    """
    match member.state:
        case MemberState.STABLE if member.member_epoch == goal.epoch:
            if subscription_changed:
                return _without_unsubscribed(member, goal, reported)
            return member
        case MemberState.UNREVOKED if _still_holds(reported, member.revoking):
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


def _without_unsubscribed(member: ConsumerMember, goal: Goal, reported: Assignment | None) -> ConsumerMember:
    """Returns the member without the topics that it no longer subscribes to, whatever its target says."""
    leaving = {topic_id: found for topic_id, found in member.owned.items() if topic_id not in goal.subscribed}
    if not leaving:
        return member
    owned = {topic_id: found for topic_id, found in member.owned.items() if topic_id in goal.subscribed}
    revoking = merged(member.revoking, leaving)
    epoch = member.member_epoch
    if _still_holds(reported, revoking):
        return member.moved(epoch, state=MemberState.UNREVOKED, owned=owned, revoking=revoking)
    return member.moved(epoch, owned=owned)


def _next_step(member: ConsumerMember, goal: Goal, reported: Assignment | None) -> ConsumerMember:
    target = {topic_id: found for topic_id, found in goal.target.items() if topic_id in goal.subscribed}
    step = difference(member.owned, target, goal.epoch, goal.is_held_by_other)
    if step.revoked and _still_holds(reported, step.revoked):
        return member.moved(
            member.member_epoch,
            state=MemberState.UNREVOKED,
            owned=step.kept,
            revoking=step.revoked,
        )
    state = MemberState.UNRELEASED if step.waits else MemberState.STABLE
    return member.moved(goal.epoch, state=state, owned=merged(step.kept, step.free), revoking={})


class ConsumerGroup(ModernGroup[ConsumerMember, Assignment]):
    """The state of a group, and which of its members hold which partitions."""

    FORMAT = CONSUMER_FORMAT

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.static_members: dict[str, str] = {}
        """Maps each instance id to its member id."""
        self.regexes: dict[str, ResolvedRegex] = {}
        """Maps each subscribed regular expression to the topics that match."""
        self.resolved_bytes = 0
        """The size of these topics, as `topics_bytes` counts it."""
        self.owners: dict[UUID, dict[int, str]] = {}
        """Maps each topic id and partition to the member that has not given the partition up."""
        self.has_partition_metadata = False
        """Whether the log holds a record of Kafka up to 4.0 that has to be deleted."""

        # No record holds the following state.
        self._subscribed: frozenset[str] | None = None
        """The topics that any member subscribes to, None if they have changed since they were read."""
        self.called_to_join: set[str] = set()
        """Classic members that were asked to rejoin and have not done so yet."""
        self.regexes_are_due = True
        """Whether the next heartbeat has to resolve all regular expressions."""
        self.oversized_regexes: set[str] = set()
        """The regular expressions for whose topics there was no room, so that they match nothing."""
        self.is_regex_timer_running = False
        self.regex_sweep: RegexSweep | None = None
        """The resolution of regular expressions that is under way."""

    def apply_other(self, record_type: RecordType, key: Any, value: Any) -> None:
        if record_type is PARTITION_METADATA:
            self.has_partition_metadata = value is not None
        elif value is None:
            self.remove_regex(key.regular_expression)
        else:
            resolved = ResolvedRegex(frozenset(value.topics), value.version, WallMs(value.timestamp))
            self.put_regex(key.regular_expression, resolved)

    def put_regex(self, expression: str, resolved: ResolvedRegex) -> None:
        self.remove_regex(expression)
        self.regexes[expression] = resolved
        self._subscribed = None
        self.resolved_bytes += resolved.size_bytes()

    def remove_regex(self, expression: str) -> None:
        resolved = self.regexes.pop(expression, None)
        if resolved is not None:
            self.resolved_bytes -= resolved.size_bytes()
            self._subscribed = None

    def put_subscription(self, member: ConsumerMember) -> None:
        before = self._known(member.member_id)
        if before.instance_id is not None and before.instance_id != member.instance_id:
            self._release_instance(before)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if member.topic_names != before.topic_names:
            self._subscribed = None
        super().put_subscription(member)

    def remove_member(self, member_id: str) -> None:
        member = self._known(member_id)
        super().remove_member(member_id)
        self._release_instance(member)
        self._subscribed = None

    def _hold(self, member: ConsumerMember) -> None:
        for owned in (member.owned, member.revoking):
            for topic_id, partitions in owned.items():
                self.owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, member.member_id))

    def _release(self, member: ConsumerMember) -> None:
        for owned in (member.owned, member.revoking):
            for topic_id, partitions in owned.items():
                owners = self.owners.get(topic_id, {})
                for partition in partitions:
                    if owners.get(partition) == member.member_id:
                        del owners[partition]
                if not owners:
                    self.owners.pop(topic_id, None)

    def _release_instance(self, member: ConsumerMember) -> None:
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """Returns the member with this instance id, or None."""
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def is_held_by_other(self, member_id: str, topic_id: UUID, partition: int) -> bool:
        """Returns whether another member has not given up the partition."""
        owner = self.owners.get(topic_id, {}).get(partition)
        return owner is not None and owner != member_id

    def is_waiting_for_others(self, member: ConsumerMember) -> bool:
        """Returns whether another member still holds a partition of the member's target."""
        return any(
            self.is_held_by_other(member.member_id, topic_id, partition)
            for topic_id, partitions in self.target_of(member.member_id).items()
            for partition in partitions
        )

    def preferred_assignor(self, default: str) -> str:
        """Returns the assignor that most members ask for."""
        votes = Counter(member.server_assignor for member in self.members.values() if member.server_assignor)
        return max(votes, key=lambda name: (votes[name], name == default, name)) if votes else default

    def topic_names_of(self, member: ConsumerMember) -> frozenset[str]:
        """Returns the topics that the member subscribes to, by name or by regular expression."""
        resolved = self.regexes.get(member.topic_regex)
        return member.topic_names if resolved is None else member.topic_names | resolved.topics

    def topic_ids_of(self, member: ConsumerMember, image: ClusterImage) -> frozenset[UUID]:
        """Returns the ids of the existing topics that the member subscribes to."""
        names = self.topic_names_of(member)
        return frozenset(image.topics[name].topic_id for name in names if name in image.topics)

    def subscribed_names(self) -> frozenset[str]:
        """Returns the topics that any member subscribes to."""
        if self._subscribed is None:
            self._subscribed = self._read_subscribed_names()
        return self._subscribed

    def _read_subscribed_names(self) -> frozenset[str]:
        names: set[str] = set()
        for subscription in {member.topic_names for member in self.members.values()}:
            names |= subscription
        for resolved in self.regexes.values():
            names |= resolved.topics
        return frozenset(names)

    def due_regexes(self, members: Iterable[ConsumerMember]) -> set[str]:
        """Returns the regular expressions of members that have to be resolved."""
        wanted = {member.topic_regex for member in members if member.topic_regex}
        return wanted if self.regexes_are_due else wanted - self.regexes.keys()

    def subscribers_of_regex(self, expression: str) -> int:
        return sum(member.topic_regex == expression for member in self.members.values())

    def _has_generation(self, member: ConsumerMember) -> bool:
        return member.classic is not None

    def partition_commit_check(self, committer: OffsetCommitter) -> Callable[[UUID, int], ErrorCode] | None:
        """Returns a check for a member that commits with an older epoch than its current one (KIP-1251).

        The member has not received its new epoch yet. It may commit offsets of partitions that it owned in
        the older epoch and has not given up since.
        """
        member = self.members.get(committer.member_id)
        epoch = committer.generation_or_epoch
        if member is None or epoch < 0 or epoch == member.member_epoch:
            return None
        owner = member

        def check(topic_id: UUID, partition: int) -> ErrorCode:
            held: tuple[OwnedPartitions, ...] = (owner.owned, owner.revoking)
            for owned in held:
                given_epoch = owned.get(topic_id, {}).get(partition)
                if given_epoch is not None and given_epoch <= epoch:
                    return ErrorCode.NONE
            return self._epoch_error(owner, epoch)

        return check

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribed_names()

    def _other_tombstones(self) -> list[CoordinatorRecord]:
        found = [REGEX.record(None, self.group_id, expression) for expression in self.regexes]
        if self.has_partition_metadata:
            found.append(PARTITION_METADATA.record(None, self.group_id))
        return found
