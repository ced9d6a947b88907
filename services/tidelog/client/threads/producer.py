"""The producer for threads."""

from __future__ import annotations

import atexit
import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from tidelog.client.core.connection_settings import Properties
from tidelog.client.errors import ClosedError
from tidelog.client.partitioners import Partitioner, by_key
from tidelog.client.security import ClientSecurity
from tidelog.client.serializers import Serializer
from tidelog.client.shell.producing import producer as asynchronous
from tidelog.client.shell.producing.accumulator import ProducerInterceptor
from tidelog.client.shell.producing.delivery import BatchDelivery, Delivery, RecordMetadata
from tidelog.client.shell.producing.transactions import GroupMetadata
from tidelog.client.threads.loop_thread import LoopThread
from tidelog.model.topics import TopicPartition
from tidelog.records.record_writer import Header

K = TypeVar("K")
V = TypeVar("V")


class Producer(Generic[K, V]):
    """A producer of records to any topics, which any number of threads may share.

        with Producer("127.0.0.1:9092") as producer:
            print(producer.send("flights", b"LH400", key=b"FRA").result().offset)

    It has the settings and guarantees of `tidelog.aio.Producer`. `send` encodes the record in the calling
    thread; a thread of the producer does the I/O and calls the callbacks.
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
        """The parameters are those of `tidelog.aio.Producer`."""
        self._producer: asynchronous.Producer[K, V] = asynchronous.Producer(
            bootstrap,
            settings,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            partitioner=partitioner,
            interceptors=interceptors,
            security=security,
        )
        self._thread: LoopThread | None = None

    def __enter__(self) -> Producer[K, V]:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(timeout_s=self._producer.time_to_flush_s(error))

    def start(self) -> None:
        """Connects to a broker. Raises ClientError."""
        self._thread = LoopThread("tidelog-producer")
        try:
            self._thread.call(self._producer.start())
        except BaseException:
            self.close(flushes=False)
            raise
        _open_producers.add(self)

    def close(self, *, flushes: bool = True, timeout_s: float | None = None) -> None:
        """Sends what is in the buffer, then closes the connections. See `tidelog.aio.Producer.close`."""
        thread = self._thread
        if thread is not None and thread.home.is_current:
            thread.check_caller()
            self._thread = None
            try:
                thread.call(self._producer.close(flushes=flushes, timeout_s=timeout_s))
            finally:
                thread.stop()

    def __del__(self) -> None:
        thread = getattr(self, "_thread", None)
        if thread is not None and thread.home.is_current:
            thread.end_after(_close_forgotten(self._producer))
            _ending_threads.add(thread)

    def close_at_exit(self) -> None:
        """Warns that the program did not close the producer, and closes it."""
        thread = self._thread
        if thread is not None and thread.home.is_current:
            self._thread = None
            try:
                thread.call(_close_forgotten(self._producer))
            finally:
                thread.stop()

    def send(
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
        """Adds a record to the buffer; `result()` of what it returns waits for the acknowledgement.

        Blocks up to `max.block.ms` for free memory and for the topic's partitions. The errors are those of
        `tidelog.aio.Producer.send`. `on_delivery` runs in the producer's thread. In it, `send` raises
        RuntimeError if it has to wait, because only this thread can end the wait, and so do the other methods
        that wait.
        """
        thread, records = self._running(), self._producer.records
        added = records.append(topic, value, key, partition, headers, timestamp)
        if isinstance(added, Delivery):
            if on_delivery is not None or records.interceptors:
                records.watch(added, on_delivery)
            return added
        added.on_delivery = on_delivery
        return thread.call(records.append_later(added))

    def send_batch(
        self,
        topic: str,
        values: Sequence[V | None],
        *,
        keys: Sequence[K | None] | None = None,
        headers: Sequence[Iterable[Header]] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> BatchDelivery:
        """Adds many records to the buffer. See `tidelog.aio.Producer.send_batch`, and `send`."""
        thread, records = self._running(), self._producer.records
        rows = records.encoder.encode(topic, values, keys, headers, partition, timestamp)
        while not rows.are_added:
            if not records.append_batch(rows):
                thread.call(records.append_batch_later(rows))
        return rows.delivery

    def send_and_wait(
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
        self._running().check_caller()
        return self.send(
            topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp
        ).result()

    def flush(self) -> None:
        """Sends all batches now and waits until the outcome of each earlier record is known."""
        self._running().call(self._producer.flush())

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits what its body sends, or aborts it if the body or the commit raises an exception.

        A producer has one transaction at a time, which all its threads share.
        """
        thread = self._running()
        self._producer.begin_transaction()
        try:
            yield
            thread.call(self._producer.commit_transaction())
        except BaseException as error:
            if self._producer.is_in_transaction:
                thread.call(self._producer.abort_after(error))
            raise

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group: GroupMetadata) -> None:
        """Commits a consumer's positions in the transaction. See `tidelog.aio.Producer.send_offsets`."""
        self._running().call(self._producer.send_offsets(offsets, group))

    def partitions_for(self, topic: str) -> list[int]:
        """Returns the partitions of a topic. Raises UnknownTopicError, MetadataTimeoutError."""
        return self._running().call(self._producer.partitions_for(topic))

    def metrics(self) -> dict[str, float]:
        """Returns totals since the start, and the present state of the buffer."""
        return self._producer.metrics()

    def _running(self) -> LoopThread:
        if self._thread is None:
            raise ClosedError("the producer is closed or was not started: use `with`, or call `start`")
        return self._thread


async def _close_forgotten(producer: asynchronous.Producer[Any, Any]) -> None:
    timeout_s = producer.settings.cancelled_flush_timeout_ms / 1000
    try:
        fate = "their transaction is aborted" if producer.is_in_transaction else "they are sent"
        producer.warn_unclosed(f"{fate} within {timeout_s:g} s; use `with`, or call `close`")
    finally:
        await producer.close(timeout_s=timeout_s)


_open_producers: Final[weakref.WeakSet[Producer[Any, Any]]] = weakref.WeakSet()
_ending_threads: Final[weakref.WeakSet[LoopThread]] = weakref.WeakSet()
"""The threads of producers that the garbage collector has found."""


def _close_at_exit() -> None:
    for producer in list(_open_producers):
        producer.close_at_exit()
    for thread in list(_ending_threads):
        thread.join()


atexit.register(_close_at_exit)
