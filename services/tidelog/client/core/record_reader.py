"""Reads the records of a batch fast, for consumers.

It reads only sound records without headers, and leaves all others to `iterate_records`, which it must agree
with. mypyc compiles it (ADR 0020). Varints of one and two bytes are read without a call: in small records,
these are all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from tidelog.client.core.consumer_record import ConsumerRecord
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import BatchHeader
from tidelog.records.record import iterate_records, records_of
from tidelog.records.record_writer import Header
from tidelog.records.varint import CorruptVarintError, continue_varint

RECORDS_A_CHUNK: Final = 250
"""The number of records that are decoded at once, unless the application asks for more."""
_NO_HEADERS: Final[tuple[Header, ...]] = ()


class BatchReader:
    """Decodes the records of one batch, a few at a time.

    Each time that 700 more objects exist, Python's garbage collector looks for cycles of references, now and
    then among all objects of the process. So nothing decodes more records than it needs.
    """

    __slots__ = (
        "_append_time",
        "_base_offset",
        "_base_timestamp",
        "_body",
        "_count",
        "_max_headers",
        "_others",
        "_place",
        "_position",
        "_raw",
        "_read_count",
        "_start",
    )

    def __init__(
        self,
        place: TopicPartition,
        raw: memoryview,
        start: int,
        header: BatchHeader,
        max_headers: int | None = None,
    ) -> None:
        """The batch begins at `start` in `raw`. The reader builds at most `max_headers` headers of a record,
        as `iterate_records` does. Raises ValueError for damaged bytes.
        """
        self._place = place
        self._raw = raw
        self._start = start
        self._max_headers = max_headers
        self._body = bytes(records_of(raw, header, start))
        self._base_offset = header.base_offset
        self._base_timestamp = header.base_timestamp
        self._append_time: int | None = header.max_timestamp if header.is_log_append_time else None
        self._count = header.record_count
        self._read_count = 0
        self._position = 0
        """The position of the next record in the decompressed records."""
        self._others: Iterator[ConsumerRecord[Any, Any]] | None = None
        """All further records, from a record on that `iterate_records` has to read."""

    def read(self, most: int) -> list[ConsumerRecord[Any, Any]]:
        """Returns up to `most` further records, none at the end. Raises ValueError for damaged bytes."""
        if self._others is None:
            records = self._read_plain(min(most, self._count - self._read_count))
            if records is not None:
                self._read_count += len(records)
                return records
            self._others = islice(self._iterate(), self._read_count, None)
        return list(islice(self._others, most))

    def _read_plain(self, count: int) -> list[ConsumerRecord[Any, Any]] | None:
        """Returns the next `count` records, or None if `iterate_records` has to read them."""
        place, body, append_time = self._place, self._body, self._append_time
        base_offset, base_timestamp = self._base_offset, self._base_timestamp
        records: list[ConsumerRecord[Any, Any]] = []
        position, limit = self._position, len(body)
        try:
            for _ in range(count):
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
        if self._read_count + len(records) >= self._count and position != limit:
            return None
        self._position = position
        return records

    def _iterate(self) -> Iterator[ConsumerRecord[Any, Any]]:
        for record in iterate_records(self._raw, self._start, max_headers=self._max_headers):
            found: ConsumerRecord[Any, Any] = ConsumerRecord(
                self._place, record.offset, record.timestamp, record.key, record.value, record.headers
            )
            found.omitted_headers = record.omitted_headers
            yield found


def read_batch(
    place: TopicPartition,
    raw: memoryview,
    start: int,
    header: BatchHeader,
    max_headers: int | None = None,
) -> Iterator[ConsumerRecord[Any, Any]]:
    """Yields the records of the batch that begins at `start`, as `BatchReader` reads them."""
    reader = BatchReader(place, raw, start, header, max_headers)
    while records := reader.read(RECORDS_A_CHUNK):
        yield from records
