"""One share group (KIP-932): its members, its share partitions, their records in Kafka's formats, changes.

A member of a share group needs nobody's consent to get or to lose a partition, so its heartbeat gives it its
whole target assignment at once. `ShareStateProgress` says how far the states in `__share_group_state` have
got: the group coordinator records what it is about to do before it asks the owners of the states, so that a
later owner of the group can repeat it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias
from uuid import UUID

from tidelog.group_coordinator.groups.modern_group import (
    NO_PARTITIONS,
    Assignment,
    GroupFormat,
    ModernGroup,
    ModernMember,
    ModernState,
    RecordType,
    from_message,
    to_message,
)
from tidelog.group_coordinator.groups.modern_groups import SESSION_TIMER, ModernChanges
from tidelog.group_coordinator.groups.share.share_assignor import SharedTopic, ShareMemberSpec, assign
from tidelog.group_coordinator.groups.shared import GroupKind, OffsetCommitter, memory_of_member
from tidelog.group_coordinator.shard_core import ClusterImage, CoordinatorRecord, ShardDecision
from tidelog.model.errors import ErrorCode
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


@dataclass(frozen=True, slots=True)
class ShareMember(ModernMember):
    """A member as its records describe it. A change replaces the object."""

    topic_names: frozenset[str] = frozenset()
    assigned: Assignment = field(default_factory=lambda: NO_PARTITIONS)

    ASSIGNMENT: ClassVar[tuple[str, ...]] = (*ModernMember.ASSIGNMENT, "assigned")

    @property
    def memory_bytes(self) -> int:
        return memory_of_member(
            (self.member_id, self.rack_id, self.client_id, self.client_host, *self.topic_names)
        )


class TopicShare(NamedTuple):
    """Some partitions of a topic."""

    name: str
    partitions: frozenset[int]


Shares: TypeAlias = Mapping[UUID, TopicShare]
"""Share partitions by topic id. No topic has an empty set."""


@dataclass(frozen=True, slots=True)
class ShareStateProgress:
    """A change replaces the object. A share partition is in at most one of the three places."""

    initializing: Shares = field(default_factory=dict)
    """The states of these are being created. No member gets such a partition."""
    initialized: Shares = field(default_factory=dict)
    deleting: Mapping[UUID, str] = field(default_factory=dict)
    """The names of the topics whose states are being deleted, by topic id."""

    def is_empty(self) -> bool:
        return not (self.initializing or self.initialized or self.deleting)

    def missing(self, wanted: Shares) -> Shares:
        """Returns the wanted share partitions that are in none of the three places."""
        found: dict[UUID, TopicShare] = {}
        for topic_id, topic in wanted.items():
            if topic_id in self.deleting:
                continue
            left = topic.partitions - _of(self.initializing, topic_id) - _of(self.initialized, topic_id)
            if left:
                found[topic_id] = TopicShare(topic.name, left)
        return found

    def with_initializing(self, shares: Shares) -> ShareStateProgress:
        """Returns this with more share partitions that are being initialized."""
        return replace(self, initializing=_plus(self.initializing, shares))

    def with_initialized(self, shares: Shares) -> ShareStateProgress:
        """Returns this after the initialization of `shares`."""
        return replace(
            self,
            initializing=_minus(self.initializing, shares),
            initialized=_plus(self.initialized, shares),
        )

    def with_deleting(self, topic_ids: Iterable[UUID]) -> ShareStateProgress:
        """Returns this after the decision to delete the states of known topics."""
        known = {topic_id: self._name(topic_id) for topic_id in topic_ids}
        return ShareStateProgress(
            _without(self.initializing, known), _without(self.initialized, known), {**self.deleting, **known}
        )

    def without(self, topic_ids: Iterable[UUID]) -> ShareStateProgress:
        """Returns this without everything about these topics."""
        gone = set(topic_ids)
        return ShareStateProgress(
            _without(self.initializing, gone),
            _without(self.initialized, gone),
            {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in gone},
        )

    def topic_ids(self) -> set[UUID]:
        return {*self.initializing, *self.initialized, *self.deleting}

    def partitions_of(self, topic_id: UUID) -> frozenset[int]:
        """Returns the partitions that have a state, or whose state is being created."""
        return _of(self.initializing, topic_id) | _of(self.initialized, topic_id)

    def _name(self, topic_id: UUID) -> str:
        for shares in (self.initialized, self.initializing):
            if topic_id in shares:
                return shares[topic_id].name
        return self.deleting[topic_id]


def _of(shares: Shares, topic_id: UUID) -> frozenset[int]:
    topic = shares.get(topic_id)
    return frozenset() if topic is None else topic.partitions


def _plus(shares: Shares, more: Shares) -> Shares:
    added = {
        topic_id: TopicShare(topic.name, topic.partitions | _of(shares, topic_id))
        for topic_id, topic in more.items()
    }
    return {**shares, **added}


def _minus(shares: Shares, fewer: Shares) -> Shares:
    left = {
        topic_id: TopicShare(topic.name, topic.partitions - _of(fewer, topic_id))
        for topic_id, topic in shares.items()
    }
    return {topic_id: topic for topic_id, topic in left.items() if topic.partitions}


def _without(shares: Shares, topic_ids: Iterable[UUID]) -> Shares:
    gone = set(topic_ids)
    return {topic_id: topic for topic_id, topic in shares.items() if topic_id not in gone}


def _member_value(member: ShareMember) -> ShareGroupMemberMetadataValue:
    return ShareGroupMemberMetadataValue(
        member.rack_id, member.client_id, member.client_host, sorted(member.topic_names)
    )


def _member_of(member_id: str, value: ShareGroupMemberMetadataValue) -> ShareMember:
    return ShareMember(
        member_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topic_names=frozenset(value.subscribed_topic_names),
    )


def _current_value(member: ShareMember) -> ShareGroupCurrentMemberAssignmentValue:
    """Returns the value of a member's epoch and partitions. Its state is always 0 (STABLE)."""
    return ShareGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_epoch,
        assigned_partitions=to_message(TopicPartitions, member.assigned),
    )


def _current_of(member_id: str, value: ShareGroupCurrentMemberAssignmentValue) -> ShareMember:
    return ShareMember(
        member_id,
        member_epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        assigned=from_message(value.assigned_partitions),
    )


def _partitions_value(partitions: ShareStateProgress) -> ShareGroupStatePartitionMetadataValue:
    return ShareGroupStatePartitionMetadataValue(
        _topics(partitions.initializing),
        _topics(partitions.initialized),
        [TopicInfo(topic_id, name) for topic_id, name in sorted(partitions.deleting.items())],
    )


def _topics(topics: Mapping[UUID, TopicShare]) -> list[TopicPartitionsInfo]:
    return [
        TopicPartitionsInfo(topic_id, topic.name, sorted(topic.partitions))
        for topic_id, topic in sorted(topics.items())
    ]


def _partitions_of(value: ShareGroupStatePartitionMetadataValue) -> ShareStateProgress:
    return ShareStateProgress(
        _shares(value.initializing_topics),
        _shares(value.initialized_topics),
        {topic.topic_id: topic.topic_name for topic in value.deleting_topics},
    )


def _shares(topics: Iterable[TopicPartitionsInfo]) -> dict[UUID, TopicShare]:
    return {topic.topic_id: TopicShare(topic.topic_name, frozenset(topic.partitions)) for topic in topics}


_STATES: Final = RecordType(ShareGroupStatePartitionMetadataKey, ShareGroupStatePartitionMetadataValue)
SHARE_FORMAT: Final = GroupFormat(
    kind=GroupKind.SHARE,
    group=RecordType(ShareGroupMetadataKey, ShareGroupMetadataValue),
    member=RecordType(ShareGroupMemberMetadataKey, ShareGroupMemberMetadataValue),
    target_epoch=RecordType(ShareGroupTargetAssignmentMetadataKey, ShareGroupTargetAssignmentMetadataValue),
    target=RecordType(ShareGroupTargetAssignmentMemberKey, ShareGroupTargetAssignmentMemberValue),
    current=RecordType(ShareGroupCurrentMemberAssignmentKey, ShareGroupCurrentMemberAssignmentValue),
    others=(_STATES,),
    new_member=ShareMember,
    no_target=NO_PARTITIONS,
    member_value=_member_value,
    member_of=_member_of,
    target_value=lambda target: ShareGroupTargetAssignmentMemberValue(to_message(TopicPartition, target)),
    target_of=lambda value: from_message(value.topic_partitions),
    current_value=_current_value,
    current_of=_current_of,
)


class ShareGroup(ModernGroup[ShareMember, Assignment]):
    """The state of a group, and of the share partitions that its members may get."""

    FORMAT = SHARE_FORMAT

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.partitions = ShareStateProgress()
        # No record holds the following state.
        self.states_are_due = True
        """Whether a subscribed share partition may lack a state."""
        self.asked_about: set[UUID] = set()
        """The topics about whose states a question is open. There is at most one for each topic."""
        self.failures = 0
        """The number of failed attempts to initialize or delete states since the last success."""

    @property
    def state(self) -> ModernState:
        """The state. A group with members is stable: nobody waits for share partitions of others."""
        if self.is_dead:
            return ModernState.DEAD
        return ModernState.STABLE if self.members else ModernState.EMPTY

    def apply_other(self, record_type: RecordType, key: Any, value: Any) -> None:
        self.partitions = ShareStateProgress() if value is None else _partitions_of(value)

    def subscribed_names(self) -> frozenset[str]:
        """Returns the topics that any member subscribes to."""
        names: set[str] = set()
        for subscription in {member.topic_names for member in self.members.values()}:
            names |= subscription
        return frozenset(names)

    def subscribed(self, image: ClusterImage) -> Shares:
        """Returns all partitions of the existing topics that any member subscribes to."""
        topics = (image.topics.get(name) for name in self.subscribed_names())
        return {
            topic.topic_id: TopicShare(topic.name, frozenset(range(topic.partition_count)))
            for topic in topics
            if topic is not None and topic.partition_count
        }

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in member.topic_names for member in self.members.values())

    def check_commit(self, committer: OffsetCommitter, decision: ShardDecision) -> ErrorCode:
        """Refuses every commit, because a share group's progress is in the states of its share partitions."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        return ErrorCode.NONE  # it has no committed offsets

    def check_offset_delete(self) -> ErrorCode:
        return ErrorCode.GROUP_ID_NOT_FOUND

    def _other_tombstones(self) -> list[CoordinatorRecord]:
        return [_STATES.record(None, self.group_id)]


STATES_TIMER: Final = "states"
"""The timer of the next attempt to initialize or delete states."""


class ShareChanges(ModernChanges[ShareGroup, ShareMember, Assignment]):
    """The changes that one event makes to one group."""

    MEMBER_TIMERS = (SESSION_TIMER,)

    def put_group(self, *fields: Any) -> None:
        super().put_group(*fields)
        self.group.states_are_due = True

    def put_partitions(self, partitions: ShareStateProgress) -> None:
        if partitions != self.group.partitions:
            self.group.partitions = partitions
            self.write(_STATES, _partitions_value(partitions))

    def update_member(self, before: ShareMember, wanted: ShareMember) -> ShareMember:
        """Applies a member's heartbeat, and returns the member with its target assignment."""
        group = self.group
        is_new = before.member_id not in group.members
        if is_new or not wanted.has_subscription_of(before):
            self.put_subscription(wanted)
        self.update_epoch(must_grow=is_new or wanted.topic_names != before.topic_names)
        self.update_target()
        return self._reconcile(group.members[wanted.member_id])

    def remove_member(self, member: ShareMember) -> None:
        """Removes a member with its partitions and its timer. The other members get another target."""
        super().remove_member(member)
        self.update_epoch(must_grow=True)

    def update_target(self) -> None:
        """Computes the target assignment of the group epoch if it does not exist yet and may be computed."""
        group, image = self.group, self._groups.image
        if not self.needs_target(self._settings.share_assignment_interval_ms):
            return
        existing = image.topics.keys() & group.subscribed_names()
        names_of: dict[frozenset[str], frozenset[str]] = {}
        specs = []
        for member in group.members.values():
            names = names_of.get(member.topic_names)
            if names is None:
                names = names_of[member.topic_names] = member.topic_names & existing
            before = group.target_of(member.member_id)
            specs.append(ShareMemberSpec(member.member_id, names, before))
        initialized = {
            topic.name: SharedTopic(topic_id, topic.partitions)
            for topic_id, topic in group.partitions.initialized.items()
            if topic_id in image.topic_names
        }
        self.put_targets(assign(specs, initialized), group.epoch)

    def _reconcile(self, member: ShareMember) -> ShareMember:
        group = self.group
        target = group.target_of(member.member_id)
        if member.member_epoch == group.assignment_epoch and member.assigned == target:
            return member
        after = member.moved(group.assignment_epoch, assigned=target)
        self.put_current_assignment(after)
        return after

    def extend_session(self, member: ShareMember) -> None:
        self.set_timer(SESSION_TIMER, member.member_id, self._settings.share_session_timeout_ms)
