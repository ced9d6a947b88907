"""The state of the idempotent and transactional producers of a partition.

With it, the partition stores a repeated batch only once, refuses a batch after a gap, and knows which
transactions are open. The leader calls `check` before an append and `update` after it; followers and recovery
call `update` only. Sources: KIP-98, KIP-890; Kafka's `ProducerAppendInfo`, `ProducerStateEntry` and
`ProducerStateManager` (4.3).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from tidelog.broker.partition.guards import Guards
from tidelog.kernel.instants import WallMs
from tidelog.log_format.entries import SNAPSHOT_ENTRY, complete_snapshot, decode_snapshot
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import UNKNOWN_OFFSET
from tidelog.records.batch import (
    CONTROL_BIT,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    EndTransactionMarker,
)

# Kafka's number, and the maximum of requests that an idempotent client has in flight
MAX_BATCHES_REMEMBERED = 5
DEFAULT_PRODUCER_ID_EXPIRATION_MS = 86_400_000
MAX_PRODUCERS = 50_000  # per partition; Kafka has no limit, so short-lived producers can fill its heap
_SEQUENCE_MASK = 0x7FFFFFFF


class Duplicate(NamedTuple):
    """The place of a batch that is in the log already, for the response."""

    base_offset: int
    last_offset: int
    timestamp: int


class StoredBatch(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int


class CompletedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int  # offset of the marker
    is_aborted: bool
    last_stable_offset: int  # all transactions that began below it have ended too


class TransactionMarker(NamedTuple):
    """The end of a producer's transaction in a partition.

    With `transaction_version` 2, the coordinator has raised the producer epoch for the marker (KIP-890).
    """

    producer_id: int
    producer_epoch: int
    end: EndTransactionMarker
    transaction_version: int = 0


class ActiveProducer(NamedTuple):
    """One row of DescribeProducers. A value that is not known is -1."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


_NO_BATCHES = [(NO_SEQUENCE, UNKNOWN_OFFSET, 0, -1)]
"""The batches in a snapshot of a producer of whom only a marker is known."""


class _Producer:
    """The state of one producer id. `batches` contains at most five batches of the current epoch, oldest
    first.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "last_timestamp",
        "producer_epoch",
        "seen_ms",
        "txn_first_offset",
    )

    def __init__(self, producer_epoch: int) -> None:
        self.producer_epoch = producer_epoch
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.seen_ms = -1  # time of the last batch or marker by the broker's clock
        self.txn_first_offset = UNKNOWN_OFFSET
        self.batches: list[
            tuple[int, int, int, int]
        ] = []  # StoredBatch's fields, as plain tuples, which are created faster

    @property
    def last_sequence(self) -> int:
        return self.batches[-1][0] if self.batches else NO_SEQUENCE


class ProducerState:
    """The state of all producers of one partition.

    `end_offset` is the offset after the last batch that the state covers. `expiration_ms`
    (`producer.id.expiration.ms`) may be set at any time.
    """

    __slots__ = (
        "_idle",
        "_ongoing",
        "_producers",
        "_unreplicated",
        "end_offset",
        "expiration_ms",
        "guards",
        "max_producers",
    )

    def __init__(
        self,
        *,
        expiration_ms: int = DEFAULT_PRODUCER_ID_EXPIRATION_MS,
        max_producers: int = MAX_PRODUCERS,
    ) -> None:
        self._producers: dict[int, _Producer] = {}
        # the ids of those without an open transaction, in the order of their last batches
        self._idle: OrderedDict[int, None] = OrderedDict()
        # producer id -> first offset of its open transaction, in the order of offsets
        self._ongoing: dict[int, int] = {}
        # ended transactions whose markers are not below the high watermark
        self._unreplicated: list[CompletedTransaction] = []
        self.max_producers = max_producers
        self.guards: Guards | None = None  # until the first question to a coordinator
        self.end_offset = 0
        self.expiration_ms = expiration_ms

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: BatchHeader, now_ms: WallMs) -> Duplicate | None:
        """Returns None if this batch of a client may be appended, or the place where the log already has it.

        Raises KafkaError: INVALID_PRODUCER_EPOCH (the epoch is older than the known one),
        OUT_OF_ORDER_SEQUENCE_NUMBER (the sequence is not the next one, or not 0 in a new epoch),
        INVALID_TXN_STATE (the batch is not transactional, but the producer has an open transaction). A
        producer that is unknown or has expired by `now_ms` may begin with any sequence, because retention can
        have deleted its history. POLICY_VIOLATION: it is unknown, and all others have open transactions, so
        that none can be forgotten.
        """
        producer = self._producers.get(header[9])
        if producer is None:
            if len(self._producers) >= self.max_producers and not self._idle:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION,
                    f"{len(self._producers)} producers have open transactions here, which is the limit",
                )
            return None
        epoch, sequence = header[10], header[11]
        known_epoch, batches = producer.producer_epoch, producer.batches
        if epoch == known_epoch and batches:
            last_sequence = batches[-1][0]
            if sequence != (last_sequence + 1) & _SEQUENCE_MASK:
                duplicate = _find_duplicate(batches, sequence, header[6])
                if duplicate is not None:
                    return duplicate
                if epoch >= 0:
                    self._refuse_sequence(header, f"after sequence {last_sequence}", now_ms)
        elif epoch < known_epoch:
            if not self._forget_if_expired(header[9], now_ms):
                raise _stale_epoch(header[9], epoch, known_epoch)
        elif sequence != 0 and known_epoch >= 0:
            self._refuse_sequence(header, f"as the first sequence of epoch {epoch}", now_ms)
        if producer.txn_first_offset >= 0 and not header[5] & TRANSACTIONAL_BIT:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"Producer {header[9]} has an open transaction here, but its batch is not transactional",
            )
        return None

    def has_all_before(self, header: BatchHeader) -> bool:
        """Returns whether the log surely has everything that the producer sent before this batch.

        This is so if the batch follows the producer's last one or is one of the stored batches.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.producer_epoch != header.producer_epoch or not producer.batches:
            return False
        stored = (producer.last_sequence + 1 - header.base_sequence) & _SEQUENCE_MASK
        return stored <= _SEQUENCE_MASK // 2

    def _refuse_sequence(self, header: BatchHeader, where: str, now_ms: WallMs) -> None:
        if not self._forget_if_expired(header.producer_id, now_ms):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Producer {header.producer_id} sent sequence {header.base_sequence} {where}",
            )

    def _forget_if_expired(self, producer_id: int, now_ms: WallMs) -> bool:
        if not self._is_expired(self._producers[producer_id], now_ms):
            return False
        del self._producers[producer_id]
        del self._idle[producer_id]
        return True

    def _is_expired(self, producer: _Producer, now_ms: WallMs) -> bool:
        return producer.txn_first_offset < 0 and now_ms - producer.seen_ms >= self.expiration_ms

    def update(
        self, header: BatchHeader, now_ms: WallMs, marker: EndTransactionMarker | None = None
    ) -> CompletedTransaction | None:
        """Adds a batch that the log now has, with its final offsets. Returns the transaction that it ended,
        if any.

        A control batch needs its `marker` (None if compaction emptied the batch or it is of another type).
        The producer's expiry counts from `now_ms`, not from the batch's timestamp as in Kafka. There, a
        producer of records with old timestamps expires at once, and its retries are stored twice.
        """
        base_offset, _, _, _, _, attributes, delta, _, max_timestamp, producer_id, epoch, sequence, _ = header
        last_offset = base_offset + delta
        self.end_offset = last_offset + 1
        if producer_id <= NO_PRODUCER_ID:
            return None
        if attributes & CONTROL_BIT:
            return self._end_transaction(header, now_ms, marker) if marker is not None else None
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._add(producer_id, epoch)
        elif producer.txn_first_offset < 0:
            self._idle.move_to_end(producer_id)
        batches = producer.batches
        if producer.producer_epoch != epoch:
            producer.producer_epoch = epoch
            batches.clear()
        elif len(batches) == MAX_BATCHES_REMEMBERED:
            del batches[0]
        batches.append(((sequence + delta) & _SEQUENCE_MASK, last_offset, delta, max_timestamp))
        producer.last_timestamp = max_timestamp if max_timestamp > 0 else now_ms
        producer.seen_ms = now_ms
        if attributes & TRANSACTIONAL_BIT:
            if self.guards is not None:
                self.guards.end(producer_id)
            if producer.txn_first_offset < 0:
                producer.txn_first_offset = base_offset
                self._ongoing[producer_id] = base_offset
                del self._idle[producer_id]
        return None

    def _add(self, producer_id: int, epoch: int) -> _Producer:
        if len(self._producers) >= self.max_producers:
            self._evict()
        producer = self._producers[producer_id] = _Producer(epoch)
        self._idle[producer_id] = None
        return producer

    def _evict(self) -> None:
        """Removes the producer whose last batch is the oldest, among those without an open transaction."""
        if self._idle:
            producer_id, _ = self._idle.popitem(last=False)
            del self._producers[producer_id]

    def _end_transaction(
        self, header: BatchHeader, now_ms: WallMs, marker: EndTransactionMarker
    ) -> CompletedTransaction | None:
        producer_id, epoch, offset = header.producer_id, header.producer_epoch, header.base_offset
        producer = self._producers.get(producer_id) or self._add(producer_id, epoch)
        self._idle[producer_id] = None
        self._idle.move_to_end(producer_id)
        if producer.producer_epoch != epoch:
            producer.producer_epoch = epoch
            producer.batches.clear()
        first_offset = producer.txn_first_offset
        producer.txn_first_offset = UNKNOWN_OFFSET
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp = header.max_timestamp
        producer.seen_ms = now_ms
        self._ongoing.pop(producer_id, None)
        if self.guards is not None:
            self.guards.end_by_marker(producer_id, epoch)
        if first_offset < 0:
            return None
        last_stable_offset = next(iter(self._ongoing.values()), offset + 1)
        completed = CompletedTransaction(
            producer_id, first_offset, offset, not marker.is_commit, last_stable_offset
        )
        self._unreplicated.append(completed)
        return completed

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Returns whether the producer has written in its transaction here, in this very epoch."""
        producer = self._producers.get(producer_id)
        return (
            producer is not None
            and producer.txn_first_offset >= 0
            and producer.producer_epoch == producer_epoch
        )

    def begin_verification(self, header: BatchHeader, now_ms: WallMs, *, bumps_epoch: bool) -> int | None:
        """Returns the guard with which the batch must come back after the coordinator has confirmed its
        transaction, or None if the transaction is already open here.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        if self.has_open_transaction(producer_id, epoch):
            return None
        self.guards = self.guards or Guards()
        return self.guards.begin(producer_id, epoch, header.base_sequence, now_ms, bumps_epoch=bumps_epoch)

    def check_guard(self, header: BatchHeader, guard: int) -> None:
        """Checks a transactional batch whose sequence and epoch are valid. Raises as `Guards.check` does."""
        producer_id = header.producer_id
        self.guards = self.guards or Guards()
        self.guards.check(
            header,
            guard,
            is_open=self.has_open_transaction(producer_id, header.producer_epoch),
            is_known=producer_id in self._producers,
        )

    def check_of_coordinator(self, header: BatchHeader) -> None:
        """Checks a transactional batch that a coordinator wrote for a producer. Such a batch has no sequence.

        Raises KafkaError INVALID_PRODUCER_EPOCH.
        """
        producer = self._producers.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.producer_epoch:
            raise _stale_epoch(header.producer_id, header.producer_epoch, producer.producer_epoch)

    def check_marker(self, marker: TransactionMarker) -> None:
        """Checks a marker. A marker that the log already has is accepted again.

        Raises KafkaError: INVALID_PRODUCER_EPOCH (its transaction has ended), TRANSACTION_COORDINATOR_FENCED
        (its coordinator has been replaced).
        """
        producer = self._producers.get(marker.producer_id)
        if producer is None:
            return
        epoch, known_epoch = marker.producer_epoch, producer.producer_epoch
        is_of_this_transaction = marker.transaction_version < 2 or producer.txn_first_offset < 0
        if epoch < known_epoch or (epoch == known_epoch and not is_of_this_transaction):
            raise _stale_epoch(marker.producer_id, epoch, known_epoch)
        if marker.end.coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"The marker for producer {marker.producer_id} has coordinator epoch"
                f" {marker.end.coordinator_epoch}, which is older than {producer.coordinator_epoch}",
            )

    def check_marker_of_client(self, marker: TransactionMarker) -> None:
        """Checks a marker that a client sent in place of the coordinator, besides `check_marker`.

        It may only abort a transaction that is open here, in the producer's own epoch, and under the newest
        coordinator epoch that this log knows. Otherwise it could commit a part of a transaction, fence its
        producer, or fence its coordinator.

        Raises KafkaError: INVALID_REQUEST (a commit), INVALID_TXN_STATE (no transaction is open),
        INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        producer_id, epoch = marker.producer_id, marker.producer_epoch
        if marker.end.is_commit:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"The marker for producer {producer_id} commits, which only the coordinator may do",
            )
        producer = self._producers.get(producer_id)
        if producer is None or producer.txn_first_offset < 0:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"Producer {producer_id} has no open transaction here",
            )
        if epoch != producer.producer_epoch:
            raise _stale_epoch(producer_id, epoch, producer.producer_epoch)
        known_epoch = max(producer.coordinator_epoch, 0)
        if marker.end.coordinator_epoch > known_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"The client's marker for producer {producer_id} has coordinator epoch"
                f" {marker.end.coordinator_epoch}, which is newer than {known_epoch}",
            )

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest transaction that is open or whose marker is not replicated yet."""
        first = next(iter(self._ongoing.values()), None)
        if self._unreplicated:
            unreplicated = min(completed.first_offset for completed in self._unreplicated)
            if first is None or unreplicated < first:
                return unreplicated
        return first

    def on_high_watermark(self, high_watermark: int) -> None:
        """Drops the transactions whose markers are now replicated, so that they do not hold readers back."""
        if self._unreplicated:
            self._unreplicated = [
                ended for ended in self._unreplicated if ended.last_offset >= high_watermark
            ]

    def expire(self, now_ms: WallMs) -> int:
        """Removes producers that were inactive for `expiration_ms`, and returns how many.

        Producers with an open transaction stay.
        """
        expired = [pid for pid in self._idle if self._is_expired(self._producers[pid], now_ms)]
        for producer_id in expired:
            del self._producers[producer_id]
            del self._idle[producer_id]
        if self.guards is not None:
            self.guards.expire(now_ms - self.expiration_ms)
        return len(expired)

    def snapshot(self) -> bytes:
        """Returns the contents of a `.snapshot` file, whose name is the log end offset, in Kafka's format.

        Kafka stores only the newest batch of a producer. Here, a producer has one entry for each remembered
        batch, the newest last. Kafka uses the last entry of an id, so it reads what it would have written
        itself, and `load` restores all batches.
        """
        count = sum([len(producer.batches) or 1 for producer in self._producers.values()])
        # A roll needs this at once, and there may be five batches for each of 50,000 producers. One buffer
        # takes less than a third of the time that one object for each batch takes.
        packed = bytearray(count * SNAPSHOT_ENTRY.size)
        position, pack_into = 0, SNAPSHOT_ENTRY.pack_into
        for producer_id in (*self._ongoing, *self._idle):
            producer = self._producers[producer_id]
            epoch, first_offset = producer.producer_epoch, producer.txn_first_offset
            coordinator_epoch = producer.coordinator_epoch
            batches = producer.batches or _NO_BATCHES
            newest = batches[-1]
            for batch in batches:
                sequence, offset, delta, timestamp = batch
                if batch is newest:  # a marker may be newer
                    timestamp = producer.last_timestamp
                pack_into(
                    packed,
                    position,
                    producer_id,
                    epoch,
                    sequence,
                    offset,
                    delta,
                    timestamp,
                    coordinator_epoch,
                    first_offset,
                )
                position += SNAPSHOT_ENTRY.size
        return complete_snapshot(packed)

    def load(self, data: bytes, end_offset: int, now_ms: WallMs) -> None:
        """Replaces the state by that of a `.snapshot` file, written here or by Kafka, with `end_offset` as
        its name.

        The file does not contain when a producer was last active, so the expiry of all counts from `now_ms`.
        Raises CorruptFileError; the state is then unchanged.
        """
        entries = decode_snapshot(data)
        for known in (self._producers, self._idle, self._ongoing, self._unreplicated):
            known.clear()
        self.end_offset = end_offset
        for entry in entries:
            producer = self._producers.get(entry.producer_id)
            if producer is None or producer.producer_epoch != entry.producer_epoch:
                producer = self._producers[entry.producer_id] = _Producer(entry.producer_epoch)
            if entry.last_offset >= 0:
                producer.batches.append(
                    (entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp)
                )
                del producer.batches[:-MAX_BATCHES_REMEMBERED]
            producer.last_timestamp = entry.timestamp
            producer.seen_ms = now_ms
            producer.coordinator_epoch = entry.coordinator_epoch
            producer.txn_first_offset = entry.txn_first_offset
        ongoing = sorted(
            (p.txn_first_offset, pid) for pid, p in self._producers.items() if p.txn_first_offset >= 0
        )
        self._ongoing.update((producer_id, first_offset) for first_offset, producer_id in ongoing)
        self._idle.update((pid, None) for pid in self._producers if pid not in self._ongoing)
        for _ in range(len(self._producers) - self.max_producers):
            self._evict()

    def describe(self) -> list[ActiveProducer]:
        return list(self.each_described())

    def each_described(self) -> Iterator[ActiveProducer]:
        """Yields the producers that are known at the first step. Others may be added before the last one.

        Those with open transactions come first, and then the others in the order in which they would be
        forgotten.
        """
        for producer_id, producer in [(pid, self._producers[pid]) for pid in (*self._ongoing, *self._idle)]:
            yield ActiveProducer(
                producer_id,
                producer.producer_epoch,
                producer.last_sequence,
                producer.last_timestamp,
                producer.coordinator_epoch,
                producer.txn_first_offset,
            )

    def stored_batches(self, producer_id: int) -> list[StoredBatch]:
        """Returns the remembered batches of a producer, oldest first; none if the producer is unknown."""
        producer = self._producers.get(producer_id)
        return [StoredBatch(*batch) for batch in producer.batches] if producer else []


def _stale_epoch(producer_id: int, epoch: int, known_epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"Epoch {epoch} of producer {producer_id} is older than its current epoch {known_epoch}",
    )


def _find_duplicate(
    batches: list[tuple[int, int, int, int]], first_sequence: int, last_offset_delta: int
) -> Duplicate | None:
    """Returns the remembered batch with the same first and last sequence."""
    last_sequence = (first_sequence + last_offset_delta) & _SEQUENCE_MASK
    for stored_last, last_offset, delta, timestamp in batches:
        if stored_last == last_sequence and (stored_last - delta) & _SEQUENCE_MASK == first_sequence:
            return Duplicate(last_offset - delta, last_offset, timestamp)
    return None
