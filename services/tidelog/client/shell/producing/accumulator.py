"""The way of records into the buffer of a producer: their bytes, their partitions, and the wait for room."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from tidelog.client.errors import BufferFullError, MetadataTimeoutError, UnknownTopicError
from tidelog.client.partitioners import Partitioner, by_key
from tidelog.client.serializers import Serializer, bytes_of
from tidelog.client.shell.producing.delivery import BatchDelivery, Delivery
from tidelog.client.shell.producing.sender import Sender
from tidelog.client.shell.producing.transactions import Transaction
from tidelog.records.record_writer import Header

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
logger: Final = logging.getLogger("tidelog.client")

MAX_ROWS_AT_ONCE: Final = 1_000
"""The most records with keys or headers that `append_batch` adds before requests get their turn."""
NEW_PARTITION_WAIT_S: Final = 2.0
"""The time in which a partition that was just created appears in the metadata of all brokers."""
_BYTES_OR_NONE: Final = frozenset({bytes, type(None)})


class ProducerInterceptor(Protocol):
    """Sees each record before it is serialized, and each outcome. An exception is logged and ignored."""

    def on_send(self, topic: str, key: Any, value: Any, headers: tuple[Header, ...], /) -> tuple[Any, Any]:
        """Returns the key and the value to send."""
        ...

    def on_acknowledgement(self, delivery: Delivery, /) -> None: ...


@dataclass(slots=True)
class EncodedRecords:
    """Records for one topic, of which the first `added` are in the buffer."""

    topic: str
    partition: int | None
    timestamp: int
    keys: Sequence[bytes | None] | None
    """None if no record has a key."""
    values: Sequence[bytes | None]
    headers: Sequence[tuple[Header, ...]] | None
    """None if no record has headers."""
    on_delivery: Callable[[Delivery], None] | None = None
    """The callback that `send` got for its only record."""
    delivery: BatchDelivery = field(default_factory=BatchDelivery)
    watched: Delivery | None = None
    """The outcome of the first record, if a callback or an interceptor gets it."""
    added: int = 0

    @property
    def are_added(self) -> bool:
        return self.added == len(self.values)


class RecordEncoder(Generic[K, V]):
    """The serializers and interceptors of a producer."""

    def __init__(
        self,
        key_serializer: Serializer[K] | None,
        value_serializer: Serializer[V] | None,
        interceptors: Sequence[ProducerInterceptor],
    ) -> None:
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self.interceptors: tuple[ProducerInterceptor, ...] = tuple(interceptors)
        self.sends_bytes: bool = key_serializer is None and value_serializer is None and not self.interceptors
        """Whether keys and values need no `serialize`."""

    def serialize(
        self, topic: str, key: K | None, value: V | None, headers: tuple[Header, ...]
    ) -> tuple[bytes | None, bytes | None]:
        """Returns the bytes of a key and a value, after the interceptors."""
        for interceptor in self.interceptors:
            try:
                key, value = interceptor.on_send(topic, key, value, headers)
            except Exception:  # a record must not depend on an observer
                logger.exception("the interceptor %r failed", interceptor)
        write_key, write_value = self._key_serializer, self._value_serializer
        return (
            cast("bytes | None", key) if key is None or write_key is None else write_key(topic, key),
            cast("bytes | None", value)
            if value is None or write_value is None
            else write_value(topic, value),
        )

    def encode(
        self,
        topic: str,
        values: Sequence[V | None],
        keys: Sequence[K | None] | None,
        headers: Sequence[Iterable[Header]] | None,
        partition: int | None,
        timestamp: int | None,
    ) -> EncodedRecords:
        """Returns the records of a `send_batch`. Raises ValueError for lists of different lengths, TypeError,
        and what a serializer raises.
        """
        stamp = time.time_ns() // 1_000_000 if timestamp is None else timestamp
        if keys is not None and len(keys) != len(values):
            raise ValueError(f"there are {len(keys)} keys for {len(values)} values")
        if headers is not None and len(headers) != len(values):
            raise ValueError(f"there are headers of {len(headers)} records for {len(values)} values")
        given = None if headers is None else [tuple(pairs) for pairs in headers]
        written_keys: Sequence[object] | None = keys
        written_values: Sequence[object] = values
        if not self.sends_bytes:
            rows = [
                self.serialize(
                    topic,
                    None if keys is None else keys[index],
                    value,
                    () if given is None else given[index],
                )
                for index, value in enumerate(values)
            ]
            written_keys = [key for key, _ in rows] if any(key is not None for key, _ in rows) else None
            written_values = [value for _, value in rows]
        return EncodedRecords(
            topic,
            partition,
            stamp,
            None if written_keys is None else _all_bytes("key", written_keys, topic),
            _all_bytes("value", written_values, topic),
            given,
        )


def _all_bytes(field_name: str, contents: Sequence[object], topic: str) -> Sequence[bytes | None]:
    """Returns the keys or values of records as bytes. Raises TypeError."""
    if _BYTES_OR_NONE.issuperset(map(type, contents)):
        return cast("Sequence[bytes | None]", contents)
    return [None if content is None else bytes_of(field_name, content, topic) for content in contents]


class RecordAccumulator(Generic[K, V]):
    """The buffer of a producer as its callers see it. `append` and `append_batch` may run in any thread."""

    def __init__(
        self,
        sender: Sender,
        transaction: Transaction,
        encoder: RecordEncoder[K, V],
        partitioner: Partitioner,
    ) -> None:
        self.encoder: RecordEncoder[K, V] = encoder
        self._sender = sender
        self._core = sender.core
        self._transaction = transaction
        self._sends_bytes = encoder.sends_bytes
        self.interceptors: tuple[ProducerInterceptor, ...] = encoder.interceptors
        self._partitioner = partitioner

    def append(
        self,
        topic: str,
        value: V | None,
        key: K | None,
        partition: int | None,
        headers: Iterable[Header],
        timestamp: int | None,
    ) -> Delivery | EncodedRecords:
        """Adds a record. If it has to wait, the result is one for `append_batch_later`. This is the hot path.

        Raises what `send` raises.
        """
        pairs = tuple(headers) if headers else ()
        key_bytes: Any = key  # without serializers, they are bytes
        value_bytes: Any = value
        if not self._sends_bytes:
            key_bytes, value_bytes = self.encoder.serialize(topic, key, value, pairs)
        stamp = time.time_ns() // 1_000_000 if timestamp is None else timestamp
        if key_bytes.__class__ is not bytes and key_bytes is not None:
            key_bytes = bytes_of("key", key_bytes, topic)
        if value_bytes.__class__ is not bytes and value_bytes is not None:
            value_bytes = bytes_of("value", value_bytes, topic)
        core, sender, transaction = self._core, self._sender, self._transaction
        at_ms = time.monotonic_ns() // 1_000_000
        with sender.lock:
            if sender.is_closed or transaction.calls is not None:
                self._check_open()
            place = partition
            if place is None and (key_bytes is not None or self._partitioner is not by_key):
                count = core.partition_count(topic)
                place = None if count is None else self._partitioner(topic, key_bytes, value_bytes, count)
            batch = core.append(topic, place, stamp, key_bytes, value_bytes, pairs, at_ms)
            added: Delivery | EncodedRecords
            if batch is not None:
                transaction.has_content = True
                added = Delivery(batch, batch.count - 1, stamp)
            else:
                if partition is None:
                    self._check_choice(topic, place)
                added = EncodedRecords(topic, partition, stamp, [key_bytes], [value_bytes], [pairs])
            if core.is_due and not sender.is_pump_scheduled:
                sender.schedule()
        return added

    def watch(self, delivery: Delivery, on_delivery: Callable[[Delivery], None] | None) -> None:
        """Calls the callback and the interceptors when a delivery is done."""
        if on_delivery is not None:
            delivery.add_callback(on_delivery)
        for interceptor in self.interceptors:
            delivery.add_callback(interceptor.on_acknowledgement)

    def append_batch(self, records: EncodedRecords) -> bool:
        """Adds some of the records that are not added yet. Returns False if the first has to wait."""
        sender, before = self._sender, records.added
        at_ms = time.monotonic_ns() // 1_000_000
        with sender.lock:
            self._check_open()
            try:
                if (
                    records.keys is None
                    and records.headers is None
                    and not self.interceptors
                    and (records.partition is not None or self._partitioner is by_key)
                ):
                    self._append_values(records, at_ms)
                else:
                    self._append_each(records, at_ms)
            finally:
                if self._core.is_due and not sender.is_pump_scheduled:
                    sender.schedule()
        return records.added > before

    def _append_values(self, records: EncodedRecords, at_ms: int) -> None:
        """Adds records that go to one batch whatever they contain."""
        found = self._core.append_values(
            records.topic, records.partition, records.timestamp, records.values, records.added, at_ms
        )
        if found is not None:
            self._transaction.has_content = True
            batch, count = found
            records.delivery.add(batch, batch.count - count, count)
            records.added += count

    def _append_each(self, records: EncodedRecords, at_ms: int) -> None:
        """Adds up to MAX_ROWS_AT_ONCE records with keys or headers, or that a function has to see."""
        topic, partition, keys, headers = records.topic, records.partition, records.keys, records.headers
        core, partitioner = self._core, self._partitioner
        count = None if partition is not None else core.partition_count(topic)
        for index in range(records.added, min(len(records.values), records.added + MAX_ROWS_AT_ONCE)):
            key, value, place = None if keys is None else keys[index], records.values[index], partition
            if count is not None and (key is not None or partitioner is not by_key):
                place = partitioner(topic, key, value, count)
            pairs = () if headers is None else headers[index]
            batch = core.append(topic, place, records.timestamp, key, value, pairs, at_ms)
            if batch is None:
                if partition is None:
                    self._check_choice(topic, place)
                return
            self._transaction.has_content = True
            records.delivery.add(batch, batch.count - 1, 1)
            records.added += 1
            if self.interceptors or records.on_delivery is not None:
                made = Delivery(batch, batch.count - 1, records.timestamp)
                records.watched = records.watched or made
                self.watch(made, records.on_delivery)

    def _check_open(self) -> None:
        """Raises ClosedError; InvalidTransactionStateError unless a transactional producer is in one."""
        if self._sender.is_closed:
            raise self._sender.closed_error()
        if self._transaction.calls is not None:
            self._transaction.check_open()

    async def append_batch_later(self, records: EncodedRecords) -> None:
        """Waits until `append_batch` adds records, for at most `max.block.ms`. Raises what `send` raises."""
        began_s = time.monotonic()
        known_count = self._core.answer_count(records.topic)
        self._core.blocked_count += 1
        try:
            while not self.append_batch(records):
                await self._wait(records.topic, began_s, known_count, records.partition)
        finally:
            self._core.blocked_count -= 1

    async def append_later(self, record: EncodedRecords) -> Delivery:
        """Waits until the record is added that `append` did not add. Raises what `send` raises."""
        await self.append_batch_later(record)
        return record.watched or record.delivery.first(record.timestamp)

    async def partition_count(self, topic: str) -> int:
        """Returns the number of partitions. Raises UnknownTopicError, MetadataTimeoutError."""
        began_s = time.monotonic()
        known_count = self._core.answer_count(topic)
        while True:
            with self._sender.lock:
                count = self._core.partition_count(topic)
            if count is not None:
                return count
            await self._wait(topic, began_s, known_count)

    async def _wait(self, topic: str, began_s: float, known_count: int, partition: int | None = None) -> None:
        """Waits until the core made progress. Raises the error of the topic at the end of `max.block.ms`, or
        before it if the error is permanent and came after the first `known_count` Metadata responses about
        the topic. A partition that these responses do not name has less time.
        """
        if self._sender.is_closed:
            raise self._sender.closed_error()
        settings, now_s = self._core.settings, time.monotonic()
        left_s = began_s + settings.max_block_ms / 1000 - now_s
        error = self._core.topic_error(topic)
        is_new = self._core.answer_count(topic) > known_count
        if error is not None and (left_s <= 0 or (is_new and not error.is_retriable)):
            raise error
        count = self._core.partition_count(topic)
        if partition is not None and count is not None and not 0 <= partition < count:
            new_left_s = min(left_s, began_s + NEW_PARTITION_WAIT_S - now_s)
            if partition < 0 or left_s <= 0 or (is_new and new_left_s <= 0):
                raise UnknownTopicError(_lacks_partition(topic, partition, count))
            left_s = new_left_s if new_left_s > 0 else left_s
        if left_s <= 0:
            if count is None:
                raise MetadataTimeoutError(
                    f"no broker named the partitions of topic '{topic}' in {settings.max_block_ms} ms"
                )
            raise BufferFullError(
                f"{settings.buffer_memory} bytes of buffer.memory were in use for {settings.max_block_ms} ms"
            )
        await self._sender.progress(left_s)

    def _check_choice(self, topic: str, partition: int | None) -> None:
        """Raises ValueError if the partitioner has chosen a partition that does not exist."""
        count = self._core.partition_count(topic)
        if partition is not None and count is not None and not 0 <= partition < count:
            raise ValueError(
                f"the partitioner's choice is wrong: {_lacks_partition(topic, partition, count)}"
            )


def _lacks_partition(topic: str, partition: int, count: int) -> str:
    return f"topic '{topic}' has no partition {partition}: it has {count}, from 0 to {count - 1}"
