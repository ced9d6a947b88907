"""InitProducerId: a producer claims a transactional id and fences the previous producer, or resumes its own.

Source: KIP-98; KIP-360 for a producer that names its id and epoch. Versions 0-5. Version 6 (two-phase commit,
KIP-939) is rejected, as it is by Kafka 4.3.
"""

from __future__ import annotations

from typing import Final

from tidelog.group_coordinator.transactions.transaction import (
    LAST_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    Transaction,
    TransactionStatus,
    Verdict,
    fenced,
    initialized,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.instants import WallMs
from tidelog.settings.coordinator_settings import CoordinatorSettings
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_NEEDS_PRODUCER_ID: Final[Verdict[InitProducerIdResponse]] = Verdict(needs_producer_id=True)


def decide(
    current: Transaction | None,
    message: InitProducerIdRequest,
    settings: CoordinatorSettings,
    producer_id: int | None,
    now_ms: WallMs,
) -> Verdict[InitProducerIdResponse]:
    """Decides on an InitProducerId. `producer_id` is a new one if an earlier verdict requested it."""
    if message.transactional_id is None:
        if producer_id is None:
            return _NEEDS_PRODUCER_ID
        return Verdict(response=InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))
    error = _check(message, settings)
    if error is not ErrorCode.NONE:
        return Verdict(error)
    if current is None:
        if producer_id is None:
            return _NEEDS_PRODUCER_ID
        return _initialized(
            initialized(
                Transaction(producer_id, NO_PRODUCER_EPOCH, message.transaction_timeout_ms),
                timeout_ms=message.transaction_timeout_ms,
                producer_id=producer_id,
                producer_epoch=0,
                last_epoch=NO_PRODUCER_EPOCH,
                now_ms=now_ms,
            )
        )
    if not _may_initialize(current, message):
        return Verdict(ErrorCode.PRODUCER_FENCED)
    if current.status in PREPARED:
        return Verdict(ErrorCode.CONCURRENT_TRANSACTIONS)
    if current.status is TransactionStatus.ONGOING:
        # Only a producer that named the epoch before the fence learns the epoch of the fence.
        last_epoch = current.producer_epoch if _names_epoch(message) else NO_PRODUCER_EPOCH
        return Verdict(
            ErrorCode.CONCURRENT_TRANSACTIONS, fenced(current, last_epoch=last_epoch, now_ms=now_ms)
        )
    return _claimed(current, message, producer_id, now_ms)


def _check(message: InitProducerIdRequest, settings: CoordinatorSettings) -> ErrorCode:
    if not message.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if (message.producer_id == NO_PRODUCER_ID) != (message.producer_epoch == NO_PRODUCER_EPOCH):
        return ErrorCode.INVALID_REQUEST
    if not 0 < message.transaction_timeout_ms <= settings.transaction_max_timeout_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.NONE


def _names_epoch(message: InitProducerIdRequest) -> bool:
    """Returns whether the request names a producer id and epoch (KIP-360)."""
    return message.producer_id != NO_PRODUCER_ID


def _may_initialize(current: Transaction, message: InitProducerIdRequest) -> bool:
    if not _names_epoch(message):
        return True
    named = (message.producer_id, message.producer_epoch)
    return named == (current.producer_id, current.producer_epoch) or _is_repeated(current, message)


def _is_repeated(current: Transaction, message: InitProducerIdRequest) -> bool:
    """Returns whether the producer repeats a request whose response it missed.

    Such a producer names the epoch before the newest one.
    """
    if not _names_epoch(message) or message.producer_epoch != current.last_epoch:
        return False
    # The previous id is known only until something is logged under the new id.
    last_id = current.previous_producer_id if current.producer_epoch == 0 else current.producer_id
    return message.producer_id == last_id


def _claimed(
    current: Transaction, message: InitProducerIdRequest, producer_id: int | None, now_ms: WallMs
) -> Verdict[InitProducerIdResponse]:
    if _is_repeated(current, message) and current.producer_epoch < LAST_EPOCH:
        return _repeated(current, message, now_ms)
    if current.is_exhausted:
        if producer_id is None:
            return _NEEDS_PRODUCER_ID
        next_id, next_epoch = producer_id, 0
        has_last = _names_epoch(message) and message.producer_epoch == LAST_EPOCH - 1
        last_epoch = message.producer_epoch if has_last else NO_PRODUCER_EPOCH
    else:
        next_id, next_epoch = current.producer_id, current.producer_epoch + 1
        last_epoch = current.producer_epoch if _names_epoch(message) else NO_PRODUCER_EPOCH
    return _initialized(
        initialized(
            current,
            timeout_ms=message.transaction_timeout_ms,
            producer_id=next_id,
            producer_epoch=next_epoch,
            last_epoch=last_epoch,
            now_ms=now_ms,
        )
    )


def _repeated(
    current: Transaction, message: InitProducerIdRequest, now_ms: WallMs
) -> Verdict[InitProducerIdResponse]:
    """Returns the same id and epoch again.

    This response may be lost, too, so `previous_producer_id` remains.
    """
    same = initialized(
        current,
        timeout_ms=message.transaction_timeout_ms,
        producer_id=current.producer_id,
        producer_epoch=current.producer_epoch,
        last_epoch=current.last_epoch,
        now_ms=now_ms,
    )
    return _initialized(same._replace(previous_producer_id=current.previous_producer_id))


def _initialized(transaction: Transaction) -> Verdict[InitProducerIdResponse]:
    return Verdict(
        transaction=transaction,
        response=InitProducerIdResponse(
            producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch
        ),
    )
