"""Records of `__transaction_state`, in Kafka's format (`TransactionLogKey`, `TransactionLogValue` version 1).

Kafka doesn't log the last epoch, so with it a repeated InitProducerId is fenced once the shard has moved.
Here the value's `next_producer_epoch` ("latest epoch sent to the producer", KIP-939) equals `producer_epoch`
where there is a last epoch: that is the one before.
"""

from __future__ import annotations

from collections import defaultdict

from tidelog.group_coordinator.shard_core import CoordinatorRecord, ReplayedRecord, UnknownRecordError
from tidelog.group_coordinator.transactions.transaction import (
    LAST_EPOCH,
    NO_PRODUCER_EPOCH,
    Transaction,
    TransactionStatus,
)
from tidelog.model.topics import TopicPartition
from tidelog.wire.codec import MalformedMessageError, UnsupportedVersionError, record_codec
from tidelog.wire.messages.records.transaction_log import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)

_KEY = record_codec(TransactionLogKey)
_VALUE = record_codec(TransactionLogValue)
_VALUE_VERSION = 1
_STORED = frozenset(TransactionStatus) - {TransactionStatus.DEAD, TransactionStatus.PREPARE_EPOCH_FENCE}


def record_of(transactional_id: str, transaction: Transaction | None) -> CoordinatorRecord:
    """None makes it a tombstone."""
    key = _KEY.encode(TransactionLogKey(transactional_id))
    if transaction is None:
        return CoordinatorRecord(key, None)
    has_last_epoch = transaction.last_epoch != NO_PRODUCER_EPOCH
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        next_producer_epoch=transaction.producer_epoch if has_last_epoch else NO_PRODUCER_EPOCH,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.status,
        transaction_partitions=None
        if transaction.status is TransactionStatus.EMPTY
        else _by_topic(transaction.partitions),
        transaction_last_update_timestamp_ms=transaction.update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        client_transaction_version=transaction.version,
    )
    return CoordinatorRecord(key, _VALUE.encode(value, _VALUE_VERSION))


def _by_topic(partitions: frozenset[TopicPartition]) -> list[PartitionsSchema]:
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        topics[topic].append(partition)
    return [PartitionsSchema(topic, ids) for topic, ids in topics.items()]


def read_record(record: ReplayedRecord) -> tuple[str, Transaction | None]:
    """Transactional id and state. Raises UnknownRecordError."""
    try:
        transactional_id = _KEY.decode(record.key).transactional_id
        if record.value is None:
            return transactional_id, None
        value = _VALUE.decode(record.value)
        status = TransactionStatus(value.transaction_status)
    except (MalformedMessageError, UnsupportedVersionError, ValueError) as problem:
        raise UnknownRecordError(str(problem)) from problem
    if status not in _STORED:
        raise UnknownRecordError(
            f"transactional id {transactional_id!r}: status {status.name} is never logged"
        )
    return transactional_id, Transaction(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        status=status,
        partitions=frozenset(
            TopicPartition(topic.topic, partition)
            for topic in value.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        update_ms=value.transaction_last_update_timestamp_ms,
        last_epoch=_last_epoch(value),
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        version=value.client_transaction_version,
    )


def _last_epoch(value: TransactionLogValue) -> int:
    if value.next_producer_epoch != value.producer_epoch:
        return NO_PRODUCER_EPOCH
    return value.producer_epoch - 1 if value.producer_epoch > 0 else LAST_EPOCH - 1
