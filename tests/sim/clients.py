"""Producers and consumers of the simulated cluster, which retry until they succeed and report the answers to
the invariants.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sim.network import Network
from sim.requests import ask
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import iterate_headers
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

if TYPE_CHECKING:
    from sim.invariants import Invariants

PRODUCE_VERSION: Final = 9
FETCH_VERSION: Final = 12
LIST_OFFSETS_VERSION: Final = 7
ACKS_ALL: Final = -1
REQUEST_TIMEOUT_S: Final = 1.2
PRODUCE_TIMEOUT_MS: Final = 1000
FETCH_WAIT_MS: Final = 300
RETRY_S: Final = 0.05
MAX_IN_FLIGHT: Final = 5
MAX_RECORDS_A_BATCH: Final = 3
MAX_FETCH_BYTES: Final = 4000
LATEST: Final = -1


class Leader(NamedTuple):
    broker_id: int
    leader_epoch: int


class Metadata:
    """Asks any broker for leaders. The answer may be outdated."""

    def __init__(self, network: Network, chance: random.Random, brokers: list[int]) -> None:
        self._network = network
        self._chance = chance
        self._brokers = brokers

    async def leader(self, topic_partition: TopicPartition) -> Leader | None:
        async def serve(process: Any) -> Leader | None:
            node = process.service
            state = node.broker.metadata.partition(*topic_partition) if node and node.is_serving else None
            return None if state is None else Leader(state.leader, state.leader_epoch)

        broker_id = self._chance.choice(self._brokers)
        try:
            found: Leader | None = await self._network.call(
                f"broker-{broker_id}", serve, "metadata", timeout_s=REQUEST_TIMEOUT_S
            )
        except ConnectionError:
            return None
        return found if found is not None and found.broker_id >= 0 else None


class SimProducer:
    """An idempotent producer with acks=all and up to five batches of one partition in flight. It repeats each
    batch until it is acknowledged. Like real clients, it pipelines only after the partition's first answer.
    """

    def __init__(
        self,
        producer_id: int,
        topic_partition: TopicPartition,
        network: Network,
        metadata: Metadata,
        invariants: Invariants,
        chance: random.Random,
        *,
        mean_pause_s: float,
    ) -> None:
        self.producer_id = producer_id
        self.topic_partition = topic_partition
        self.acknowledged: dict[int, bytes] = {}
        self.acknowledged_records = 0
        self.sent = 0
        self.is_stopped = False
        self.last_error = ""
        self._network = network
        self._metadata = metadata
        self._invariants = invariants
        self._chance = chance
        self._mean_pause_s = mean_pause_s
        self._leader: Leader | None = None
        self._in_flight: deque[asyncio.Task[None]] = deque()

    @property
    def is_idle(self) -> bool:
        return self.is_stopped and all(task.done() for task in self._in_flight)

    async def run(self) -> None:
        sequence = 0
        while not self.is_stopped:
            await asyncio.sleep(self._chance.expovariate(1 / self._mean_pause_s))
            if len(self._in_flight) == MAX_IN_FLIGHT:
                # Brokers remember five batches, so no batch may be further ahead of the oldest unacknowledged
                # one.
                await asyncio.wait([self._in_flight[0]])  # until then it counts as in flight
                self._in_flight.popleft()
            if self.is_stopped:
                return
            count = self._chance.randint(1, MAX_RECORDS_A_BATCH)
            values = [b"%d:%d" % (self.producer_id, sequence + n) for n in range(count)]
            task = asyncio.create_task(self._send_until_acknowledged(sequence, values))
            self._in_flight.append(task)
            if sequence == 0:
                await asyncio.wait([task])
            sequence += count

    async def _send_until_acknowledged(self, sequence: int, values: list[bytes]) -> None:
        records = [Record(n, -1, None, value, []) for n, value in enumerate(values)]
        batch = bytes(
            build_batch(records, producer_id=self.producer_id, producer_epoch=0, base_sequence=sequence)
        )
        while True:
            self.sent += 1
            if await self._attempt(batch, sequence, values):
                break
            self._leader = None
            await asyncio.sleep(RETRY_S * (0.5 + self._chance.random()))
        self.acknowledged_records += len(values)

    async def _attempt(self, batch: bytes, sequence: int, values: list[bytes]) -> bool:
        if self._leader is None:
            self._leader = await self._metadata.leader(self.topic_partition)
            if self._leader is None:
                return False
        leader = self._leader
        request = produce_request(self.topic_partition, batch, ACKS_ALL)
        try:
            answer = await ask(
                self._network,
                f"broker-{leader.broker_id}",
                request,
                PRODUCE_VERSION,
                timeout_s=REQUEST_TIMEOUT_S,
                ordered=True,
            )
        except ConnectionError as error:
            self.last_error = str(error)
            return False
        partition = answer.responses[0].partition_responses[0]
        if partition.error_code:
            self.last_error = ErrorCode(partition.error_code).name
            return False
        self.acknowledged[sequence] = b"".join(values)
        self._invariants.acknowledged(self.topic_partition, partition.base_offset, values)
        return True


def produce_request(topic_partition: TopicPartition, batch: bytes, acks: int) -> ProduceRequest:
    data = PartitionProduceData(topic_partition.partition, memoryview(batch))
    return ProduceRequest(
        acks=acks,
        timeout_ms=PRODUCE_TIMEOUT_MS,
        topic_data=[TopicProduceData(name=topic_partition.topic, partition_data=[data])],
    )


class CarelessProducer:
    """A producer with acks=1 and without idempotence. Its records may be lost, so logs diverge when leaders
    die.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        network: Network,
        metadata: Metadata,
        chance: random.Random,
        *,
        mean_pause_s: float,
    ) -> None:
        self._topic_partition = topic_partition
        self._network = network
        self._metadata = metadata
        self._chance = chance
        self._mean_pause_s = mean_pause_s
        self.is_stopped = False

    async def run(self) -> None:
        leader, number = None, 0
        while not self.is_stopped:
            await asyncio.sleep(self._chance.expovariate(1 / self._mean_pause_s))
            if leader is None:
                leader = await self._metadata.leader(self._topic_partition)
                continue
            number += 1
            batch = bytes(build_batch([Record(0, -1, None, b"careless:%d" % number, [])]))
            request = produce_request(self._topic_partition, batch, acks=1)
            try:
                answer = await ask(
                    self._network,
                    f"broker-{leader.broker_id}",
                    request,
                    PRODUCE_VERSION,
                    timeout_s=REQUEST_TIMEOUT_S,
                )
            except ConnectionError:
                leader = None
                continue
            if answer.responses[0].partition_responses[0].error_code:
                leader = None


class SimConsumer:
    """Reads one partition from its beginning, from its leader."""

    ISOLATION = 0

    def __init__(
        self,
        name: str,
        topic_partition: TopicPartition,
        network: Network,
        metadata: Metadata,
        invariants: Invariants,
        chance: random.Random,
    ) -> None:
        self.topic_partition = topic_partition
        self.position = 0
        self.is_stopped = False
        self.reads_from: Callable[[], tuple[int, ...]] | None = None
        """Replicas to choose from, including followers (KIP-392), or None for the leader."""
        self._name = name
        self._network = network
        self._metadata = metadata
        self._invariants = invariants
        self._chance = chance

    async def run(self) -> None:
        newest_epoch = -1
        while not self.is_stopped:
            leader = await self._metadata.leader(self.topic_partition)
            if leader is not None and leader.leader_epoch >= newest_epoch:  # as clients do (KIP-320)
                newest_epoch = leader.leader_epoch
                while await self._fetch(leader):
                    if self._chance.random() < 0.1:
                        await self._ask_where_it_ends(leader)
            await asyncio.sleep(RETRY_S)

    async def _fetch(self, leader: Leader) -> bool:
        """Fetches once. Returns False if the consumer must look for the leader again."""
        topic, partition = self.topic_partition
        wanted = FetchPartition(
            partition=partition,
            current_leader_epoch=leader.leader_epoch,
            fetch_offset=self.position,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=MAX_FETCH_BYTES,
        )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=MAX_FETCH_BYTES,
            session_id=0,
            session_epoch=-1,
            isolation_level=self.ISOLATION,
            topics=[FetchTopic(topic=topic, partitions=[wanted])],
        )
        try:
            answer = await ask(
                self._network,
                f"broker-{self._chosen(leader)}",
                request,
                FETCH_VERSION,
                timeout_s=REQUEST_TIMEOUT_S,
            )
        except ConnectionError:
            return False
        if answer.error_code or not answer.responses:
            return False
        data = answer.responses[0].partitions[0]
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            deleted_below = self._invariants.deleted_below.get(self.topic_partition, 0)
            if self.position >= deleted_below:
                error = f"OFFSET_OUT_OF_RANGE, begins at {data.log_start_offset}"
                self._invariants.taken_back(self.topic_partition, self.position, self._name, error)
            self.position = min(self.position + 1, deleted_below)  # as close to the remaining log as possible
        if data.error_code:
            return False
        self._take(data)
        return not self.is_stopped

    def _chosen(self, leader: Leader) -> int:
        replicas = () if self.reads_from is None else self.reads_from()
        return self._chance.choice(replicas) if replicas else leader.broker_id

    def _take(self, data: Any) -> None:
        records = bytes(data.records or b"")
        for position, header in iterate_headers(records):
            if header.last_offset < self.position:
                continue
            batch = records[position : position + header.size_bytes]
            self._invariants.shown(self.topic_partition, header, batch, self._name)
            self.position = header.last_offset + 1

    async def _ask_where_it_ends(self, leader: Leader) -> None:
        topic, partition = self.topic_partition
        wanted = ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=leader.leader_epoch, timestamp=LATEST
        )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
        )
        try:
            answer = await ask(
                self._network,
                f"broker-{leader.broker_id}",
                request,
                LIST_OFFSETS_VERSION,
                timeout_s=REQUEST_TIMEOUT_S,
            )
        except ConnectionError:
            return
        data = answer.topics[0].partitions[0]
        if not data.error_code:
            self._invariants.told_log_end(self.topic_partition, leader.leader_epoch, data.offset, self._name)
