"""The states of a transactional producer."""

from __future__ import annotations

from enum import Enum
from typing import Final

from tidelog.client.errors import InvalidTransactionStateError
from tidelog.kernel.machine import StateTable


class TransactionState(Enum):
    UNINITIALISED = "uninitialised"
    """Without a producer id."""
    READY = "ready"
    """Between two transactions."""
    OPEN = "open"
    ENDING = "ending"
    """Records are still sent, or the coordinator has not answered the commit or abort."""
    FENCED = "fenced"
    """A newer producer has the transactional id, or the outcome is unknown. The producer must be closed: the
    coordinator may still end the transaction, and would take the records of another one into it."""


STATES: Final = StateTable(
    "the transaction",
    {
        TransactionState.UNINITIALISED: {TransactionState.READY, TransactionState.FENCED},
        TransactionState.READY: {TransactionState.OPEN, TransactionState.FENCED},
        TransactionState.OPEN: {TransactionState.ENDING, TransactionState.FENCED},
        TransactionState.ENDING: {TransactionState.READY, TransactionState.OPEN, TransactionState.FENCED},
        TransactionState.FENCED: set(),
    },
)


class Transaction:
    """The present transaction of a producer."""

    def __init__(self) -> None:
        self.state: TransactionState = TransactionState.UNINITIALISED
        self.has_content: bool = False
        """Whether a record or an offset was sent, so that the coordinator knows the transaction."""

    def move_to(self, state: TransactionState) -> None:
        """Raises InvalidTransactionStateError."""
        if not STATES.allows(self.state, state):
            raise InvalidTransactionStateError(
                f"the transaction is {self.state.value}, so it cannot become {state.value}"
            )
        self.state = state

    def begin(self) -> None:
        """Raises InvalidTransactionStateError, also while the previous transaction ends."""
        if self.state is not TransactionState.READY:
            raise InvalidTransactionStateError(
                f"no transaction can begin, because the transaction is {self.state.value}"
            )
        self.move_to(TransactionState.OPEN)
        self.has_content = False

    def check_open(self) -> None:
        """Raises InvalidTransactionStateError unless a transaction is open."""
        if self.state is not TransactionState.OPEN:
            raise InvalidTransactionStateError(
                f"this needs an open transaction, and the transaction is {self.state.value}"
            )
