"""A record that a consumer delivers. mypyc compiles this module (ADR 0020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar, cast

from tidelog.client.serializers import Deserializer
from tidelog.model.topics import TopicPartition
from tidelog.records.record_writer import Header

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
