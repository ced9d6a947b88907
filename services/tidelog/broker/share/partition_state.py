"""The states of a share partition at its leader, and the transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class SharePartitionState(Enum):
    """The state of one share partition. A partition in a final state is forgotten; the next fetch begins with
    a new one.
    """

    INITIALIZING = "initializing"
    """The state is being read from the share coordinator, and a new start offset is being written."""
    ACTIVE = "active"
    """Records are delivered and acknowledged."""
    FAILED = "failed"
    """The share coordinator refused to give the state."""
    FENCED = "fenced"
    """Another leader has the partition, or the group's offsets were changed, or this broker lost its role."""


TRANSITIONS: Final[Mapping[SharePartitionState, frozenset[SharePartitionState]]] = {
    SharePartitionState.INITIALIZING: frozenset(
        {SharePartitionState.ACTIVE, SharePartitionState.FAILED, SharePartitionState.FENCED}
    ),
    SharePartitionState.ACTIVE: frozenset({SharePartitionState.FENCED}),
    SharePartitionState.FAILED: frozenset(),
    SharePartitionState.FENCED: frozenset(),
}
"""The states that may follow each state."""


class IllegalTransitionError(Exception):
    """A transition that TRANSITIONS does not allow: a bug in the code that asked for it."""


class SharePartitionStateMachine:
    """The state of one share partition. It begins with INITIALIZING."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = SharePartitionState.INITIALIZING

    @property
    def is_over(self) -> bool:
        """Whether the state is final."""
        return not TRANSITIONS[self.state]

    def enter(self, state: SharePartitionState) -> None:
        """Changes the state. Raises IllegalTransitionError if TRANSITIONS does not allow that."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransitionError(
                f"a share partition that is {self.state.value} can't become {state.value}"
            )
        self.state = state
