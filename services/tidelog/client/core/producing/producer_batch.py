"""A batch of a producer: records that go to one partition in one piece."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.client.core.cluster_view import MetadataReceived, PartitionLeader
from tidelog.kernel.machine import StateTable
from tidelog.model.errors import KafkaError
from tidelog.model.protocol_values import UNKNOWN_OFFSET
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition
from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    Buffer,
    wrap_records,
)
from tidelog.records.compression import Compression, compress
from tidelog.records.record import iterate_records
from tidelog.records.record_writer import (
    NO_HEADERS,
    Header,
    RecordPieces,
    counted_headers,
)

UNKNOWN_TIMESTAMP: Final = -1
MAX_SEQUENCE: Final = 2**31 - 1


class BatchState(Enum):
    OPEN = "open"
    """It takes records."""
    CLOSED = "closed"
    """It is complete and waits for its first request."""
    SENT = "sent"
    """A request contains it."""
    RETRYING = "retrying"
    """It waits for another request."""
    DONE = "done"
    """Its callers know the outcome."""


STATES: Final = StateTable(
    "a batch",
    {
        BatchState.OPEN: {BatchState.CLOSED, BatchState.DONE},
        BatchState.CLOSED: {BatchState.SENT, BatchState.DONE},
        BatchState.SENT: {BatchState.RETRYING, BatchState.DONE},
        BatchState.RETRYING: {BatchState.SENT, BatchState.DONE},
        BatchState.DONE: set(),
    },
)


class ProducerBatch:
    """A batch. Its records get the offsets `base_offset`, `base_offset` + 1, ... when it is DONE."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "attempts",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "callbacks",
        "compression",
        "count",
        "created_ms",
        "error",
        "is_fate_unknown",
        "is_on_wire",
        "is_overtaken",
        "log_append_time_ms",
        "max_timestamp",
        "not_before_ms",
        "ordinal",
        "parts",
        "place",
        "producer_epoch",
        "producer_id",
        "records",
        "reserved_bytes",
        "state",
        "topic_id",
        "whole",
    )

    def __init__(
        self, place: TopicPartition, base_timestamp: int, compression: Compression, now_ms: int, reserved: int
    ) -> None:
        self.place: TopicPartition = place
        self.state: BatchState = BatchState.OPEN
        self.created_ms: int = now_ms
        self.not_before_ms: int = now_ms
        self.base_timestamp: int = base_timestamp
        self.max_timestamp: int = base_timestamp
        self.compression: Compression = compression
        self.reserved_bytes: int = reserved
        self.count: int = 0
        self.attempts: int = 0
        """The number of requests with the batch that a broker may have received."""
        self.ordinal: int = 0
        """The number of batches of the partition that were first sent before this one."""
        self.is_on_wire: bool = False
        self.is_fate_unknown: bool = False
        """Whether a broker may have stored the batch although no response says so."""
        self.is_overtaken: bool = False
        """Whether a broker has stored a later batch of the partition."""
        self.topic_id: UUID = ZERO_TOPIC_ID
        """The topic of the last request, zero if the request names it without its id."""
        self.producer_id: int = NO_PRODUCER_ID
        self.producer_epoch: int = NO_PRODUCER_EPOCH
        self.base_sequence: int = NO_SEQUENCE
        self.base_offset: int = UNKNOWN_OFFSET
        self.log_append_time_ms: int = UNKNOWN_TIMESTAMP
        self.error: KafkaError | None = None
        self.callbacks: list[Callable[[ProducerBatch], None]] = []
        """Functions to call when the batch is DONE. `when_done` adds one."""
        self.parts: tuple[ProducerBatch, ...] = ()
        """The batches that have the records now, because this one was too large for the broker."""
        self.whole: ProducerBatch | None = None
        """The batch of which this one is a part."""
        self.records: RecordPieces = RecordPieces()
        self._body: Sequence[Buffer] = ()
        self._body_bytes: int = 0

    def __repr__(self) -> str:
        return f"<batch {self.place} {self.state.value} sequence {self.base_sequence} +{self.count}>"

    @property
    def wire_bytes(self) -> int:
        """The bytes of a batch that is not OPEN, in a request."""
        return BATCH_HEADER_BYTES + self._body_bytes

    @property
    def is_done(self) -> bool:
        return self.state is BatchState.DONE

    def append(
        self, timestamp: int, key: bytes | None, value: bytes | None, headers: tuple[Header, ...]
    ) -> None:
        self.records.append(
            timestamp - self.base_timestamp,
            self.count,
            key,
            value,
            counted_headers(headers) if headers else NO_HEADERS,
        )
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.count += 1

    def append_values(
        self, timestamp: int, values: Sequence[bytes | None], start: int, max_bytes: int
    ) -> int:
        """Adds records without keys and headers, with `values` from index `start` on, while the batch has no
        more than `max_bytes`. Returns the number of records.
        """
        count = self.records.append_values(
            timestamp - self.base_timestamp, self.count, values, start, max_bytes
        )
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.count += count
        return count

    def move_to(self, state: BatchState) -> None:
        self.state = STATES.enter(self.state, state)

    def when_done(self, callback: Callable[[ProducerBatch], None]) -> None:
        """Calls `callback` once, now if the batch is DONE. Any thread may call this."""
        self.callbacks.append(callback)
        if self.is_done:
            try:
                self.callbacks.remove(callback)
            except ValueError:
                return  # the loop in `take_callbacks` has it
            callback(self)

    def take_callbacks(self) -> Iterator[Callable[[ProducerBatch], None]]:
        """Yields each callback of a DONE batch once, while other threads may add some."""
        self.callbacks.reverse()
        while self.callbacks:
            yield self.callbacks.pop()

    def close(self) -> None:
        """Compresses the records. No more records are accepted."""
        self.move_to(BatchState.CLOSED)
        pieces = self.records.pieces()
        self._body = (
            pieces
            if self.compression is Compression.NONE
            else (compress(self.compression, b"".join(pieces)),)
        )
        self._body_bytes = sum(map(len, self._body))

    def number(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Sets the numbers by which the broker recognises a repetition."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.base_sequence = base_sequence

    def encode(self, *, is_transactional: bool) -> bytearray:
        """Returns the bytes of a closed batch with its current numbers. It must still have its records."""
        assert self._body, f"{self} has no records"
        return wrap_records(
            self._body,
            self.count,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            attributes=self.compression | (TRANSACTIONAL_BIT if is_transactional else 0),
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
        )

    def split(self) -> tuple[ProducerBatch, ...]:
        """Moves the records to two batches of about the same size, which keep the numbers and are RETRYING.

        This batch stays SENT until both are DONE. It must have more than one record.
        """
        records = list(iterate_records(self.encode(is_transactional=False)))
        half_bytes = self.records.size_bytes / 2
        parts: list[ProducerBatch] = []
        for index, record in enumerate(records):
            is_last = index == len(records) - 1
            if not parts or (len(parts) == 1 and (is_last or parts[0].records.size_bytes >= half_bytes)):
                part = ProducerBatch(self.place, record.timestamp, self.compression, self.created_ms, 0)
                part.whole = self
                part.attempts, part.ordinal = self.attempts, self.ordinal
                part.topic_id = self.topic_id
                part.is_overtaken = self.is_overtaken
                if self.producer_id != NO_PRODUCER_ID:
                    sequence = following_sequence(self.base_sequence, index)
                    part.number(self.producer_id, self.producer_epoch, sequence)
                parts.append(part)
            parts[-1].append(record.timestamp, record.key, record.value, tuple(record.headers))
        for part in parts:
            part.close()
            part.move_to(BatchState.SENT)
            part.move_to(BatchState.RETRYING)
        self._forget_records()
        self.parts = tuple(parts)
        return self.parts

    def runs_of(self, first: int, count: int) -> Iterator[tuple[ProducerBatch, int, int]]:
        """Yields the batches that have `count` records from index `first` on: each with the index of its
        first record, and the number. It is this batch itself unless it was split.
        """
        if not self.parts:
            yield self, first, count
            return
        start = 0
        for part in self.parts:
            begin, end = max(first, start), min(first + count, start + part.count)
            if begin < end:
                yield from part.runs_of(begin - start, end - begin)
            start += part.count

    def finish(self, *, base_offset: int = UNKNOWN_OFFSET, error: KafkaError | None = None) -> None:
        """Sets the outcome and releases the records."""
        self.move_to(BatchState.DONE)
        self.base_offset, self.error = base_offset, error
        self._forget_records()

    def _forget_records(self) -> None:
        self.records = RecordPieces()
        self._body = ()
        self._body_bytes = 0


def following_sequence(sequence: int, count: int) -> int:
    """Returns the sequence after `count` records. After the largest int32, sequences continue at 0."""
    return (sequence + count) & MAX_SEQUENCE


MAX_EPOCH: Final = 2**15 - 1


class PartitionQueue:
    """The batches of a partition: `waiting` were never sent, `unacknowledged` were."""

    __slots__ = (
        "is_known",
        "needs_new_epoch",
        "next_sequence",
        "place",
        "producer_epoch",
        "producer_id",
        "sent_count",
        "unacknowledged",
        "waiting",
    )

    def __init__(self, place: TopicPartition) -> None:
        self.place: TopicPartition = place
        self.waiting: deque[ProducerBatch] = deque()
        self.unacknowledged: list[ProducerBatch] = []
        self.producer_id: int = NO_PRODUCER_ID
        self.producer_epoch: int = NO_PRODUCER_EPOCH
        self.next_sequence: int = 0
        self.needs_new_epoch: bool = False
        self.sent_count: int = 0
        self.is_known: bool = False
        """Whether the broker has stored a batch of this producer and epoch."""

    @property
    def is_empty(self) -> bool:
        return not self.waiting and not self.unacknowledged

    def adopt(self, producer_id: int, producer_epoch: int) -> None:
        """Takes the producer's identity if no sent batch has the previous one."""
        if self.producer_id != producer_id or (self.producer_epoch < producer_epoch):
            if self.unacknowledged:
                return
            self.producer_id, self.producer_epoch = producer_id, producer_epoch
            self.next_sequence = 0
            self.needs_new_epoch = False
            self.is_known = False

    def renew_epoch(self, fresh_producer_id: int) -> bool:
        """Continues with the next epoch if a gap makes this necessary and no outcome is open.

        Returns whether the queue needs a fresh producer id, because this one has no more epochs.
        """
        if not self.needs_new_epoch or any(
            batch.is_on_wire or batch.is_fate_unknown for batch in self.unacknowledged
        ):
            return False
        if self.producer_epoch < MAX_EPOCH:
            self.producer_epoch += 1
        elif fresh_producer_id != self.producer_id:
            self.producer_id, self.producer_epoch = fresh_producer_id, 0
        else:
            return True
        self.needs_new_epoch = False
        self.is_known = False
        self.next_sequence = 0
        for batch in self.unacknowledged:
            self._number(batch)
        return False

    def repetition(self, *, keeps_order: bool) -> ProducerBatch | None:
        """Returns the batch that has to be repeated next, if any and if the order permits it now."""
        for batch in self.unacknowledged:
            if self.needs_new_epoch:
                if batch.is_fate_unknown and batch.state is BatchState.RETRYING:
                    return batch
                if batch.is_on_wire:
                    return None
                continue
            if batch.state is BatchState.RETRYING:
                return batch
            if keeps_order and self.is_repeating:
                return None
        return None

    @property
    def sent_since_oldest(self) -> int:
        """The number of batches that were first sent with or after the oldest unacknowledged one."""
        return self.sent_count - self.unacknowledged[0].ordinal if self.unacknowledged else 0

    @property
    def is_repeating(self) -> bool:
        return any(batch.state is BatchState.RETRYING for batch in self.unacknowledged)

    def take(self, *, is_idempotent: bool) -> ProducerBatch:
        """Moves the oldest waiting batch to the sent ones and numbers it."""
        batch = self.waiting.popleft()
        if batch.state is BatchState.OPEN:
            batch.close()
        batch.ordinal = self.sent_count
        self.sent_count += 1
        self.unacknowledged.append(batch)
        if is_idempotent:
            self._number(batch)
        return batch

    def split(self, batch: ProducerBatch, now_ms: int) -> None:
        """Sends the records in two batches at the same place of the order, as Kafka's producer does."""
        parts = batch.split()
        for part in parts:
            part.not_before_ms = now_ms
        at = self.unacknowledged.index(batch)
        self.unacknowledged[at : at + 1] = parts

    def stored(self, batch: ProducerBatch) -> None:
        """Removes a sent batch that a broker has stored. The earlier ones are overtaken."""
        at = self.unacknowledged.index(batch)
        for earlier in self.unacknowledged[:at]:
            earlier.is_overtaken = True
        del self.unacknowledged[at]

    def lost_batches(self) -> list[ProducerBatch]:
        """Returns the overtaken batches that no broker has stored."""
        return [
            batch
            for batch in self.unacknowledged
            if batch.is_overtaken and batch.state is BatchState.RETRYING and not batch.is_fate_unknown
        ]

    def _number(self, batch: ProducerBatch) -> None:
        batch.number(self.producer_id, self.producer_epoch, self.next_sequence)
        self.next_sequence = following_sequence(self.next_sequence, batch.count)


class PartitionAnswer(NamedTuple):
    """The broker's answer about one batch."""

    error_code: int
    base_offset: int
    log_append_time_ms: int
    message: str | None
    leader: PartitionLeader | None
    """The current leader, if the broker names it in an error."""


class ProduceAnswered(NamedTuple):
    """A response arrived. With acks=0, the shell sends this event when the request is written."""

    request_id: int
    answers: dict[TopicPartition, PartitionAnswer]


class ProduceFailed(NamedTuple):
    """No response arrived. `was_written` says whether the broker may have received the request."""

    request_id: int
    was_written: bool
    reason: str
    is_permanent: bool = False
    """Whether a repetition is useless, as after a refused login."""


class ProducerIdReceived(NamedTuple):
    producer_id: int
    producer_epoch: int


class ProducerIdRefused(NamedTuple):
    error: KafkaError


class MetadataFailed(NamedTuple):
    """No broker answered a Metadata request."""


Event = (
    ProduceAnswered
    | ProduceFailed
    | ProducerIdReceived
    | ProducerIdRefused
    | MetadataReceived
    | MetadataFailed
)


class SendProduce(NamedTuple):
    """Send these batches to the broker, after all earlier requests to it."""

    request_id: int
    node_id: int
    batches: tuple[ProducerBatch, ...]

    @property
    def unfinished(self) -> tuple[ProducerBatch, ...]:
        """The batches to write. The others ended while the request waited for a connection, because of
        `delivery.timeout.ms` or an abort, and have no records any more.
        """
        return tuple(batch for batch in self.batches if not batch.is_done)


class RequestMetadata(NamedTuple):
    """Ask any broker for these topics. It may create those that records wait for."""

    known: tuple[str, ...]
    wanted: tuple[str, ...]


class RequestProducerId(NamedTuple):
    """Send InitProducerId without a transactional id."""


class CompleteBatch(NamedTuple):
    """Tell the callers the outcome of a batch."""

    batch: ProducerBatch


Effect = SendProduce | RequestMetadata | RequestProducerId | CompleteBatch
