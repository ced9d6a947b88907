"""The states of a partition that this broker hosts, and the transitions between them."""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeAlias

from tidelog.kernel.machine import Machine, StateTable


class HostingState(Enum):
    """The state of a partition that the controller assigned to this broker."""

    OPENING = "opening"
    """The log is being created or recovered."""
    SETTLING = "settling"
    """A new role is being written to disk. Requests are rejected."""
    LEADING = "leading"
    """The controller made this broker the leader. The core may have stepped down since."""
    FOLLOWING = "following"
    """Another broker leads the partition, or no broker does."""
    FAILED = "failed"
    """The log could not be opened or the role not be taken. The broker tries again later."""
    CLOSED = "closed"
    """This broker no longer hosts the partition. It has a new state machine if it is assigned again."""


STATES: Final = StateTable(
    "a partition",
    {
        HostingState.OPENING: (HostingState.SETTLING, HostingState.FAILED),
        HostingState.SETTLING: (HostingState.LEADING, HostingState.FOLLOWING, HostingState.FAILED),
        HostingState.LEADING: (HostingState.SETTLING, HostingState.CLOSED),
        HostingState.FOLLOWING: (HostingState.SETTLING, HostingState.CLOSED),
        HostingState.FAILED: (HostingState.OPENING, HostingState.CLOSED),
        HostingState.CLOSED: (),
    },
)
"""The life of a hosted partition. Every role begins with SETTLING, also a repeated one."""

SETTLING: Final = HostingState.SETTLING  # each append reads it
HostingMachine: TypeAlias = Machine[HostingState]
