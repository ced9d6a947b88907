"""The share consumer for threads."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

from tidelog.client.core.consumer_record import SharedRecord
from tidelog.client.core.delivery_errors import ClosedError
from tidelog.client.core.properties import Properties
from tidelog.client.core.share_session import AcknowledgeType
from tidelog.client.serializers import Deserializer
from tidelog.client.shell import share_consumer as asynchronous
from tidelog.client.threads.loop_thread import LoopThread
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class ShareConsumer(Generic[K, V]):
    """A consumer of a share group. Use it from one thread at a time.

        with ShareConsumer("127.0.0.1:9092", {"group.id": "billing"}) as consumer:
            consumer.subscribe(["flights"])
            for record in consumer:
                print(record.value)

    It has the settings and guarantees of `tidelog.aio.ShareConsumer`, and the same methods without `await`. A
    thread of the consumer sends the heartbeats, and calls `on_acknowledged`.
    """

    def __init__(
        self,
        bootstrap: str = "",
        settings: Properties | None = None,
        *,
        key_deserializer: Deserializer[K] | None = None,
        value_deserializer: Deserializer[V] | None = None,
        on_acknowledged: asynchronous.AcknowledgementCallback | None = None,
    ) -> None:
        """The parameters are those of `tidelog.aio.ShareConsumer`."""
        self._consumer: asynchronous.ShareConsumer[K, V] | None = None
        self._thread: LoopThread | None = None

        async def start() -> asynchronous.ShareConsumer[K, V]:
            made: asynchronous.ShareConsumer[K, V] = asynchronous.ShareConsumer(
                bootstrap,
                settings,
                key_deserializer=key_deserializer,
                value_deserializer=value_deserializer,
                on_acknowledged=on_acknowledged,
            )
            await made.start()
            return made

        self._start = start

    def __enter__(self) -> ShareConsumer[K, V]:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(commits=kind is None)

    def start(self) -> None:
        """Connects to a broker. Raises ClientError, SettingsError."""
        self._thread = LoopThread("tidelog-share-consumer")
        try:
            self._consumer = self._thread.call(self._start())
        except BaseException:
            self.close(commits=False)
            raise

    def close(self, *, commits: bool = True) -> None:
        """Sends acknowledgements and leaves the group. See `tidelog.aio.ShareConsumer.close`."""
        thread = self._thread
        if thread is not None:
            thread.check_caller()
            self._thread = None
            try:
                if self._consumer is not None:
                    thread.call(self._consumer.close(commits=commits))
            finally:
                thread.stop()

    def subscribe(self, topics: Iterable[str]) -> None:
        """Joins the group. See `tidelog.aio.ShareConsumer.subscribe`."""
        self._in_loop(lambda consumer: consumer.subscribe(topics))

    def subscription(self) -> list[str]:
        return self._in_loop(lambda consumer: consumer.subscription())

    def unsubscribe(self) -> None:
        """Sends the acknowledgements that the application has given, and leaves the group."""
        self._call(self._running().unsubscribe())

    def assignment(self) -> list[TopicPartition]:
        return self._in_loop(lambda consumer: consumer.assignment())

    def poll(self, timeout_s: float = 1.0, *, max_records: int | None = None) -> list[SharedRecord[K, V]]:
        """Returns records, and waits up to `timeout_s` for the first. See `tidelog.aio.ShareConsumer`."""
        return self._call(self._running().poll(timeout_s, max_records=max_records))

    def __iter__(self) -> Iterator[SharedRecord[K, V]]:
        """Yields records for ever. In the implicit mode a record is accepted when the next is asked for."""
        while self._thread is not None:
            yield from self.poll(max_records=1)

    def acknowledge(self, record: SharedRecord[K, V], kind: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        """Says what became of a record. The next poll or commit sends it. Raises RuntimeError."""
        self._in_loop(lambda consumer: consumer.acknowledge(record, kind))

    def commit(self) -> dict[TopicPartition, KafkaError | None]:
        """Sends all acknowledgements and waits. See `tidelog.aio.ShareConsumer.commit`."""
        return self._call(self._running().commit())

    # -- the loop

    def _running(self) -> asynchronous.ShareConsumer[K, V]:
        if self._thread is None or self._consumer is None:
            raise ClosedError("the share consumer is closed or was not started: use `with`, or call `start`")
        return self._consumer

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._thread is not None
        return self._thread.call(work)

    def _in_loop(self, function: Callable[[asynchronous.ShareConsumer[K, V]], T]) -> T:
        """Calls a method that does not wait, in the thread of the loop."""
        consumer = self._running()

        async def work() -> T:
            return function(consumer)

        return self._call(work())
