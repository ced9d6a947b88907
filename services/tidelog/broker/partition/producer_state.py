"""What a partition remembers of each idempotent producer: a repeated batch is stored once, a gap is refused.

Rules: Kafka's `ProducerAppendInfo`, `ProducerStateEntry`, `ProducerStateManager` (4.3); KIP-98, KIP-890.
The leader calls `check` before and `update` after an append; followers and recovery call `update` alone.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from tidelog.broker.partition.producer_snapshot import SnapshotEntry, decode_snapshot, encode_snapshot
from tidelog.broker.partition.verifications import NOT_IN_ONE, UNGUARDED, Verifications
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.instants import WallMs
from tidelog.records.batch import CONTROL_BIT, NO_PRODUCER_ID, TRANSACTIONAL_BIT, BatchHeader
from tidelog.records.control import EndTransactionMarker

MAX_BATCHES_REMEMBERED = 5  # Kafka's number: also the most requests an idempotent client has in flight
DEFAULT_PRODUCER_ID_EXPIRATION_MS = 86_400_000
MAX_PRODUCERS = 50_000  # a partition; Kafka has no bound, and short-lived producers then fill its heap
NO_SEQUENCE = -1
NO_OFFSET = -1
_SEQUENCE_MASK = 0x7FFFFFFF


class Duplicate(NamedTuple):
    """A batch that was stored before: answer with these, append nothing."""

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
    last_offset: int  # the marker's own offset
    is_aborted: bool
    last_stable_offset: int  # whatever began below it has ended, too


class TransactionMarker(NamedTuple):
    """What ends a producer's transaction in a partition. `transaction_version` 2: the producer's epoch was
    raised for it (KIP-890).
    """

    producer_id: int
    producer_epoch: int
    end: EndTransactionMarker
    transaction_version: int = 0


class ActiveProducer(NamedTuple):
    """One row of DescribeProducers; -1 where there is nothing to tell."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class _Producer:
    """State of one producer id. `batches` holds at most five, all of the current epoch, oldest first."""

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
        self.seen_ms = -1  # when the broker last heard of it, by its own clock
        self.txn_first_offset = NO_OFFSET
        self.batches: list[
            tuple[int, int, int, int]
        ] = []  # StoredBatch's fields; plain tuples are made faster

    @property
    def last_sequence(self) -> int:
        return self.batches[-1][0] if self.batches else NO_SEQUENCE


class ProducerState:
    """All producers of one partition.

    `end_offset`: one past the last offset that the state knows of. `expiration_ms`:
    `producer.id.expiration.ms`, may be set at any time.
    """

    __slots__ = (
        "_max_producers",
        "_ongoing",
        "_producers",
        "_unreplicated",
        "_verifications",
        "end_offset",
        "expiration_ms",
    )

    def __init__(
        self,
        *,
        expiration_ms: int = DEFAULT_PRODUCER_ID_EXPIRATION_MS,
        max_producers: int = MAX_PRODUCERS,
    ) -> None:
        self._producers: OrderedDict[int, _Producer] = OrderedDict()  # who wrote longest ago comes first
        # producer id -> first offset of its open transaction, in the order of offsets
        self._ongoing: dict[int, int] = {}
        self._unreplicated: list[CompletedTransaction] = []  # ended, marker not yet below the high watermark
        self._max_producers = max_producers
        self._verifications = Verifications()
        self.end_offset = 0
        self.expiration_ms = expiration_ms

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: BatchHeader, now_ms: WallMs) -> Duplicate | None:
        """May this batch of a client be appended? None: yes. A Duplicate: it is here already.

        Raises KafkaError: INVALID_PRODUCER_EPOCH (an older epoch than was seen), OUT_OF_ORDER_SEQUENCE_NUMBER
        (not the next sequence; not 0 under a new epoch), INVALID_TXN_STATE (plain batch inside an open
        transaction). A producer of which nothing is known, or that has expired by `now_ms`, may begin with
        any sequence, as its history can have been deleted by retention.
        """
        producer = self._producers.get(header[9])
        if producer is None:
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
                    self._refuse_sequence(header, f"after {last_sequence}", now_ms)
        elif epoch < known_epoch:
            if not self._forget_if_expired(header[9], now_ms):
                raise _stale_epoch(header[9], epoch, known_epoch)
        elif sequence != 0 and known_epoch >= 0:
            self._refuse_sequence(header, f"as the first of epoch {epoch}", now_ms)
        if producer.txn_first_offset >= 0 and not header[5] & TRANSACTIONAL_BIT:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"Producer {header[9]} has an open transaction here and sent a batch outside it",
            )
        return None

    def has_all_before(self, header: BatchHeader) -> bool:
        """Whether what this producer sent before is surely here: its batch follows the last, or is one of
        those stored.
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
        return True

    def _is_expired(self, producer: _Producer, now_ms: WallMs) -> bool:
        return producer.txn_first_offset < 0 and now_ms - producer.seen_ms >= self.expiration_ms

    def update(
        self, header: BatchHeader, now_ms: WallMs, marker: EndTransactionMarker | None = None
    ) -> CompletedTransaction | None:
        """Take in a batch that now is in the log, its offsets assigned.

        A control batch needs its `marker` (None if compaction emptied the batch or it is of another type).
        The producer's expiry counts from `now_ms`, not from the batch's timestamp as in Kafka: whoever
        writes records of years ago would be forgotten at once, and its retries stored twice.
        Returns the transaction a marker ended, if any was open.
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
        else:
            self._producers.move_to_end(producer_id)
        batches = producer.batches
        if producer.producer_epoch != epoch:
            producer.producer_epoch = epoch
            batches.clear()
        elif len(batches) == MAX_BATCHES_REMEMBERED:
            del batches[0]
        batches.append(((sequence + delta) & _SEQUENCE_MASK, last_offset, delta, max_timestamp))
        producer.last_timestamp = max_timestamp
        producer.seen_ms = now_ms
        if attributes & TRANSACTIONAL_BIT:
            self._verifications.end(producer_id)
            if producer.txn_first_offset < 0:
                producer.txn_first_offset = base_offset
                self._ongoing[producer_id] = base_offset
        return None

    def _add(self, producer_id: int, epoch: int) -> _Producer:
        if len(self._producers) >= self._max_producers:
            self._evict()
        producer = self._producers[producer_id] = _Producer(epoch)
        return producer

    def _evict(self) -> None:
        """Forget the one who wrote longest ago and has no open transaction, if there is one."""
        for producer_id, producer in self._producers.items():
            if producer.txn_first_offset < 0:
                del self._producers[producer_id]
                return

    def _end_transaction(
        self, header: BatchHeader, now_ms: WallMs, marker: EndTransactionMarker
    ) -> CompletedTransaction | None:
        producer_id, epoch, offset = header.producer_id, header.producer_epoch, header.base_offset
        producer = self._producers.get(producer_id) or self._add(producer_id, epoch)
        self._producers.move_to_end(producer_id)
        if producer.producer_epoch != epoch:
            producer.producer_epoch = epoch
            producer.batches.clear()
        first_offset = producer.txn_first_offset
        producer.txn_first_offset = NO_OFFSET
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp = header.max_timestamp
        producer.seen_ms = now_ms
        self._ongoing.pop(producer_id, None)
        self._verifications.end_by_marker(producer_id, epoch)
        if first_offset < 0:
            return None
        last_stable_offset = next(iter(self._ongoing.values()), offset + 1)
        completed = CompletedTransaction(
            producer_id, first_offset, offset, not marker.is_commit, last_stable_offset
        )
        self._unreplicated.append(completed)
        return completed

    # -- transactions and the last stable offset

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has written in its transaction here, under this very epoch."""
        producer = self._producers.get(producer_id)
        return (
            producer is not None
            and producer.txn_first_offset >= 0
            and producer.producer_epoch == producer_epoch
        )

    def begin_verification(self, header: BatchHeader, now_ms: WallMs, *, bumps_epoch: bool) -> int | None:
        """The guard with which the batch may come back once the coordinator knows of its transaction; None:
        nobody need be asked.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        if self.has_open_transaction(producer_id, epoch):
            return None
        return self._verifications.begin(
            producer_id, epoch, header.base_sequence, now_ms, bumps_epoch=bumps_epoch
        )

    def check_guard(self, header: BatchHeader, guard: int) -> None:
        """May this transactional batch go in, whose sequence and epoch are sound? Raises KafkaError:
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED (it came outside a transaction), INVALID_TXN_STATE (nobody
        vouches for its transaction, or it has ended since), OUT_OF_ORDER_SEQUENCE_NUMBER (an earlier batch is
        still to come).
        """
        if guard == NOT_IN_ONE:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "A transaction's batch came without the transactional id",
            )
        producer_id, sequence = header.producer_id, header.base_sequence
        verification = self._verifications.get(producer_id)
        is_vouched_for = guard == UNGUARDED or (verification is not None and guard == verification.guard)
        if not is_vouched_for and not self.has_open_transaction(producer_id, header.producer_epoch):
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, "The batch is not part of a transaction that is open"
            )
        if verification is None:
            return
        is_first_ever = verification.bumps_epoch and producer_id not in self._producers
        if sequence > verification.lowest_sequence or (is_first_ever and sequence != 0):
            earliest = 0 if is_first_ever else verification.lowest_sequence
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Producer {producer_id} sent sequence {sequence}, {earliest} has to come first",
            )

    def check_of_coordinator(self, header: BatchHeader) -> None:
        """May this transactional batch, which a coordinator wrote for a producer, be appended? It has no
        sequence. Raises KafkaError INVALID_PRODUCER_EPOCH.
        """
        producer = self._producers.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.producer_epoch:
            raise _stale_epoch(header.producer_id, header.producer_epoch, producer.producer_epoch)

    def check_marker(self, marker: TransactionMarker) -> None:
        """May this marker be appended? One that came before may come again. Raises KafkaError:
        INVALID_PRODUCER_EPOCH (of a transaction that is over), TRANSACTION_COORDINATOR_FENCED (from a
        coordinator that has been replaced).
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
                f"A marker of coordinator epoch {marker.end.coordinator_epoch} for producer"
                f" {marker.producer_id}, epoch {producer.coordinator_epoch} was seen",
            )

    @property
    def first_unstable_offset(self) -> int | None:
        """Where read_committed must stop: at the oldest transaction that is open or not yet replicated."""
        first = next(iter(self._ongoing.values()), None)
        if self._unreplicated:
            unreplicated = min(completed.first_offset for completed in self._unreplicated)
            if first is None or unreplicated < first:
                return unreplicated
        return first

    def on_high_watermark(self, high_watermark: int) -> None:
        """Markers below `high_watermark` are replicated: their transactions no longer hold readers back."""
        if self._unreplicated:
            self._unreplicated = [
                ended for ended in self._unreplicated if ended.last_offset >= high_watermark
            ]

    # -- forgetting

    def expire(self, now_ms: WallMs) -> int:
        """Forget producers that were silent for `expiration_ms`; returns how many.

        One with an open transaction stays.
        """
        expired = [pid for pid, producer in self._producers.items() if self._is_expired(producer, now_ms)]
        for producer_id in expired:
            del self._producers[producer_id]
        self._verifications.expire(now_ms - self.expiration_ms)
        return len(expired)

    def forget_verifications(self) -> None:
        """The partition has another leader: who asked before asks again."""
        self._verifications.clear()

    def truncate_from(self, offset: int) -> bool:
        """The log was cut at `offset`. True: nothing of the state was beyond it.

        False: the state is empty now and must be made anew, by `load` of the newest snapshot at or below
        `offset` and `update` with each batch from there on; what the cut batches displaced can be had only
        so.
        """
        if self.end_offset <= offset:
            return True
        self.clear()
        return False

    def clear(self) -> None:
        self._producers.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self.end_offset = 0

    # -- snapshot files and DescribeProducers

    def snapshot(self) -> bytes:
        """Contents of the `.snapshot` file that is named by the log's end offset, in Kafka's format.

        Kafka keeps the newest batch of a producer only. Here a producer has one entry for each batch
        remembered, newest last: Kafka, for which a later entry of the same id replaces an earlier one, reads
        what it would have written itself, and `load` gets all five back.
        """
        return encode_snapshot(
            SnapshotEntry(
                producer_id,
                producer.producer_epoch,
                *batch,
                producer.coordinator_epoch,
                producer.txn_first_offset,
            )
            for producer_id, producer in self._producers.items()
            for batch in _batches_to_store(producer)
        )

    def load(self, data: bytes, end_offset: int, now_ms: WallMs) -> None:
        """Replace the state by that of a `.snapshot` file (ours or Kafka's) whose name says `end_offset`.

        The file doesn't say when a producer was last heard of, so all expire from `now_ms` on. Raises
        CorruptSnapshotError, the state then unchanged.
        """
        entries = decode_snapshot(data)
        self.clear()
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
        for _ in range(len(self._producers) - self._max_producers):
            self._evict()

    def describe(self) -> list[ActiveProducer]:
        return [
            ActiveProducer(
                producer_id,
                producer.producer_epoch,
                producer.last_sequence,
                producer.last_timestamp,
                producer.coordinator_epoch,
                producer.txn_first_offset,
            )
            for producer_id, producer in self._producers.items()
        ]

    def stored_batches(self, producer_id: int) -> list[StoredBatch]:
        """The batches remembered of a producer, oldest first; none if it is unknown."""
        producer = self._producers.get(producer_id)
        return [StoredBatch(*batch) for batch in producer.batches] if producer else []


def _batches_to_store(producer: _Producer) -> list[tuple[int, int, int, int]]:
    """The last carries the producer's own timestamp, which a marker may have moved."""
    if not producer.batches:
        return [(NO_SEQUENCE, NO_OFFSET, 0, producer.last_timestamp)]
    *older, (last_sequence, last_offset, delta, _) = producer.batches
    return [*older, (last_sequence, last_offset, delta, producer.last_timestamp)]


def _stale_epoch(producer_id: int, epoch: int, known_epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"Epoch {epoch} of producer {producer_id} is over, epoch {known_epoch} was seen",
    )


def _find_duplicate(
    batches: list[tuple[int, int, int, int]], first_sequence: int, last_offset_delta: int
) -> Duplicate | None:
    """The remembered batch with the same first and last sequence."""
    last_sequence = (first_sequence + last_offset_delta) & _SEQUENCE_MASK
    for stored_last, last_offset, delta, timestamp in batches:
        if stored_last == last_sequence and (stored_last - delta) & _SEQUENCE_MASK == first_sequence:
            return Duplicate(last_offset - delta, last_offset, timestamp)
    return None
