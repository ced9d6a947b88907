"""One member of a consumer group, and the sets of partitions that members own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from operator import attrgetter
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

from tidelog.group_coordinator.groups.shared import memory_of_member

LEAVE_EPOCH: Final = -1
"""The epoch in the heartbeat of a member that leaves."""
STATIC_LEAVE_EPOCH: Final = -2
"""The epoch in the heartbeat of a static member that leaves temporarily, and its epoch while it is away."""
JOIN_EPOCH: Final = 0
"""The epoch in the heartbeat of a member that joins."""

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
"""The partitions that a member should own, by topic id. No topic has an empty set."""

OwnedPartitions: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""The partitions that a member owns, by topic id. No topic has an empty mapping.

Each partition maps to the member epoch in which the member received it.
"""

NO_PARTITIONS: Final[Assignment] = MappingProxyType({})
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
class Member:
    """A member as its records describe it. A change replaces the object."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topic_names: frozenset[str] = frozenset()
    topic_regex: str = ""
    """The regular expression that the member subscribes to; empty if there is none."""
    server_assignor: str | None = None
    classic: ClassicSide | None = None

    member_epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    owned: OwnedPartitions = field(default_factory=lambda: NOTHING_OWNED)
    revoking: OwnedPartitions = field(default_factory=lambda: NOTHING_OWNED)
    """Partitions that the member must give up. It owns them until its heartbeat no longer names them."""

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

    def has_subscription_of(self, other: Member) -> bool:
        """Returns whether both members have the same ConsumerGroupMemberMetadata record."""
        return _subscription(self) == _subscription(other)

    def has_assignment_of(self, other: Member) -> bool:
        """Returns whether both members have the same ConsumerGroupCurrentMemberAssignment record."""
        return _current_assignment(self) == _current_assignment(other)


def _subscription(member: Member) -> tuple[object, ...]:
    return (
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.topic_names,
        member.topic_regex,
        member.server_assignor,
        member.classic,
    )


def _current_assignment(member: Member) -> tuple[object, ...]:
    return member.member_epoch, member.previous_epoch, member.state, member.owned, member.revoking


class _Topic(Protocol):
    """A generated class that holds partitions of one topic."""

    topic_id: UUID
    partitions: list[int]


T = TypeVar("T", bound=_Topic)


def from_message(topics: Iterable[T]) -> Assignment:
    """Returns the partitions of a message, which may name a topic more than once."""
    found: dict[UUID, frozenset[int]] = {}
    for topic in topics:
        if topic.partitions:
            found[topic.topic_id] = found.get(topic.topic_id, frozenset()) | frozenset(topic.partitions)
    return found


def to_message(topic_class: type[T], partitions: Mapping[UUID, Iterable[int]]) -> list[T]:
    """Returns the partitions as message objects.

    They are sorted by topic id and partition, so that equal assignments have equal bytes.
    """
    topics = []
    for topic_id in sorted(partitions, key=attrgetter("int")):  # their own order, but faster
        topic = topic_class()
        topic.topic_id = topic_id
        topic.partitions = sorted(partitions[topic_id])
        topics.append(topic)
    return topics


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
