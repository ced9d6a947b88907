"""One member of a classic group."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class MemberProtocol(NamedTuple):
    """An assignor that a member knows, and what it has to say to it: for consumers their subscription."""

    name: str
    metadata: bytes


class ParkedJoin(NamedTuple):
    reply_to: Hashable
    api_version: int


@dataclass(slots=True)
class SessionDeadline:
    """When a member is taken for dead. The timer is set only if it would fire too late: one that fires too
    early is set anew, so a heartbeat mostly sets none.
    """

    deadline_ms: int = 0
    timer_ms: int | None = None
    """When the timer fires that is set, if one is."""


@dataclass(slots=True)
class ClassicMember:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    """In the order in which it prefers them."""
    assignment: bytes = b""

    # -- what no record holds

    is_new: bool = False
    """Not yet through a join, so that it knows no member id to send heartbeats with."""
    join: ParkedJoin | None = None
    """Its JoinGroup that waits for an answer."""
    sync: Hashable | None = None
    """Whom to answer its SyncGroup, if that waits."""
    session: SessionDeadline = field(default_factory=SessionDeadline)

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    def metadata(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: Collection[str]) -> str | None:
        return next((name for name, _ in self.protocols if name in candidates), None)

    def knows(self, protocols: Sequence[str]) -> bool:
        return any(name in protocols for name, _ in self.protocols)
