"""One member of a consumer group."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from tidelog.group_coordinator.groups.consumer.assignment import NOTHING_OWNED, OwnedPartitions

LEAVE_EPOCH: Final = -1
"""What a member sends as its epoch to leave."""
STATIC_LEAVE_EPOCH: Final = -2
"""What a static member sends to leave until it comes again, and what its epoch is meanwhile."""
JOIN_EPOCH: Final = 0


class MemberState(IntEnum):
    """The byte of the record (Kafka's MemberState)."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It still has to give partitions up, and to say so."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others have not given up."""
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class ClassicSide:
    """Of a member that speaks the classic protocol: its session, and its protocols in order of preference."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Member:
    """What the records say of it. Never changed, only replaced."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topic_names: frozenset[str] = frozenset()
    topic_regex: str = ""
    """Empty: none."""
    server_assignor: str | None = None
    classic: ClassicSide | None = None

    member_epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    owned: OwnedPartitions = field(default_factory=lambda: NOTHING_OWNED)
    revoking: OwnedPartitions = field(default_factory=lambda: NOTHING_OWNED)
    """Still its own, until it no longer names them among what it owns."""

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

    def subscribes_as(self, other: Member) -> bool:
        """The part that the record of its subscription holds is the same."""
        return _subscription(self) == _subscription(other)

    def stands_as(self, other: Member) -> bool:
        """The part that the record of its current assignment holds is the same."""
        return _standing(self) == _standing(other)


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


def _standing(member: Member) -> tuple[object, ...]:
    return member.member_epoch, member.previous_epoch, member.state, member.owned, member.revoking
