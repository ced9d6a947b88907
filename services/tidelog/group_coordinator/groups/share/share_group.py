"""The state of one share group (KIP-932)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from uuid import UUID

from tidelog.group_coordinator.groups.consumer.member import NO_PARTITIONS, Assignment
from tidelog.group_coordinator.groups.share import share_records as records
from tidelog.group_coordinator.groups.share.share_member import ShareMember
from tidelog.group_coordinator.groups.share.share_partitions import SharePartitions, Shares, TopicShare
from tidelog.group_coordinator.groups.share.share_records import RecordKey, RecordKind, RecordValue
from tidelog.group_coordinator.groups.shared import GroupKind, OffsetCommitter, SizedMembers
from tidelog.group_coordinator.shard_core import ClusterImage, CoordinatorRecord, ShardDecision
from tidelog.model.errors import ErrorCode
from tidelog.model.instants import WallMs
from tidelog.wire.messages.list_groups import ListedGroup
from tidelog.wire.messages.records.share_group_current_member_assignment import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
)
from tidelog.wire.messages.records.share_group_member_metadata import (
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
)
from tidelog.wire.messages.records.share_group_metadata import ShareGroupMetadataKey, ShareGroupMetadataValue
from tidelog.wire.messages.records.share_group_state_partition_metadata import (
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
)
from tidelog.wire.messages.records.share_group_target_assignment_member import (
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
)
from tidelog.wire.messages.records.share_group_target_assignment_metadata import (
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)

SHARE_PROTOCOL_TYPE = "share"


class ShareState(StrEnum):
    """The state of a share group, named as in ListGroups (Kafka's ShareGroupState)."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


class ShareGroup:
    """The state of a group according to its records, and some state that is rebuilt after loading."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assignment_timestamp_ms = WallMs(0)
        self.members: SizedMembers[ShareMember] = SizedMembers()
        self.targets: dict[str, Assignment] = {}
        """Maps each member id to its target assignment."""
        self.partitions = SharePartitions()
        self.is_dead = False

        # No record holds the following state.
        self.topics_changed = True
        """Whether a topic may have changed since `metadata_hash` was computed."""
        self.states_are_due = True
        """Whether a subscribed share partition may lack a state."""
        self.asked_about: set[UUID] = set()
        """The topics about whose states a question is open. There is at most one for each topic."""
        self.failures = 0
        """The number of failed attempts to initialize or delete states since the last success."""

    @property
    def state(self) -> ShareState:
        if self.is_dead:
            return ShareState.DEAD
        return ShareState.STABLE if self.members else ShareState.EMPTY

    def apply_record(self, key: RecordKey, value: RecordValue) -> None:
        """Applies a record other than a tombstone.

        Compaction may remove any record and may change the order of the remaining ones.
        """
        match key, value:
            case ShareGroupMetadataKey(), ShareGroupMetadataValue():
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
            case ShareGroupMemberMetadataKey(), ShareGroupMemberMetadataValue():
                before = self.members.get(key.member_id, ShareMember(key.member_id))
                self.members[key.member_id] = records.with_subscription(before, value)
            case ShareGroupTargetAssignmentMetadataKey(), ShareGroupTargetAssignmentMetadataValue():
                self.assignment_epoch = value.assignment_epoch
                self.assignment_timestamp_ms = WallMs(value.assignment_timestamp)
            case ShareGroupTargetAssignmentMemberKey(), ShareGroupTargetAssignmentMemberValue():
                self.targets[key.member_id] = records.target_of(value)
            case ShareGroupCurrentMemberAssignmentKey(), ShareGroupCurrentMemberAssignmentValue():
                before = self.members.get(key.member_id, ShareMember(key.member_id))
                self.members[key.member_id] = records.with_current_assignment(before, value)
            case ShareGroupStatePartitionMetadataKey(), ShareGroupStatePartitionMetadataValue():
                self.partitions = records.partitions_of(value)

    def apply_tombstone(self, key: RecordKey) -> bool:
        """Applies a tombstone. Returns False if the group itself is deleted, which the caller has to do."""
        match key:
            case ShareGroupMetadataKey():
                return False
            case ShareGroupMemberMetadataKey():
                self.members.remove(key.member_id)
            case ShareGroupTargetAssignmentMetadataKey():
                self.assignment_epoch, self.assignment_timestamp_ms = 0, WallMs(0)
            case ShareGroupTargetAssignmentMemberKey():
                self.targets.pop(key.member_id, None)
            case ShareGroupCurrentMemberAssignmentKey():
                member = self.members.get(key.member_id)
                if member is not None:
                    self.members[key.member_id] = replace(
                        member, member_epoch=0, previous_epoch=0, assigned=NO_PARTITIONS
                    )
            case ShareGroupStatePartitionMetadataKey():
                self.partitions = SharePartitions()
        return True

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

    @property
    def kind(self) -> GroupKind:
        return GroupKind.SHARE

    def check_commit(self, committer: OffsetCommitter, decision: ShardDecision) -> ErrorCode:
        """Refuses every commit, because a share group's progress is in the states of its share partitions."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def partition_commit_check(self, committer: OffsetCommitter) -> Callable[[UUID, int], ErrorCode] | None:
        return None

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        return ErrorCode.NONE  # it has no committed offsets

    def check_offset_delete(self) -> ErrorCode:
        return ErrorCode.GROUP_ID_NOT_FOUND

    def check_delete(self) -> ErrorCode:
        return ErrorCode.NON_EMPTY_GROUP if self.members else ErrorCode.NONE

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in member.topic_names for member in self.members.values())

    def offsets_expire_from(self, topic: str, commit_timestamp_ms: WallMs) -> WallMs | None:
        return commit_timestamp_ms

    def end(self) -> list[CoordinatorRecord]:
        """Returns the tombstones of the group and of everything that belongs to it."""
        self.is_dead = True
        group_id = self.group_id
        found = records.member_tombstones(group_id, self.members, self.targets)
        found.append(records.tombstone(RecordKind.STATES, group_id))
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
        return ListedGroup(self.group_id, SHARE_PROTOCOL_TYPE, self.state, GroupKind.SHARE.value)
