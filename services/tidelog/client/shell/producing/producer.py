"""The producer on asyncio: what applications call, and how it ends."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import random
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from tidelog.client.core.connection_settings import Properties, parse_settings
from tidelog.client.core.producing.producer import ProducerCore
from tidelog.client.core.settings import ProducerSettings
from tidelog.client.errors import ClientError
from tidelog.client.partitioners import Partitioner, by_key
from tidelog.client.security import ClientSecurity
from tidelog.client.serializers import Serializer
from tidelog.client.shell.network import Network
from tidelog.client.shell.producing.accumulator import ProducerInterceptor, RecordAccumulator, RecordEncoder
from tidelog.client.shell.producing.delivery import BatchDelivery, Delivery, RecordMetadata
from tidelog.client.shell.producing.sender import Sender
from tidelog.client.shell.producing.transactions import GroupMetadata, Transaction, TransactionCalls
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.records.record_writer import Header

K = TypeVar("K")
V = TypeVar("V")
logger: Final = logging.getLogger("tidelog.client")


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
        core = ProducerCore(self.settings, choose=random.randrange, jitter=random.random)
        self._sender = Sender(core, self._network, self.settings)
        has_id = self.settings.transactional_id is not None
        calls = TransactionCalls(self._network, self.settings) if has_id else None
        self._transaction = Transaction(self._sender, calls)
        encoder = RecordEncoder(key_serializer, value_serializer, interceptors)
        self.records: RecordAccumulator[K, V] = RecordAccumulator(
            self._sender, self._transaction, encoder, partitioner
        )
        """The way of records into the buffer, which the producer for threads uses, too."""

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
        self._sender.start()
        await self._network.start()
        try:
            await self._transaction.start()
        except BaseException:  # after a cancellation, too, nobody closes what did not start
            await self._network.close()
            raise
        _open_producers.add(self)
        self._sender.tasks.spawn(self._flush_when_cancelled())

    async def close(self, *, flushes: bool = True, timeout_s: float | None = None) -> None:
        """Aborts an open transaction, sends what is in the buffer, then closes the connections.

        The records that are not acknowledged after `timeout_s`, or at once without `flushes`, fail, and the
        log states their number. Without `timeout_s`, the limit is `delivery.timeout.ms`.
        """
        loop = self._sender.tasks.loop
        if self._sender.is_closed or loop is None:
            return
        if loop is not asyncio.get_running_loop():
            self.report_unclosed()  # its tasks and connections belong to the other loop
            return
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    if self.is_in_transaction:
                        with contextlib.suppress(KafkaError, ClientError):
                            await self.abort_transaction()
                    if flushes:
                        await self.flush()
        finally:
            await self._sender.stop()

    async def _flush_when_cancelled(self) -> None:
        """Sends what is in the buffer when all tasks of the loop are cancelled, as `asyncio.run` does at its
        end. An open transaction is not committed, because the application has not said so.
        """
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if not self._sender.is_closed and self._transaction.calls is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.settings.cancelled_flush_timeout_ms / 1000):
                        await self.flush()
            raise

    def report_unclosed(self) -> None:
        """Warns that the producer was not closed, and states how many records may be lost."""
        if not self._sender.is_closed and self._sender.tasks.loop is not None:
            self._sender.is_closed = True
            self.warn_unclosed("they may be lost; use `async with`, or await `close`")

    def warn_unclosed(self, consequence: str) -> None:
        """`consequence` is the one for the records without an outcome."""
        left_count = self._sender.core.unacknowledged_count()
        text = f"the producer was not closed, and {left_count} of its records are not acknowledged"
        if left_count:
            logger.error("%s: %s", text, consequence)
        warnings.warn(text, ResourceWarning, source=self, stacklevel=2)

    def __del__(self) -> None:
        if hasattr(self, "records"):  # otherwise `__init__` failed
            self.report_unclosed()

    def after_fork(self) -> None:
        """Ends the copy of the producer in a forked child. The parent sends the records."""
        self._sender.after_fork()

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
        records = self.records
        added = records.append(topic, value, key, partition, headers, timestamp)
        if isinstance(added, Delivery):
            delivery = added
            if on_delivery is not None or records.interceptors:
                records.watch(delivery, on_delivery)
        else:
            added.on_delivery = on_delivery
            delivery = await records.append_later(added)
        if self._sender.is_pump_scheduled:
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
        rows = self.records.encoder.encode(topic, values, keys, headers, partition, timestamp)
        while not rows.are_added:
            if not self.records.append_batch(rows):
                await self.records.append_batch_later(rows)
            if self._sender.is_pump_scheduled:
                await asyncio.sleep(0)  # let full batches leave
        return rows.delivery

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
        await self._sender.flush()

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
        return self._transaction.is_open

    def begin_transaction(self) -> None:
        """Raises InvalidTransactionStateError."""
        self._transaction.begin()

    async def commit_transaction(self) -> None:
        """Waits for all records and commits them. Raises KafkaError.

        After TransactionAbortableError the transaction is still open and must be aborted. After another error
        the outcome is unknown, and the producer must be closed.
        """
        await self._transaction.commit()

    async def abort_transaction(self) -> None:
        """Drops the records of the transaction. Raises KafkaError."""
        await self._transaction.abort()

    async def send_offsets(self, offsets: Mapping[TopicPartition, int], group: GroupMetadata) -> None:
        """Commits a consumer's positions in the transaction: `await producer.send_offsets(
        consumer.positions(), consumer.group_metadata())`. Raises KafkaError, ClientError.

        After an error or a cancellation the transaction must be aborted.
        """
        await self._transaction.send_offsets(offsets, group)

    async def partitions_for(self, topic: str) -> list[int]:
        """Returns the partitions of a topic. Raises UnknownTopicError, MetadataTimeoutError."""
        return list(range(await self.records.partition_count(topic)))

    def metrics(self) -> dict[str, float]:
        """Returns totals since the start, and the present state of the buffer."""
        counts = self._sender.core.counts
        return {
            "record-send-total": counts.record_send_total,
            "record-error-total": counts.record_error_total,
            "record-retry-total": counts.record_retry_total,
            "batch-total": counts.batch_total,
            "request-total": counts.request_total,
            "byte-total": counts.byte_total,
            "batch-split-total": counts.batch_split_total,
            "epoch-bump-total": counts.epoch_bump_total,
            "buffer-available-bytes": self._sender.core.free_bytes,
            "buffer-total-bytes": self.settings.buffer_memory,
            "waiting-threads": self._sender.core.blocked_count,
        }


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
