"""EndTxn: the end of a transaction by its producer.

Up to version 4 a producer keeps its epoch. A late request therefore can't be distinguished from a request for
the next transaction. From version 5 on (KIP-890) each end raises the epoch, and the response returns it.
"""

from __future__ import annotations

from typing import Final

from tidelog.group_coordinator.transactions.transaction import (
    BUMPING_VERSION,
    NO_PRODUCER_ID,
    PREPARED,
    Transaction,
    TransactionStatus,
    Verdict,
    completed,
    prepared,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.instants import WallMs
from tidelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

_FIRST_BUMPING_API_VERSION: Final = 5


def bumps(transaction: Transaction) -> bool:
    """Returns whether the end of this transaction raises the producer epoch."""
    return transaction.version >= BUMPING_VERSION


def decide(
    current: Transaction | None,
    message: EndTxnRequest,
    api_version: int,
    producer_id: int | None,
    now_ms: WallMs,
) -> Verdict[EndTxnResponse]:
    """Decides on an EndTxn. `producer_id` is a new producer id if an earlier verdict requested one."""
    if not message.transactional_id:
        return Verdict(ErrorCode.INVALID_REQUEST)
    if current is None:
        return Verdict(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if api_version < _FIRST_BUMPING_API_VERSION:
        return _decide_by_state(current, message, now_ms)
    return _decide_by_epoch(current, message, producer_id, now_ms)


def _is_decided(status: TransactionStatus, is_commit: bool) -> bool:
    wanted = (
        (TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT)
        if is_commit
        else (TransactionStatus.PREPARE_ABORT, TransactionStatus.COMPLETE_ABORT)
    )
    return status in wanted


def _decide_by_state(current: Transaction, message: EndTxnRequest, now_ms: WallMs) -> Verdict[EndTxnResponse]:
    if current.producer_id != message.producer_id:
        return Verdict(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if current.producer_epoch != message.producer_epoch:
        return Verdict(ErrorCode.PRODUCER_FENCED)
    if current.status is TransactionStatus.ONGOING:
        ended = prepared(
            current, is_commit=message.committed, version=0, next_producer_id=NO_PRODUCER_ID, now_ms=now_ms
        )
        return Verdict(transaction=ended, response=EndTxnResponse())
    return _repeated(current, message)


def _repeated(current: Transaction, message: EndTxnRequest) -> Verdict[EndTxnResponse]:
    """Decides on an EndTxn for a transaction that has already ended.

    The same decision is confirmed when its markers are written. The opposite decision is rejected.
    """
    if not _is_decided(current.status, message.committed):
        return Verdict(ErrorCode.INVALID_TXN_STATE)
    if current.status in PREPARED:
        return Verdict(ErrorCode.CONCURRENT_TRANSACTIONS)
    return Verdict(
        response=EndTxnResponse(producer_id=current.producer_id, producer_epoch=current.producer_epoch)
    )


def _decide_by_epoch(
    current: Transaction, message: EndTxnRequest, producer_id: int | None, now_ms: WallMs
) -> Verdict[EndTxnResponse]:
    if current.status in PREPARED:
        # The producer may already end its next transaction, with the epoch from the previous response,
        # before the markers of this transaction are written.
        return Verdict(ErrorCode.CONCURRENT_TRANSACTIONS)
    if current.is_repeated_end(message.producer_id, message.producer_epoch):
        return _repeated(current, message)
    if current.producer_id != message.producer_id:
        return Verdict(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if current.producer_epoch != message.producer_epoch:
        return Verdict(ErrorCode.PRODUCER_FENCED)
    if current.status is not TransactionStatus.ONGOING and message.committed:
        return Verdict(ErrorCode.INVALID_TXN_STATE)
    if current.is_exhausted and producer_id is None:
        return Verdict(needs_producer_id=True)
    ended = prepared(
        current,
        is_commit=message.committed,
        version=BUMPING_VERSION,
        next_producer_id=producer_id if current.is_exhausted and producer_id is not None else NO_PRODUCER_ID,
        now_ms=now_ms,
    )
    # The response already holds the id and epoch that are valid when the markers are written.
    after = completed(ended, now_ms)
    return Verdict(
        transaction=ended,
        response=EndTxnResponse(producer_id=after.producer_id, producer_epoch=after.producer_epoch),
    )
