"""Reads the records of a batch fast, for consumers.

It reads only sound records without headers, and leaves all others to `iterate_records`, which it must agree
with. mypyc compiles it (ADR 0020). Varints of one and two bytes are read without a call: in small records,
these are all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tidelog.client.core.consumer_record import ConsumerRecord
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import BatchHeader
from tidelog.records.record import iterate_records, records_of
from tidelog.records.record_writer import Header
from tidelog.records.varint import CorruptVarintError, continue_varint

MAX_RECORDS_AT_ONCE: Final = 100_000
"""The largest batch that is read at once. A small compressed batch can contain millions of records."""
_NO_HEADERS: Final[tuple[Header, ...]] = ()


def read_batch(
    place: TopicPartition,
    raw: memoryview,
    position: int,
    header: BatchHeader,
    max_headers: int | None = None,
) -> Iterator[ConsumerRecord[Any, Any]]:
    """Returns an iterator over the records of the batch at `position`. It decodes a usual batch at once.

    It builds at most `max_headers` headers of a record, as `iterate_records` does. This function or the
    iterator raises ValueError for damaged bytes.
    """
    plain = read_plain_records(
        place,
        bytes(records_of(raw, header, position)),
        header.record_count,
        header.base_offset,
        header.base_timestamp,
        header.max_timestamp if header.is_log_append_time else None,
    )
    return iter(plain) if plain is not None else _read_any(place, raw, position, max_headers)


def _read_any(
    place: TopicPartition, raw: memoryview, position: int, max_headers: int | None
) -> Iterator[ConsumerRecord[Any, Any]]:
    for record in iterate_records(raw, position, max_headers=max_headers):
        found: ConsumerRecord[Any, Any] = ConsumerRecord(
            place, record.offset, record.timestamp, record.key, record.value, record.headers
        )
        found.omitted_headers = record.omitted_headers
        yield found


def read_plain_records(
    place: TopicPartition,
    body: bytes,
    record_count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None,
) -> list[ConsumerRecord[Any, Any]] | None:
    """Returns the records of a batch, or None if `iterate_records` has to read them.

    `body` has the decompressed records. `append_time` replaces the timestamps in a batch with LogAppendTime.
    """
    if record_count > MAX_RECORDS_AT_ONCE:
        return None
    records: list[ConsumerRecord[Any, Any]] = []
    position, limit = 0, len(body)
    try:
        for _ in range(record_count):
            zigzag = body[position]
            position += 1
            if zigzag > 0x7F:
                second = body[position]
                if second > 0x7F:
                    zigzag, position = continue_varint(body, position, zigzag)
                else:
                    zigzag = zigzag & 0x7F | second << 7
                    position += 1
            end = position + (zigzag >> 1)
            if zigzag & 1 or end > limit:
                return None
            zigzag = body[position + 1]  # after the attributes
            position += 2
            if zigzag > 0x7F:
                zigzag, position = continue_varint(body, position, zigzag)
            timestamp = base_timestamp + ((zigzag >> 1) ^ -(zigzag & 1))
            zigzag = body[position]
            position += 1
            if zigzag > 0x7F:
                second = body[position]
                if second > 0x7F:
                    zigzag, position = continue_varint(body, position, zigzag)
                else:
                    zigzag = zigzag & 0x7F | second << 7
                    position += 1
            offset = base_offset + ((zigzag >> 1) ^ -(zigzag & 1))
            zigzag = body[position]
            position += 1
            key: bytes | None = None
            if zigzag != 1:
                if zigzag > 0x7F:
                    zigzag, position = continue_varint(body, position, zigzag)
                if zigzag & 1:
                    return None
                start = position
                position += zigzag >> 1
                key = body[start:position]
            zigzag = body[position]
            position += 1
            value: bytes | None = None
            if zigzag != 1:
                if zigzag > 0x7F:
                    second = body[position]
                    if second > 0x7F:
                        zigzag, position = continue_varint(body, position, zigzag)
                    else:
                        zigzag = zigzag & 0x7F | second << 7
                        position += 1
                if zigzag & 1:
                    return None
                start = position
                position += zigzag >> 1
                value = body[start:position]
            if position + 1 != end or body[position]:
                return None
            position = end
            records.append(
                ConsumerRecord(
                    place,
                    offset,
                    timestamp if append_time is None else append_time,
                    key,
                    value,
                    _NO_HEADERS,
                )
            )
    except (IndexError, CorruptVarintError):
        return None
    return records if position == limit else None
