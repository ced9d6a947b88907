"""InitProducerId: a producer takes a transactional id, fencing the one before, or takes up its own again.

Source: KIP-98; KIP-360 for a producer that names its id and epoch. Versions 0-5; the two-phase commits of
version 6 (KIP-939), which Kafka 4.3 doesn't serve either, are refused by the version.
"""

from __future__ import annotations

from tidelog.group_coordinator.transactions.transaction import (
    LAST_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    Transaction,
    TransactionStatus,
    fenced,
    initialized,
)
from tidelog.group_coordinator.transactions.verdict import Verdict
from tidelog.model.errors import ErrorCode
from tidelog.runtime.coordinator_settings import CoordinatorSettings
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_NEEDS_PRODUCER_ID = Verdict(needs_producer_id=True)


def decide(
    current: Transaction | None,
    message: InitProducerIdRequest,
    settings: CoordinatorSettings,
    producer_id: int | None,
    now_ms: int,
) -> Verdict:
    """`producer_id` is a new one, if it was asked for."""
    if message.transactional_id is None:
        if producer_id is None:
            return _NEEDS_PRODUCER_ID
        return Verdict(response=InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))
    error = _problem(message, settings)
    if error is not ErrorCode.NONE:
        return Verdict(error)
    if current is None:
        if producer_id is None:
            return _NEEDS_PRODUCER_ID
        return _begun(
            initialized(
                Transaction(producer_id, NO_PRODUCER_EPOCH, message.transaction_timeout_ms),
                timeout_ms=message.transaction_timeout_ms,
                producer_id=producer_id,
                producer_epoch=0,
                last_epoch=NO_PRODUCER_EPOCH,
                now_ms=now_ms,
            )
        )
    if not _may_take_up(current, message):
        return Verdict(ErrorCode.PRODUCER_FENCED)
    if current.status in PREPARED:
        return Verdict(ErrorCode.CONCURRENT_TRANSACTIONS)
    if current.status is TransactionStatus.ONGOING:
        last_epoch = current.producer_epoch if _is_named(message) else NO_PRODUCER_EPOCH
        # The epoch of the fence is told to nobody but the one that named the epoch before it.
        return Verdict(
            ErrorCode.CONCURRENT_TRANSACTIONS, fenced(current, last_epoch=last_epoch, now_ms=now_ms)
        )
    return _taken(current, message, producer_id, now_ms)


def _problem(message: InitProducerIdRequest, settings: CoordinatorSettings) -> ErrorCode:
    if not message.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if (message.producer_id == NO_PRODUCER_ID) != (message.producer_epoch == NO_PRODUCER_EPOCH):
        return ErrorCode.INVALID_REQUEST
    if not 0 < message.transaction_timeout_ms <= settings.transaction_max_timeout_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.NONE


def _is_named(message: InitProducerIdRequest) -> bool:
    return message.producer_id != NO_PRODUCER_ID


def _may_take_up(current: Transaction, message: InitProducerIdRequest) -> bool:
    if not _is_named(message):
        return True
    named = (message.producer_id, message.producer_epoch)
    return named == (current.producer_id, current.producer_epoch) or _is_repeated(current, message)


def _is_repeated(current: Transaction, message: InitProducerIdRequest) -> bool:
    """The producer names the epoch before the newest, which is its own: it missed the answer."""
    if not _is_named(message) or message.producer_epoch != current.last_epoch:
        return False
    told_id = current.previous_producer_id if current.producer_epoch == 0 else current.producer_id
    # Once anything was logged in the new id's name, the id before it isn't known any more.
    return message.producer_id == told_id


def _taken(
    current: Transaction, message: InitProducerIdRequest, producer_id: int | None, now_ms: int
) -> Verdict:
    if _is_repeated(current, message) and current.producer_epoch < LAST_EPOCH:
        return _repeated(current, message, now_ms)
    if current.is_exhausted:
        if producer_id is None:
            return _NEEDS_PRODUCER_ID
        next_id, next_epoch = producer_id, 0
        has_last = _is_named(message) and message.producer_epoch == LAST_EPOCH - 1
        last_epoch = message.producer_epoch if has_last else NO_PRODUCER_EPOCH
    else:
        next_id, next_epoch = current.producer_id, current.producer_epoch + 1
        last_epoch = current.producer_epoch if _is_named(message) else NO_PRODUCER_EPOCH
    return _begun(
        initialized(
            current,
            timeout_ms=message.transaction_timeout_ms,
            producer_id=next_id,
            producer_epoch=next_epoch,
            last_epoch=last_epoch,
            now_ms=now_ms,
        )
    )


def _repeated(current: Transaction, message: InitProducerIdRequest, now_ms: int) -> Verdict:
    """The same id and epoch again. This answer may be lost, too, so `previous_producer_id` stays."""
    told = initialized(
        current,
        timeout_ms=message.transaction_timeout_ms,
        producer_id=current.producer_id,
        producer_epoch=current.producer_epoch,
        last_epoch=current.last_epoch,
        now_ms=now_ms,
    )
    return _begun(told._replace(previous_producer_id=current.previous_producer_id))


def _begun(transaction: Transaction) -> Verdict:
    return Verdict(
        transaction=transaction,
        response=InitProducerIdResponse(
            producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch
        ),
    )
