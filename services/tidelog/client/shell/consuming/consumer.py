"""The consumer on asyncio."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from tidelog.client.address import Address
from tidelog.client.core.connection_settings import Properties
from tidelog.client.core.consuming.consumed_partition import PositionState
from tidelog.client.core.consuming.consumer import ConsumerCore
from tidelog.client.core.consuming.consumer_batch import ConsumerBatch
from tidelog.client.core.consuming.membership import MemberState
from tidelog.client.core.consuming.records import ConsumerRecord, deserialize
from tidelog.client.core.settings import ConsumerSettings, most_records, parse_consumer_settings
from tidelog.client.errors import (
    RequestTimeoutError,
)
from tidelog.client.security import ClientSecurity
from tidelog.client.serializers import Deserializer
from tidelog.client.shell.consuming.callbacks import (
    ConsumerHealth,
    RebalanceCallback,
    health_of,
)
from tidelog.client.shell.consuming.driver import INTERRUPTED_CLOSE_TIMEOUT_S, ConsumerDriver
from tidelog.client.shell.network import Network
from tidelog.client.shell.producing.transactions import GroupMetadata
from tidelog.client.shell.tasks import now_ms
from tidelog.model.protocol_values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tidelog.model.topics import TopicPartition

K = TypeVar("K")
V = TypeVar("V")
logger: Final = logging.getLogger("tidelog.client")

POSITION_CHECK_S: Final = 0.01
CLOSE_TIMEOUT_S: Final = 30.0
"""The time in which `close` commits and calls `on_revoked`, as in Kafka's consumer."""


class Consumer(Generic[K, V]):
    """A consumer of topics. Use it in one event loop, and from one task at a time.

        async with Consumer("127.0.0.1:9092", {"group.id": "billing"}) as consumer:
            consumer.subscribe(["flights"])
            async for record in consumer:
                print(record.value)

    An automatic commit stores the offsets of records that the application has dealt with: it has asked for
    the next record, or the next poll, since it got them. `close` and the end of `async with` commit all
    records that the application got. If an exception or a cancellation ends `async with`, the last record of
    an iteration or the records of the last poll are not committed, because it may have interrupted the
    application while it dealt with them.
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
        """`bootstrap` is HOST:PORT,... and precedes `bootstrap.servers`. Without deserializers, keys and
        values are bytes. `security` replaces the settings of TLS and SASL. Raises SettingsError,
        BadAddressError, SecurityConfigError.
        """
        properties = settings or {}
        self.settings: ConsumerSettings = parse_consumer_settings(properties)
        self._network = Network.of(bootstrap, properties, self.settings, security)
        self._core = ConsumerCore(self.settings, jitter=random.random)
        self._driver = ConsumerDriver(self._core, self._network)
        self._callbacks = self._driver.callbacks
        self._read_key, self._read_value = key_deserializer, value_deserializer
        self._record_count = 0

    async def __aenter__(self) -> Consumer[K, V]:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
            return
        await self._driver.close(commits=True, timeout_s=INTERRUPTED_CLOSE_TIMEOUT_S)
        self._callbacks.log_error()

    async def start(self) -> None:
        """Connects to a broker. Raises ClientError."""
        await self._driver.start()

    async def close(self, *, commits: bool = True) -> None:
        """Commits all records that the application got, if commits are automatic, calls `on_revoked`, and
        leaves the group. All this takes at most 35 s. With `commits` False, nothing is committed.

        Raises the exception of a rebalance callback, after it has closed the consumer.
        """
        self._callbacks.check_caller()
        if commits and not self._driver.is_closed:
            self._core.finish_delivered()
        await self._driver.close(commits=commits, timeout_s=CLOSE_TIMEOUT_S)
        self._callbacks.raise_error()

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Joins the group with these topics, or with those whose names match `pattern`.

        With `group.protocol=consumer` the broker matches the pattern (RE2), and `topics` count, too. With
        `classic` the consumer matches the whole name with Python's `re`.

        `on_assigned` is awaited before records of its partitions arrive: seek in it. `on_revoked` is awaited
        before partitions go to another member, also in `unsubscribe` and `close`: commit in it. `on_lost`
        gets partitions that other members may have already. They run while the application waits for records,
        one at a time. The next poll raises the exception of a callback; after it, the consumer goes on.
        Raises ValueError without `group.id`, and for a classic group with a wrong pattern or with topics and
        a pattern.
        """
        if self.settings.group_id is None:
            raise ValueError("subscribe needs the setting group.id; assign needs none")
        if isinstance(topics, str):
            raise ValueError("subscribe needs a list of topics, as in ['flights']")
        names = tuple(topics)
        text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
        if names and text is not None and self.settings.is_classic:
            raise ValueError("a classic group subscribes to topics or to a pattern, not to both")
        self._core.subscribe(names, text, now_ms())
        self._callbacks.replace(on_assigned, on_revoked, on_lost)
        self._driver.pump()

    async def unsubscribe(self) -> None:
        """Commits all records that the application got, if commits are automatic, calls `on_revoked`, and
        leaves the group. Raises the exception of a rebalance callback.
        """
        self._callbacks.check_caller()
        self._core.finish_delivered()
        await self._driver.give_up()
        membership = self._core.membership
        if membership is not None and membership.is_active:
            goodbye = membership.goodbye()
            self._core.unsubscribe()
            if goodbye is not None:
                await self._driver.calls.leave(goodbye)
        self._core.unsubscribe()
        self._callbacks.raise_error()

    def assign(self, places: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Reads these partitions without a group's assignment. `seek` sets their positions.

        If commits are automatic, it commits the records that the application got of other partitions.
        """
        wanted = [TopicPartition(*place) for place in places]
        self._core.finish_delivered()
        given_up = self._core.partitions.commitable(set(self._core.partitions).difference(wanted))
        if self.settings.enable_auto_commit and self.settings.group_id is not None and given_up:
            self._driver.tasks.spawn(self._driver.commit_quietly(given_up))
        self._core.assign(wanted)
        self._driver.pump()

    def assignment(self) -> list[TopicPartition]:
        return list(self._core.partitions)

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Delivers no records of these partitions until `resume`."""
        self._core.partitions.pause(places)

    def resume(self, places: Iterable[TopicPartition]) -> None:
        self._core.partitions.resume(places)
        self._driver.ready.set()
        self._driver.pump()

    def paused(self) -> list[TopicPartition]:
        return [place for place, partition in self._core.partitions.items() if partition.is_paused]

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Sets the next offset to read. Raises KeyError if the partition is not assigned."""
        if offset < 0:
            raise ValueError(f"{offset} is not an offset")
        self._core.partitions[place].seek(offset)
        self._driver.pump()

    def read_again(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Delivers records again that the application got and did not use, from these offsets on. What it has
        dealt with does not change. Partitions that are not assigned any more are ignored.
        """
        for place, offset in offsets.items():
            if place in self._core.partitions:
                self._core.partitions[place].read_again(offset)
        self._driver.pump()

    def finish_delivered(self) -> None:
        """Counts all records that the application got as dealt with, as the next poll would."""
        self._core.finish_delivered()

    def seek_to_beginning(self, places: Iterable[TopicPartition] | None = None) -> None:
        self._reset(places, EARLIEST_TIMESTAMP)

    def seek_to_end(self, places: Iterable[TopicPartition] | None = None) -> None:
        self._reset(places, LATEST_TIMESTAMP)

    def _reset(self, places: Iterable[TopicPartition] | None, timestamp: int) -> None:
        for place in list(self._core.partitions) if places is None else places:
            self._core.partitions[place].reset(timestamp)
        self._driver.pump()

    async def position(self, place: TopicPartition) -> int:
        """Returns the offset of the next record that the application gets. Raises KeyError, KafkaError."""
        self._network.home.check()
        deadline_ms = now_ms() + self.settings.default_api_timeout_ms
        while True:
            partition = self._core.partitions[place]
            if partition.error is not None:
                raise partition.error
            if partition.state is PositionState.KNOWN:
                return partition.position
            await self._wait(deadline_ms, f"position of {place}")

    async def _wait(self, deadline_ms: int, subject: str) -> None:
        if now_ms() >= deadline_ms:
            raise RequestTimeoutError(f"{subject}: no answer in {self.settings.default_api_timeout_ms} ms")
        self._driver.pump()
        await asyncio.sleep(POSITION_CHECK_S)

    def positions(self) -> dict[TopicPartition, int]:
        """Returns the known positions, for `Producer.send_offsets`.

        Raises StaleMemberError if the consumer left its group because the application polled too rarely. It
        has no positions then, and another member would repeat what a transaction without them contains.
        """
        self._driver.check_pace("positions")
        return {
            place: partition.position
            for place, partition in self._core.partitions.items()
            if partition.state is PositionState.KNOWN
        }

    def group_metadata(self) -> GroupMetadata:
        """Returns the membership, for `Producer.send_offsets`.

        Raises StaleMemberError if the consumer subscribes and is no member at present. A coordinator accepts
        offsets of a transaction that names no member, although another member has the partitions.
        """
        self._driver.check_member("membership")
        member = self._driver.member()
        return GroupMetadata(
            self._driver.calls.group_id, member.member_id, member.epoch, self.settings.group_instance_id
        )

    async def committed(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Returns the committed offset of each partition, None if there is none."""
        found = await self._driver.calls.committed(tuple(places))
        return {place: offset if offset >= 0 else None for place, (offset, _) in found.items()}

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commits the next offset to read of each partition; by default the positions of all partitions.

        The positions include all records that the application got. Raises KafkaError; StaleMemberError if
        the group has given a partition to another member; UnknownTopicError if a topic was deleted since
        the application got its records, also if another topic has its name now.
        """
        if self.settings.group_id is None:
            raise ValueError("commit needs the setting group.id")
        if offsets is None:
            self._core.finish_delivered()
            rows = self._core.partitions.commitable()
        else:
            rows = self._core.partitions.chosen_to_commit(offsets)
        if rows:
            await self._driver.commit(rows)

    async def beginning_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._driver.calls.offsets(dict.fromkeys(places, EARLIEST_TIMESTAMP))

    async def end_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the offset after the last visible record (the LSO with `read_committed`)."""
        return await self._driver.calls.offsets(dict.fromkeys(places, LATEST_TIMESTAMP))

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """Returns the first offset at or after each time (milliseconds since 1970), None if there is none."""
        found = await self._driver.calls.offsets(timestamps)
        return {place: offset if offset >= 0 else None for place, offset in found.items()}

    def high_watermark(self, place: TopicPartition) -> int | None:
        """Returns the high watermark of the last fetch, None before it."""
        return self._core.partitions[place].high_watermark

    def lag(self) -> dict[TopicPartition, int | None]:
        """Returns the records between position and high watermark, None before the first fetch."""
        return {place: partition.lag for place, partition in self._core.partitions.items()}

    async def poll(
        self, timeout_s: float = 1.0, *, max_records: int | None = None
    ) -> list[ConsumerRecord[K, V]]:
        """Returns up to `max.poll.records` records, and waits up to `timeout_s` for the first.

        `max_records` replaces the setting for this poll. Records of earlier polls count as dealt with. Raises
        KafkaError: an error of a partition, or the reason why the consumer cannot be a member of its group;
        ValueError if `max_records` is less than 1.
        """
        most = most_records(max_records, self.settings.max_poll_records)
        driver, began_ms = self._driver, now_ms()
        if not driver.is_closed and not self._callbacks.is_running and self._core.continue_polls(began_ms):
            records = self._take(most, raises=False)
            if records:
                if self._core.is_drained:
                    self._driver.pump()
                return records
        deadline_ms = began_ms + int(timeout_s * 1000)
        while True:
            self._begin_poll()
            records = self._take(most, raises=True)
            if records:
                self._driver.end_poll()
                return records
            left_s = (deadline_ms - now_ms()) / 1000
            if left_s <= 0:
                self._driver.end_poll()
                return []
            await self._driver.await_records(left_s)

    async def poll_batch(self, timeout_s: float | None = 1.0) -> ConsumerBatch[K, V] | None:
        """Returns the records of one fetch of a partition in one piece, and waits up to `timeout_s` for them.

        `max.poll.records` does not limit them; `max.partition.fetch.bytes` does. Records of earlier polls
        count as dealt with. Returns None if there are no records, or if the consumer was closed meanwhile.
        The errors are those of `poll`.
        """
        deadline_ms = None if timeout_s is None else now_ms() + int(timeout_s * 1000)
        while True:
            self._begin_poll()
            batch = self._core.take_batch()
            if batch is not None:
                self._driver.end_poll()
                self._record_count += len(batch)
                return batch.set_deserializers(self._read_key, self._read_value)
            left_s = None if deadline_ms is None else (deadline_ms - now_ms()) / 1000
            if left_s is not None and left_s <= 0:
                self._driver.end_poll()
                return None
            await self._driver.await_records(left_s)
            if self._driver.is_closed:
                return None

    async def batches(self) -> AsyncIterator[ConsumerBatch[K, V]]:
        """Yields the records in pieces as `poll_batch` returns them, until the consumer is closed.

        async for batch in consumer.batches():
            table = batch.to_arrow()
        """
        while (batch := await self.poll_batch(None)) is not None:
            yield batch
            await asyncio.sleep(0)  # fetches and heartbeats get their turn

    def __aiter__(self) -> Consumer[K, V]:
        return self

    async def __anext__(self) -> ConsumerRecord[K, V]:
        core = self._core
        if not self._driver.is_closed and not self._callbacks.is_running and core.continue_polls(now_ms()):
            record = core.take_decoded()
            if record is not None and self._read_key is None and self._read_value is None:
                self._record_count += 1
                return record
            found = core.take(1) if record is None else [record]
            if found is not None:
                return self._delivered(found)[0]
        await asyncio.sleep(0)  # fetches and heartbeats get their turn; a cancellation here loses no record
        while True:
            self._begin_poll()
            found = core.take(1)
            if found is not None:
                self._driver.end_poll()
                return self._delivered(found)[0]
            await self._driver.await_records(None)
            if self._driver.is_closed:
                raise StopAsyncIteration

    def _take(self, most: int, *, raises: bool) -> list[ConsumerRecord[K, V]]:
        """Returns up to `most` fetched records. With `raises`, it raises KafkaError if the first of them is
        an error.
        """
        records: list[ConsumerRecord[K, V]] = []
        while (left := most - len(records)) and (
            found := self._core.take(left, raises=raises and not records)
        ) is not None:
            records += self._delivered(found)
        return records

    def _begin_poll(self) -> None:
        self._network.home.check()
        self._callbacks.check_caller()
        self._callbacks.raise_error()
        self._driver.check_open()
        if not self._core.topics and self._core.pattern is None:
            raise ValueError("the consumer has no topics: call subscribe or assign first")
        self._driver.begin_poll()
        membership = self._core.membership
        if membership is not None and membership.state is MemberState.FAILED:
            assert membership.error is not None
            raise membership.error

    def _delivered(self, records: list[ConsumerRecord[Any, Any]]) -> list[ConsumerRecord[K, V]]:
        self._record_count += len(records)
        if self._read_key is not None or self._read_value is not None:
            deserialize(records, self._read_key, self._read_value)
        return records

    def health(self, *, lagging_records: int = 10_000) -> ConsumerHealth:
        """Returns whether the consumer has joined, is lagging, or is stuck, and why.

        `lagging` means a lag of more than `lagging_records`.
        """
        return health_of(self._core, now_ms(), lagging_records, is_closed=self._driver.is_closed)

    def reached_addresses(self) -> frozenset[Address]:
        """Returns the addresses at which brokers have answered this consumer."""
        return frozenset(self._network.reached)

    def metrics(self) -> dict[str, float]:
        """Returns totals since the start, and the present lag."""
        return {
            "records-consumed-total": self._record_count,
            "commit-total": self._driver.commit_count,
            "assigned-partitions": len(self._core.partitions),
            "records-lag": sum(partition.lag or 0 for partition in self._core.partitions.values()),
        }
