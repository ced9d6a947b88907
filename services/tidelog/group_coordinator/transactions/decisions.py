"""The decisions on InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn and EndTxn.

Sources: KIP-98; KIP-360 for a producer that names its id and epoch. Version 6 of InitProducerId (two-phase
commit, KIP-939) is rejected, as it is by Kafka 4.3. From version 4 on an AddPartitionsToTxn holds many
transactions and can only verify them (KIP-890).

Up to version 4 of EndTxn a producer keeps its epoch. A late request therefore can't be distinguished from a
request for the next transaction. From version 5 on (KIP-890) each end raises the epoch, and the response
returns it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from tidelog.group_coordinator.transactions.transaction import (
    BUMPING_VERSION,
    LAST_EPOCH,
    PREPARED,
    TransactionDecision,
    TransactionMetadata,
    TransactionStatus,
    completed,
    fenced,
    initialized,
    prepared,
    with_partitions,
)
from tidelog.kernel.instants import WallMs
from tidelog.model.coordinator_shards import ShardKind, shard_for
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.settings.coordinator_settings import CoordinatorSettings
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from tidelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_FIRST_BUMPING_API_VERSION: Final = 5


def bumps(transaction: TransactionMetadata) -> bool:
    """Returns whether the end of this transaction raises the producer epoch."""
    return transaction.version >= BUMPING_VERSION


def decide_end(
    current: TransactionMetadata | None,
    message: EndTxnRequest,
    api_version: int,
    producer_id: int | None,
    now_ms: WallMs,
) -> TransactionDecision[EndTxnResponse]:
    """Decides on an EndTxn. `producer_id` is a new producer id if an earlier verdict requested one."""
    if not message.transactional_id:
        return TransactionDecision(ErrorCode.INVALID_REQUEST)
    if current is None:
        return TransactionDecision(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
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


def _decide_by_state(
    current: TransactionMetadata, message: EndTxnRequest, now_ms: WallMs
) -> TransactionDecision[EndTxnResponse]:
    if current.producer_id != message.producer_id:
        return TransactionDecision(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if current.producer_epoch != message.producer_epoch:
        return TransactionDecision(ErrorCode.PRODUCER_FENCED)
    if current.status is TransactionStatus.ONGOING:
        ended = prepared(
            current, is_commit=message.committed, version=0, next_producer_id=NO_PRODUCER_ID, now_ms=now_ms
        )
        return TransactionDecision(transaction=ended, response=EndTxnResponse())
    return _repeated_end(current, message)


def _repeated_end(
    current: TransactionMetadata, message: EndTxnRequest
) -> TransactionDecision[EndTxnResponse]:
    """Decides on an EndTxn for a transaction that has already ended.

    The same decision is confirmed when its markers are written. The opposite decision is rejected.
    """
    if not _is_decided(current.status, message.committed):
        return TransactionDecision(ErrorCode.INVALID_TXN_STATE)
    if current.status in PREPARED:
        return TransactionDecision(ErrorCode.CONCURRENT_TRANSACTIONS)
    return TransactionDecision(
        response=EndTxnResponse(producer_id=current.producer_id, producer_epoch=current.producer_epoch)
    )


def _decide_by_epoch(
    current: TransactionMetadata, message: EndTxnRequest, producer_id: int | None, now_ms: WallMs
) -> TransactionDecision[EndTxnResponse]:
    if current.status in PREPARED:
        # The producer may already end its next transaction, with the epoch from the previous response,
        # before the markers of this transaction are written.
        return TransactionDecision(ErrorCode.CONCURRENT_TRANSACTIONS)
    if current.is_repeated_end(message.producer_id, message.producer_epoch):
        return _repeated_end(current, message)
    if current.producer_id != message.producer_id:
        return TransactionDecision(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if current.producer_epoch != message.producer_epoch:
        return TransactionDecision(ErrorCode.PRODUCER_FENCED)
    if current.status is not TransactionStatus.ONGOING and message.committed:
        return TransactionDecision(ErrorCode.INVALID_TXN_STATE)
    if current.is_exhausted and producer_id is None:
        return TransactionDecision(needs_producer_id=True)
    ended = prepared(
        current,
        is_commit=message.committed,
        version=BUMPING_VERSION,
        next_producer_id=producer_id if current.is_exhausted and producer_id is not None else NO_PRODUCER_ID,
        now_ms=now_ms,
    )
    # The response already holds the id and epoch that are valid when the markers are written.
    after = completed(ended, now_ms)
    return TransactionDecision(
        transaction=ended,
        response=EndTxnResponse(producer_id=after.producer_id, producer_epoch=after.producer_epoch),
    )


_NEEDS_PRODUCER_ID: Final[TransactionDecision[InitProducerIdResponse]] = TransactionDecision(
    needs_producer_id=True
)


def decide_initialization(
    current: TransactionMetadata | None,
    message: InitProducerIdRequest,
    settings: CoordinatorSettings,
    producer_id: int | None,
    now_ms: WallMs,
) -> TransactionDecision[InitProducerIdResponse]:
    """Decides on an InitProducerId. `producer_id` is a new one if an earlier verdict requested it."""
    if message.transactional_id is None:
        if producer_id is None:
            return _NEEDS_PRODUCER_ID
        return TransactionDecision(response=InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))
    error = _check_initialization(message, settings)
    if error is not ErrorCode.NONE:
        return TransactionDecision(error)
    if current is None:
        if producer_id is None:
            return _NEEDS_PRODUCER_ID
        return _initialized(
            initialized(
                TransactionMetadata(producer_id, NO_PRODUCER_EPOCH, message.transaction_timeout_ms),
                timeout_ms=message.transaction_timeout_ms,
                producer_id=producer_id,
                producer_epoch=0,
                last_epoch=NO_PRODUCER_EPOCH,
                now_ms=now_ms,
            )
        )
    if not _may_initialize(current, message):
        return TransactionDecision(ErrorCode.PRODUCER_FENCED)
    if current.status in PREPARED:
        return TransactionDecision(ErrorCode.CONCURRENT_TRANSACTIONS)
    if current.status is TransactionStatus.ONGOING:
        # Only a producer that named the epoch before the fence learns the epoch of the fence.
        last_epoch = current.producer_epoch if _names_epoch(message) else NO_PRODUCER_EPOCH
        return TransactionDecision(
            ErrorCode.CONCURRENT_TRANSACTIONS, fenced(current, last_epoch=last_epoch, now_ms=now_ms)
        )
    return _claimed(current, message, producer_id, now_ms)


def _check_initialization(message: InitProducerIdRequest, settings: CoordinatorSettings) -> ErrorCode:
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


def _may_initialize(current: TransactionMetadata, message: InitProducerIdRequest) -> bool:
    if not _names_epoch(message):
        return True
    named = (message.producer_id, message.producer_epoch)
    return named == (current.producer_id, current.producer_epoch) or _is_repeated(current, message)


def _is_repeated(current: TransactionMetadata, message: InitProducerIdRequest) -> bool:
    """Returns whether the producer repeats a request whose response it missed.

    Such a producer names the epoch before the newest one.
    """
    if not _names_epoch(message) or message.producer_epoch != current.last_epoch:
        return False
    # The previous id is known only until something is logged under the new id.
    last_id = current.previous_producer_id if current.producer_epoch == 0 else current.producer_id
    return message.producer_id == last_id


def _claimed(
    current: TransactionMetadata, message: InitProducerIdRequest, producer_id: int | None, now_ms: WallMs
) -> TransactionDecision[InitProducerIdResponse]:
    if _is_repeated(current, message) and current.producer_epoch < LAST_EPOCH:
        return _repeated_initialization(current, message, now_ms)
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


def _repeated_initialization(
    current: TransactionMetadata, message: InitProducerIdRequest, now_ms: WallMs
) -> TransactionDecision[InitProducerIdResponse]:
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


def _initialized(transaction: TransactionMetadata) -> TransactionDecision[InitProducerIdResponse]:
    return TransactionDecision(
        transaction=transaction,
        response=InitProducerIdResponse(
            producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch
        ),
    )


FIRST_BATCHED_VERSION: Final = 4
_KNOWS_ABORTABLE_FROM: Final = 5
"""The version of AddPartitionsToTxn from which clients know TRANSACTION_ABORTABLE."""

Errors: TypeAlias = Mapping[TopicPartition, ErrorCode]


class Joiner(NamedTuple):
    """The producer that adds partitions to its transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


def version_of(api_version: int) -> int:
    """Returns the `transaction.version` of a client.

    Only brokers send the batched versions, on behalf of clients that support KIP-890.
    """
    return BUMPING_VERSION if api_version >= FIRST_BATCHED_VERSION else 0


def partitions_of(topics: Sequence[AddPartitionsToTxnTopic]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic.name, index) for topic in topics for index in topic.partitions)


def offsets_partition(group_id: str, partition_count: int) -> TopicPartition:
    return shard_for(ShardKind.GROUP, group_id, partition_count).topic_partition


def _check_joiner(current: TransactionMetadata | None, joiner: Joiner) -> ErrorCode:
    if not joiner.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if current is None or current.producer_id != joiner.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if current.producer_epoch != joiner.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if current.status in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.NONE


def decide_join(
    current: TransactionMetadata | None,
    joiner: Joiner,
    partitions: frozenset[TopicPartition],
    version: int,
    now_ms: WallMs,
) -> tuple[ErrorCode, TransactionMetadata | None]:
    """Returns an error, and the next state; None if nothing changes."""
    error = _check_joiner(current, joiner)
    if error is not ErrorCode.NONE or current is None:
        return error, None
    if current.status is TransactionStatus.ONGOING and partitions <= current.partitions:
        return ErrorCode.NONE, None
    return ErrorCode.NONE, with_partitions(current, partitions, version, now_ms)


def verified(
    current: TransactionMetadata | None,
    joiner: Joiner,
    topics: Sequence[AddPartitionsToTxnTopic],
    api_version: int,
) -> Errors:
    """Returns for each partition whether it is part of the producer's transaction."""
    partitions = partitions_of(topics)
    error = _check_joiner(current, joiner)
    if error is not ErrorCode.NONE or current is None:
        return dict.fromkeys(partitions, error)
    is_under_way = current.status is TransactionStatus.ONGOING
    missing = (
        ErrorCode.TRANSACTION_ABORTABLE
        if api_version >= _KNOWS_ABORTABLE_FROM
        else ErrorCode.INVALID_TXN_STATE
    )
    return {
        partition: ErrorCode.NONE if is_under_way and partition in current.partitions else missing
        for partition in partitions
    }


def topic_results(
    topics: Sequence[AddPartitionsToTxnTopic], errors: Errors
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            topic.name,
            [
                AddPartitionsToTxnPartitionResult(index, int(errors[TopicPartition(topic.name, index)]))
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def result_of(asked: AddPartitionsToTxnTransaction, errors: Errors) -> AddPartitionsToTxnResult:
    return AddPartitionsToTxnResult(asked.transactional_id, topic_results(asked.topics, errors))


def batched_response(results: list[AddPartitionsToTxnResult]) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(results_by_transaction=results)
