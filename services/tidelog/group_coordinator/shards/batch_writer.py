"""Record batches of what cores decide: as few as can be, written once.

A turn of the loop may bring hundreds of decisions; their records go into one batch. Only what belongs to a
transaction, and markers, are batches of their own.
"""

from __future__ import annotations

from typing import Final

from tidelog.group_coordinator.shard_core import CoordinatorRecord, EndMarker, Producer
from tidelog.records.batch import CURRENT_MAGIC, NO_PRODUCER_ID, TRANSACTIONAL_BIT, BatchHeader
from tidelog.records.builder import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    assemble_batch,
    build_end_transaction_batch,
)
from tidelog.records.control import EndTransactionMarker
from tidelog.records.varint import append_varint

MAX_BATCH_BYTES: Final = 256 * 1024
"""What is beyond goes into another batch; well below the topic's max.message.bytes."""


def _varint(number: int) -> bytes:
    output = bytearray()
    append_varint(output, number)
    return bytes(output)


_SMALL: Final = tuple(_varint(number) for number in range(4096))
_NULL: Final = _varint(-1)


def _small_varint(number: int) -> bytes:
    return _SMALL[number] if 0 <= number < 4096 else _varint(number)


class BatchWriter:
    """Takes records in their order; `take` gives the batches, base offsets from 0 on (the leader sets them).

    The timestamp of a batch's records is that of its first: they are of one turn.
    """

    __slots__ = ("_batches", "_count", "_payload", "_producer", "_timestamp_ms", "count")

    def __init__(self) -> None:
        self.count = 0
        """Records since the last `take`: so many offsets they need."""
        self._batches: list[bytearray] = []
        self._payload = bytearray()
        self._count = 0
        self._timestamp_ms = -1
        self._producer: Producer | None = None

    def add(self, records: list[CoordinatorRecord], producer: Producer | None, now_ms: int) -> None:
        if producer is not None or self._producer is not None or len(self._payload) > MAX_BATCH_BYTES:
            self._end_batch()
            self._producer = producer
        if not self._count:
            self._timestamp_ms = now_ms
        count, payload = self._count, self._payload
        for key, value in records:
            if len(payload) > MAX_BATCH_BYTES:
                self._count = count
                self._end_batch()
                self._producer, self._timestamp_ms = producer, now_ms
                count, payload = 0, self._payload
            # attributes, timestamp delta (always 0), offset delta, key, value, no headers
            head = b"\0\0" + _small_varint(count) + _small_varint(len(key)) + key
            if value is None:
                body = head + _NULL + b"\0"
            else:
                body = head + _small_varint(len(value)) + value + b"\0"
            payload += _small_varint(len(body))
            payload += body
            count += 1
        self._count = count
        self.count += len(records)

    def add_marker(self, marker: EndMarker, now_ms: int) -> None:
        self._end_batch()
        self._batches.append(
            build_end_transaction_batch(
                EndTransactionMarker(marker.is_commit, marker.coordinator_epoch),
                base_offset=0,
                timestamp_ms=now_ms,
                producer_id=marker.producer.producer_id,
                producer_epoch=marker.producer.producer_epoch,
            )
        )
        self.count += 1

    def take(self) -> bytes:
        """Everything since the last time, as one run of batches."""
        self._end_batch()
        batches, self._batches, self.count = self._batches, [], 0
        return bytes(batches[0]) if len(batches) == 1 else b"".join(batches)

    def _end_batch(self) -> None:
        if self._count:
            producer = self._producer
            header = BatchHeader(
                base_offset=0,
                batch_length=0,
                partition_leader_epoch=NO_LEADER_EPOCH,
                magic=CURRENT_MAGIC,
                crc=0,
                attributes=0 if producer is None else TRANSACTIONAL_BIT,
                last_offset_delta=self._count - 1,
                base_timestamp=self._timestamp_ms,
                max_timestamp=self._timestamp_ms,
                producer_id=NO_PRODUCER_ID if producer is None else producer.producer_id,
                producer_epoch=NO_PRODUCER_EPOCH if producer is None else producer.producer_epoch,
                base_sequence=NO_SEQUENCE,
                record_count=self._count,
            )
            self._batches.append(assemble_batch(header, self._payload))
            self._payload = bytearray()
            self._count = 0
        self._producer = None
