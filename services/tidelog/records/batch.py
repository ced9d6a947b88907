"""The header of a record batch (magic 2), and the fields that a broker may set in place.

A batch is `base_offset int64, batch_length int32` (the log overhead, 12 bytes; `batch_length` counts the
bytes after it) and then `partition_leader_epoch int32, magic int8, crc uint32, attributes int16,
last_offset_delta int32, base_timestamp int64, max_timestamp int64, producer_id int64, producer_epoch
int16, base_sequence int32, record_count int32, records`. The CRC-32C covers everything from `attributes`
to the end, so base offset and leader epoch can be set without computing it again. Source: Kafka's
`DefaultRecordBatch`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog.kernel.instants import WallMs

LOG_OVERHEAD_BYTES: Final = 12
BATCH_HEADER_BYTES: Final = 61
MIN_BATCH_LENGTH: Final = BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES
"""The least value of the field `batch_length`."""
MAGIC_OFFSET: Final = 16
CRC_OFFSET: Final = 17
CRC_COVERS_FROM: Final = 21
CURRENT_MAGIC: Final = 2

COMPRESSION_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40
"""The base timestamp is the time from which the tombstones of a compacted batch, or its marker, may be
removed (KIP-534)."""

NO_LEADER_EPOCH: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""The fields of a BatchHeader."""
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_BASE_OFFSET_LENGTH_EPOCH = struct.Struct(">qii")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_ATTRIBUTES_OFFSET: Final = 21
_MAX_TIMESTAMP_OFFSET: Final = 35
_BASE_IS_NO_RECORD_TIME: Final = TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT

Buffer = bytes | bytearray | memoryview


class CorruptBatchError(ValueError):
    """The bytes are not a record batch; the message gives the reason."""


class BatchHeader(NamedTuple):
    """All 13 fields in wire order."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, including the log overhead."""
        return self.batch_length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, an int32 that wraps to 0; -1 without a producer id."""
        if self.producer_id == NO_PRODUCER_ID:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Returns the header at `position` and checks none of its fields.

    Raises CorruptBatchError if fewer than 61 bytes remain.
    """
    if len(buffer) - position < BATCH_HEADER_BYTES:
        raise CorruptBatchError(
            f"{len(buffer) - position} bytes are less than a batch header's {BATCH_HEADER_BYTES}"
        )
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def assemble_batch(header: BatchHeader, *payload: Buffer) -> bytearray:
    """Returns the batch of `header` and the pieces of the compressed `payload`, with its length and CRC."""
    batch = bytearray().join((bytes(BATCH_HEADER_BYTES), *payload))
    HEADER.pack_into(
        batch,
        0,
        header.base_offset,
        len(batch) - LOG_OVERHEAD_BYTES,
        header.partition_leader_epoch,
        CURRENT_MAGIC,
        0,
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
    )
    _CRC.pack_into(batch, CRC_OFFSET, crc32c(memoryview(batch)[CRC_COVERS_FROM:]))
    return batch


def wrap_records(
    body: Sequence[Buffer],
    record_count: int,
    *,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytearray:
    """Returns a batch as a producer sends it: of encoded records from offset 0 on, without gaps.

    `body` has the pieces of the records, and `attributes` state how it is compressed. Timestamps are in
    milliseconds since 1970.
    """
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        partition_leader_epoch=NO_LEADER_EPOCH,
        magic=CURRENT_MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=record_count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
    )
    return assemble_batch(header, *body)


def known_max_timestamp(header: BatchHeader) -> int:
    """Returns `max_timestamp`, or NO_TIMESTAMP if it is none or cannot be that of the records.

    Some clients set only `base_timestamp` (Sarama up to 1.45). Leaders correct such a header when they append
    the batch, but older brokers stored it. An unknown time must never count as an old one.
    """
    max_timestamp = header.max_timestamp
    if max_timestamp < header.base_timestamp and not header.attributes & _BASE_IS_NO_RECORD_TIME:
        return NO_TIMESTAMP
    return max_timestamp


def may_reach(header: BatchHeader, timestamp: int) -> bool:
    """Returns False if no record of the batch has a time at or after `timestamp`."""
    known = known_max_timestamp(header)
    return known >= timestamp or known < 0 <= header.base_timestamp


def crc_matches(header: BatchHeader, buffer: Buffer, position: int = 0) -> bool:
    end = position + header.batch_length + LOG_OVERHEAD_BYTES
    return bool(crc32c(memoryview(buffer)[position + CRC_COVERS_FROM : end]) == header.crc)


def assign_offset_and_epoch(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Sets the two fields outside the CRC, as a leader does for every batch that it appends."""
    _BASE_OFFSET_LENGTH_EPOCH.pack_into(
        buffer, position, base_offset, _OFFSET_AND_LENGTH.unpack_from(buffer, position)[1], leader_epoch
    )


def set_log_append_time(
    buffer: bytearray | memoryview, header: BatchHeader, position: int, now_ms: WallMs
) -> BatchHeader:
    """Marks the batch as LogAppendTime with `max_timestamp` = `now_ms` and updates the CRC.

    The records need no change. Returns the new header.
    """
    attributes = header.attributes | TIMESTAMP_TYPE_BIT
    _ATTRIBUTES.pack_into(buffer, position + _ATTRIBUTES_OFFSET, attributes)
    _MAX_TIMESTAMP.pack_into(buffer, position + _MAX_TIMESTAMP_OFFSET, now_ms)
    crc = crc32c(memoryview(buffer)[position + CRC_COVERS_FROM : position + header.size_bytes])
    _CRC.pack_into(buffer, position + CRC_OFFSET, crc)
    return header._replace(attributes=attributes, max_timestamp=now_ms, crc=crc)


def iterate_headers(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yields (position, header) of each whole batch in `buffer`; an incomplete batch at the end is ignored.

    Raises CorruptBatchError for a length that no batch can have.
    """
    position, end = 0, len(buffer)
    while end - position >= BATCH_HEADER_BYTES:
        header = BatchHeader._make(HEADER.unpack_from(buffer, position))
        if header.batch_length < BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES:
            raise CorruptBatchError(f"batch length {header.batch_length} at position {position} is too small")
        if header.size_bytes > end - position:
            return
        yield position, header
        position += header.size_bytes


_KEY = struct.Struct(">hh")
_END_TRANSACTION_VALUE = struct.Struct(">hi")
_VERSION = 0


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class CorruptControlRecordError(ValueError):
    """The control record cannot be parsed; the message gives the reason."""


class EndTransactionMarker(NamedTuple):
    is_commit: bool
    coordinator_epoch: int


def encode_end_transaction(marker: EndTransactionMarker) -> tuple[bytes, bytes]:
    """Returns (key, value) of the control record."""
    control_type = ControlType.COMMIT if marker.is_commit else ControlType.ABORT
    return _KEY.pack(_VERSION, control_type), _END_TRANSACTION_VALUE.pack(_VERSION, marker.coordinator_epoch)


def decode_end_transaction(key: bytes | memoryview, value: bytes | memoryview) -> EndTransactionMarker | None:
    """Returns the marker, None for another control type. Accepts the longer values of later versions."""
    if len(key) < _KEY.size:
        raise CorruptControlRecordError(
            f"control record key of {len(key)} bytes, at least {_KEY.size} expected"
        )
    control_type = _KEY.unpack_from(key)[1]
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if len(value) < _END_TRANSACTION_VALUE.size:
        raise CorruptControlRecordError(
            f"end-transaction marker of {len(value)} bytes, at least {_END_TRANSACTION_VALUE.size} expected"
        )
    return EndTransactionMarker(
        control_type == ControlType.COMMIT, _END_TRANSACTION_VALUE.unpack_from(value)[1]
    )
