"""One member of a share group."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.group_coordinator.groups.consumer.member import NO_PARTITIONS, Assignment
from tidelog.group_coordinator.groups.shared import memory_of_member


@dataclass(frozen=True, slots=True)
class ShareMember:
    """A member as its records describe it. A change replaces the object."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()

    member_epoch: int = 0
    previous_epoch: int = 0
    assigned: Assignment = field(default_factory=lambda: NO_PARTITIONS)

    @property
    def memory_bytes(self) -> int:
        return memory_of_member(
            (self.member_id, self.rack_id, self.client_id, self.client_host, *self.topic_names)
        )

    def has_subscription_of(self, other: ShareMember) -> bool:
        """Returns whether both members have the same ShareGroupMemberMetadata record."""
        return _subscription(self) == _subscription(other)


def _subscription(member: ShareMember) -> tuple[object, ...]:
    return member.rack_id, member.client_id, member.client_host, member.topic_names
