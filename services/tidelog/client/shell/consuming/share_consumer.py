"""The share consumer on asyncio (KIP-932)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Generic, TypeAlias, TypeVar

from tidelog.client.core.connection_settings import Properties, parse_settings
from tidelog.client.core.consuming.consumer_events import (
    AcknowledgeType,
)
from tidelog.client.core.consuming.records import SharedRecord, deserialize
from tidelog.client.core.consuming.share_consumer import (
    AcknowledgementDone,
    Event,
    SendAcknowledgements,
    SendShareFetch,
    ShareConsumerCore,
    ShareRequestFailed,
)
from tidelog.client.core.settings import ShareConsumerSettings, most_records
from tidelog.client.errors import ClientError, NetworkError, RequestTimeoutError
from tidelog.client.serializers import Deserializer
from tidelog.client.shell.consuming.driver import CoreDriver
from tidelog.client.shell.consuming.group_calls import PERMANENT_ERRORS
from tidelog.client.shell.consuming.share_calls import ShareCalls
from tidelog.client.shell.network import Network
from tidelog.client.shell.tasks import now_ms
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition

K = TypeVar("K")
V = TypeVar("V")
logger: Final = logging.getLogger("tidelog.client")

AcknowledgementCallback: TypeAlias = Callable[[TopicPartition, list[int], KafkaError | None], None]
"""Gets the offsets whose acknowledgements a broker stored, or the error with which they failed."""


class ShareDriver(CoreDriver[ShareConsumerCore]):
    """The driver of a share consumer. It also keeps the results of acknowledgements."""

    def __init__(
        self, core: ShareConsumerCore, network: Network, on_acknowledged: AcknowledgementCallback | None
    ) -> None:
        self.calls: ShareCalls = ShareCalls(network, core.settings, core.view)
        super().__init__("share consumer", core, network, self.calls)
        self.results: dict[TopicPartition, KafkaError | None] = {}
        """The error of each partition since the last commit began, None if there was none."""
        self._on_acknowledged = on_acknowledged
        self._acknowledged = asyncio.Event()

    def step(self, event: Event) -> None:
        super().step(event)
        self._acknowledged.set()

    async def settle(self) -> None:
        """Waits until the brokers have answered all acknowledgements. Raises RequestTimeoutError."""
        timeout_ms = self.core.settings.default_api_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self.core.has_open_acknowledgements:
                    self._acknowledged.clear()
                    await self._acknowledged.wait()
        except TimeoutError:
            raise RequestTimeoutError(f"commit: no answer in {timeout_ms} ms") from None

    def _carry_out(self, effect: object) -> None:
        match effect:
            case SendShareFetch() | SendAcknowledgements():
                self.tasks.spawn(self._ask_leader(effect))
            case AcknowledgementDone(place, offsets, error):
                self._tell(place, offsets, error)
            case _:
                super()._carry_out(effect)

    def _tell(self, place: TopicPartition, offsets: tuple[int, ...], error: KafkaError | None) -> None:
        if error is not None:
            logger.warning("%d acknowledgements failed: %s", len(offsets), error)
        if error is not None or place not in self.results:
            self.results[place] = error
        if self._on_acknowledged is not None:
            try:
                self._on_acknowledged(place, list(offsets), error)
            except Exception:  # the consumer must go on whatever the application's function raises
                logger.exception("the callback of acknowledgements failed")

    async def _ask_leader(self, effect: SendShareFetch | SendAcknowledgements) -> None:
        try:
            if isinstance(effect, SendShareFetch):
                self.step(await self.calls.fetch(effect))
            else:
                self.step(await self.calls.acknowledge(effect))
        except ClientError as error:
            logger.info("a request of a share session failed: %s", error)
            if isinstance(error, PERMANENT_ERRORS):
                self.core.error = KafkaError(ErrorCode.UNSUPPORTED_VERSION, str(error))
                self.ready.set()
            self.step(ShareRequestFailed(effect.request_id, NetworkError(str(error))))


class ShareConsumer(Generic[K, V]):
    """A consumer of a share group, as of a queue. Use it in one event loop, and from one task at a time.

        async with ShareConsumer("127.0.0.1:9092", {"group.id": "billing"}) as consumer:
            consumer.subscribe(["flights"])
            async for record in consumer:
                print(record.value)

    Each record goes to one member of the group, and again to one if it was released, or not acknowledged in
    time. In the implicit mode a record is accepted when the application asks for more. With
    `share.acknowledgement.mode` `explicit` the application calls `acknowledge` for each record.
    """

    def __init__(
        self,
        bootstrap: str = "",
        settings: Properties | None = None,
        *,
        key_deserializer: Deserializer[K] | None = None,
        value_deserializer: Deserializer[V] | None = None,
        on_acknowledged: AcknowledgementCallback | None = None,
    ) -> None:
        """`bootstrap` is HOST:PORT,... and precedes `bootstrap.servers`. Without deserializers, keys and
        values are bytes. `on_acknowledged` gets the results of acknowledgements. Raises SettingsError,
        BadAddressError, SecurityConfigError.
        """
        properties = settings or {}
        self.settings: ShareConsumerSettings = parse_settings(ShareConsumerSettings, properties)
        self._network = Network.of(bootstrap, properties, self.settings)
        core = ShareConsumerCore(self.settings, jitter=random.random)
        self._driver = ShareDriver(core, self._network, on_acknowledged)
        self._core = core
        self._read_key, self._read_value = key_deserializer, value_deserializer

    async def __aenter__(self) -> ShareConsumer[K, V]:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(commits=kind is None)

    async def start(self) -> None:
        """Connects to a broker. Raises ClientError."""
        await self._driver.start()

    async def close(self, *, commits: bool = True) -> None:
        """Sends the acknowledgements that the application has given, and leaves the group.

        All other records go to other members at once. In the implicit mode these are the records of the last
        poll, unless a commit has followed.
        """
        if self._driver.is_closed or not self._network.home.is_current:
            return
        try:
            if commits and self.settings.is_explicit and self._driver.tasks.loop is not None:
                await self.commit()
            elif self._driver.tasks.loop is not None:
                await self._driver.settle()
        except (KafkaError, ClientError) as error:
            logger.warning("acknowledgements failed: %s", error)
        self._driver.is_closed = self._driver.has_ended = True
        self._driver.ready.set()
        await self._driver.tasks.stop()
        try:
            for node_id, (_, batches) in self._core.close().items():
                ending = self._driver.calls.end_session(node_id, batches)
                await self._driver.quietly(ending, "end its share session")
            membership = self._core.membership
            if membership.is_active:
                await self._driver.say_goodbye(membership.goodbye())
        finally:
            await self._network.close()

    def subscribe(self, topics: Iterable[str]) -> None:
        """Joins the group with these topics, which replace earlier ones."""
        if isinstance(topics, str):
            raise ValueError("subscribe needs a list of topics, as in ['flights']")
        self._core.subscribe(tuple(topics), now_ms())
        self._driver.pump()

    def subscription(self) -> list[str]:
        return list(self._core.topics)

    async def unsubscribe(self) -> None:
        """Sends the acknowledgements that the application has given, and leaves the group."""
        await self.commit()
        membership = self._core.membership
        goodbye = membership.goodbye() if membership.is_active else None
        self._core.unsubscribe()
        if goodbye is not None:
            await self._driver.calls.leave(goodbye)

    def assignment(self) -> list[TopicPartition]:
        """Returns the partitions from which the member gets records. Other members may have them, too."""
        return self._core.partitions

    async def poll(
        self, timeout_s: float = 1.0, *, max_records: int | None = None
    ) -> list[SharedRecord[K, V]]:
        """Returns up to `max.poll.records` records, and waits up to `timeout_s` for the first.

        `max_records` replaces the setting for this poll. In the implicit mode it accepts the records of the
        last poll. Raises KafkaError; RuntimeError if the mode is explicit and a record of the last poll is
        not acknowledged; ValueError if `max_records` is less than 1.
        """
        most = most_records(max_records, self.settings.max_poll_records)
        deadline_ms = now_ms() + int(timeout_s * 1000)
        while True:
            self._begin_poll()
            found = self._core.take(most, now_ms())
            left_s = (deadline_ms - now_ms()) / 1000
            if found or left_s <= 0:
                self._driver.end_poll()
                records: list[SharedRecord[K, V]] = [
                    SharedRecord(
                        place,
                        record.offset,
                        record.timestamp,
                        record.key_bytes,
                        record.value_bytes,
                        record.headers,
                        count,
                    )
                    for place, record, count in found
                ]
                if self._read_key is not None or self._read_value is not None:
                    deserialize(records, self._read_key, self._read_value)
                return records
            await self._driver.await_records(left_s)

    def __aiter__(self) -> ShareConsumer[K, V]:
        return self

    async def __anext__(self) -> SharedRecord[K, V]:
        while not self._driver.is_closed:
            await asyncio.sleep(0)  # acknowledgements and heartbeats get their turn
            found = await self.poll(max_records=1)
            if found:
                return found[0]
        raise StopAsyncIteration

    def _begin_poll(self) -> None:
        self._network.home.check()
        self._driver.check_open()
        if not self._core.topics:
            raise ValueError("the consumer has no topics: call subscribe first")
        self._driver.begin_poll()

    def acknowledge(self, record: SharedRecord[K, V], kind: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        """Says what became of a record. The next poll or commit sends it.

        Raises RuntimeError if the mode is implicit, or if the record does not wait for an acknowledgement.
        """
        self._core.acknowledge(record.place, record.offset, kind)

    def release(self, records: Iterable[SharedRecord[K, V]]) -> None:
        """Gives back records that the application got and did not use, in both modes. The next poll or commit
        sends it.
        """
        for record in records:
            self._core.release(record.place, record.offset)

    async def commit(self) -> dict[TopicPartition, KafkaError | None]:
        """Sends all acknowledgements and waits for the brokers. In the implicit mode it accepts all records
        that were delivered.

        Returns the error of each partition, None if its acknowledgements are stored. Raises
        RequestTimeoutError after `default.api.timeout.ms`.
        """
        self._network.home.check()
        self._driver.results = {}
        self._driver.perform(self._core.commit(now_ms()))
        await self._driver.settle()
        return self._driver.results
