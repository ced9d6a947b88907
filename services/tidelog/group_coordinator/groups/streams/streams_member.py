"""One member of a streams group: its tasks, its records, and its way to its target assignment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from tidelog.group_coordinator.groups.modern_group import (
    GroupFormat,
    MemberState,
    ModernMember,
    Owned,
    RecordType,
    byte_of_state,
    difference,
    epochs_by_partition,
    holds_all,
    holds_any,
    merged,
    state_of_byte,
    with_epochs,
)
from tidelog.group_coordinator.groups.shared import GroupKind, memory_of_member
from tidelog.group_coordinator.groups.streams.assignor import TaskAssignment
from tidelog.group_coordinator.groups.streams.topology import Tasks
from tidelog.model.errors import ErrorCode, KafkaError
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

ActiveTasks: TypeAlias = Owned[str]
"""Active tasks by subtopology id, with their epochs."""

_NO_ACTIVE_TASKS: Final[ActiveTasks] = {}
_NO_TASKS: Final[Tasks] = {}
NO_ASSIGNMENT: Final = TaskAssignment()


class OwnedTasks(NamedTuple):
    """Tasks of a member. Only active tasks have epochs, because only they commit offsets."""

    active: ActiveTasks = _NO_ACTIVE_TASKS
    standby: Tasks = _NO_TASKS
    warmup: Tasks = _NO_TASKS

    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    def plus(self, more: OwnedTasks) -> OwnedTasks:
        """Returns the tasks of both."""
        return OwnedTasks(
            merged(self.active, more.active),
            _merged_passive(self.standby, more.standby),
            _merged_passive(self.warmup, more.warmup),
        )

    def holds_any(self, reported: TaskAssignment) -> bool:
        """Returns whether `reported` contains at least one of these tasks, in the same role."""
        return (
            holds_any(reported.active_tasks, self.active)
            or holds_any(reported.standby_tasks, self.standby)
            or holds_any(reported.warmup_tasks, self.warmup)
        )

    def holds_all(self, reported: TaskAssignment) -> bool:
        """Returns whether these tasks contain every task of `reported`, in the same role."""
        return (
            holds_all(self.active, reported.active_tasks)
            and holds_all(self.standby, reported.standby_tasks)
            and holds_all(self.warmup, reported.warmup_tasks)
        )


NO_OWNED_TASKS: Final = OwnedTasks()

IsHeld = Callable[[str, int], bool]
"""Returns whether the task (subtopology id, partition) cannot be given to the member yet."""


class Holders(NamedTuple):
    """Tells which tasks a member cannot receive yet, because a member or a process has not given them up."""

    active: IsHeld
    standby: IsHeld
    warmup: IsHeld


class TaskDifference(NamedTuple):
    """The way from the tasks that a member has to its target assignment."""

    kept: OwnedTasks
    """The tasks that it has and should have."""
    revoked: OwnedTasks
    """The tasks that it has and should not have."""
    free: OwnedTasks
    """The tasks that it should have, does not have, and that nobody holds."""
    waits: bool
    """Whether somebody holds a task that it should have."""


def task_difference(
    owned: OwnedTasks, target: TaskAssignment, epoch: int, holders: Holders
) -> TaskDifference:
    """Returns the way to a target assignment, whose epoch `free` active tasks get."""
    active = difference(owned.active, target.active_tasks, epoch, holders.active)
    standby = _passive_difference(owned.standby, target.standby_tasks, holders.standby)
    warmup = _passive_difference(owned.warmup, target.warmup_tasks, holders.warmup)
    return TaskDifference(
        OwnedTasks(active.kept, standby.kept, warmup.kept),
        OwnedTasks(active.revoked, standby.revoked, warmup.revoked),
        OwnedTasks(active.free, standby.free, warmup.free),
        active.waits or standby.waits or warmup.waits,
    )


class _PassiveDifference(NamedTuple):
    kept: Tasks
    revoked: Tasks
    free: Tasks
    waits: bool


def _passive_difference(owned: Tasks, target: Tasks, is_held: IsHeld) -> _PassiveDifference:
    kept: dict[str, frozenset[int]] = {}
    revoked: dict[str, frozenset[int]] = {}
    free: dict[str, frozenset[int]] = {}
    waits = False
    for name in owned.keys() | target.keys():
        had, wanted = owned.get(name, frozenset()), target.get(name, frozenset())
        missing = wanted - had
        found = frozenset(partition for partition in missing if not is_held(name, partition))
        waits = waits or len(found) < len(missing)
        for part, partitions in ((kept, had & wanted), (revoked, had - wanted), (free, found)):
            if partitions:
                part[name] = partitions
    return _PassiveDifference(kept, revoked, free, waits)


def _merged_passive(first: Tasks, second: Tasks) -> Tasks:
    return {
        name: first.get(name, frozenset()) | second.get(name, frozenset())
        for name in first.keys() | second.keys()
    }


def covers(reported: TaskAssignment, owned: OwnedTasks) -> bool:
    """Returns whether `reported` contains every task of `owned`, in the same role."""
    return all(
        tasks.keys() <= found.keys() and all(found[name].issuperset(tasks[name]) for name in tasks)
        for tasks, found in (
            (owned.active, reported.active_tasks),
            (owned.standby, reported.standby_tasks),
            (owned.warmup, reported.warmup_tasks),
        )
    )


class _TaskIds(Protocol):
    """A generated class that holds the tasks of one subtopology."""

    subtopology_id: str
    partitions: list[int]


T = TypeVar("T", bound=_TaskIds)


def from_message(tasks: Iterable[_TaskIds]) -> Tasks:
    """Returns the tasks of a message, which may name a subtopology more than once."""
    found: dict[str, frozenset[int]] = {}
    for of_subtopology in tasks:
        if of_subtopology.partitions:
            name = of_subtopology.subtopology_id
            found[name] = found.get(name, frozenset()) | frozenset(of_subtopology.partitions)
    return found


def to_message(task_class: type[T], tasks: Mapping[str, Iterable[int]]) -> list[T]:
    """Returns the tasks as message objects.

    They are sorted by subtopology id and partition, so that equal assignments have equal bytes.
    """
    messages = []
    for name in sorted(tasks):
        message = task_class()
        message.subtopology_id = name
        message.partitions = sorted(tasks[name])
        messages.append(message)
    return messages


NO_TOPOLOGY_EPOCH: Final = -1
_STABLE: Final = 1
"""The byte of a stable member in its record."""


@dataclass(frozen=True, slots=True)
class StreamsMember(ModernMember):
    """A member as its records describe it. A change replaces the object."""

    instance_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology_epoch: int = NO_TOPOLOGY_EPOCH
    process_id: str = ""
    """The process to which the member belongs. Members of a process share its state directory."""
    user_endpoint: tuple[str, int] | None = None
    """The host and port at which the process answers interactive queries."""
    client_tags: tuple[tuple[str, str], ...] = ()

    owned: OwnedTasks = field(default_factory=lambda: NO_OWNED_TASKS)
    revoking: OwnedTasks = field(default_factory=lambda: NO_OWNED_TASKS)
    """Tasks that the member must give up. It has them until its heartbeat no longer names them."""

    ASSIGNMENT: ClassVar[tuple[str, ...]] = (*ModernMember.ASSIGNMENT, "owned", "revoking")

    @property
    def memory_bytes(self) -> int:
        texts = [self.member_id, self.instance_id, self.rack_id, self.client_id, self.client_host]
        texts += [self.process_id, None if self.user_endpoint is None else self.user_endpoint[0]]
        texts += [text for tag in self.client_tags for text in tag]
        return memory_of_member(texts)


def reconcile(
    member: StreamsMember,
    epoch: int,
    target: TaskAssignment,
    holders: Holders,
    reported: TaskAssignment | None,
) -> StreamsMember:
    """Returns the member after one step toward the target assignment of `epoch`.

    First the member gives up the tasks that are no longer in its target, and stays in its epoch until it has
    confirmed this. Then it moves to the epoch of the target and receives the tasks that are free. It receives
    the others when their holders have given them up (Kafka's CurrentAssignmentBuilder). `reported` are the
    tasks that the member says it has, None if it does not say. Raises KafkaError (FENCED_MEMBER_EPOCH).
    """
    match member.state:
        case MemberState.STABLE if member.member_epoch == epoch:
            return member
        case MemberState.UNREVOKED:
            if reported is None or member.revoking.holds_any(reported):
                return member
            return _next_step(member, member.member_epoch + 1, epoch, target, holders, reported)
        case MemberState.UNKNOWN:
            if reported is None or reported != TaskAssignment():
                raise unknown_state()
            return _next_step(member, epoch, epoch, target, holders, reported)
    return _next_step(member, member.member_epoch, epoch, target, holders, reported)


def unknown_state() -> KafkaError:
    """Returns the error for a member whose state this version does not know and that may have tasks."""
    return KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        "The streams group member is in a unknown state. The member must abandon all its tasks and rejoin.",
    )


def _next_step(
    member: StreamsMember,
    epoch_before: int,
    epoch: int,
    target: TaskAssignment,
    holders: Holders,
    reported: TaskAssignment | None,
) -> StreamsMember:
    """`epoch_before` is the epoch in which the member stays as long as it has tasks to give up."""
    step = task_difference(member.owned, target, epoch, holders)
    if not step.revoked.is_empty() and (reported is None or step.revoked.holds_any(reported)):
        return _moved(member, epoch_before, MemberState.UNREVOKED, step.kept, step.revoked)
    state = MemberState.UNRELEASED if step.waits else MemberState.STABLE
    return _moved(member, epoch, state, step.kept.plus(step.free), NO_OWNED_TASKS)


def _moved(
    member: StreamsMember, epoch: int, state: MemberState, owned: OwnedTasks, revoking: OwnedTasks
) -> StreamsMember:
    return replace(
        member,
        member_epoch=epoch,
        previous_epoch=member.member_epoch,
        state=state,
        owned=owned,
        revoking=revoking,
    )


def _member_value(member: StreamsMember) -> StreamsGroupMemberMetadataValue:
    """Returns the value of a member's client, its process, its endpoint and its tags."""
    endpoint = member.user_endpoint
    return StreamsGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else Endpoint(*endpoint),
        client_tags=[KeyValue(key, value) for key, value in member.client_tags],
    )


def _member_of(member_id: str, value: StreamsGroupMemberMetadataValue) -> StreamsMember:
    endpoint = value.user_endpoint
    return StreamsMember(
        member_id,
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


def _target_value(target: TaskAssignment) -> StreamsGroupTargetAssignmentMemberValue:
    task_ids = target_messages.TaskIds
    return StreamsGroupTargetAssignmentMemberValue(
        to_message(task_ids, target.active_tasks),
        to_message(task_ids, target.standby_tasks),
        to_message(task_ids, target.warmup_tasks),
    )


def _target_of(value: StreamsGroupTargetAssignmentMemberValue) -> TaskAssignment:
    return TaskAssignment(
        from_message(value.active_tasks), from_message(value.standby_tasks), from_message(value.warmup_tasks)
    )


def _current_value(member: StreamsMember) -> StreamsGroupCurrentMemberAssignmentValue:
    owned, revoking = member.owned, member.revoking
    return StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_epoch,
        state=byte_of_state(member.state, _STABLE),
        active_tasks=with_epochs(TaskIds, owned.active),
        standby_tasks=to_message(TaskIds, owned.standby),
        warmup_tasks=to_message(TaskIds, owned.warmup),
        active_tasks_pending_revocation=with_epochs(TaskIds, revoking.active),
        standby_tasks_pending_revocation=to_message(TaskIds, revoking.standby),
        warmup_tasks_pending_revocation=to_message(TaskIds, revoking.warmup),
    )


def _current_of(member_id: str, value: StreamsGroupCurrentMemberAssignmentValue) -> StreamsMember:
    def active(tasks: Iterable[TaskIds]) -> ActiveTasks:
        return {
            found.subtopology_id: epochs_by_partition(
                found.partitions, found.assignment_epochs, value.member_epoch
            )
            for found in tasks
            if found.partitions
        }

    return StreamsMember(
        member_id,
        member_epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=state_of_byte(value.state, _STABLE),
        owned=OwnedTasks(
            active(value.active_tasks), from_message(value.standby_tasks), from_message(value.warmup_tasks)
        ),
        revoking=OwnedTasks(
            active(value.active_tasks_pending_revocation),
            from_message(value.standby_tasks_pending_revocation),
            from_message(value.warmup_tasks_pending_revocation),
        ),
    )


TOPOLOGY: Final = RecordType(StreamsGroupTopologyKey, StreamsGroupTopologyValue)
STREAMS_FORMAT: Final = GroupFormat(
    kind=GroupKind.STREAMS,
    group=RecordType(StreamsGroupMetadataKey, StreamsGroupMetadataValue),
    member=RecordType(StreamsGroupMemberMetadataKey, StreamsGroupMemberMetadataValue),
    target_epoch=RecordType(
        StreamsGroupTargetAssignmentMetadataKey, StreamsGroupTargetAssignmentMetadataValue
    ),
    target=RecordType(StreamsGroupTargetAssignmentMemberKey, StreamsGroupTargetAssignmentMemberValue),
    current=RecordType(StreamsGroupCurrentMemberAssignmentKey, StreamsGroupCurrentMemberAssignmentValue),
    others=(TOPOLOGY,),
    new_member=StreamsMember,
    no_target=NO_ASSIGNMENT,
    member_value=_member_value,
    member_of=_member_of,
    target_value=_target_value,
    target_of=_target_of,
    current_value=_current_value,
    current_of=_current_of,
)
