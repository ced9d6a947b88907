"""The share consumer on asyncio (KIP-932)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Final, Generic, TypeAlias, TypeVar

from tidelog.client.core.connection_settings import Properties, parse_settings
from tidelog.client.core.consuming.consumer_events import (
    AcknowledgeType,
    GroupRequestFailed,
    LeaveGroup,
    MetadataFailed,
    RecordsReady,
    RequestMetadata,
    SendGroupRequest,
    TopicsMissing,
)
from tidelog.client.core.consuming.membership import Heartbeat, HeartbeatAnswered, LeaveHeartbeat
from tidelog.client.core.consuming.records import SharedRecord, deserialize
from tidelog.client.core.consuming.share_consumer import (
    AcknowledgementDone,
    Effect,
    Event,
    SendAcknowledgements,
    SendShareFetch,
    ShareConsumerCore,
    ShareRequestFailed,
)
from tidelog.client.core.settings import ShareConsumerSettings, most_records
from tidelog.client.errors import ClientError, ClosedError, NetworkError, RequestTimeoutError
from tidelog.client.serializers import Deserializer
from tidelog.client.shell.consuming.group_calls import PERMANENT_ERRORS, is_temporary, refusal_code
from tidelog.client.shell.consuming.share_calls import ShareCalls
from tidelog.client.shell.network import Network
from tidelog.client.shell.tasks import CoreTasks, now_ms
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition

K = TypeVar("K")
V = TypeVar("V")
logger: Final = logging.getLogger("tidelog.client")

AcknowledgementCallback: TypeAlias = Callable[[TopicPartition, list[int], KafkaError | None], None]
"""Gets the offsets whose acknowledgements a broker stored, or the error with which they failed."""


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
        self._core = ShareConsumerCore(self.settings, jitter=random.random)
        self._calls = ShareCalls(self._network, self.settings, self._core.view)
        self._read_key, self._read_value = key_deserializer, value_deserializer
        self._on_acknowledged = on_acknowledged
        self._is_closed = False
        self._tasks = CoreTasks("share consumer", self._pump)
        self._ready = asyncio.Event()
        self._acknowledged = asyncio.Event()
        self._results: dict[TopicPartition, KafkaError | None] = {}

    async def __aenter__(self) -> ShareConsumer[K, V]:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(commits=kind is None)

    async def start(self) -> None:
        """Connects to a broker. Raises ClientError."""
        self._tasks.start()
        await self._network.start()

    async def close(self, *, commits: bool = True) -> None:
        """Sends the acknowledgements that the application has given, and leaves the group.

        All other records go to other members at once. In the implicit mode these are the records of the last
        poll, unless a commit has followed.
        """
        if self._is_closed or not self._network.home.is_current:
            return
        try:
            if commits and self.settings.is_explicit and self._tasks.loop is not None:
                await self.commit()
            elif self._tasks.loop is not None:
                await self._settle()
        except (KafkaError, ClientError) as error:
            logger.warning("acknowledgements failed: %s", error)
        self._is_closed = True
        self._ready.set()
        await self._tasks.stop()
        try:
            for node_id, (_, batches) in self._core.close().items():
                await self._quietly(self._calls.end_session(node_id, batches), "end its share session")
            membership = self._core.membership
            if membership.is_active:
                goodbye = membership.goodbye()
                await self._quietly(self._calls.leave(goodbye), "leave its group")
        finally:
            await self._network.close()

    async def _quietly(self, work: Coroutine[Any, Any, None], what: str) -> None:
        try:
            await work
        except (KafkaError, ClientError) as error:
            logger.warning("the share consumer could not %s: %s", what, error)

    # -- topics

    def subscribe(self, topics: Iterable[str]) -> None:
        """Joins the group with these topics, which replace earlier ones."""
        if isinstance(topics, str):
            raise ValueError("subscribe needs a list of topics, as in ['flights']")
        self._core.subscribe(tuple(topics), now_ms())
        self._pump()

    def subscription(self) -> list[str]:
        return list(self._core.topics)

    async def unsubscribe(self) -> None:
        """Sends the acknowledgements that the application has given, and leaves the group."""
        await self.commit()
        membership = self._core.membership
        goodbye = membership.goodbye() if membership.is_active else None
        self._core.unsubscribe()
        if goodbye is not None:
            await self._calls.leave(goodbye)

    def assignment(self) -> list[TopicPartition]:
        """Returns the partitions from which the member gets records. Other members may have them, too."""
        return self._core.partitions

    # -- records

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
                self._core.end_poll(now_ms())
                self._pump()
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
            await self._await_records(left_s)

    def __aiter__(self) -> ShareConsumer[K, V]:
        return self

    async def __anext__(self) -> SharedRecord[K, V]:
        while not self._is_closed:
            await asyncio.sleep(0)  # acknowledgements and heartbeats get their turn
            found = await self.poll(max_records=1)
            if found:
                return found[0]
        raise StopAsyncIteration

    def _begin_poll(self) -> None:
        self._network.home.check()
        if self._is_closed:
            raise ClosedError("the consumer is closed")
        if self._tasks.loop is None:
            raise ClosedError("the consumer was not started: use `async with`, or await `start`")
        if not self._core.topics:
            raise ValueError("the consumer has no topics: call subscribe first")
        self._ready.clear()
        self._perform(self._core.begin_poll(now_ms()))

    async def _await_records(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            pass
        finally:
            self._core.end_poll(now_ms())

    # -- acknowledgements

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
        self._results = {}
        self._perform(self._core.commit(now_ms()))
        await self._settle()
        return self._results

    async def _settle(self) -> None:
        """Waits until the brokers have answered all acknowledgements. Raises RequestTimeoutError."""
        timeout_ms = self.settings.default_api_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self._core.has_open_acknowledgements:
                    self._acknowledged.clear()
                    await self._acknowledged.wait()
        except TimeoutError:
            raise RequestTimeoutError(f"commit: no answer in {timeout_ms} ms") from None

    # -- the core's effects

    def _pump(self) -> None:
        self._network.home.check()
        if not self._is_closed and self._tasks.loop is not None:
            self._perform(self._core.poll(now_ms()))

    def _step(self, event: Event) -> None:
        if not self._is_closed:
            self._perform(self._core.step(event, now_ms()))
            self._acknowledged.set()

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendShareFetch() | SendAcknowledgements():
                    self._tasks.spawn(self._ask_leader(effect))
                case AcknowledgementDone(place, offsets, error):
                    self._tell(place, offsets, error)
                case RecordsReady():
                    self._ready.set()
                case TopicsMissing(reasons):
                    for subject, reason in reasons.items():
                        logger.warning("the share consumer gets no records of %s: %s", subject, reason)
                case RequestMetadata(topics, _):
                    self._tasks.spawn(self._request_metadata(topics))
                case SendGroupRequest(request, finds_coordinator):
                    assert isinstance(request, Heartbeat)
                    self._tasks.spawn(self._send_heartbeat(request, finds_coordinator))
                case LeaveGroup(goodbye):
                    logger.warning(
                        "the application did not poll for max.poll.interval.ms (%d), so the share consumer "
                        "leaves its group",
                        self.settings.max_poll_interval_ms,
                    )
                    if goodbye is not None:
                        assert isinstance(goodbye, LeaveHeartbeat)
                        self._tasks.spawn(self._quietly(self._calls.leave(goodbye), "leave its group"))
        at_ms = now_ms()
        wake_ms = self._core.next_wake_ms(at_ms)
        self._tasks.wake_in(None if wake_ms is None else max(1, wake_ms - at_ms))

    def _tell(self, place: TopicPartition, offsets: tuple[int, ...], error: KafkaError | None) -> None:
        if error is not None:
            logger.warning("%d acknowledgements failed: %s", len(offsets), error)
        if error is not None or place not in self._results:
            self._results[place] = error
        if self._on_acknowledged is not None:
            try:
                self._on_acknowledged(place, list(offsets), error)
            except Exception:  # the consumer must go on whatever the application's function raises
                logger.exception("the callback of acknowledgements failed")

    async def _ask_leader(self, effect: SendShareFetch | SendAcknowledgements) -> None:
        try:
            if isinstance(effect, SendShareFetch):
                self._step(await self._calls.fetch(effect))
            else:
                self._step(await self._calls.acknowledge(effect))
        except ClientError as error:
            logger.info("a request of a share session failed: %s", error)
            if isinstance(error, PERMANENT_ERRORS):
                self._core.error = KafkaError(ErrorCode.UNSUPPORTED_VERSION, str(error))
                self._ready.set()
            self._step(ShareRequestFailed(effect.request_id, NetworkError(str(error))))

    async def _request_metadata(self, topics: tuple[str, ...] | None) -> None:
        try:
            received = await self._network.metadata(topics, creates=self.settings.allow_auto_create_topics)
        except ClientError as error:
            logger.info("no metadata: %s", error)
            self._step(MetadataFailed())
            return
        self._step(received)

    async def _send_heartbeat(self, heartbeat: Heartbeat, finds_coordinator: bool) -> None:
        if finds_coordinator:
            self._calls.coordinator.forget()
        try:
            answer = await self._calls.heartbeat(heartbeat)
        except (KafkaError, ClientError) as error:
            if is_temporary(error):
                logger.info("a heartbeat failed: %s", error)
                self._step(GroupRequestFailed(heartbeat))
                return
            answer = HeartbeatAnswered(heartbeat, refusal_code(error), str(error), 0, 0, None)
        self._step(answer)
