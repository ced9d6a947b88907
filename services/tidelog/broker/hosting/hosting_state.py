"""The states of a partition that this broker hosts, and the transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


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


TRANSITIONS: Final[Mapping[HostingState, frozenset[HostingState]]] = {
    HostingState.OPENING: frozenset({HostingState.SETTLING, HostingState.FAILED}),
    HostingState.SETTLING: frozenset({HostingState.LEADING, HostingState.FOLLOWING, HostingState.FAILED}),
    HostingState.LEADING: frozenset({HostingState.SETTLING, HostingState.CLOSED}),
    HostingState.FOLLOWING: frozenset({HostingState.SETTLING, HostingState.CLOSED}),
    HostingState.FAILED: frozenset({HostingState.OPENING, HostingState.CLOSED}),
    HostingState.CLOSED: frozenset(),
}
"""The states that may follow each state. Every role begins with SETTLING, also a repeated one."""


class IllegalTransitionError(Exception):
    """A transition that TRANSITIONS does not allow: a bug in the code that asked for it."""


class HostingStateMachine:
    """The state of one hosted partition. It begins with OPENING and ends with CLOSED."""

    __slots__ = ("is_settling", "state")

    def __init__(self) -> None:
        self.state = HostingState.OPENING
        self.is_settling = False
        """Whether the state is SETTLING; a plain attribute because each append reads it."""

    def enter(self, state: HostingState) -> None:
        """Changes the state. Raises IllegalTransitionError if TRANSITIONS does not allow that."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransitionError(f"a partition that is {self.state.value} can't become {state.value}")
        self.state = state
        self.is_settling = state is HostingState.SETTLING
