"""The consumers for threads. Each runs the consumer on asyncio in a thread of its own."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from tidelog.client.address import Address
from tidelog.client.core.connection_settings import Properties
from tidelog.client.core.consuming.consumer_batch import ConsumerBatch
from tidelog.client.core.consuming.consumer_events import AcknowledgeType
from tidelog.client.core.consuming.records import ConsumerRecord, SharedRecord
from tidelog.client.errors import ClosedError
from tidelog.client.security import ClientSecurity
from tidelog.client.serializers import Deserializer
from tidelog.client.shell.consuming import consumer as asynchronous
from tidelog.client.shell.consuming import share_consumer as asynchronous_share
from tidelog.client.shell.consuming.callbacks import ConsumerHealth, RebalanceCallback
from tidelog.client.shell.producing.transactions import GroupMetadata
from tidelog.client.threads.loop_thread import LoopThread
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
C = TypeVar("C", bound="asynchronous.Consumer[Any, Any] | asynchronous_share.ShareConsumer[Any, Any]")


class ThreadedConsumer(Generic[C]):
    """A consumer on asyncio that works in a thread of its own. Use it from one thread at a time."""

    def __init__(self, subject: str, make: Callable[[], C]) -> None:
        """`make` makes the consumer in its thread; `subject` names it in errors."""
        self._subject = subject
        self._make = make
        self._consumer: C | None = None
        self._thread: LoopThread | None = None
        self._is_ending = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(lambda consumer: consumer.__aexit__(kind, error, trace))

    def start(self) -> None:
        """Connects to a broker. Raises ClientError, SettingsError."""
        self._thread = LoopThread(f"tidelog-{self._subject.replace(' ', '-')}")
        try:
            self._consumer = self._thread.call(self._started())
        except BaseException:
            self.close(commits=False)
            raise

    async def _started(self) -> C:
        made = self._make()
        await made.start()
        return made

    def close(self, *, commits: bool = True) -> None:
        """Commits and leaves the group, as `close` of the consumer on asyncio does."""
        self._end(lambda consumer: consumer.close(commits=commits))

    def _end(self, close: Callable[[C], Coroutine[Any, Any, None]]) -> None:
        thread = self._thread
        if thread is None or not thread.home.is_current:
            return
        thread.check_caller(runs_callbacks=True)
        if self._is_ending:
            return
        self._is_ending = True
        try:
            if self._consumer is not None:
                thread.call(close(self._consumer), runs_callbacks=True)
        finally:
            self._thread = None
            self._is_ending = False
            thread.stop()

    def _running(self) -> C:
        if self._thread is None or self._consumer is None:
            raise ClosedError(
                f"the {self._subject} is closed or was not started: use `with`, or call `start`"
            )
        return self._consumer

    def _call(self, work: Coroutine[Any, Any, T], *, runs_callbacks: bool = False) -> T:
        assert self._thread is not None
        return self._thread.call(work, runs_callbacks=runs_callbacks)

    def _poll(self, poll: Callable[[C], Coroutine[Any, Any, T]], give_back: Callable[[C, T], None]) -> T:
        """Returns what a poll of the consumer returns. If an exception interrupts the wait for it, as Ctrl-C
        does, `give_back` gets what the poll has found, because the application does not.
        """
        consumer = self._running()
        assert self._thread is not None
        self._thread.check_caller(runs_callbacks=True)
        found: list[T] = []

        async def work() -> T:
            found.append(await poll(consumer))
            return found[0]

        async def undo() -> None:
            for each in found:
                give_back(consumer, each)

        try:
            return self._call(work(), runs_callbacks=True)
        except BaseException:
            if self._thread is not None:
                self._call(undo())  # an interrupted poll has been cancelled, and ends first
            raise

    def _in_loop(self, function: Callable[[C], T]) -> T:
        """Calls a method that does not wait, in the thread of the loop."""
        consumer = self._running()

        async def work() -> T:
            return function(consumer)

        return self._call(work())


class Consumer(ThreadedConsumer[asynchronous.Consumer[K, V]], Generic[K, V]):
    """A consumer of topics. Use it from one thread at a time.

        with Consumer("127.0.0.1:9092", {"group.id": "billing"}) as consumer:
            consumer.subscribe(["flights"])
            for record in consumer:
                print(record.value)

    It has the settings and guarantees of `tidelog.aio.Consumer`, and the same methods without `await`. A
    thread of the consumer sends the heartbeats. Rebalance callbacks run in the thread of the application, in
    `poll`, `unsubscribe` and `close`, and may call the other methods of the consumer.
    """

    def __init__(
        self,
        bootstrap: str = "",
        settings: Properties | None = None,
        *,
        key_deserializer: Deserializer[K] | None = None,
        value_deserializer: Deserializer[V] | None = None,
        security: ClientSecurity | None = None,
    ) -> None:
        """The parameters are those of `tidelog.aio.Consumer`."""
        super().__init__(
            "consumer",
            lambda: asynchronous.Consumer(
                bootstrap,
                settings,
                key_deserializer=key_deserializer,
                value_deserializer=value_deserializer,
                security=security,
            ),
        )
        self._left: deque[ConsumerRecord[K, V]] = deque()
        """The records of the last poll that the iteration has not yielded yet."""
        self._yielded: ConsumerRecord[K, V] | None = None
        """The last record that the iteration yielded, if no poll has followed."""

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Joins the group. See `tidelog.aio.Consumer.subscribe`."""
        self._in_loop(
            lambda consumer: consumer.subscribe(
                topics,
                pattern=pattern,
                on_assigned=self._in_this_thread(on_assigned),
                on_revoked=self._in_this_thread(on_revoked),
                on_lost=self._in_this_thread(on_lost),
            )
        )

    def _in_this_thread(self, callback: RebalanceCallback | None) -> RebalanceCallback | None:
        thread = self._thread
        if callback is None or thread is None:
            return None
        return lambda places: thread.call_back(lambda: callback(places))

    def unsubscribe(self) -> None:
        """Commits and leaves the group. See `tidelog.aio.Consumer.unsubscribe`."""
        self._call(self._running().unsubscribe(), runs_callbacks=True)

    def _end(self, close: Callable[[asynchronous.Consumer[K, V]], Coroutine[Any, Any, None]]) -> None:
        if self._left and self._thread is not None:
            self._give_back()
        super()._end(close)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        yielded = self._yielded
        if kind is not None and yielded is not None and self._thread is not None:
            # The exception may have interrupted the work on this record, but not on those before it.
            self._left.appendleft(yielded)
            self._give_back()
            self._in_loop(lambda consumer: consumer.finish_delivered())
        super().__exit__(kind, error, trace)

    def assign(self, places: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Reads these partitions without a group's assignment."""
        self._in_loop(lambda consumer: consumer.assign(places))

    def assignment(self) -> list[TopicPartition]:
        return self._in_loop(lambda consumer: consumer.assignment())

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Delivers no records of these partitions until `resume`."""
        self._in_loop(lambda consumer: consumer.pause(places))

    def resume(self, places: Iterable[TopicPartition]) -> None:
        self._in_loop(lambda consumer: consumer.resume(places))

    def paused(self) -> list[TopicPartition]:
        return self._in_loop(lambda consumer: consumer.paused())

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Sets the next offset to read. Raises KeyError if the partition is not assigned."""
        self._in_loop(lambda consumer: consumer.seek(place, offset))
        self._drop_left((place,))

    def seek_to_beginning(self, places: Iterable[TopicPartition] | None = None) -> None:
        wanted = None if places is None else list(places)
        self._in_loop(lambda consumer: consumer.seek_to_beginning(wanted))
        self._drop_left(wanted)

    def seek_to_end(self, places: Iterable[TopicPartition] | None = None) -> None:
        wanted = None if places is None else list(places)
        self._in_loop(lambda consumer: consumer.seek_to_end(wanted))
        self._drop_left(wanted)

    def position(self, place: TopicPartition) -> int:
        """Returns the offset of the next record. Raises KeyError, KafkaError."""
        position = self._call(self._running().position(place))
        return self._left_offsets().get(place, position)

    def positions(self) -> dict[TopicPartition, int]:
        """Returns the known positions, for `Producer.send_offsets`."""
        known = self._in_loop(lambda consumer: consumer.positions())
        return known | {place: offset for place, offset in self._left_offsets().items() if place in known}

    def group_metadata(self) -> GroupMetadata:
        """Returns the membership, for `Producer.send_offsets`."""
        return self._in_loop(lambda consumer: consumer.group_metadata())

    def committed(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Returns the committed offset of each partition, None if there is none."""
        return self._call(self._running().committed(places))

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commits offsets, by default the positions. See `tidelog.aio.Consumer.commit`.

        In an iteration, the positions are those after the records that it has yielded.
        """
        if offsets is None and self._left:
            offsets = self.positions()
        self._call(self._running().commit(offsets))

    def beginning_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._call(self._running().beginning_offsets(places))

    def end_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._call(self._running().end_offsets(places))

    def offsets_for_times(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Returns the first offset at or after each time (milliseconds since 1970)."""
        return self._call(self._running().offsets_for_times(timestamps))

    def high_watermark(self, place: TopicPartition) -> int | None:
        return self._in_loop(lambda consumer: consumer.high_watermark(place))

    def lag(self) -> dict[TopicPartition, int | None]:
        """Returns the records between position and high watermark, None before the first fetch."""
        return self._in_loop(lambda consumer: consumer.lag())

    def poll(self, timeout_s: float = 1.0, *, max_records: int | None = None) -> list[ConsumerRecord[K, V]]:
        """Returns records, and waits up to `timeout_s` for the first. See `tidelog.aio.Consumer.poll`."""
        self._yielded = None
        return self._poll(
            lambda consumer: consumer.poll(timeout_s, max_records=max_records),
            lambda consumer, records: consumer.read_again(_first_offsets(records)),
        )

    def poll_batch(self, timeout_s: float | None = 1.0) -> ConsumerBatch[K, V] | None:
        """Returns the records of one fetch in one piece. See `tidelog.aio.Consumer.poll_batch`."""
        self._yielded = None
        return self._poll(lambda consumer: consumer.poll_batch(timeout_s), _give_back_batch)

    def batches(self) -> Iterator[ConsumerBatch[K, V]]:
        """Yields the records in pieces for ever. See `tidelog.aio.Consumer.batches`."""
        while self._thread is not None:
            batch = self.poll_batch()
            if batch is not None:
                yield batch

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        """Yields records for ever. An automatic commit stores only what was yielded before the last poll:
        the records of a poll count as dealt with when the next poll begins, or when the consumer is closed.
        After a `break`, the next poll returns the record after the last yielded one.
        """
        while self._thread is not None:
            self._left = left = deque(self.poll())
            try:
                while left:
                    self._yielded = record = left.popleft()
                    yield record
            finally:
                if self._left is left and left and self._thread is not None:
                    self._give_back()

    def _give_back(self) -> None:
        offsets = self._left_offsets()
        self._left.clear()
        self._in_loop(lambda consumer: consumer.read_again(offsets))

    def _left_offsets(self) -> dict[TopicPartition, int]:
        """Returns the offset of the first record of each partition that was not yielded."""
        return _first_offsets(self._left)

    def _drop_left(self, places: Iterable[TopicPartition] | None) -> None:
        """Does not yield the records of partitions whose positions were set."""
        chosen = None if places is None else frozenset(places)
        kept = [record for record in self._left if chosen is not None and record.place not in chosen]
        self._left.clear()
        self._left.extend(kept)
        if self._yielded is not None and (chosen is None or self._yielded.place in chosen):
            self._yielded = None

    def health(self, *, lagging_records: int = 10_000) -> ConsumerHealth:
        """Returns whether the consumer has joined, is lagging, or is stuck, and why."""
        return self._in_loop(lambda consumer: consumer.health(lagging_records=lagging_records))

    def reached_addresses(self) -> frozenset[Address]:
        """Returns the addresses at which brokers have answered this consumer."""
        return self._in_loop(lambda consumer: consumer.reached_addresses())

    def metrics(self) -> dict[str, float]:
        """Returns totals since the start, and the present lag."""
        return self._in_loop(lambda consumer: consumer.metrics())


def _first_offsets(records: Sequence[ConsumerRecord[Any, Any]]) -> dict[TopicPartition, int]:
    """Returns the offset of the first of these records in each partition."""
    return {record.place: record.offset for record in reversed(records)}


def _give_back_batch(consumer: asynchronous.Consumer[K, V], batch: ConsumerBatch[K, V] | None) -> None:
    if batch is not None:
        consumer.read_again({batch.place: batch.start_offset})


class ShareConsumer(ThreadedConsumer[asynchronous_share.ShareConsumer[K, V]], Generic[K, V]):
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
        on_acknowledged: asynchronous_share.AcknowledgementCallback | None = None,
    ) -> None:
        """The parameters are those of `tidelog.aio.ShareConsumer`."""
        super().__init__(
            "share consumer",
            lambda: asynchronous_share.ShareConsumer(
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
