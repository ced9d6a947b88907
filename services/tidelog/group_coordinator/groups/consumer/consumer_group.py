"""The state of one consumer group (KIP-848)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import StrEnum
from hashlib import blake2b
from typing import Final
from uuid import UUID

from tidelog.group_coordinator.groups.consumer import records
from tidelog.group_coordinator.groups.consumer.member import (
    NO_PARTITIONS,
    NOTHING_OWNED,
    Assignment,
    Member,
    OwnedPartitions,
)
from tidelog.group_coordinator.groups.consumer.records import RecordKey, RecordKind, RecordValue
from tidelog.group_coordinator.groups.consumer.topic_regex import RegexSweep, ResolvedRegex
from tidelog.group_coordinator.groups.shared import (
    CONSUMER_PROTOCOL_TYPE,
    GroupKind,
    OffsetCommitter,
    SizedMembers,
)
from tidelog.group_coordinator.shard_core import ClusterImage, CoordinatorRecord, ShardDecision
from tidelog.model.errors import ErrorCode
from tidelog.model.instants import WallMs
from tidelog.wire.messages.list_groups import ListedGroup
from tidelog.wire.messages.records.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)
from tidelog.wire.messages.records.consumer_group_member_metadata import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from tidelog.wire.messages.records.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from tidelog.wire.messages.records.consumer_group_partition_metadata import ConsumerGroupPartitionMetadataKey
from tidelog.wire.messages.records.consumer_group_regular_expression import (
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)
from tidelog.wire.messages.records.consumer_group_target_assignment_member import (
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
)
from tidelog.wire.messages.records.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)


class ConsumerState(StrEnum):
    """The state of a consumer group, named as in ListGroups (Kafka's ConsumerGroupState)."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroup:
    """The state of a group according to its records, and some state that is rebuilt after loading.

    Only the `put_` and `remove_` methods change what records say. Each applies one record.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.assignment_epoch = 0
        self.assignment_timestamp_ms = WallMs(0)
        self.metadata_hash = 0
        self.members: SizedMembers[Member] = SizedMembers()
        self.static_members: dict[str, str] = {}
        """Maps each instance id to its member id."""
        self.targets: dict[str, Assignment] = {}
        """Maps each member id to its target assignment."""
        self.regexes: dict[str, ResolvedRegex] = {}
        """Maps each subscribed regular expression to the topics that match."""
        self.resolved_bytes = 0
        """The size of these topics, as `topics_bytes` counts it."""
        self.owners: dict[UUID, dict[int, str]] = {}
        """Maps each topic id and partition to the member that has not given the partition up."""
        self.has_partition_metadata = False
        """Whether the log holds a record of Kafka up to 4.0 that has to be deleted."""
        self.is_dead = False

        # No record holds the following state.
        self._subscribed: frozenset[str] | None = None
        """The topics that any member subscribes to, None if they have changed since they were read."""
        self.topics_changed = True
        """Whether a topic may have changed since `metadata_hash` was computed."""
        self.called_to_join: set[str] = set()
        """Classic members that were asked to rejoin and have not done so yet."""
        self.regexes_are_due = True
        """Whether the next heartbeat has to resolve all regular expressions."""
        self.oversized_regexes: set[str] = set()
        """The regular expressions for whose topics there was no room, so that they match nothing."""
        self.is_regex_timer_running = False
        self.regex_sweep: RegexSweep | None = None
        """The resolution of regular expressions that is under way."""

    @property
    def state(self) -> ConsumerState:
        """The state, which follows from the members and the two epochs: the first rule that holds decides."""
        return next(state for state, holds in _STATE_RULES if holds(self))

    def apply_record(self, key: RecordKey, value: RecordValue) -> None:
        """Applies a record other than a tombstone.

        Compaction may remove any record and may change the order of the remaining ones.
        """
        match key, value:
            case ConsumerGroupMetadataKey(), ConsumerGroupMetadataValue():
                self.put_group(value.epoch, value.metadata_hash)
            case ConsumerGroupPartitionMetadataKey(), _:
                self.has_partition_metadata = True
            case ConsumerGroupMemberMetadataKey(), ConsumerGroupMemberMetadataValue():
                before = self.members.get(key.member_id, Member(key.member_id))
                self.put_subscription(records.with_subscription(before, value))
            case (
                ConsumerGroupTargetAssignmentMetadataKey(),
                ConsumerGroupTargetAssignmentMetadataValue(),
            ):
                self.assignment_epoch = value.assignment_epoch
                self.assignment_timestamp_ms = WallMs(value.assignment_timestamp)
            case (
                ConsumerGroupTargetAssignmentMemberKey(),
                ConsumerGroupTargetAssignmentMemberValue(),
            ):
                self.targets[key.member_id] = records.target_of(value)
            case (
                ConsumerGroupCurrentMemberAssignmentKey(),
                ConsumerGroupCurrentMemberAssignmentValue(),
            ):
                before = self.members.get(key.member_id, Member(key.member_id))
                self.put_current_assignment(records.with_current_assignment(before, value))
            case ConsumerGroupRegularExpressionKey(), ConsumerGroupRegularExpressionValue():
                self.put_regex(key.regular_expression, records.resolved_of(value))

    def apply_tombstone(self, key: RecordKey) -> bool:
        """Applies a tombstone. Returns False if the group itself is deleted, which the caller has to do."""
        match key:
            case ConsumerGroupMetadataKey():
                return False
            case ConsumerGroupPartitionMetadataKey():
                self.has_partition_metadata = False
            case ConsumerGroupMemberMetadataKey():
                self.remove_member(key.member_id)
            case ConsumerGroupTargetAssignmentMetadataKey():
                self.assignment_epoch, self.assignment_timestamp_ms = 0, WallMs(0)
            case ConsumerGroupTargetAssignmentMemberKey():
                self.targets.pop(key.member_id, None)
            case ConsumerGroupCurrentMemberAssignmentKey():
                self.remove_current_assignment(key.member_id)
            case ConsumerGroupRegularExpressionKey():
                self.remove_regex(key.regular_expression)
        return True

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

    def put_group(self, epoch: int, metadata_hash: int) -> None:
        self.epoch = epoch
        self.metadata_hash = metadata_hash

    def put_subscription(self, member: Member) -> None:
        """Sets a member's subscription. Its epoch and partitions remain."""
        before = self.members.get(member.member_id, Member(member.member_id))
        if before.instance_id is not None and before.instance_id != member.instance_id:
            self._release_instance(before)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if member.topic_names != before.topic_names:
            self._subscribed = None
        self.members[member.member_id] = replace(
            member,
            member_epoch=before.member_epoch,
            previous_epoch=before.previous_epoch,
            state=before.state,
            owned=before.owned,
            revoking=before.revoking,
        )

    def put_current_assignment(self, member: Member) -> None:
        """Sets a member's epoch and partitions. Its subscription remains."""
        before = self.members.get(member.member_id, Member(member.member_id))
        self._release(before)
        after = self.members[member.member_id] = replace(
            before,
            member_epoch=member.member_epoch,
            previous_epoch=member.previous_epoch,
            state=member.state,
            owned=member.owned,
            revoking=member.revoking,
        )
        for owned in (after.owned, after.revoking):
            for topic_id, partitions in owned.items():
                self.owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, after.member_id))

    def _release(self, member: Member) -> None:
        for owned in (member.owned, member.revoking):
            for topic_id, partitions in owned.items():
                owners = self.owners.get(topic_id, {})
                for partition in partitions:
                    if owners.get(partition) == member.member_id:
                        del owners[partition]
                if not owners:
                    self.owners.pop(topic_id, None)

    def remove_current_assignment(self, member_id: str) -> None:
        if member_id in self.members:
            self.put_current_assignment(Member(member_id, owned=NOTHING_OWNED))

    def remove_member(self, member_id: str) -> None:
        member = self.members.remove(member_id)
        if member is not None:
            self._subscribed = None
            self._release(member)
            self._release_instance(member)

    def _release_instance(self, member: Member) -> None:
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]

    def static_member(self, instance_id: str | None) -> Member | None:
        """Returns the member with this instance id, or None."""
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def target_of(self, member_id: str) -> Assignment:
        return self.targets.get(member_id, NO_PARTITIONS)

    def is_held_by_other(self, member_id: str, topic_id: UUID, partition: int) -> bool:
        """Returns whether another member has not given up the partition."""
        owner = self.owners.get(topic_id, {}).get(partition)
        return owner is not None and owner != member_id

    def is_waiting_for_others(self, member: Member) -> bool:
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

    def topic_names_of(self, member: Member) -> frozenset[str]:
        """Returns the topics that the member subscribes to, by name or by regular expression."""
        resolved = self.regexes.get(member.topic_regex)
        return member.topic_names if resolved is None else member.topic_names | resolved.topics

    def topic_ids_of(self, member: Member, image: ClusterImage) -> frozenset[UUID]:
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

    def due_regexes(self, members: Iterable[Member]) -> set[str]:
        """Returns the regular expressions of members that have to be resolved."""
        wanted = {member.topic_regex for member in members if member.topic_regex}
        return wanted if self.regexes_are_due else wanted - self.regexes.keys()

    def subscribers_of_regex(self, expression: str) -> int:
        return sum(member.topic_regex == expression for member in self.members.values())

    @property
    def kind(self) -> GroupKind:
        return GroupKind.CONSUMER

    def check_commit(self, committer: OffsetCommitter, decision: ShardDecision) -> ErrorCode:
        if committer.is_outside(self.members):
            return ErrorCode.NONE
        member, epoch = self.members.get(committer.member_id), committer.generation_or_epoch
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.classic is None and committer.has_no_field_for_epochs:
            return ErrorCode.UNSUPPORTED_VERSION
        # For an older epoch, partition_commit_check decides on each partition.
        return ErrorCode.NONE if 0 < epoch < member.member_epoch else _epoch_error(member, epoch)

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
            return _epoch_error(owner, epoch)

        return check

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        if not member_id and member_epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        return ErrorCode.UNKNOWN_MEMBER_ID if member is None else _epoch_error(member, member_epoch)

    def check_offset_delete(self) -> ErrorCode:
        return ErrorCode.NONE

    def check_delete(self) -> ErrorCode:
        return ErrorCode.NON_EMPTY_GROUP if self.members else ErrorCode.NONE

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribed_names()

    def offsets_expire_from(self, topic: str, commit_timestamp_ms: WallMs) -> WallMs | None:
        return None if self.is_subscribed_to(topic) else commit_timestamp_ms

    def end(self) -> list[CoordinatorRecord]:
        """Returns the tombstones of the group and of everything that belongs to it."""
        self.is_dead = True
        group_id = self.group_id
        found = records.member_tombstones(group_id, self.members, self.targets)
        if self.has_partition_metadata:
            found.append(records.tombstone(RecordKind.PARTITION_METADATA, group_id))
        found += [records.tombstone(RecordKind.REGEX, group_id, expression) for expression in self.regexes]
        found.append(records.tombstone(RecordKind.GROUP, group_id))
        return found

    def has_members(self) -> bool:
        return bool(self.members)

    def member_count(self) -> int:
        return len(self.members)

    @property
    def generation_or_epoch(self) -> int:
        return self.epoch

    def listed(self) -> ListedGroup:
        return ListedGroup(self.group_id, CONSUMER_PROTOCOL_TYPE, self.state, GroupKind.CONSUMER.value)


def _is_reconciled(group: ConsumerGroup) -> bool:
    return all(member.is_reconciled_to(group.assignment_epoch) for member in group.members.values())


_STATE_RULES: Final[tuple[tuple[ConsumerState, Callable[[ConsumerGroup], bool]], ...]] = (
    # The group is deleted.
    (ConsumerState.DEAD, lambda group: group.is_dead),
    # The group has no members.
    (ConsumerState.EMPTY, lambda group: not group.members),
    # The members or topics have changed, and no target assignment of the new group epoch exists yet.
    (ConsumerState.ASSIGNING, lambda group: group.epoch > group.assignment_epoch),
    # Every member has reached its target assignment.
    (ConsumerState.STABLE, _is_reconciled),
    # Members still have to give up partitions or to receive them.
    (ConsumerState.RECONCILING, lambda group: True),
)
"""The states in the order in which their conditions are checked.

The state is derived from the records, never stored, so no transition can be forgotten.
"""


def _epoch_error(member: Member, epoch: int) -> ErrorCode:
    if epoch == member.member_epoch:
        return ErrorCode.NONE
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


def metadata_hash(names: Iterable[str], image: ClusterImage) -> int:
    """Returns an int64 hash of everything that an assignment depends on (KIP-1101).

    The hash changes if a topic is created, is deleted, grows, or moves to other racks. It is 0 if none of the
    topics exists. The function is not Kafka's, so a group that comes from Kafka is reassigned once.
    """
    found = sorted(name for name in names if name in image.topics)
    if not found:
        return 0
    digest = blake2b(digest_size=8)
    for name in found:
        topic = image.topics[name]
        racks = ";".join(",".join(sorted(of_partition)) for of_partition in topic.racks)
        digest.update(f"{len(name)}:{name}{topic.topic_id.hex}{topic.partition_count}:{racks}\n".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)


def changed_topics(before: ClusterImage, after: ClusterImage) -> frozenset[str]:
    """Returns the names of topics that were created or deleted, grew, or moved to other racks."""
    return frozenset(
        name
        for name in before.topics.keys() | after.topics.keys()
        if before.topics.get(name) is not after.topics.get(name)
        and before.topics.get(name) != after.topics.get(name)
    )
