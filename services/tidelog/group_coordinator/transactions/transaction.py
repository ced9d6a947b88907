"""The state of one transactional id, its transitions, and its records in `__transaction_state`.

The states, with their numbers and names, are those of Kafka's `TransactionState`. The rules of epochs are
those of KIP-98, KIP-360 and KIP-890. `TransactionMetadata` is immutable: each transition returns the next
one, which the core then logs and applies.

Records have Kafka's format (`TransactionLogKey`, `TransactionLogValue` version 1). They are encoded by
hand, which takes a third of the codec's time, and decoded by the codec. Kafka does not log the last epoch,
so it fences a repeated InitProducerId after the shard has moved. Here the value's `next_producer_epoch`
("latest epoch sent to the producer", KIP-939) equals `producer_epoch` if there is a last epoch, which is
the previous epoch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, Generic, NamedTuple, TypeVar

from tidelog.group_coordinator.shard_core import (
    CoordinatorRecord,
    ReplayedRecord,
    UnknownRecordError,
)
from tidelog.kernel.instants import WallMs
from tidelog.kernel.machine import StateTable
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.wire.codec import MalformedMessageError, UnsupportedVersionError, record_codec
from tidelog.wire.messages.records.transaction_log import (
    TransactionLogKey,
    TransactionLogValue,
)
from tidelog.wire.primitives import uvarint

LAST_EPOCH: Final = 32_767
"""The epoch that no client receives, so that the coordinator can always fence the previous epoch."""
BUMPING_VERSION: Final = 2
"""The `transaction.version` from which each end of a transaction raises the epoch (KIP-890)."""


class TransactionStatus(IntEnum):
    """The state of a transactional id. The value is the byte in the record."""

    EMPTY = 0
    """The producer has begun no transaction since its InitProducerId."""
    ONGOING = 1
    """Partitions have been added, and the transaction has not ended."""
    PREPARE_COMMIT = 2
    """The commit is decided; the markers are being written."""
    PREPARE_ABORT = 3
    """The abort is decided; the markers are being written."""
    COMPLETE_COMMIT = 4
    """All commit markers are written."""
    COMPLETE_ABORT = 5
    """All abort markers are written."""
    DEAD = 6
    """The transactional id has expired. No record holds this state; a tombstone stands for it."""
    PREPARE_EPOCH_FENCE = 7
    """Kafka's state while it fences a producer, which tidelog never uses."""

    @property
    def kafka_name(self) -> str:
        """The name in DescribeTransactions and ListTransactions."""
        return _KAFKA_NAMES[self]


_KAFKA_NAMES: Final = {
    status: "".join(word.capitalize() for word in status.name.split("_")) for status in TransactionStatus
}
STATUS_BY_KAFKA_NAME: Final = {name: status for status, name in _KAFKA_NAMES.items()}
PREPARED: Final = frozenset({TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT})
COMPLETE: Final = frozenset({TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT})
AT_REST: Final = COMPLETE | {TransactionStatus.EMPTY}
"""The states in which no transaction is open."""

STATES: Final = StateTable(
    "a transaction",
    {
        # An abort of a transaction without partitions skips ONGOING (KIP-890).
        **dict.fromkeys(
            AT_REST,
            (
                TransactionStatus.EMPTY,
                TransactionStatus.ONGOING,
                TransactionStatus.PREPARE_ABORT,
                TransactionStatus.DEAD,
            ),
        ),
        TransactionStatus.ONGOING: {TransactionStatus.ONGOING, *PREPARED},
        TransactionStatus.PREPARE_COMMIT: {TransactionStatus.COMPLETE_COMMIT},
        TransactionStatus.PREPARE_ABORT: {TransactionStatus.COMPLETE_ABORT},
        TransactionStatus.DEAD: {TransactionStatus.EMPTY},
        TransactionStatus.PREPARE_EPOCH_FENCE: set(),
    },
)
"""The life of a transactional id. An unknown one is in the state DEAD."""


def check_transition(current: TransactionMetadata | None, following: TransactionMetadata | None) -> None:
    """Raises IllegalTransitionError if the table of states does not allow the change."""
    STATES.enter(
        TransactionStatus.DEAD if current is None else current.status,
        TransactionStatus.DEAD if following is None else following.status,
    )


class TransactionMetadata(NamedTuple):
    """The state of one transactional id."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: WallMs = WallMs(-1)
    update_ms: WallMs = WallMs(-1)
    last_epoch: int = NO_PRODUCER_EPOCH
    """The previous epoch, if its producer may still resume with `producer_epoch`; otherwise -1.

    The response that returned `producer_epoch` may be lost. If `producer_epoch` is 0, this is the last epoch
    of `previous_producer_id`. The value is always the previous epoch or -1, so the log needs only one bit for
    it.
    """
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    version: int = 0
    """The client's `transaction.version`: 0 or 2."""

    @property
    def is_exhausted(self) -> bool:
        """Whether the client's epoch can't be raised anymore."""
        return self.producer_epoch >= LAST_EPOCH - 1

    @property
    def epoch_after_fence(self) -> int:
        return min(self.producer_epoch + 1, LAST_EPOCH)

    def is_timed_out(self, start_ms: WallMs, now_ms: WallMs) -> bool:
        """Returns whether the transaction has been open for longer than its timeout, since `start_ms`."""
        return self.status is TransactionStatus.ONGOING and start_ms + self.timeout_ms < now_ms

    def is_repeated_end(self, producer_id: int, producer_epoch: int) -> bool:
        """Returns whether an EndTxn of this id and epoch has already ended the transaction.

        This can only be known where each end raises the epoch.
        """
        if producer_epoch != self.last_epoch or self.status is TransactionStatus.EMPTY:
            return False
        last_id = self.previous_producer_id if self.producer_epoch == 0 else self.producer_id
        return producer_id == last_id


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Returns the partitions of each topic, both in order. A transaction may have 100,000 partitions, which
    would take long to compare with each other.
    """
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return {topic: sorted(found[topic]) for topic in sorted(found)}


def initialized(
    current: TransactionMetadata,
    *,
    timeout_ms: int,
    producer_id: int,
    producer_epoch: int,
    last_epoch: int,
    now_ms: WallMs,
) -> TransactionMetadata:
    """Returns the state after an InitProducerId that assigns this id and epoch."""
    return TransactionMetadata(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        update_ms=now_ms,
        last_epoch=last_epoch,
        previous_producer_id=current.producer_id,
        version=current.version,
    )


def with_partitions(
    current: TransactionMetadata, partitions: frozenset[TopicPartition], version: int, now_ms: WallMs
) -> TransactionMetadata:
    """Returns the state with more partitions. The first partitions begin the transaction."""
    is_first = current.status in AT_REST
    return current._replace(
        status=TransactionStatus.ONGOING,
        partitions=partitions if is_first else current.partitions | partitions,
        start_ms=now_ms if is_first else current.start_ms,
        update_ms=now_ms,
        last_epoch=NO_PRODUCER_EPOCH,
        previous_producer_id=current.producer_id,
        version=version,
    )


def prepared(
    current: TransactionMetadata, *, is_commit: bool, version: int, next_producer_id: int, now_ms: WallMs
) -> TransactionMetadata:
    """Returns the state after the producer's decision.

    `next_producer_id` is the id that replaces the current one if its epochs are exhausted.
    """
    bumps = version >= BUMPING_VERSION
    return current._replace(
        status=TransactionStatus.PREPARE_COMMIT if is_commit else TransactionStatus.PREPARE_ABORT,
        producer_epoch=current.producer_epoch + 1 if bumps else current.producer_epoch,
        last_epoch=current.producer_epoch if bumps else NO_PRODUCER_EPOCH,
        # An abort without a transaction has a start time, too, because Kafka's tools show it.
        start_ms=current.start_ms if current.status is TransactionStatus.ONGOING else now_ms,
        update_ms=now_ms,
        previous_producer_id=current.producer_id,
        next_producer_id=next_producer_id,
        version=version,
    )


def fenced(current: TransactionMetadata, *, last_epoch: int, now_ms: WallMs) -> TransactionMetadata:
    """Returns the state after an abort by another producer or after a timeout."""
    return current._replace(
        status=TransactionStatus.PREPARE_ABORT,
        producer_epoch=current.epoch_after_fence,
        last_epoch=NO_PRODUCER_EPOCH if current.is_exhausted else last_epoch,
        update_ms=now_ms,
        previous_producer_id=current.producer_id,
    )


def completed(current: TransactionMetadata, now_ms: WallMs) -> TransactionMetadata:
    """Returns the state after every marker is written.

    If the epochs of the producer id are exhausted, the next producer id replaces it with epoch 0.
    """
    gets_next_id = current.next_producer_id != NO_PRODUCER_ID
    is_commit = current.status is TransactionStatus.PREPARE_COMMIT
    return current._replace(
        status=TransactionStatus.COMPLETE_COMMIT if is_commit else TransactionStatus.COMPLETE_ABORT,
        producer_id=current.next_producer_id if gets_next_id else current.producer_id,
        producer_epoch=0 if gets_next_id else current.producer_epoch,
        partitions=frozenset(),
        update_ms=now_ms,
        previous_producer_id=current.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


R_co = TypeVar("R_co", covariant=True)


class TransactionDecision(NamedTuple, Generic[R_co]):
    """The result of a request about a transactional id.

    `transaction` is the next state, if there is one. It is logged even if `error` refuses the request: a
    producer that fences another one is asked to retry after the abort of that one's transaction.
    """

    error: ErrorCode = ErrorCode.NONE
    transaction: TransactionMetadata | None = None
    response: R_co | None = None
    needs_producer_id: bool = False
    """True if nothing is decided yet, because the request needs a new producer id."""


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


def transaction_record(transactional_id: str, transaction: TransactionMetadata | None) -> CoordinatorRecord:
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


def _partitions(transaction: TransactionMetadata) -> list[bytes]:
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


def _tagged(transaction: TransactionMetadata) -> list[bytes]:
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


def read_record(record: ReplayedRecord) -> tuple[str, TransactionMetadata | None]:
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
    return transactional_id, TransactionMetadata(
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
