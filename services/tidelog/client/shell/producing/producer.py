"""The producer on asyncio."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import random
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, cast

from tidelog.client.core.connection_settings import Properties, parse_settings
from tidelog.client.core.producing.producer import ProducerCore
from tidelog.client.core.producing.producer_batch import (
    CompleteBatch,
    Effect,
    Event,
    MetadataFailed,
    PartitionAnswer,
    ProduceAnswered,
    ProduceFailed,
    ProducerBatch,
    ProducerIdReceived,
    ProducerIdRefused,
    RequestMetadata,
    RequestProducerId,
    SendProduce,
)
from tidelog.client.core.settings import ProducerSettings
from tidelog.client.errors import (
    BufferFullError,
    ClientError,
    ClosedError,
    MetadataTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
    UnknownTopicError,
    request_error,
)
from tidelog.client.handshake import Reply
from tidelog.client.partitioners import Partitioner, by_key
from tidelog.client.security import ClientSecurity
from tidelog.client.serializers import Serializer, bytes_of
from tidelog.client.shell.connection import AsyncConnection
from tidelog.client.shell.consuming.group_calls import PERMANENT_ERRORS
from tidelog.client.shell.network import Network
from tidelog.client.shell.producing.delivery import BatchDelivery, Delivery, RecordMetadata
from tidelog.client.shell.producing.produce_requests import produce_answers, produce_request
from tidelog.client.shell.producing.transactions import (
    GroupMetadata,
    Transaction,
    TransactionCalls,
    TransactionState,
)
from tidelog.client.shell.tasks import CoreTasks, HomeProcess, now_ms
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import UNKNOWN_OFFSET
from tidelog.model.topics import TopicPartition
from tidelog.records.record_writer import Header
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.produce import (
    ProduceRequest,
)

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
logger: Final = logging.getLogger("tidelog.client")
EncodedRows: TypeAlias = tuple[
    Sequence[bytes | None] | None, Sequence[bytes | None], Sequence[tuple[Header, ...]] | None
]
"""The keys, None if no record has one, the values, and the headers, None if no record has any."""

MAX_ROWS_AT_ONCE: Final = 1_000
"""The most records with keys or headers that `send_batch` adds before requests get their turn."""
NEW_PARTITION_WAIT_S: Final = 2.0
"""The time in which a partition that was just created appears in the metadata of all brokers."""
_NO_TRANSACTION_TIMEOUT_MS: Final = 2**31 - 1
_CANCELLED: Final = "the request was cancelled"


_BYTES_OR_NONE: Final = frozenset({bytes, type(None)})


def _all_bytes(field: str, contents: Sequence[object] | None, topic: str) -> Sequence[bytes | None] | None:
    """Returns the keys or values of records as bytes. Raises TypeError."""
    if contents is None or _BYTES_OR_NONE.issuperset(map(type, contents)):
        return cast("Sequence[bytes | None] | None", contents)
    return [None if content is None else bytes_of(field, content, topic) for content in contents]


class ProducerInterceptor(Protocol):
    """Sees each record before it is serialized, and each outcome. An exception is logged and ignored."""

    def on_send(self, topic: str, key: Any, value: Any, headers: tuple[Header, ...], /) -> tuple[Any, Any]:
        """Returns the key and the value to send."""
        ...

    def on_acknowledgement(self, delivery: Delivery, /) -> None: ...


class Producer(Generic[K, V]):
    """A producer of records to any topics. Use it in one event loop.

        async with Producer("127.0.0.1:9092") as producer:
            delivery = await producer.send("flights", b"LH400", key=b"FRA")
            print((await delivery).offset)

    `send` waits only while the buffer is full or the topic's partitions are unknown. The order of the sends
    is the order in a partition, and each acknowledged record is stored once (`enable.idempotence`).
    """

    def __init__(
        self,
        bootstrap: str = "",
        settings: Properties | None = None,
        *,
        key_serializer: Serializer[K] | None = None,
        value_serializer: Serializer[V] | None = None,
        partitioner: Partitioner = by_key,
        interceptors: Sequence[ProducerInterceptor] = (),
        security: ClientSecurity | None = None,
    ) -> None:
        """`bootstrap` is HOST:PORT,... and precedes `bootstrap.servers`. Without serializers, keys and values
        are bytes. `security` replaces the settings of TLS and SASL. Raises SettingsError, BadAddressError,
        SecurityConfigError.
        """
        properties = settings or {}
        self.settings: ProducerSettings = parse_settings(ProducerSettings, properties)
        self._network = Network.of(bootstrap, properties, self.settings, security)
        self._core = ProducerCore(self.settings, choose=random.randrange, jitter=random.random)
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._partitioner = partitioner
        self._interceptors = tuple(interceptors)
        self.sends_bytes: bool = (
            key_serializer is None and value_serializer is None and not self._interceptors
        )
        """Whether keys and values need no `serialize`."""
        self._thread_id = 0
        self._home = HomeProcess("producer")
        self._is_closed = False
        self._is_pump_scheduled = False
        self._outboxes: dict[int, deque[SendProduce]] = {}
        """The requests that wait for a connection, by broker."""
        self._tasks = CoreTasks("producer", self._pump)
        self._progress: asyncio.Future[None] | None = None
        self._flush_count = 0
        self._transaction = Transaction()
        self._transaction_calls = (
            None if self.settings.transactional_id is None else TransactionCalls(self._network, self.settings)
        )
        self._lock = threading.Lock()
        """Held while the core works, because the producer for threads appends from other threads."""

    async def __aenter__(self) -> Producer[K, V]:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is GeneratorExit:  # nothing runs the coroutine any more, so it can't wait
            self.report_unclosed()
        else:
            await self.close(timeout_s=self.time_to_flush_s(error))

    def time_to_flush_s(self, error: BaseException | None) -> float | None:
        """Returns the time that the end of a block may take. None means up to `delivery.timeout.ms`. It is
        `cancelled.flush.timeout.ms` after a cancellation or Ctrl-C, which somebody waits for.
        """
        if error is None or isinstance(error, Exception):
            return None
        return self.settings.cancelled_flush_timeout_ms / 1000

    async def start(self) -> None:
        """Connects to a broker, and claims the transactional id if there is one. Raises ClientError,
        KafkaError.
        """
        self._home.check()
        self._tasks.start()
        self._thread_id = threading.get_ident()
        await self._network.start()
        if self._transaction_calls is not None:
            try:
                self._step(await self._transaction_calls.initialise())
            except BaseException:  # after a cancellation, too, nobody closes what did not start
                await self._network.close()
                raise
            self._transaction.move_to(TransactionState.READY)
        _open_producers.add(self)
        self._tasks.spawn(self._flush_when_cancelled())

    async def close(self, *, flushes: bool = True, timeout_s: float | None = None) -> None:
        """Aborts an open transaction, sends what is in the buffer, then closes the connections.

        The records that are not acknowledged after `timeout_s`, or at once without `flushes`, fail, and the
        log states their number. Without `timeout_s`, the limit is `delivery.timeout.ms`.
        """
        loop = self._tasks.loop
        if self._is_closed or loop is None:
            return
        if loop is not asyncio.get_running_loop():
            self.report_unclosed()  # its tasks and connections belong to the other loop
            return
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    if self._transaction_calls is not None and self.is_in_transaction:
                        with contextlib.suppress(KafkaError, ClientError):
                            await self.abort_transaction()
                    if flushes:
                        await self.flush()
        finally:
            await self._end()

    async def _end(self) -> None:
        with self._lock:  # a thread that appends has added its record now, or gets an error
            if self._is_closed:
                return
            self._is_closed = True
            left_count = self._core.unacknowledged_count()
            effects = self._core.fail_all(KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer was closed"))
        if left_count:
            logger.error(
                "the producer was closed before %d of its records were acknowledged, and they may be lost",
                left_count,
            )
        self._wake_blocked()
        self._perform(effects)
        try:
            await self._tasks.stop()
        finally:
            await self._network.close()

    async def _flush_when_cancelled(self) -> None:
        """Sends what is in the buffer when all tasks of the loop are cancelled, as `asyncio.run` does at its
        end. An open transaction is not committed, because the application has not said so.
        """
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if not self._is_closed and self._transaction_calls is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.settings.cancelled_flush_timeout_ms / 1000):
                        await self.flush()
            raise

    def report_unclosed(self) -> None:
        """Warns that the producer was not closed, and states how many records may be lost."""
        if not self._is_closed and self._tasks.loop is not None:
            self._is_closed = True
            self.warn_unclosed("they may be lost; use `async with`, or await `close`")

    def warn_unclosed(self, consequence: str) -> None:
        """`consequence` is the one for the records without an outcome."""
        left_count = self._core.unacknowledged_count()
        text = f"the producer was not closed, and {left_count} of its records are not acknowledged"
        if left_count:
            logger.error("%s: %s", text, consequence)
        warnings.warn(text, ResourceWarning, source=self, stacklevel=2)

    def __del__(self) -> None:
        if hasattr(self, "_lock"):  # otherwise `__init__` failed
            self.report_unclosed()

    def after_fork(self) -> None:
        """Ends the copy of the producer in a forked child. The parent sends the records."""
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self._is_closed = True
        error = KafkaError(ErrorCode.NETWORK_EXCEPTION, str(self._home.error()))
        for batch in self._core.pending_batches():
            batch.callbacks.clear()  # the parent calls them
            batch.finish(error=error)

    def _closed_error(self) -> ClosedError:
        return ClosedError("the producer is closed") if self._home.is_current else self._home.error()

    # -- records

    async def send(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        headers: Iterable[Header] = (),
        timestamp: int | None = None,
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Delivery:
        """Adds a record to the buffer. Await the result to get its offset.

        `partition` precedes the partitioner. `timestamp` is in milliseconds since 1970, by default now.
        Waits up to `max.block.ms` for free memory and for the topic's partitions, and up to 2 s for a
        partition that is missing in new metadata. Raises BufferFullError, MetadataTimeoutError,
        UnknownTopicError, RecordTooLargeError, and what a serializer raises.
        """
        pairs = tuple(headers) if headers else ()
        key_bytes: Any = key  # without serializers, they are bytes
        value_bytes: Any = value
        if not self.sends_bytes:
            key_bytes, value_bytes = self.serialize(topic, key, value, pairs)
        stamp = time.time_ns() // 1_000_000 if timestamp is None else timestamp
        delivery = self.append(topic, partition, stamp, key_bytes, value_bytes, pairs)
        if delivery is None:
            delivery = await self.append_later(topic, partition, stamp, key_bytes, value_bytes, pairs)
        if on_delivery is not None or self._interceptors:
            self.watch(delivery, on_delivery)
        if self._is_pump_scheduled:
            await asyncio.sleep(0)  # let batches leave while the application sends in a loop
        return delivery

    async def send_batch(
        self,
        topic: str,
        values: Sequence[V | None],
        *,
        keys: Sequence[K | None] | None = None,
        headers: Sequence[Iterable[Header]] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> BatchDelivery:
        """Adds many records to the buffer, with less work for each than `send`. Their order is kept.

        Await the result to get their offsets. `keys` and `headers` have an element for each value. The other
        parameters, the wait and the errors are those of `send`; if an error is raised, the records before it
        stay in the buffer. Raises ValueError if `keys` or `headers` and `values` have different lengths.
        """
        stamp = time.time_ns() // 1_000_000 if timestamp is None else timestamp
        delivery = BatchDelivery()
        rows = self.serialize_batch(topic, keys, values, headers)
        start = 0
        while start < len(values):
            count = self.append_batch(delivery, topic, partition, stamp, rows, start)
            if not count:
                count = await self.append_batch_later(delivery, topic, partition, stamp, rows, start)
            start += count
            if self._is_pump_scheduled:
                await asyncio.sleep(0)  # let full batches leave
        return delivery

    async def send_and_wait(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        headers: Iterable[Header] = (),
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Sends a record and waits for its acknowledgement. Raises KafkaError."""
        delivery = await self.send(
            topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp
        )
        return await delivery

    async def flush(self) -> None:
        """Sends all batches now and waits until the outcome of each earlier record is known.

        It does not raise the errors of records: await their deliveries, or use `on_delivery`.
        """
        self._home.check()
        self._flush_count += 1
        try:
            with self._lock:
                pending = self._core.pending_batches()
                self._core.is_flushing = True
            self._pump()
            for batch in pending:
                await _finished(batch)
        finally:
            self._flush_count -= 1
            self._core.is_flushing = self._flush_count > 0

    # -- transactions

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Commits what its body sends, or aborts it if the body or the commit raises an exception.

        async with producer.transaction():
            await producer.send("flights", b"LH400")
        """
        self.begin_transaction()
        try:
            yield
            await self.commit_transaction()
        except BaseException as error:
            if self.is_in_transaction:
                await self.abort_after(error)
            raise

    async def abort_after(self, error: BaseException) -> None:
        """Aborts the transaction because of an error. Raises KafkaError, but not after a cancellation: it has
        `cancelled.flush.timeout.ms`, and then the coordinator aborts after `transaction.timeout.ms`.
        """
        timeout_s = self.time_to_flush_s(error)
        try:
            async with asyncio.timeout(timeout_s):
                await self.abort_transaction()
        except (KafkaError, ClientError, TimeoutError) as failure:
            if timeout_s is None:
                raise
            logger.warning(
                "the transaction was not aborted (%s): its coordinator aborts it after %d ms",
                str(failure) or f"no answer in {timeout_s:g} s",
                self.settings.transaction_timeout_ms,
            )

    @property
    def is_in_transaction(self) -> bool:
        return self._transaction.state is TransactionState.OPEN

    def begin_transaction(self) -> None:
        """Raises InvalidTransactionStateError."""
        self._transaction.begin()

    async def commit_transaction(self) -> None:
        """Waits for all records and commits them. Raises KafkaError.

        After TransactionAbortableError the transaction is still open and must be aborted. After another error
        the outcome is unknown, and the producer must be closed.
        """
        self._transaction.check_open()
        with self._lock:  # a send from now on belongs to no transaction, and raises an error
            self._transaction.move_to(TransactionState.ENDING)
        try:
            await self.flush()
            if self._core.abort_error is not None:
                raise self._core.abort_error
        except BaseException:
            self._transaction.move_to(TransactionState.OPEN)
            raise
        await self._end_transaction(commits=True)

    async def abort_transaction(self) -> None:
        """Drops the records of the transaction. Raises KafkaError."""
        self._transaction.check_open()
        aborted = TransactionAbortableError("the transaction was aborted")
        with self._lock:
            self._transaction.move_to(TransactionState.ENDING)
            effects = self._core.fail_all(aborted)
        self._perform(effects)
        await self._end_transaction(commits=False)

    async def send_offsets(self, offsets: Mapping[TopicPartition, int], group: GroupMetadata) -> None:
        """Commits a consumer's positions in the transaction: `await producer.send_offsets(
        consumer.positions(), consumer.group_metadata())`. Raises KafkaError, ClientError.

        After an error or a cancellation the transaction must be aborted.
        """
        self._transaction.check_open()
        if self._transaction_calls is None or not offsets:
            return
        self._transaction.has_content = True
        try:
            await self._transaction_calls.commit_offsets(self._core.identity, offsets, group)
        except BaseException as error:  # a cancellation, too, leaves open whether the offsets are stored
            self._core.abort_error = TransactionAbortableError(
                f"the transaction must be aborted: {str(error) or type(error).__name__}"
            )
            raise

    async def _end_transaction(self, *, commits: bool) -> None:
        calls = self._transaction_calls
        if calls is None:
            return
        try:
            if self._transaction.has_content:
                identity = await calls.end(self._core.identity, commits=commits)
                self._core.abort_error = None
                self._step(identity)
            self._core.abort_error = None
            self._transaction.move_to(TransactionState.READY)
        except TransactionAbortableError as error:
            self._core.abort_error = error
            self._transaction.move_to(TransactionState.OPEN)
            raise
        except BaseException as error:  # after a cancellation, too, the coordinator may end the transaction
            self._core.abort_error = (
                error
                if isinstance(error, KafkaError)
                else ProducerFencedError(
                    f"the outcome of the transaction is unknown: {str(error) or type(error).__name__}"
                )
            )
            self._transaction.move_to(TransactionState.FENCED)
            raise

    # -- the rest

    async def partitions_for(self, topic: str) -> list[int]:
        """Returns the partitions of a topic. Raises UnknownTopicError, MetadataTimeoutError."""
        return list(range(await self._partition_count(topic)))

    def metrics(self) -> dict[str, float]:
        """Returns totals since the start, and the present state of the buffer."""
        counts = self._core.counts
        return {
            "record-send-total": counts.record_send_total,
            "record-error-total": counts.record_error_total,
            "record-retry-total": counts.record_retry_total,
            "batch-total": counts.batch_total,
            "request-total": counts.request_total,
            "byte-total": counts.byte_total,
            "batch-split-total": counts.batch_split_total,
            "epoch-bump-total": counts.epoch_bump_total,
            "buffer-available-bytes": self._core.free_bytes,
            "buffer-total-bytes": self.settings.buffer_memory,
            "waiting-threads": self._core.blocked_count,
        }

    def serialize(
        self, topic: str, key: K | None, value: V | None, headers: tuple[Header, ...]
    ) -> tuple[bytes | None, bytes | None]:
        """Returns the bytes of a key and a value, after the interceptors."""
        for interceptor in self._interceptors:
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

    def serialize_batch(
        self,
        topic: str,
        keys: Sequence[K | None] | None,
        values: Sequence[V | None],
        headers: Sequence[Iterable[Header]] | None,
    ) -> EncodedRows:
        """Returns the bytes of keys and values, after the interceptors, and the headers."""
        if keys is not None and len(keys) != len(values):
            raise ValueError(f"there are {len(keys)} keys for {len(values)} values")
        if headers is not None and len(headers) != len(values):
            raise ValueError(f"there are headers of {len(headers)} records for {len(values)} values")
        given = None if headers is None else [tuple(pairs) for pairs in headers]
        if self.sends_bytes:
            return _all_bytes("key", keys, topic), _all_bytes("value", values, topic) or (), given
        rows = [
            self.serialize(
                topic,
                None if keys is None else keys[index],
                value,
                () if given is None else given[index],
            )
            for index, value in enumerate(values)
        ]
        has_keys = any(key is not None for key, _ in rows)
        written_keys = [key for key, _ in rows] if has_keys else None
        written_values = [value for _, value in rows]
        return _all_bytes("key", written_keys, topic), _all_bytes("value", written_values, topic) or (), given

    def append_batch(
        self,
        delivery: BatchDelivery,
        topic: str,
        partition: int | None,
        timestamp: int,
        rows: EncodedRows,
        start: int,
    ) -> int:
        """Adds the record at `start` and some that follow. Returns their number, 0 if they have to wait."""
        keys, values, headers = rows
        if (
            keys is not None
            or headers is not None
            or self._interceptors
            or (partition is None and self._partitioner is not by_key)
        ):
            return self._append_each(delivery, topic, partition, timestamp, rows, start)
        core = self._core
        at_ms = time.monotonic_ns() // 1_000_000
        with self._lock:
            if self._is_closed:
                raise self._closed_error()
            if self._transaction_calls is not None:
                self._transaction.check_open()
            found = core.append_values(topic, partition, timestamp, values, start, at_ms)
            if found is not None:
                self._transaction.has_content = True
                batch, count = found
                delivery.add(batch, batch.count - count, count)
            if core.is_due and not self._is_pump_scheduled:
                self._schedule()
        return 0 if found is None else found[1]

    def _append_each(
        self,
        delivery: BatchDelivery,
        topic: str,
        partition: int | None,
        timestamp: int,
        rows: EncodedRows,
        start: int,
    ) -> int:
        """Adds up to MAX_ROWS_AT_ONCE records with keys or headers, or that a function has to see."""
        keys, values, headers = rows
        core, partitioner = self._core, self._partitioner
        at_ms = time.monotonic_ns() // 1_000_000
        count = 0
        with self._lock:
            if self._is_closed:
                raise self._closed_error()
            if self._transaction_calls is not None:
                self._transaction.check_open()
            try:
                num_partitions = None if partition is not None else core.partition_count(topic)
                for index in range(start, min(len(values), start + MAX_ROWS_AT_ONCE)):
                    key, value, place = None if keys is None else keys[index], values[index], partition
                    if num_partitions is not None and (key is not None or partitioner is not by_key):
                        place = partitioner(topic, key, value, num_partitions)
                    pairs = () if headers is None else headers[index]
                    batch = core.append(topic, place, timestamp, key, value, pairs, at_ms)
                    if batch is None:
                        if partition is None:
                            self._check_choice(topic, place)
                        break
                    self._transaction.has_content = True
                    delivery.add(batch, batch.count - 1, 1)
                    if self._interceptors:
                        self.watch(Delivery(batch, batch.count - 1, timestamp), None)
                    count += 1
            finally:
                if core.is_due and not self._is_pump_scheduled:
                    self._schedule()
        return count

    async def append_batch_later(
        self,
        delivery: BatchDelivery,
        topic: str,
        partition: int | None,
        timestamp: int,
        rows: EncodedRows,
        start: int,
    ) -> int:
        """Waits until `append_batch` adds records. Raises what `send` raises."""
        return await self._until_done(
            topic,
            partition,
            lambda: self.append_batch(delivery, topic, partition, timestamp, rows, start) or None,
        )

    def watch(self, delivery: Delivery, on_delivery: Callable[[Delivery], None] | None) -> None:
        """Calls the callback and the interceptors when a delivery is done."""
        if on_delivery is not None:
            delivery.add_callback(on_delivery)
        for interceptor in self._interceptors:
            delivery.add_callback(interceptor.on_acknowledgement)

    def append(
        self,
        topic: str,
        partition: int | None,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[Header, ...],
    ) -> Delivery | None:
        """Adds a record, or returns None if it has to wait. This is the hot path."""
        if key.__class__ is not bytes and key is not None:
            key = bytes_of("key", key, topic)
        if value.__class__ is not bytes and value is not None:
            value = bytes_of("value", value, topic)
        core = self._core
        at_ms = time.monotonic_ns() // 1_000_000
        with self._lock:
            if self._is_closed:
                raise self._closed_error()
            if self._transaction_calls is not None:
                self._transaction.check_open()
            place = partition
            if place is None and (key is not None or self._partitioner is not by_key):
                place = self._partition_of(topic, key, value)
            batch = core.append(topic, place, timestamp, key, value, headers, at_ms)
            delivery = None
            if batch is not None:
                self._transaction.has_content = True
                delivery = Delivery(batch, batch.count - 1, timestamp)
            elif partition is None:
                self._check_choice(topic, place)
            if core.is_due and not self._is_pump_scheduled:
                self._schedule()
        return delivery

    def _partition_of(self, topic: str, key: bytes | None, value: bytes | None) -> int | None:
        """Returns the partition that the partitioner chooses, None if the topic's partitions are unknown."""
        count = self._core.partition_count(topic)
        return None if count is None else self._partitioner(topic, key, value, count)

    async def append_later(
        self,
        topic: str,
        partition: int | None,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[Header, ...],
    ) -> Delivery:
        """Waits until `append` adds the record. Raises what `send` raises."""
        return await self._until_done(
            topic, partition, lambda: self.append(topic, partition, timestamp, key, value, headers)
        )

    async def _until_done(self, topic: str, partition: int | None, attempt: Callable[[], T | None]) -> T:
        """Repeats an attempt when the core has made progress, for at most `max.block.ms`."""
        began_s = time.monotonic()
        known_count = self._core.answer_count(topic)
        self._core.blocked_count += 1
        try:
            while (found := attempt()) is None:
                await self._wait(topic, began_s, known_count, partition)
            return found
        finally:
            self._core.blocked_count -= 1

    async def _partition_count(self, topic: str) -> int:
        began_s = time.monotonic()
        known_count = self._core.answer_count(topic)
        while True:
            with self._lock:
                count = self._core.partition_count(topic)
            if count is not None:
                return count
            await self._wait(topic, began_s, known_count)

    async def _wait(self, topic: str, began_s: float, known_count: int, partition: int | None = None) -> None:
        """Waits until the core made progress. Raises the error of the topic at the end of `max.block.ms`, or
        before it if the error is permanent and came after the first `known_count` Metadata responses about
        the topic. A partition that these responses do not name has less time.
        """
        if self._is_closed:
            raise self._closed_error()
        now_s = time.monotonic()
        left_s = began_s + self.settings.max_block_ms / 1000 - now_s
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
                    f"no broker named the partitions of topic '{topic}' in {self.settings.max_block_ms} ms"
                )
            raise BufferFullError(
                f"{self.settings.buffer_memory} bytes of buffer.memory were in use for "
                f"{self.settings.max_block_ms} ms"
            )
        if self._progress is None or self._progress.done():
            self._progress = asyncio.get_running_loop().create_future()
        self._pump()
        await asyncio.wait([self._progress], timeout=left_s)

    def _check_choice(self, topic: str, partition: int | None) -> None:
        """Raises ValueError if the partitioner has chosen a partition that does not exist."""
        count = self._core.partition_count(topic)
        if partition is not None and count is not None and not 0 <= partition < count:
            raise ValueError(
                f"the partitioner's choice is wrong: {_lacks_partition(topic, partition, count)}"
            )

    def _wake_blocked(self) -> None:
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    # -- the core's effects

    def _schedule(self) -> None:
        """Runs the pump soon. Any thread may call this while it holds the lock, so that a close waits and the
        loop is still open. It cannot deadlock, because the calls of the loop only add to its queue.
        """
        if self._tasks.loop is None:
            raise ClosedError("the producer was not started: use `async with`, or await `start`")
        self._is_pump_scheduled = True
        if threading.get_ident() == self._thread_id:
            self._tasks.loop.call_soon(self._pump)
        else:
            self._tasks.loop.call_soon_threadsafe(self._pump)

    def _pump(self) -> None:
        self._is_pump_scheduled = False
        if self._is_closed:
            return
        with self._lock:
            effects = self._core.poll(now_ms())
        self._perform(effects)

    def _step(self, event: Event) -> None:
        if self._is_closed:
            return
        with self._lock:
            effects = self._core.step(event, now_ms())
        self._perform(effects)
        self._wake_blocked()

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendProduce():
                    self._produce(effect)
                case CompleteBatch(batch):
                    self._complete(batch)
                case RequestMetadata(known, wanted):
                    self._tasks.spawn(self._request_metadata(known, wanted))
                case RequestProducerId():
                    self._tasks.spawn(self._request_producer_id())
        at_ms = now_ms()
        with self._lock:
            wake_ms = self._core.next_wake_ms(at_ms)
        self._tasks.wake_in(None if wake_ms is None else max(0, wake_ms - at_ms))

    def _complete(self, batch: ProducerBatch) -> None:
        is_unheard = not batch.callbacks and batch.whole is None and not self._is_closed
        if batch.error is not None and is_unheard:  # a close states the number of all
            logger.error(
                "%d records were not delivered and nobody waits for them: %s", batch.count, batch.error
            )
        for callback in batch.take_callbacks():
            try:
                callback(batch)
            except Exception:  # the other callbacks must run
                logger.exception("a delivery callback failed")
        self._wake_blocked()

    def _produce(self, effect: SendProduce) -> None:
        """Writes a request after all earlier ones to the same broker."""
        waiting = self._outboxes.setdefault(effect.node_id, deque())
        connection = self._network.ready(effect.node_id)
        if connection is not None and not waiting:
            self._write(effect, connection)
            return
        waiting.append(effect)
        if len(waiting) == 1:
            self._tasks.spawn(self._connect_and_write(effect.node_id, waiting))

    async def _connect_and_write(self, node_id: int, waiting: deque[SendProduce]) -> None:
        try:
            connection = await self._network.broker(node_id)
        except ClientError as error:
            failed = list(waiting)
            waiting.clear()
            for effect in failed:
                is_permanent = isinstance(error, PERMANENT_ERRORS)
                self._step(ProduceFailed(effect.request_id, False, str(error), is_permanent))
            return
        except asyncio.CancelledError:  # whoever cancelled all tasks of the loop may still wait for records
            failed = list(waiting)
            waiting.clear()
            for effect in failed:
                self._step(ProduceFailed(effect.request_id, False, _CANCELLED))
            raise
        while waiting:
            self._write(waiting.popleft(), connection)

    def _write(self, effect: SendProduce, connection: AsyncConnection) -> None:
        batches = effect.unfinished
        if not batches:
            self._later(ProduceFailed(effect.request_id, False, "all batches ended before the request"))
            return
        try:
            request, version = produce_request(connection, batches, self.settings)
        except ClientError as error:
            self._later(ProduceFailed(effect.request_id, False, str(error), is_permanent=True))
            return
        if self.settings.required_acks:
            reply = connection.send(request, version, self._network.timeout_s)
            reply.add_done_callback(lambda done: self._replied(effect, connection, request, version, done))
            return
        try:
            connection.send_unanswered(request, version)
        except ClientError as error:
            self._later(ProduceFailed(effect.request_id, True, str(error)))
            return
        stored = PartitionAnswer(ErrorCode.NONE, UNKNOWN_OFFSET, -1, None, None)
        self._later(ProduceAnswered(effect.request_id, {batch.place: stored for batch in batches}))

    def _later(self, event: Event) -> None:
        """Gives the core an event after the effects that it has just returned."""
        assert self._tasks.loop is not None
        self._tasks.loop.call_soon(self._step, event)

    def _replied(
        self,
        effect: SendProduce,
        connection: AsyncConnection,
        request: ProduceRequest,
        version: int,
        reply: asyncio.Future[Reply],
    ) -> None:
        if self._is_closed:
            if not reply.cancelled():
                reply.exception()  # asyncio reports an error that nobody looks at
            return
        event: Event
        try:
            answers = produce_answers(request, connection.decode(request, version, reply.result()))
            event = ProduceAnswered(effect.request_id, answers)
        except ClientError as error:
            event = ProduceFailed(effect.request_id, True, str(error))
        self._step(event)

    async def _request_metadata(self, known: tuple[str, ...], wanted: tuple[str, ...]) -> None:
        try:
            received = await self._network.metadata(wanted or known, creates=bool(wanted))
            if wanted and known:
                others = await self._network.metadata(known)
                received = others._replace(topics=received.topics + others.topics)
        except ClientError as error:
            logger.info("no metadata: %s", error)
            self._step(MetadataFailed())
            return
        except asyncio.CancelledError:
            self._step(MetadataFailed())
            raise
        self._step(received)

    async def _request_producer_id(self) -> None:
        request = InitProducerIdRequest(None, _NO_TRANSACTION_TIMEOUT_MS)
        try:
            answer: InitProducerIdResponse = await self._network.call_any(request)
        except ClientError as error:
            code = ErrorCode.NETWORK_EXCEPTION
            if isinstance(error, PERMANENT_ERRORS):
                code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            self._step(ProducerIdRefused(KafkaError(code, f"no producer id: {error}")))
            return
        except asyncio.CancelledError:
            self._step(ProducerIdRefused(KafkaError(ErrorCode.NETWORK_EXCEPTION, _CANCELLED)))
            raise
        if answer.error_code:
            self._step(ProducerIdRefused(request_error(answer.error_code, "no producer id")))
        else:
            self._step(ProducerIdReceived(answer.producer_id, answer.producer_epoch))


def _lacks_partition(topic: str, partition: int, count: int) -> str:
    return f"topic '{topic}' has no partition {partition}: it has {count}, from 0 to {count - 1}"


async def _finished(batch: ProducerBatch) -> None:
    if batch.is_done:
        return
    done = asyncio.get_running_loop().create_future()
    batch.when_done(lambda batch: None if done.done() else done.set_result(None))
    await done


_open_producers: Final[weakref.WeakSet[Producer[Any, Any]]] = weakref.WeakSet()


def _report_at_exit() -> None:
    for producer in list(_open_producers):
        producer.report_unclosed()


def _after_fork_in_child() -> None:
    for producer in list(_open_producers):
        producer.after_fork()


atexit.register(_report_at_exit)
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork_in_child)
