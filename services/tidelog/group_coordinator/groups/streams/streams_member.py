"""One member of a streams group: a thread of the application with tasks of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum

from tidelog.group_coordinator.groups.shared import memory_of_member
from tidelog.group_coordinator.groups.streams.assignor import TaskAssignment
from tidelog.group_coordinator.groups.streams.owned_tasks import (
    NO_OWNED_TASKS,
    Holders,
    OwnedTasks,
    difference,
    holds_any,
    merged,
)
from tidelog.model.errors import ErrorCode, KafkaError

NO_TOPOLOGY_EPOCH = -1


class StreamsMemberState(IntEnum):
    """The state of a member. The value is the byte in its record (Kafka's MemberState)."""

    STABLE = 1
    """The member has its target assignment."""
    UNREVOKED_TASKS = 2
    """The member has not confirmed yet that it gave up its revoked tasks."""
    UNRELEASED_TASKS = 3
    """The member waits for tasks that other members or processes have not given up."""
    UNKNOWN = 127
    """The record holds a state that this version does not know."""


@dataclass(frozen=True, slots=True)
class StreamsMember:
    """A member as its records describe it. A change replaces the object."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = NO_TOPOLOGY_EPOCH
    process_id: str = ""
    """The process to which the member belongs. Members of a process share its state directory."""
    user_endpoint: tuple[str, int] | None = None
    """The host and port at which the process answers interactive queries."""
    client_tags: tuple[tuple[str, str], ...] = ()

    member_epoch: int = 0
    previous_epoch: int = 0
    state: StreamsMemberState = StreamsMemberState.STABLE
    owned: OwnedTasks = field(default_factory=lambda: NO_OWNED_TASKS)
    revoking: OwnedTasks = field(default_factory=lambda: NO_OWNED_TASKS)
    """Tasks that the member must give up. It has them until its heartbeat no longer names them."""

    @property
    def memory_bytes(self) -> int:
        texts = [self.member_id, self.instance_id, self.rack_id, self.client_id, self.client_host]
        texts += [self.process_id, None if self.user_endpoint is None else self.user_endpoint[0]]
        texts += [text for tag in self.client_tags for text in tag]
        return memory_of_member(texts)

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        """Returns whether the member has reached the target assignment of this epoch."""
        return self.state is StreamsMemberState.STABLE and self.member_epoch == assignment_epoch

    def has_metadata_of(self, other: StreamsMember) -> bool:
        """Returns whether both members have the same StreamsGroupMemberMetadata record."""
        return _metadata(self) == _metadata(other)

    def has_assignment_of(self, other: StreamsMember) -> bool:
        """Returns whether both members have the same StreamsGroupCurrentMemberAssignment record."""
        return _current_assignment(self) == _current_assignment(other)


def _metadata(member: StreamsMember) -> tuple[object, ...]:
    return (
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.topology_epoch,
        member.process_id,
        member.user_endpoint,
        member.client_tags,
    )


def _current_assignment(member: StreamsMember) -> tuple[object, ...]:
    return member.member_epoch, member.previous_epoch, member.state, member.owned, member.revoking


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
        case StreamsMemberState.STABLE if member.member_epoch == epoch:
            return member
        case StreamsMemberState.UNREVOKED_TASKS:
            if reported is None or holds_any(reported, member.revoking):
                return member
            return _next_step(member, member.member_epoch + 1, epoch, target, holders, reported)
        case StreamsMemberState.UNKNOWN:
            if reported is None or reported != TaskAssignment():
                raise KafkaError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The streams group member is in a unknown state. "
                    "The member must abandon all its tasks and rejoin.",
                )
            return _next_step(member, epoch, epoch, target, holders, reported)
    return _next_step(member, member.member_epoch, epoch, target, holders, reported)


def _next_step(
    member: StreamsMember,
    epoch_before: int,
    epoch: int,
    target: TaskAssignment,
    holders: Holders,
    reported: TaskAssignment | None,
) -> StreamsMember:
    """`epoch_before` is the epoch in which the member stays as long as it has tasks to give up."""
    step = difference(member.owned, target, epoch, holders)
    if not step.revoked.is_empty() and (reported is None or holds_any(reported, step.revoked)):
        return _moved(member, epoch_before, StreamsMemberState.UNREVOKED_TASKS, step.kept, step.revoked)
    state = StreamsMemberState.UNRELEASED_TASKS if step.waits else StreamsMemberState.STABLE
    return _moved(member, epoch, state, merged(step.kept, step.free), NO_OWNED_TASKS)


def _moved(
    member: StreamsMember, epoch: int, state: StreamsMemberState, owned: OwnedTasks, revoking: OwnedTasks
) -> StreamsMember:
    return replace(
        member,
        member_epoch=epoch,
        previous_epoch=member.member_epoch,
        state=state,
        owned=owned,
        revoking=revoking,
    )
