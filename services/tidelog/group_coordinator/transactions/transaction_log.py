"""Records of `__transaction_state`, in Kafka's format (`TransactionLogKey`, `TransactionLogValue` version 1).

Records are encoded by hand, which takes a third of the codec's time, and decoded by the codec.

Kafka does not log the last epoch, so it fences a repeated InitProducerId after the shard has moved. Here the
value's `next_producer_epoch` ("latest epoch sent to the producer", KIP-939) equals `producer_epoch` if there
is a last epoch, which is the previous epoch.
"""

from __future__ import annotations

import struct
from typing import Final

from tidelog.group_coordinator.shard_core import CoordinatorRecord, ReplayedRecord, UnknownRecordError
from tidelog.group_coordinator.transactions.transaction import (
    LAST_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
    TransactionStatus,
    by_topic,
)
from tidelog.model.instants import WallMs
from tidelog.model.topics import TopicPartition
from tidelog.wire.codec import MalformedMessageError, UnsupportedVersionError, record_codec
from tidelog.wire.messages.records.transaction_log import (
    TransactionLogKey,
    TransactionLogValue,
)
from tidelog.wire.primitives import uvarint

_KEY = record_codec(TransactionLogKey)
_VALUE = record_codec(TransactionLogValue)
_VALUE_VERSION = 1
_KIND: Final = 0
_KEY_START: Final = struct.Struct(">hh")
_VALUE_START: Final = struct.Struct(">hqhib")
_TIMESTAMPS: Final = struct.Struct(">qq")
_TAGGED_INT64: Final = struct.Struct(">BBq")
_TAGGED_INT16: Final = struct.Struct(">BBh")
_STORED = frozenset(TransactionStatus) - {TransactionStatus.DEAD, TransactionStatus.PREPARE_EPOCH_FENCE}


def transaction_record(transactional_id: str, transaction: Transaction | None) -> CoordinatorRecord:
    """Returns the record of a transaction, or a tombstone if `transaction` is None."""
    name = transactional_id.encode()
    key = _KEY_START.pack(_KIND, len(name)) + name
    if transaction is None:
        return CoordinatorRecord(key, None)
    value = b"".join(
        (
            _VALUE_START.pack(
                _VALUE_VERSION,
                transaction.producer_id,
                transaction.producer_epoch,
                transaction.timeout_ms,
                transaction.status,
            ),
            *_partitions(transaction),
            _TIMESTAMPS.pack(transaction.update_ms, transaction.start_ms),
            *_tagged(transaction),
        )
    )
    return CoordinatorRecord(key, value)


def _partitions(transaction: Transaction) -> list[bytes]:
    """Encodes the partitions. They are null in the state EMPTY, as in Kafka's records."""
    if transaction.status is TransactionStatus.EMPTY:
        return [b"\0"]
    topics = by_topic(transaction.partitions)
    chunks = [uvarint(len(topics) + 1)]
    for topic, partitions in topics.items():
        name = topic.encode()
        chunks += (uvarint(len(name) + 1), name, uvarint(len(partitions) + 1))
        chunks += (struct.pack(f">{len(partitions)}i", *partitions), b"\0")
    return chunks


def _tagged(transaction: Transaction) -> list[bytes]:
    """Encodes the tagged fields that differ from their defaults, in the order of their tags."""
    fields = []
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        fields.append(_TAGGED_INT64.pack(0, 8, transaction.previous_producer_id))
    if transaction.next_producer_id != NO_PRODUCER_ID:
        fields.append(_TAGGED_INT64.pack(1, 8, transaction.next_producer_id))
    if transaction.version:
        fields.append(_TAGGED_INT16.pack(2, 2, transaction.version))
    if transaction.last_epoch != NO_PRODUCER_EPOCH:
        fields.append(_TAGGED_INT16.pack(3, 2, transaction.producer_epoch))
    return [bytes((len(fields),)), *fields]


def read_record(record: ReplayedRecord) -> tuple[str, Transaction | None]:
    """Returns the transactional id and its state, None for a tombstone. Raises UnknownRecordError."""
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
            f"the record of transactional id {transactional_id!r} has the state {status.name}, "
            "which is never logged"
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
        start_ms=WallMs(value.transaction_start_timestamp_ms),
        update_ms=WallMs(value.transaction_last_update_timestamp_ms),
        last_epoch=_last_epoch(value),
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        version=value.client_transaction_version,
    )


def _last_epoch(value: TransactionLogValue) -> int:
    if value.next_producer_epoch != value.producer_epoch:
        return NO_PRODUCER_EPOCH
    return value.producer_epoch - 1 if value.producer_epoch > 0 else LAST_EPOCH - 1
