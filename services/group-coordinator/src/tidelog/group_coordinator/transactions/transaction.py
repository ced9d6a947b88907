"""One transactional id's state, and what may become of it.

States, their numbers and names are Kafka's `TransactionState`; the rules of epochs those of KIP-98, KIP-360
and KIP-890. A `Transaction` never changes: each step gives the next one, which is then logged and applied.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from tidelog.model.topics import TopicPartition

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
LAST_EPOCH: Final = 32_767
"""Never given to a client, so that the coordinator can always fence the one before."""
BUMPING_VERSION: Final = 2
"""From this `transaction.version` on, each end of a transaction raises the epoch (KIP-890)."""


class TransactionStatus(IntEnum):
    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        return _KAFKA_NAMES[self]


_KAFKA_NAMES: Final = {
    status: "".join(word.capitalize() for word in status.name.split("_")) for status in TransactionStatus
}
STATUS_BY_KAFKA_NAME: Final = {name: status for status, name in _KAFKA_NAMES.items()}
PREPARED: Final = frozenset({TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT})
COMPLETE: Final = frozenset({TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT})
AT_REST: Final = COMPLETE | {TransactionStatus.EMPTY}
"""Nothing is under way."""


class Transaction(NamedTuple):
    """`last_epoch` is the epoch whose holder may still take up `producer_epoch`, because the answer that told
    it may be lost; -1 if there is none. It is always the one before (the last usable one of
    `previous_producer_id` where `producer_epoch` is 0), so one bit of the log keeps it.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    update_ms: int = -1
    last_epoch: int = NO_PRODUCER_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    version: int = 0
    """`transaction.version` that the client spoke: 0 or 2."""

    @property
    def is_exhausted(self) -> bool:
        """The epoch can't be raised for a client any more."""
        return self.producer_epoch >= LAST_EPOCH - 1

    @property
    def epoch_after_fence(self) -> int:
        return min(self.producer_epoch + 1, LAST_EPOCH)

    def is_timed_out(self, now_ms: int) -> bool:
        return self.status is TransactionStatus.ONGOING and self.start_ms + self.timeout_ms < now_ms

    def is_repeated_end(self, producer_id: int, producer_epoch: int) -> bool:
        """An EndTxn of this id and epoch was already heeded (only where epochs are bumped)."""
        if producer_epoch != self.last_epoch or self.status is TransactionStatus.EMPTY:
            return False
        told_id = self.previous_producer_id if self.producer_epoch == 0 else self.producer_id
        return producer_id == told_id


def initialized(
    current: Transaction,
    *,
    timeout_ms: int,
    producer_id: int,
    producer_epoch: int,
    last_epoch: int,
    now_ms: int,
) -> Transaction:
    """A producer begins, or goes on, with the id and epoch given."""
    return Transaction(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        update_ms=now_ms,
        last_epoch=last_epoch,
        previous_producer_id=current.producer_id,
        version=current.version,
    )


def with_partitions(
    current: Transaction, partitions: frozenset[TopicPartition], version: int, now_ms: int
) -> Transaction:
    """The first of a transaction begins it."""
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
    current: Transaction, *, is_commit: bool, version: int, next_producer_id: int, now_ms: int
) -> Transaction:
    """What its producer asked for is decided. `next_producer_id` is what it goes on with if its epochs are
    used up.
    """
    bumps = version >= BUMPING_VERSION
    return current._replace(
        status=TransactionStatus.PREPARE_COMMIT if is_commit else TransactionStatus.PREPARE_ABORT,
        producer_epoch=current.producer_epoch + 1 if bumps else current.producer_epoch,
        last_epoch=current.producer_epoch if bumps else NO_PRODUCER_EPOCH,
        # An abort of what never began is a transaction all the same; Kafka's tools show when.
        start_ms=current.start_ms if current.status is TransactionStatus.ONGOING else now_ms,
        update_ms=now_ms,
        previous_producer_id=current.producer_id,
        next_producer_id=next_producer_id,
        version=version,
    )


def fenced(current: Transaction, *, last_epoch: int, now_ms: int) -> Transaction:
    """Aborted against its producer's will: by another producer, or because it took too long."""
    return current._replace(
        status=TransactionStatus.PREPARE_ABORT,
        producer_epoch=current.epoch_after_fence,
        last_epoch=NO_PRODUCER_EPOCH if current.is_exhausted else last_epoch,
        update_ms=now_ms,
        previous_producer_id=current.producer_id,
    )


def completed(current: Transaction, now_ms: int) -> Transaction:
    """Every marker is written. A producer without epochs left goes on with its next id, from epoch 0; its
    last epoch is then the last one that it saw.
    """
    moves_on = current.next_producer_id != NO_PRODUCER_ID
    is_commit = current.status is TransactionStatus.PREPARE_COMMIT
    return current._replace(
        status=TransactionStatus.COMPLETE_COMMIT if is_commit else TransactionStatus.COMPLETE_ABORT,
        producer_id=current.next_producer_id if moves_on else current.producer_id,
        producer_epoch=0 if moves_on else current.producer_epoch,
        partitions=frozenset(),
        update_ms=now_ms,
        previous_producer_id=current.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )
