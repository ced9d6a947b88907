"""Records as a consumer returns them, and how fetched batches become records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, Generic, TypeVar, cast

from tidelog.client.serializers import Deserializer
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import BatchHeader
from tidelog.records.record import iterate_records, records_of
from tidelog.records.record_walk import whole_varint
from tidelog.records.record_writer import Header
from tidelog.records.varint import CorruptVarintError

K = TypeVar("K")
V = TypeVar("V")


class DeserializationError(ValueError):
    """A deserializer failed. The cause is its exception; `record` has the bytes."""


class ConsumerRecord(Generic[K, V]):
    """A record. `timestamp` is in milliseconds since 1970.

    `key` and `value` are None if the record has none: a null value deletes its key in a compacted topic. They
    raise DeserializationError if their deserializer failed, so a bad record does not hide the good ones
    beside it. `error` is that exception, or None.
    """

    __slots__ = (
        "_key",
        "_value",
        "error",
        "headers",
        "key_bytes",
        "offset",
        "omitted_headers",
        "place",
        "timestamp",
        "value_bytes",
    )

    def __init__(
        self,
        place: TopicPartition,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[Header, ...],
    ) -> None:
        self.place: TopicPartition = place
        self.offset: int = offset
        self.timestamp: int = timestamp
        self.key_bytes: bytes | None = key
        self.value_bytes: bytes | None = value
        self.headers: tuple[Header, ...] = headers
        self.omitted_headers: int = 0
        """The number of headers that the reader of a batch did not want (`ConsumerBatch.iterate`)."""
        self.error: DeserializationError | None = None
        self._key: Any = key
        self._value: Any = value

    def __repr__(self) -> str:
        return f"<record {self.place} offset {self.offset}>"

    @property
    def topic(self) -> str:
        return self.place.topic

    @property
    def partition(self) -> int:
        return self.place.partition

    @property
    def key(self) -> K | None:
        if self.error is not None:
            raise self.error
        return cast("K | None", self._key)

    @property
    def value(self) -> V | None:
        if self.error is not None:
            raise self.error
        return cast("V | None", self._value)


class SharedRecord(ConsumerRecord[K, V]):
    """A record of a share group. `delivery_count` is 1 if no member got the record before."""

    __slots__ = ("delivery_count",)

    def __init__(
        self,
        place: TopicPartition,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[Header, ...],
        delivery_count: int,
    ) -> None:
        super().__init__(place, offset, timestamp, key, value, headers)
        self.delivery_count: int = delivery_count


def deserialize(
    records: Sequence[ConsumerRecord[Any, Any]],
    read_key: Deserializer[Any] | None,
    read_value: Deserializer[Any] | None,
) -> None:
    """Sets `key` and `value` of records whose keys and values are still bytes."""
    for record in records:
        topic = record.place.topic
        try:
            if read_key is not None:
                record._key = read_key(topic, record.key_bytes)
            if read_value is not None:
                record._value = read_value(topic, record.value_bytes)
        except Exception as error:  # noqa: BLE001  # whatever a deserializer raises belongs to this record
            failure = DeserializationError(f"{record.place} offset {record.offset} can't be read: {error}")
            failure.__cause__ = error
            record.error = failure


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
                    zigzag, position = whole_varint(body, position, zigzag)
                end = position + (zigzag >> 1)
                if zigzag & 1 or end > limit:
                    return None
                zigzag = body[position + 1]  # after the attributes
                position += 2
                if zigzag > 0x7F:
                    zigzag, position = whole_varint(body, position, zigzag)
                timestamp = base_timestamp + ((zigzag >> 1) ^ -(zigzag & 1))
                zigzag = body[position]
                position += 1
                if zigzag > 0x7F:
                    zigzag, position = whole_varint(body, position, zigzag)
                offset = base_offset + ((zigzag >> 1) ^ -(zigzag & 1))
                zigzag = body[position]
                position += 1
                key: bytes | None = None
                if zigzag != 1:
                    if zigzag > 0x7F:
                        zigzag, position = whole_varint(body, position, zigzag)
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
                        zigzag, position = whole_varint(body, position, zigzag)
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
