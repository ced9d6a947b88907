"""The share consumer for threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from tidelog.client.core.consumer_events import AcknowledgeType
from tidelog.client.core.records import SharedRecord
from tidelog.client.core.settings import Properties
from tidelog.client.serializers import Deserializer
from tidelog.client.shell.consuming import share_consumer as asynchronous
from tidelog.client.threads.loop_thread import ThreadedConsumer
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition

K = TypeVar("K")
V = TypeVar("V")


class ShareConsumer(ThreadedConsumer[asynchronous.ShareConsumer[K, V]], Generic[K, V]):
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
        super().__init__(
            "share consumer",
            lambda: asynchronous.ShareConsumer(
                bootstrap,
                settings,
                key_deserializer=key_deserializer,
                value_deserializer=value_deserializer,
                on_acknowledged=on_acknowledged,
            ),
        )

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
        return self._poll(
            lambda consumer: consumer.poll(timeout_s, max_records=max_records),
            lambda consumer, records: consumer.release(records),
        )

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
