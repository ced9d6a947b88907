"""Finds the dead letter topics of share groups, and writes batches to their partitions with acks=all.

`DeadLetterTopics` checks that a topic may be used, and creates it on demand. The rules are those of KIP-1191
and Kafka's `ShareGroupDLQValidator`. Whoever may write to a topic of a group can bring its records into the
group's dead letter topic. Therefore the administrator decides by the prefix, and by a setting of the topic,
which topics may be used.

`DeadLetterWriter` writes to partitions of any broker. A partition that this broker leads gets the batch
directly. Another leader gets a Produce request at its inter-broker listener, with this broker's login. The
batches have no producer id, so a batch whose outcome is unknown may be written twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Executor
from functools import partial
from typing import Final, cast

import structlog

from tidelog.broker.cluster.view import CurrentSettings, MetadataView
from tidelog.broker.hosting.hosted_partitions import HostedPartitions
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.net.socket_io import BufferPool
from tidelog.broker.partition.batch_validation import LongWalkError
from tidelog.broker.replication.leader_connection import LeaderConnection, LeaderLink, Question
from tidelog.broker.replication.leader_connector import LeaderConnector
from tidelog.broker.requests.waiting import Purgatory, Waiter
from tidelog.kernel.clock import Clock
from tidelog.kernel.instants import MonotonicMs
from tidelog.kernel.timer import Timer
from tidelog.model.brokers import Endpoint
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import ACKS_ALL, NO_LEADER
from tidelog.rpc.broker_commands import TopicState
from tidelog.rpc.controller_api import ControllerApi, ForwardedRequest
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

PRODUCE_VERSION: Final = 12
"""The last version that names topics. A topic that was deleted and created again is still the right one."""
PRODUCE: Final = Question(ApiKey.PRODUCE, PRODUCE_VERSION)
MAX_WRITES_IN_FLIGHT: Final = 4
"""The most requests of one connection at a time. A connection takes five, and one of them may be a login."""
CONNECT_TIMEOUT_MS: Final = 5_000
"""The time that a write waits for a connection. Meanwhile, another broker may have become the leader."""
TIMEOUT_MS: Final = 30_000
"""The time after which a write fails with REQUEST_TIMED_OUT. It may have taken effect."""
CREATE_TIMEOUT_MS: Final = 15_000
BROKERS_DEFAULT: Final = -1
CONFIGS: Final = {
    "errors.deadletterqueue.group.enable": "true",
    # The timestamp is the time of the copy, whatever log.message.timestamp.type says.
    "message.timestamp.type": "CreateTime",
}
"""The configs of a topic that is created on demand, as in Kafka."""

_log = structlog.get_logger(__name__)


class DeadLetterTopics:
    """The dead letter topics of all groups. Each is created at most once at a time."""

    def __init__(self, settings: CurrentSettings, metadata: MetadataView, controller: ControllerApi) -> None:
        self._settings = settings
        self._metadata = metadata
        self._controller = controller
        self._creating: dict[str, asyncio.Task[None]] = {}

    async def find(self, name: str) -> TopicState:
        """Returns a topic to which dead letters may be written. Creates it if that is allowed.

        Raises KafkaError with the reason, and ConnectionError if no controller can be reached.
        """
        settings = self._settings.broker
        prefix = settings.errors_deadletterqueue_topic_name_prefix
        if name.startswith("__") or not name.startswith(prefix):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"the name of the dead letter topic {name} must start with {prefix} "
                "(errors.deadletterqueue.topic.name.prefix), and not with __",
            )
        if name not in self._metadata.topics:
            if not settings.errors_deadletterqueue_auto_create_topics_enable:
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"the dead letter topic {name} does not exist, and "
                    "errors.deadletterqueue.auto.create.topics.enable is false",
                )
            await self._created(name)
        topic = self._metadata.topics.get(name)
        if topic is None:
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"the dead letter topic {name} is not known to this broker yet",
            )
        topic_settings = self._settings.topic(topic.configs)
        if not topic_settings.errors_deadletterqueue_group_enable:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"a dead letter topic must have errors.deadletterqueue.group.enable=true, and {name} has not",
            )
        return topic

    def max_message_bytes(self, topic: TopicState) -> int:
        """Returns the size that a batch for the topic may have."""
        return self._settings.topic(topic.configs).max_message_bytes

    async def _created(self, name: str) -> None:
        task = self._creating.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._create(name), name=f"create-{name}")
            self._creating[name] = task
            task.add_done_callback(lambda _: self._creating.pop(name, None))
        await asyncio.shield(task)

    async def _create(self, name: str) -> None:
        topic = CreatableTopic(
            name=name,
            num_partitions=BROKERS_DEFAULT,
            replication_factor=BROKERS_DEFAULT,
            configs=[CreatableTopicConfig(key, value) for key, value in CONFIGS.items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=CREATE_TIMEOUT_MS)
        _, version = CreateTopicsRequest.VERSIONS
        answer = await self._controller.handle(ApiKey.CREATE_TOPICS, ForwardedRequest(version, request))
        for result in cast("CreateTopicsResponse", answer).topics:
            error = ErrorCode(result.error_code)
            if error is ErrorCode.NONE:
                _log.info("created a dead letter topic", topic=name)
            elif error is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise KafkaError(
                    error,
                    f"the controller refused to create the dead letter topic {name}: {result.error_message}",
                )


class DeadLetterWriter:
    """Writes batches with acks=all."""

    def __init__(
        self,
        broker_id: int,
        settings: CurrentSettings,
        metadata: MetadataView,
        hosted: HostedPartitions,
        waiting_produce: Purgatory,
        clock: Clock,
        timer: Timer,
        record_walks: Executor,
        endpoint_of: Callable[[int], Endpoint | None],
    ) -> None:
        """`endpoint_of` returns the address of a broker's inter-broker listener, None if it is unknown."""
        self._broker_id = broker_id
        self._settings = settings
        self._metadata = metadata
        self._hosted = hosted
        self._waiting_produce = waiting_produce
        self._clock = clock
        self._timer = timer
        self._record_walks = record_walks
        self._endpoint_of = endpoint_of
        self._pool = BufferPool()
        self._links: dict[int, _ProduceLink] = {}

    async def write(self, topic: str, partition: int, batch: bytearray) -> None:
        """Returns when every replica in sync has the batch. Raises KafkaError."""
        leader = self._hosted.leader_of(topic, partition)
        leader_id = NO_LEADER if leader is None else leader[0]
        if leader_id == self._broker_id:
            await self._append(self._hosted.leader_replica(topic, partition), batch)
        elif leader_id == NO_LEADER:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader")
        else:
            link = self._link(leader_id)
            try:
                await link.produce(topic, partition, batch)
            finally:
                if link.is_down and self._links.get(leader_id) is link:
                    del self._links[leader_id]
                    await link.close()

    async def close(self) -> None:
        """Closes the connections. Writes that are not answered fail."""
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.close()

    async def _append(self, replica: Replica, batch: bytearray) -> None:
        records, now_ms = memoryview(batch), self._clock.wall_ms()
        try:
            appended = replica.append(records, ACKS_ALL, PRODUCE_VERSION, now_ms)
        except LongWalkError:
            loop = asyncio.get_running_loop()
            walked = await loop.run_in_executor(
                self._record_walks, replica.walk, records, PRODUCE_VERSION, now_ms
            )
            appended = replica.append(records, ACKS_ALL, PRODUCE_VERSION, now_ms, walked=walked)
        leader_epoch = replica.core.leader_epoch
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        operation = _WaitingAppend(replica, leader_epoch, appended.required_offset, done)
        deadline_ms = MonotonicMs(self._timer.monotonic_ms() + TIMEOUT_MS)
        self._waiting_produce.watch(operation, [replica.topic_partition], deadline_ms)
        error = await done
        if error:
            raise KafkaError(error)

    def _link(self, leader_id: int) -> _ProduceLink:
        """Returns the link to a broker, and a new one if the broker has registered again since."""
        registered = self._metadata.brokers.get(leader_id)
        epoch = -1 if registered is None else registered.broker_epoch
        link = self._links.get(leader_id)
        if link is None:
            connector = LeaderConnector(self._settings, self._pool, f"broker-{self._broker_id}-dead-letters")
            link = self._links[leader_id] = _ProduceLink(
                leader_id,
                partial(self._endpoint_of, leader_id),
                connector,
                self._settings.broker.replica_fetch_backoff_ms,
            )
            link.broker_epoch = epoch
        elif epoch != link.broker_epoch:
            link.broker_epoch = epoch
            link.reconnect()
        return link


class _WaitingAppend(Waiter):
    """A batch that this broker has appended and that is not replicated yet."""

    __slots__ = ("_done", "_leader_epoch", "_replica", "_required_offset")

    def __init__(
        self, replica: Replica, leader_epoch: int, required_offset: int, done: asyncio.Future[ErrorCode]
    ) -> None:
        super().__init__()
        self._replica = replica
        self._leader_epoch = leader_epoch
        self._required_offset = required_offset
        self._done = done

    def on_change(self, key: Hashable | None) -> bool:
        return self._result() is not None

    def _result(self) -> ErrorCode | None:
        core = self._replica.core
        if not core.is_leader or core.leader_epoch != self._leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not core.is_acknowledged(self._required_offset):
            return None
        return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND if core.is_under_min_isr else ErrorCode.NONE

    def on_complete(self) -> None:
        result = self._result()
        if not self._done.done():
            self._done.set_result(ErrorCode.REQUEST_TIMED_OUT if result is None else result)


class _ProduceLink:
    """The connection to one broker, opened when something is written to it."""

    def __init__(
        self,
        leader_id: int,
        find_endpoint: Callable[[], Endpoint | None],
        connector: LeaderConnector,
        longest_backoff_ms: int,
    ) -> None:
        self.broker_epoch = -1
        self._connector = connector
        self._room = asyncio.Semaphore(MAX_WRITES_IN_FLIGHT)
        self._waiting: set[asyncio.Future[LeaderConnection]] = set()
        self._unanswered: set[asyncio.Future[ProduceResponse]] = set()
        self._link = LeaderLink(
            leader_id,
            find_endpoint,
            connector.open,
            longest_backoff_ms=longest_backoff_ms,
            on_up=self._on_up,
            on_down=self._on_down,
        )

    async def produce(self, topic: str, partition: int, batch: bytearray) -> None:
        """Raises KafkaError; with NETWORK_EXCEPTION and REQUEST_TIMED_OUT, the outcome is unknown."""
        data = PartitionProduceData(partition, batch)
        request = ProduceRequest(None, ACKS_ALL, TIMEOUT_MS, [TopicProduceData(topic, partition_data=[data])])
        try:
            async with asyncio.timeout(2 * TIMEOUT_MS / 1000), self._room:
                response = await self._ask(request)
        except TimeoutError:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT) from None
        answer = response.responses[0].partition_responses[0]
        self._link.works()
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), answer.error_message)

    async def _ask(self, request: ProduceRequest) -> ProduceResponse:
        connection = await self._connected()
        answered: asyncio.Future[ProduceResponse] = asyncio.get_running_loop().create_future()
        self._unanswered.add(answered)
        answered.add_done_callback(self._unanswered.discard)
        connection.send(PRODUCE, request, 2 * TIMEOUT_MS, partial(_resolve, answered))
        return await answered

    async def _connected(self) -> LeaderConnection:
        if self._link.connection is not None:
            return self._link.connection
        waits: asyncio.Future[LeaderConnection] = asyncio.get_running_loop().create_future()
        self._waiting.add(waits)
        waits.add_done_callback(self._waiting.discard)
        self._link.want()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                return await waits
        except TimeoutError:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "the leader cannot be reached") from None

    def _on_up(self) -> None:
        connection = self._link.connection
        for waits in tuple(self._waiting):
            if connection is not None and not waits.done():
                waits.set_result(connection)

    def _on_down(self) -> None:
        for answered in tuple(self._unanswered):
            if not answered.done():
                answered.set_exception(KafkaError(ErrorCode.NETWORK_EXCEPTION, "the connection is lost"))
        if self._waiting:
            self._link.want()

    @property
    def is_down(self) -> bool:
        """Whether there is no connection and nothing waits for one."""
        return self._link.connection is None and not self._waiting

    def reconnect(self) -> None:
        """Connects to the broker at its new address."""
        self._link.lose("the leader registered again")
        self._link.retry_now()

    async def close(self) -> None:
        self._connector.close()
        self._on_down()
        for waits in tuple(self._waiting):
            waits.cancel()
        await self._link.close()


def _resolve(answered: asyncio.Future[ProduceResponse], response: ProduceResponse) -> None:
    if not answered.done():
        answered.set_result(response)
