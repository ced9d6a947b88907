"""A leader whose followers the test plays with raw Fetch requests, and whose store can fail."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from brokerlab.in_memory_broker import BROKER_ID, InMemoryBroker, make_context
from tidelog.broker.handlers import fetch
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.requests.request import PARKED, EncodedBody, RequestContext
from tidelog.metadata.entries import PartitionStateEntry, broker_key
from tidelog.model.brokers import BrokerRegistration, Endpoint
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.rpc.broker_commands import LeaderAndIsr, PartitionState, TopicState, UpdateMetadata
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

LEADER_EPOCH = 3
FETCH_VERSION = 17
PRODUCE_VERSION = 12
T = TypeVar("T")


class Peer:
    """One connection as handlers see it. Later answers arrive in `answers`."""

    def __init__(self, version: int, api_key: ApiKey) -> None:
        self.answers: list[Any] = []
        self.version = version
        self.is_closed = False
        self.budget_key = "127.0.0.1"
        self._api_key = api_key
        self.contexts: list[Any] = []
        self.loop = asyncio.get_running_loop()
        self.at_end_of_turn = self.loop.call_soon

    def close(self) -> None:
        self.is_closed = True
        for context in self.contexts:
            if context.on_abandoned is not None:
                context.on_abandoned()

    def context(self) -> RequestContext:
        route = SimpleNamespace(counted_as=lambda name, broker: route)
        context = make_context(
            self.version,
            connection=self,
            route=route,
            reply=lambda message: self.answers.append(self.sent(message)),
        )
        self.contexts.append(context)
        return context

    def sent(self, message: Any) -> Any:
        """Returns the answer after it was encoded and decoded. Files that sendfile would send are read."""
        if isinstance(message, EncodedBody):
            chunks = list(message.chunks)
        else:
            chunks = codec.response_encoder(self._api_key, self.version)(message)
        encoded = b"".join(chunk if isinstance(chunk, bytes) else _read(chunk) for chunk in chunks)
        decoded, end = codec.response_decoder(self._api_key, self.version)(encoded, 0)
        assert end == len(encoded)
        return decoded


def _read(chunk: Any) -> bytes:
    if hasattr(chunk, "release"):
        data: bytes = chunk.read()
        chunk.release()
        return data
    return bytes(chunk)


class Follower(Peer):
    """Fetches as the follower `replica_id` in its life `broker_epoch`."""

    def __init__(self, lab: LeaderLab, replica_id: int, broker_epoch: int, version: int) -> None:
        super().__init__(version, ApiKey.FETCH)
        self._lab = lab
        self.replica_id = replica_id
        self.broker_epoch = broker_epoch

    def fetch(
        self,
        offsets: dict[int, int],
        *,
        epoch: int = LEADER_EPOCH,
        last_epoch: int = -1,
        start_offset: int = 0,
        forgotten: list[int] | None = None,
        topic: str = "t",
        partition_max_bytes: int = 1 << 20,
        **fields: Any,
    ) -> FetchResponse | None:
        """Returns the answer, or None if the request waits."""
        partitions = [
            FetchPartition(
                partition=partition,
                current_leader_epoch=epoch,
                fetch_offset=offset,
                last_fetched_epoch=last_epoch,
                log_start_offset=start_offset,
                partition_max_bytes=partition_max_bytes,
            )
            for partition, offset in offsets.items()
        ]
        topic_id = self._lab.topic_ids.get(topic, uuid.UUID(int=7))
        name = {"topic_id": topic_id} if self.version >= 13 else {"topic": topic}
        if self.version >= 15:
            fields["replica_state"] = ReplicaState(self.replica_id, self.broker_epoch)
        else:
            fields["replica_id"] = self.replica_id
        request = FetchRequest(
            **{"max_wait_ms": 500, "min_bytes": 1, **fields},
            topics=[FetchTopic(**name, partitions=partitions)] if partitions else [],
            forgotten_topics_data=[ForgottenTopic(**name, partitions=forgotten)] if forgotten else [],
        )
        encoded = b"".join(codec.request_encoder(ApiKey.FETCH, self.version)(request))
        received, _ = fetch.decoder(self.version)(encoded, 0)
        answer = self._lab.lab.handle(ApiKey.FETCH, received, self.context())
        return None if answer is PARKED else cast(FetchResponse, self.sent(answer))


class LeaderLab:
    """Broker 1 leads, 2 and 3 follow. The lab is used inside the event loop, by `run`."""

    def __init__(self, lab: InMemoryBroker) -> None:
        self.lab = lab
        self.broker = lab.broker
        self.clock = lab.clock
        self.store = lab.store
        self.isr = lab.isr
        self.topic_ids: dict[str, uuid.UUID] = {}
        self.racks: dict[int, str] = {}
        self.epochs = {broker_id: self.register(broker_id) for broker_id in (1, 2, 3)}

    def run(self, scenario: Callable[[LeaderLab], Coroutine[Any, Any, T]]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(20):
                await self._update_brokers()
                return await scenario(self)

        return self.lab.runner.run(bounded())

    # -- actions of the controller

    def register(self, broker_id: int) -> int:
        """Registers a new life and returns its broker epoch."""
        self.store.delete(broker_key(broker_id))
        return self.store.put(broker_key(broker_id), b"{}")

    async def reborn(self, broker_id: int) -> int:
        self.epochs[broker_id] = self.register(broker_id)
        await self._update_brokers()
        return self.epochs[broker_id]

    async def _update_brokers(self, *, without: int = 0, topics: tuple[TopicState, ...] = ()) -> None:
        endpoints = (Endpoint("PLAINTEXT", "127.0.0.1", 9092),)
        brokers = tuple(
            BrokerRegistration(broker_id, epoch, endpoints, self.racks.get(broker_id))
            for broker_id, epoch in self.epochs.items()
            if broker_id != without
        )
        update = UpdateMetadata(controller_id=1, controller_epoch=7, brokers=brokers, topics=topics)
        await self.lab.commands.update_metadata(update)

    async def bury(self, broker_id: int) -> None:
        await self._update_brokers(without=broker_id)

    async def lead(
        self,
        partitions: int = 1,
        *,
        isr: tuple[int, ...] = (1, 2, 3),
        replicas: tuple[int, ...] = (1, 2, 3),
        leader: int = BROKER_ID,
        leader_epoch: int = LEADER_EPOCH,
        topic: str = "t",
        **configs: str,
    ) -> None:
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        topic_id = self.topic_ids.setdefault(topic, uuid.uuid5(uuid.NAMESPACE_DNS, topic))
        states = []
        for index in range(partitions):
            entry = PartitionStateEntry(topic, index, leader, leader_epoch, isr, 7)
            states.append(
                PartitionState(
                    topic,
                    topic_id,
                    index,
                    leader,
                    leader_epoch,
                    isr,
                    replicas,
                    7,
                    partition_epoch=self.store.put(entry.key, entry.encode()),
                )
            )
        await self.lab.commands.leader_and_isr(LeaderAndIsr(1, 7, tuple(states), {topic: settings}))
        await self._update_brokers(topics=(TopicState(topic, topic_id, tuple(states), settings),))

    # -- actions of clients and followers

    def replica(self, partition: int = 0, topic: str = "t") -> Replica:
        return self.broker.hosted.replicas[TopicPartition(topic, partition)]

    def follower(
        self, replica_id: int, *, version: int = FETCH_VERSION, broker_epoch: int | None = None
    ) -> Follower:
        epoch = self.epochs[replica_id] if broker_epoch is None else broker_epoch
        return Follower(self, replica_id, epoch, version)

    def append(self, count: int = 1, partition: int = 0, topic: str = "t", size_bytes: int = 10) -> int:
        """Appends one batch and returns the log end offset after it."""
        now_ms = self.clock.wall_ms()
        records = [Record(number, now_ms, None, bytes(size_bytes), []) for number in range(count)]
        replica = self.replica(partition, topic)
        replica.append(memoryview(build_batch(records)), 1, 9, now_ms)
        return replica.core.log_end_offset

    def produce(
        self, acks: int = -1, *, timeout_ms: int = 1000, partition: int = 0, topic: str = "t"
    ) -> tuple[PartitionProduceResponse | None, Peer]:
        """Returns the answer for the one partition, or None while the request waits. A late answer goes to
        the peer.
        """
        peer = Peer(PRODUCE_VERSION, ApiKey.PRODUCE)
        batch = build_batch([Record(0, self.clock.wall_ms(), None, b"v", [])])
        data = TopicProduceData(topic, partition_data=[PartitionProduceData(partition, memoryview(batch))])
        request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[data])
        answer = self.lab.handle(ApiKey.PRODUCE, request, peer.context())
        return (None if answer is PARKED else produced(cast(ProduceResponse, answer))), peer


def produced(answer: ProduceResponse) -> PartitionProduceResponse:
    ((response,),) = [topic.partition_responses for topic in answer.responses]
    return response


def parts(answer: FetchResponse | None) -> dict[int, PartitionData]:
    assert answer is not None
    assert answer.error_code == 0
    return {part.partition_index: part for topic in answer.responses for part in topic.partitions}
