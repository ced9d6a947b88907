"""The records in a batch.

A record is `length varint, attributes int8, timestamp_delta varlong, offset_delta varint, key_length varint,
key, value_length varint, value, header_count varint, headers`; a header is `key_length varint, key,
value_length varint, value`. Length -1 is null. Source: Kafka's `DefaultRecord`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    BatchHeader,
    Buffer,
    EndTransactionMarker,
    decode_end_transaction,
    parse_header,
)
from tidelog.records.compression import MAX_DECOMPRESSED_BYTES, decompress
from tidelog.records.record_writer import Header
from tidelog.records.varint import CorruptVarintError, continue_varint, read_varint


class CorruptRecordError(ValueError):
    """The bytes are not the records that the batch announces; the message gives the reason."""


class Record(NamedTuple):
    """A record. `timestamp` is in milliseconds since 1970, -1 if there is none.

    In a batch with LogAppendTime, it is the time of the broker's append. `omitted_headers` counts the headers
    that the reader did not want.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    omitted_headers: int = 0


class RecordSpan(NamedTuple):
    """The positions of a record's parts in the decompressed records of its batch. A length of -1 is null."""

    start: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key_start: int
    key_length: int
    value_start: int
    value_length: int
    headers_start: int


def records_of(
    batch: Buffer, header: BatchHeader, position: int = 0, *, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> memoryview:
    """Returns the decompressed records of the batch. Without compression, it is a view of the batch."""
    body = memoryview(batch)[position + BATCH_HEADER_BYTES : position + header.size_bytes]
    return decompress(header.compression, body, max_bytes)


def iterate_records(
    batch: Buffer,
    position: int = 0,
    *,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
    max_headers: int | None = None,
) -> Iterator[Record]:
    """Yields all records of the batch at `position`, including control records.

    It builds at most `max_headers` headers of each record and does not look at the others, because a batch of
    two kilobytes can have ten million. Raises CorruptBatchError, CompressionDataError or CorruptRecordError
    for damaged bytes; all are ValueErrors.
    """
    header = parse_header(batch, position)
    body = records_of(batch, header, position, max_bytes=max_bytes)
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.is_log_append_time else None
    for span in scan_records(body, header.record_count):
        key_start, key_length = span.key_start, span.key_length
        value_start, value_length = span.value_start, span.value_length
        yield Record(
            base_offset + span.offset_delta,
            base_timestamp + span.timestamp_delta if append_time is None else append_time,
            bytes(body[key_start : key_start + key_length]) if key_length >= 0 else None,
            bytes(body[value_start : value_start + value_length]) if value_length >= 0 else None,
            *read_headers(body, span.headers_start, span.end, max_headers),
        )


def scan_offsets(body: Buffer, header: BatchHeader) -> Iterator[tuple[int, RecordSpan]]:
    """Yields the offset and the positions of each record in `body`, the decompressed records of a batch.

    The producer wrote the offsets. So this raises CorruptRecordError, besides the errors of `scan_records`,
    at an offset that is not higher than the one before it or that is not in the batch.
    """
    before, base_offset, last_offset = header.base_offset - 1, header.base_offset, header.last_offset
    for span in scan_records(body, header.record_count):
        offset = base_offset + span.offset_delta
        if not before < offset <= last_offset:
            raise CorruptRecordError(
                f"the offset {offset} does not lie between {before} and {last_offset + 1}"
            )
        yield offset, span
        before = offset


def scan_records(body: Buffer, record_count: int) -> Iterator[RecordSpan]:
    """Yields the positions of each record in `body`, the decompressed records of a batch.

    It skips the headers. Raises CorruptRecordError if lengths are invalid or if the bytes are fewer or more
    than the records need.
    """
    position, limit = 0, len(body)
    for number in range(record_count):
        start = position
        try:
            span = _scan_record(body, position)
        except (IndexError, CorruptVarintError) as error:
            raise CorruptRecordError(f"record {number} of {record_count} is cut off") from error
        position = span.end
        if (
            not start < span.headers_start <= position <= limit
            or span.key_length < -1
            or span.value_length < -1
        ):
            raise CorruptRecordError(f"record {number} of {record_count} has lengths that do not fit")
        yield span
    if position != limit:
        raise CorruptRecordError(f"{limit - position} bytes remain after {record_count} records")


def _scan_record(body: Buffer, start: int) -> RecordSpan:
    """Raises IndexError at the end of the bytes.

    Most varints have one byte, so this case is read without a call.
    """
    zigzag, position = body[start], start + 1
    if zigzag > 0x7F:
        zigzag, position = continue_varint(body, position, zigzag)
    end = position + ((zigzag >> 1) ^ -(zigzag & 1))
    position += 1  # attributes, which Kafka does not use yet
    zigzag = body[position]
    position += 1
    if zigzag > 0x7F:
        zigzag, position = continue_varint(body, position, zigzag)
    timestamp_delta = (zigzag >> 1) ^ -(zigzag & 1)
    zigzag = body[position]
    position += 1
    if zigzag > 0x7F:
        zigzag, position = continue_varint(body, position, zigzag)
    offset_delta = (zigzag >> 1) ^ -(zigzag & 1)
    zigzag = body[position]
    position += 1
    if zigzag > 0x7F:
        zigzag, position = continue_varint(body, position, zigzag)
    key_length, key_start = (zigzag >> 1) ^ -(zigzag & 1), position
    if key_length > 0:
        position += key_length
    zigzag = body[position]
    position += 1
    if zigzag > 0x7F:
        zigzag, position = continue_varint(body, position, zigzag)
    value_length, value_start = (zigzag >> 1) ^ -(zigzag & 1), position
    if value_length > 0:
        position += value_length
    return RecordSpan(
        start, end, timestamp_delta, offset_delta, key_start, key_length, value_start, value_length, position
    )


def read_headers(
    body: memoryview, position: int, end: int, max_headers: int | None = None
) -> tuple[tuple[Header, ...], int]:
    """Returns the headers between `position` and `end`, the end of the record, and the number of those above
    `max_headers`, which are omitted. Raises CorruptRecordError.
    """
    if position < end and body[position] == 0 and position + 1 == end:
        return (), 0
    if max_headers is None:
        return tuple(iterate_headers(body, position, end)), 0
    count = _header_count(body[:end], position)[0]
    if count <= max_headers:
        return tuple(iterate_headers(body, position, end)), 0
    return tuple(islice(iterate_headers(body, position, end), max_headers)), count - max_headers


def _header_count(record: memoryview, position: int) -> tuple[int, int]:
    """Returns the number of headers and the position of the first one. Raises CorruptRecordError."""
    end = len(record)
    try:
        count, position = read_varint(record, position)
    except CorruptVarintError as error:
        raise CorruptRecordError("a record's headers are cut off") from error
    if not 0 <= count <= end - position:
        raise CorruptRecordError(f"a record has {count} headers in {end - position} bytes")
    return count, position


def iterate_headers(body: memoryview, position: int, end: int) -> Iterator[Header]:
    """Yields the headers between `position` and `end`, the end of the record. Raises CorruptRecordError.

    It reads one header at a time, because a record can have millions of them.
    """
    record = body[:end]
    count, position = _header_count(record, position)
    try:
        for _ in range(count):
            key, position = _read_bytes(record, position)
            value, position = _read_bytes(record, position)
            if key is None:
                raise CorruptRecordError("a header has no key")
            yield key.decode("utf-8", errors="replace"), value
    except CorruptVarintError as error:
        raise CorruptRecordError("a record's headers are cut off") from error
    if position != end:
        raise CorruptRecordError(f"{end - position} bytes remain after a record's headers")


def check_headers(body: memoryview, position: int, end: int) -> None:
    """Raises CorruptRecordError where `read_headers` does. It builds no headers, because a few kilobytes can
    decompress to millions of them.
    """
    if position < end and body[position] == 0 and position + 1 == end:
        return
    record = body[:end]
    count, position = _header_count(record, position)
    try:
        for _ in range(count):
            length, position = read_varint(record, position)
            if length < 0:
                raise CorruptRecordError("a header has no key")
            length, position = read_varint(record, position + length)
            if length < -1:
                raise CorruptRecordError(f"a header has a length of {length} bytes")
            position += max(length, 0)
    except CorruptVarintError as error:
        raise CorruptRecordError("a record's headers are cut off") from error
    if position != end:
        raise CorruptRecordError(f"{end - position} bytes remain after a record's headers")


def _read_bytes(record: memoryview, position: int) -> tuple[bytes | None, int]:
    length, position = read_varint(record, position)
    if length < 0:
        if length < -1:
            raise CorruptRecordError(f"a header has a length of {length} bytes")
        return None, position
    if length > len(record) - position:
        raise CorruptRecordError(f"a header of {length} bytes in {len(record) - position}")
    return bytes(record[position : position + length]), position + length


def end_transaction_marker(batch: Buffer, position: int = 0) -> EndTransactionMarker | None:
    """Returns the marker in the control batch at `position`, None if it has no marker."""
    for record in iterate_records(batch, position):
        return decode_end_transaction(record.key or b"", record.value or b"")
    return None
