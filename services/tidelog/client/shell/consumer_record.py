"""A record that a consumer delivers."""

from __future__ import annotations

from typing import Generic, TypeVar, cast

from tidelog.client.serializers import Deserializer
from tidelog.model.topics import TopicPartition
from tidelog.records.record import Record
from tidelog.records.record_writer import Header

K = TypeVar("K")
V = TypeVar("V")


class DeserializationError(ValueError):
    """A deserializer failed. The cause is its exception; `record` has the bytes."""


class ConsumerRecord(Generic[K, V]):
    """A record. `timestamp` is in milliseconds since 1970.

    `key` and `value` raise DeserializationError if their deserializer failed, so a bad record does not hide
    the good ones beside it. `error` is that exception, or None.
    """

    __slots__ = (
        "_key",
        "_value",
        "error",
        "headers",
        "key_bytes",
        "offset",
        "partition",
        "timestamp",
        "topic",
        "value_bytes",
    )

    def __init__(
        self,
        place: TopicPartition,
        record: Record,
        read_key: Deserializer[K] | None,
        read_value: Deserializer[V] | None,
    ) -> None:
        self.topic, self.partition = place
        self.offset, self.timestamp, self.key_bytes, self.value_bytes, headers, _ = record
        self.headers: tuple[Header, ...] = headers
        self.error: DeserializationError | None = None
        self._key: K | None
        self._value: V | None
        if read_key is None and read_value is None:
            self._key, self._value = cast("K", self.key_bytes), cast("V", self.value_bytes)
            return
        self._key = self._value = None
        try:
            self._key = (
                cast("K", self.key_bytes) if read_key is None else read_key(self.topic, self.key_bytes)
            )
            self._value = (
                cast("V", self.value_bytes)
                if read_value is None
                else read_value(self.topic, self.value_bytes)
            )
        except Exception as error:  # noqa: BLE001  # whatever a deserializer raises belongs to this record
            self.error = DeserializationError(f"{place} offset {self.offset} can't be read: {error}")
            self.error.__cause__ = error

    def __repr__(self) -> str:
        return f"<record {self.topic}-{self.partition} offset {self.offset}>"

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def key(self) -> K:
        if self.error is not None:
            raise self.error
        return cast("K", self._key)

    @property
    def value(self) -> V:
        if self.error is not None:
            raise self.error
        return cast("V", self._value)
