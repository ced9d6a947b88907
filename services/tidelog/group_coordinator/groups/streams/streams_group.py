"""The state of one streams group (KIP-1071)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.group_coordinator.groups.shared import GroupKind, Groups, OffsetCommitter, SizedMembers
from tidelog.group_coordinator.groups.streams import streams_records as records
from tidelog.group_coordinator.groups.streams.assignor import TaskAssignment
from tidelog.group_coordinator.groups.streams.owned_tasks import NO_ASSIGNMENT, Holders, OwnedTasks
from tidelog.group_coordinator.groups.streams.streams_member import StreamsMember
from tidelog.group_coordinator.groups.streams.streams_records import RecordKey, RecordKind, RecordValue
from tidelog.group_coordinator.groups.streams.topology import (
    ConfiguredTopology,
    Topology,
    topology_of_record,
)
from tidelog.group_coordinator.shard_core import CoordinatorRecord, ShardDecision
from tidelog.model.errors import ErrorCode
from tidelog.model.instants import WallMs
from tidelog.wire.messages.list_groups import ListedGroup
from tidelog.wire.messages.records.streams_group_current_member_assignment import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
)
from tidelog.wire.messages.records.streams_group_member_metadata import (
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
)
from tidelog.wire.messages.records.streams_group_metadata import (
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
)
from tidelog.wire.messages.records.streams_group_target_assignment_member import (
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
)
from tidelog.wire.messages.records.streams_group_target_assignment_metadata import (
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
)
from tidelog.wire.messages.records.streams_group_topology import (
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)

STREAMS_PROTOCOL_TYPE: Final = "streams"
INITIAL_EPOCH: Final = 1
"""The epoch of a group before its first member, and of its empty assignment, as in Kafka since 4.3. A member
that waits for the first assignment is in this epoch.
"""
NOT_VALIDATED: Final = -1
"""The validated topology epoch of a group whose topology does not fit the topics, or lacks some of them."""
"""The version of OffsetCommit from which a request holds a member epoch."""

_Task = tuple[str, int]
"""The subtopology id and the partition of a task."""


class StreamsState(StrEnum):
    """The state of a streams group, named as in ListGroups (Kafka's StreamsGroupState)."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class TaskCounts(NamedTuple):
    """The numbers of tasks that the members have, by role. `wanted` is the number of active tasks of the
    topology, or None if it is not known yet.
    """

    active: int = 0
    standby: int = 0
    warmup: int = 0
    wanted: int | None = None


class UnfinishedAssignment(NamedTuple):
    """The computation of the target assignment of a group epoch, which returns it by member id."""

    epoch: int
    steps: Generator[None, None, dict[str, TaskAssignment]]


class StreamsGroup:
    """The state of a group according to its records, and some state that is rebuilt after loading.

    Only the `put_` and `remove_` methods change the members. Each applies one record.
    """

    def __init__(self, group_id: str, groups: Groups) -> None:
        self.group_id = group_id
        self._groups = groups
        self.epoch = INITIAL_EPOCH
        self.metadata_hash = 0
        self.validated_topology_epoch = NOT_VALIDATED
        self.assignment_configs: Mapping[str, str] = {}
        """The settings that the assignment of the epoch depends on."""
        self.topology: Topology | None = None
        self.required_topics: frozenset[str] = frozenset()
        """The topics whose changes may change the assignment."""
        self._read_topics: frozenset[str] = frozenset()
        """The topics that the application reads, other than changelogs."""
        self.assignment_epoch = INITIAL_EPOCH
        self.assignment_timestamp_ms = WallMs(0)
        self.members: SizedMembers[StreamsMember] = SizedMembers()
        self.targets: dict[str, TaskAssignment] = {}
        """Maps each member id to its target assignment."""
        self.is_dead = False
        self._active_holders: dict[_Task, str] = {}
        """Maps each active task to the member that has not given it up."""
        self._standby_holders: dict[_Task, set[str]] = {}
        self._warmup_holders: dict[_Task, set[str]] = {}

        # No record holds the following state.
        self.configured: ConfiguredTopology | None = None
        """The topology applied to the topics; None if no member has sent a heartbeat since the load."""
        self.topics_changed = True
        """Whether a topic may have changed since `configured` and `metadata_hash` were computed."""
        self.is_first_assignment_delayed = False
        """Whether the group waits for more members before it assigns tasks."""
        self.unfinished_assignment: UnfinishedAssignment | None = None
        """The assignment that is being computed."""
        self.shutdown_requested_by: str | None = None
        """The member that asked the whole application to shut down."""
        self.endpoint_epoch = 0
        """Grows with each change of the partitions of a member that has a user endpoint."""

    @property
    def state(self) -> StreamsState:
        """The state, which follows from the members, the topology and the epochs: the first rule that holds
        decides.
        """
        return next(state for state, holds in _STATE_RULES if holds(self))

    def apply_record(self, key: RecordKey, value: RecordValue) -> None:
        """Applies a record other than a tombstone.

        Compaction may remove any record and may change the order of the remaining ones.
        """
        match key, value:
            case StreamsGroupMetadataKey(), StreamsGroupMetadataValue():
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
                self.validated_topology_epoch = value.validated_topology_epoch
                self.assignment_configs = {
                    config.key: config.value for config in value.last_assignment_configs or ()
                }
            case StreamsGroupTopologyKey(), StreamsGroupTopologyValue():
                self.put_topology(topology_of_record(value))
            case StreamsGroupMemberMetadataKey(), StreamsGroupMemberMetadataValue():
                before = self.members.get(key.member_id, StreamsMember(key.member_id))
                self.members[key.member_id] = records.with_metadata(before, value)
            case StreamsGroupTargetAssignmentMetadataKey(), StreamsGroupTargetAssignmentMetadataValue():
                self.assignment_epoch = value.assignment_epoch
                self.assignment_timestamp_ms = WallMs(value.assignment_timestamp)
            case StreamsGroupTargetAssignmentMemberKey(), StreamsGroupTargetAssignmentMemberValue():
                self.targets[key.member_id] = records.target_of(value)
            case StreamsGroupCurrentMemberAssignmentKey(), StreamsGroupCurrentMemberAssignmentValue():
                before = self.members.get(key.member_id, StreamsMember(key.member_id))
                self.put_current_assignment(records.with_current_assignment(before, value))

    def apply_tombstone(self, key: RecordKey) -> bool:
        """Applies a tombstone. Returns False if the group itself is deleted, which the caller has to do."""
        match key:
            case StreamsGroupMetadataKey():
                return False
            case StreamsGroupTopologyKey():
                self.put_topology(None)
            case StreamsGroupMemberMetadataKey():
                self.remove_member(key.member_id)
            case StreamsGroupTargetAssignmentMetadataKey():
                self.assignment_epoch, self.assignment_timestamp_ms = INITIAL_EPOCH, WallMs(0)
            case StreamsGroupTargetAssignmentMemberKey():
                self.targets.pop(key.member_id, None)
            case StreamsGroupCurrentMemberAssignmentKey():
                if key.member_id in self.members:
                    self.put_current_assignment(StreamsMember(key.member_id))
        return True

    def put_topology(self, topology: Topology | None) -> None:
        self.topology, self.topics_changed = topology, True
        self.required_topics = frozenset() if topology is None else frozenset(topology.required_topics())
        subtopologies = () if topology is None else topology.subtopologies.values()
        self._read_topics = frozenset(topic for found in subtopologies for topic in found.read_topics())

    def put_metadata(self, member: StreamsMember) -> None:
        """Replaces the metadata of a member. Its epoch and tasks remain."""
        before = self.members.get(member.member_id, StreamsMember(member.member_id))
        self.members[member.member_id] = _with_assignment_of(member, before)

    def put_current_assignment(self, member: StreamsMember) -> None:
        """Sets a member's epoch and tasks. What it says about itself remains."""
        before = self.members.get(member.member_id, StreamsMember(member.member_id))
        self._release(before)
        after = self.members[member.member_id] = _with_assignment_of(before, member)
        for owned in (after.owned, after.revoking):
            for task in _tasks(owned.active):
                self._active_holders[task] = after.member_id
            for tasks, holders in self._passive_holders(owned):
                for task in _tasks(tasks):
                    holders.setdefault(task, set()).add(after.member_id)

    def remove_member(self, member_id: str) -> None:
        member = self.members.remove(member_id)
        if member is not None:
            self._release(member)

    def _release(self, member: StreamsMember) -> None:
        for owned in (member.owned, member.revoking):
            for task in _tasks(owned.active):
                if self._active_holders.get(task) == member.member_id:
                    del self._active_holders[task]
            for tasks, holders in self._passive_holders(owned):
                for task in _tasks(tasks):
                    of_task = holders.get(task, set())
                    of_task.discard(member.member_id)
                    if not of_task:
                        holders.pop(task, None)

    def _passive_holders(
        self, owned: OwnedTasks
    ) -> tuple[tuple[Mapping[str, frozenset[int]], dict[_Task, set[str]]], ...]:
        return (owned.standby, self._standby_holders), (owned.warmup, self._warmup_holders)

    def target_of(self, member_id: str) -> TaskAssignment:
        return self.targets.get(member_id, NO_ASSIGNMENT)

    def holders_for(self, process_id: str) -> Holders:
        """Returns which tasks a member of this process cannot receive yet.

        An active task must be free everywhere. Besides, a process has one copy of a task's state, so it must
        have given the task up in any other role.
        """

        def is_in_process(member_ids: set[str] | tuple[()]) -> bool:
            return any(
                member_id in self.members and self.members[member_id].process_id == process_id
                for member_id in member_ids
            )

        def is_passive_in_process(name: str, partition: int) -> bool:
            task = name, partition
            return is_in_process(self._standby_holders.get(task, ())) or is_in_process(
                self._warmup_holders.get(task, ())
            )

        def active(name: str, partition: int) -> bool:
            return (name, partition) in self._active_holders or is_passive_in_process(name, partition)

        def passive(name: str, partition: int) -> bool:
            holder = self._active_holders.get((name, partition))
            is_active_here = holder is not None and is_in_process({holder})
            return is_active_here or is_passive_in_process(name, partition)

        return Holders(active, passive, passive)

    @property
    def kind(self) -> GroupKind:
        return GroupKind.STREAMS

    def check_commit(self, committer: OffsetCommitter, decision: ShardDecision) -> ErrorCode:
        if committer.is_outside(self.members):
            return ErrorCode.NONE
        member, epoch = self.members.get(committer.member_id), committer.generation_or_epoch
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if committer.has_no_field_for_epochs:
            return ErrorCode.UNSUPPORTED_VERSION
        # For an older epoch, partition_commit_check decides on each partition.
        return ErrorCode.NONE if epoch <= member.member_epoch else ErrorCode.STALE_MEMBER_EPOCH

    def partition_commit_check(self, committer: OffsetCommitter) -> Callable[[UUID, int], ErrorCode] | None:
        """Returns a check for a member that commits with an older epoch than its current one (KIP-1251).

        The member has not received its new epoch yet. It may commit offsets of active tasks that it received
        in that epoch or before and has not given up since.
        """
        member = self.members.get(committer.member_id)
        epoch, topology = committer.generation_or_epoch, self.topology
        if member is None or topology is None or epoch == member.member_epoch:
            return None
        owner, topic_names = member, self._groups.image.topic_names
        subtopology_of = {
            topic: name
            for name, subtopology in topology.subtopologies.items()
            for topic in subtopology.read_topics()
        }

        def check(topic_id: UUID, partition: int) -> ErrorCode:
            name = subtopology_of.get(topic_names.get(topic_id, ""))
            if name is not None:
                for owned in (owner.owned, owner.revoking):
                    given_epoch = owned.active.get(name, {}).get(partition)
                    if given_epoch is not None and given_epoch <= epoch:
                        return ErrorCode.NONE
            return ErrorCode.STALE_MEMBER_EPOCH

        return check

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        if not member_id and member_epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_epoch == member.member_epoch else ErrorCode.STALE_MEMBER_EPOCH

    def check_offset_delete(self) -> ErrorCode:
        return ErrorCode.NONE

    def check_delete(self) -> ErrorCode:
        return ErrorCode.NON_EMPTY_GROUP if self.members else ErrorCode.NONE

    def is_subscribed_to(self, topic: str) -> bool:
        """Returns whether the application reads the topic, other than as a changelog. A group without members
        reads nothing.
        """
        return bool(self.members) and topic in self._read_topics

    def offsets_expire_from(self, topic: str, commit_timestamp_ms: WallMs) -> WallMs | None:
        return None if self.is_subscribed_to(topic) else commit_timestamp_ms

    def end(self) -> list[CoordinatorRecord]:
        """Returns the tombstones of the group and of everything that belongs to it."""
        self.is_dead = True
        group_id = self.group_id
        found = records.member_tombstones(group_id, self.members, self.targets)
        found.append(records.tombstone(RecordKind.TOPOLOGY, group_id))
        found.append(records.tombstone(RecordKind.GROUP, group_id))
        return found

    def has_members(self) -> bool:
        return bool(self.members)

    def member_count(self) -> int:
        return len(self.members)

    def task_counts(self) -> TaskCounts:
        """Returns how many tasks the members have, and how many the topology has."""
        subtopologies = None if self.configured is None else self.configured.subtopologies
        wanted = None if subtopologies is None else sum(one.task_count for one in subtopologies.values())
        standby, warmup = self._standby_holders.values(), self._warmup_holders.values()
        return TaskCounts(len(self._active_holders), sum(map(len, standby)), sum(map(len, warmup)), wanted)

    @property
    def generation_or_epoch(self) -> int:
        return self.epoch

    def listed(self) -> ListedGroup:
        return ListedGroup(self.group_id, STREAMS_PROTOCOL_TYPE, self.state, GroupKind.STREAMS.value)


def _tasks(tasks: Mapping[str, frozenset[int] | Mapping[int, int]]) -> list[_Task]:
    return [(name, partition) for name, partitions in tasks.items() for partition in partitions]


def _with_assignment_of(member: StreamsMember, other: StreamsMember) -> StreamsMember:
    return replace(
        member,
        member_epoch=other.member_epoch,
        previous_epoch=other.previous_epoch,
        state=other.state,
        owned=other.owned,
        revoking=other.revoking,
    )


def _is_reconciled(group: StreamsGroup) -> bool:
    return all(member.is_reconciled_to(group.assignment_epoch) for member in group.members.values())


def _is_not_ready(group: StreamsGroup) -> bool:
    return group.topology is None or group.topology.epoch != group.validated_topology_epoch


_STATE_RULES: Final[tuple[tuple[StreamsState, Callable[[StreamsGroup], bool]], ...]] = (
    # The group is deleted.
    (StreamsState.DEAD, lambda group: group.is_dead),
    # The group has no members.
    (StreamsState.EMPTY, lambda group: not group.members),
    # The topology does not fit the topics, or lacks some of them.
    (StreamsState.NOT_READY, _is_not_ready),
    # The members or topics have changed, and no target assignment of the new group epoch exists yet.
    (StreamsState.ASSIGNING, lambda group: group.epoch > group.assignment_epoch),
    # Every member has reached its target assignment.
    (StreamsState.STABLE, _is_reconciled),
    # Members still have to give up tasks or to receive them.
    (StreamsState.RECONCILING, lambda group: True),
)
"""The states in the order in which their conditions are checked.

The state is derived from the records, never stored, so no transition can be forgotten.
"""
