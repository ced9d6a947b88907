"""What a request about a transactional id comes to."""

from __future__ import annotations

from typing import Any, NamedTuple

from tidelog.group_coordinator.transactions.transaction import Transaction
from tidelog.model.errors import ErrorCode


class Verdict(NamedTuple):
    """`transaction` is the next state, if there is one: logged also where `error` refuses the request (a
    producer that fences another is told to come back once that one's transaction is aborted).
    """

    error: ErrorCode = ErrorCode.NONE
    transaction: Transaction | None = None
    response: Any = None
    needs_producer_id: bool = False
    """Nothing is decided yet: to be asked again with one."""
