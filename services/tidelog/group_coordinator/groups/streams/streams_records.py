"""The records of streams groups, in Kafka's formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import IntEnum
from functools import partial
from typing import Final, TypeAlias

from tidelog.group_coordinator.groups.modern import (
    MemberKinds,
    RecordFormats,
    epochs_by_partition,
    new_record,
)
from tidelog.group_coordinator.groups.streams.assignor import TaskAssignment
from tidelog.group_coordinator.groups.streams.owned_tasks import (
    ActiveTasks,
    OwnedTasks,
    from_message,
    to_message,
)
from tidelog.group_coordinator.groups.streams.streams_member import StreamsMember, StreamsMemberState
from tidelog.group_coordinator.groups.streams.topology import Topology, record_of
from tidelog.group_coordinator.shard_core import CoordinatorRecord
from tidelog.model.instants import WallMs
from tidelog.wire.messages.records import streams_group_target_assignment_member as target_messages
from tidelog.wire.messages.records.streams_group_current_member_assignment import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    TaskIds,
)
from tidelog.wire.messages.records.streams_group_member_metadata import (
    Endpoint,
    KeyValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
)
from tidelog.wire.messages.records.streams_group_metadata import (
    LastAssignmentConfig,
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


class RecordKind(IntEnum):
    """The kind of a record: the int16 before its key."""

    GROUP = 17
    MEMBER = 19
    TARGET_EPOCH = 20
    TARGET = 21
    CURRENT = 22
    TOPOLOGY = 23


RecordKey: TypeAlias = (
    StreamsGroupMetadataKey
    | StreamsGroupMemberMetadataKey
    | StreamsGroupTargetAssignmentMetadataKey
    | StreamsGroupTargetAssignmentMemberKey
    | StreamsGroupCurrentMemberAssignmentKey
    | StreamsGroupTopologyKey
)
RecordValue: TypeAlias = (
    StreamsGroupMetadataValue
    | StreamsGroupMemberMetadataValue
    | StreamsGroupTargetAssignmentMetadataValue
    | StreamsGroupTargetAssignmentMemberValue
    | StreamsGroupCurrentMemberAssignmentValue
    | StreamsGroupTopologyValue
)

FORMATS: Final[RecordFormats[RecordKey, RecordValue]] = RecordFormats(
    {
        RecordKind.GROUP: (StreamsGroupMetadataKey, StreamsGroupMetadataValue),
        RecordKind.MEMBER: (StreamsGroupMemberMetadataKey, StreamsGroupMemberMetadataValue),
        RecordKind.TARGET_EPOCH: (
            StreamsGroupTargetAssignmentMetadataKey,
            StreamsGroupTargetAssignmentMetadataValue,
        ),
        RecordKind.TARGET: (StreamsGroupTargetAssignmentMemberKey, StreamsGroupTargetAssignmentMemberValue),
        RecordKind.CURRENT: (
            StreamsGroupCurrentMemberAssignmentKey,
            StreamsGroupCurrentMemberAssignmentValue,
        ),
        RecordKind.TOPOLOGY: (StreamsGroupTopologyKey, StreamsGroupTopologyValue),
    }
)
tombstone = FORMATS.tombstone
"""Returns a tombstone of a kind. The names are the group, and the member of the record."""
member_tombstones = partial(
    FORMATS.member_tombstones,
    MemberKinds(RecordKind.CURRENT, RecordKind.TARGET, RecordKind.TARGET_EPOCH, RecordKind.MEMBER),
)
"""Returns the tombstones of a group's members. Takes the group and two collections of ids."""


def group_record(
    group_id: str, epoch: int, metadata_hash: int, validated_topology_epoch: int, configs: Mapping[str, str]
) -> CoordinatorRecord:
    """Returns the record of a group's epoch. `configs` are the settings that its assignment depends on."""
    return new_record(
        StreamsGroupMetadataKey(group_id),
        StreamsGroupMetadataValue(
            epoch,
            metadata_hash,
            validated_topology_epoch,
            [LastAssignmentConfig(name, value) for name, value in sorted(configs.items())],
        ),
    )


def member_record(group_id: str, member: StreamsMember) -> CoordinatorRecord:
    """Returns the record of a member's metadata: its client, its process, its endpoint and its tags."""
    endpoint = member.user_endpoint
    return new_record(
        StreamsGroupMemberMetadataKey(group_id, member.member_id),
        StreamsGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            topology_epoch=member.topology_epoch,
            process_id=member.process_id,
            user_endpoint=None if endpoint is None else Endpoint(*endpoint),
            client_tags=[KeyValue(key, value) for key, value in member.client_tags],
        ),
    )


def with_metadata(member: StreamsMember, value: StreamsGroupMemberMetadataValue) -> StreamsMember:
    """Returns the member with the metadata of a record."""
    endpoint = value.user_endpoint
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        topology_epoch=value.topology_epoch,
        process_id=value.process_id,
        user_endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
        client_tags=tuple((tag.key, tag.value) for tag in value.client_tags),
    )


def topology_record(group_id: str, topology: Topology) -> CoordinatorRecord:
    """Returns the record of a group's topology."""
    return new_record(StreamsGroupTopologyKey(group_id), record_of(topology))


def target_epoch_record(group_id: str, assignment_epoch: int, now_ms: WallMs) -> CoordinatorRecord:
    """Returns the record of the epoch of a group's target assignment."""
    return new_record(
        StreamsGroupTargetAssignmentMetadataKey(group_id),
        StreamsGroupTargetAssignmentMetadataValue(assignment_epoch, now_ms),
    )


def target_record(group_id: str, member_id: str, target: TaskAssignment) -> CoordinatorRecord:
    """Returns the record of a member's target assignment."""
    task_ids = target_messages.TaskIds
    return new_record(
        StreamsGroupTargetAssignmentMemberKey(group_id, member_id),
        StreamsGroupTargetAssignmentMemberValue(
            to_message(task_ids, target.active_tasks),
            to_message(task_ids, target.standby_tasks),
            to_message(task_ids, target.warmup_tasks),
        ),
    )


def target_of(value: StreamsGroupTargetAssignmentMemberValue) -> TaskAssignment:
    """Returns the target assignment of a record."""
    return TaskAssignment(
        from_message(value.active_tasks), from_message(value.standby_tasks), from_message(value.warmup_tasks)
    )


def current_record(group_id: str, member: StreamsMember) -> CoordinatorRecord:
    """Returns the record of a member's epoch and tasks."""
    owned, revoking = member.owned, member.revoking
    return new_record(
        StreamsGroupCurrentMemberAssignmentKey(group_id, member.member_id),
        StreamsGroupCurrentMemberAssignmentValue(
            member_epoch=member.member_epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state,
            active_tasks=_with_epochs(owned.active),
            standby_tasks=to_message(TaskIds, owned.standby),
            warmup_tasks=to_message(TaskIds, owned.warmup),
            active_tasks_pending_revocation=_with_epochs(revoking.active),
            standby_tasks_pending_revocation=to_message(TaskIds, revoking.standby),
            warmup_tasks_pending_revocation=to_message(TaskIds, revoking.warmup),
        ),
    )


def _with_epochs(tasks: ActiveTasks) -> list[TaskIds]:
    return [
        TaskIds(name, sorted(epochs), [epochs[partition] for partition in sorted(epochs)])
        for name, epochs in sorted(tasks.items())
    ]


def with_current_assignment(
    member: StreamsMember, value: StreamsGroupCurrentMemberAssignmentValue
) -> StreamsMember:
    """Returns the member with the epoch and tasks of a record."""
    try:
        state = StreamsMemberState(value.state)
    except ValueError:
        state = StreamsMemberState.UNKNOWN

    def active(tasks: Iterable[TaskIds]) -> ActiveTasks:
        return {
            found.subtopology_id: epochs_by_partition(
                found.partitions, found.assignment_epochs, value.member_epoch
            )
            for found in tasks
            if found.partitions
        }

    return replace(
        member,
        member_epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=state,
        owned=OwnedTasks(
            active(value.active_tasks), from_message(value.standby_tasks), from_message(value.warmup_tasks)
        ),
        revoking=OwnedTasks(
            active(value.active_tasks_pending_revocation),
            from_message(value.standby_tasks_pending_revocation),
            from_message(value.warmup_tasks_pending_revocation),
        ),
    )
