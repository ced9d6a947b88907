"""A model of brokers that store batches as Apache Kafka does, with a network that fails in all its ways.

The model keeps one log for each partition, of which every leader sees all batches: acks=all never loses an
acknowledged batch. Faults are late, lost and refused requests, lost responses, and moving leaders. A request
that its connection has given up may still arrive for a limited time. Time and chance are virtual: everything
that happens follows from a seed.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from tidelog.client.core.cluster_view import MetadataReceived, Node, PartitionLeader, TopicView
from tidelog.client.core.producing.producer import ProducerCore
from tidelog.client.core.producing.producer_batch import (
    CompleteBatch,
    Effect,
    Event,
    MetadataFailed,
    PartitionAnswer,
    ProduceAnswered,
    ProduceFailed,
    ProducerBatch,
    ProducerIdReceived,
    ProducerIdRefused,
    RequestMetadata,
    RequestProducerId,
    SendProduce,
)
from tidelog.client.core.settings import ProducerSettings
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition
from tidelog.records.batch import parse_header
from tidelog.records.record import iterate_records

REMEMBERED_BATCHES = 5
REQUEST_TIMEOUT_MS = 1_000
LATE_MS = 600
"""A request whose connection was closed arrives at most this much later, which is less than a retry takes."""
MAX_CONNECT_MS = 5_000
MAX_DELETED_MS = 3_000


class VirtualTime:
    """A model derives from it. Its faults happen until `is_healed` is set."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_ms = 0
        self.is_healed = False
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0

    def at(self, delay_ms: int, what: Callable[[], None]) -> None:
        """Calls `what` after a delay."""
        self._order += 1
        heapq.heappush(self._agenda, (self.now_ms + delay_ms, self._order, what))

    def run(self, until_ms: int) -> None:
        """Lets time pass, with all that happens in it."""
        while self._agenda and self._agenda[0][0] <= until_ms:
            self.now_ms, _, what = heapq.heappop(self._agenda)
            what()
        self.now_ms = until_ms

    def _happens(self, probability: float) -> bool:
        return not self.is_healed and self.chance.random() < probability


@dataclass
class StoredBatch:
    producer_id: int
    producer_epoch: int
    base_sequence: int
    values: list[bytes]
    base_offset: int


@dataclass
class ModelPartition:
    leader: int = 1
    leader_epoch: int = 0
    records: list[bytes] = field(default_factory=list)
    recent: dict[int, deque[StoredBatch]] = field(default_factory=dict)

    def move_leader(self) -> None:
        self.leader = 1 + self.leader % 3
        self.leader_epoch += 1

    def append(self, data: bytes | bytearray) -> PartitionAnswer:
        """Stores a batch as Kafka's ProducerAppendInfo checks it."""
        header = parse_header(data)
        values = [record.value or b"" for record in iterate_records(data)]
        base_offset = len(self.records)
        if header.producer_id >= 0:
            recent = self.recent.get(header.producer_id)
            if recent is not None and header.producer_epoch < recent[-1].producer_epoch:
                return _refusal(ErrorCode.INVALID_PRODUCER_EPOCH)
            if recent is None:  # without a memory of the producer, any sequence is accepted
                recent = self.recent[header.producer_id] = deque(maxlen=REMEMBERED_BATCHES)
            elif header.producer_epoch > recent[-1].producer_epoch:
                if header.base_sequence != 0:
                    return _refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
                recent.clear()
            else:
                for old in recent:
                    if old.base_sequence == header.base_sequence and len(old.values) == len(values):
                        return PartitionAnswer(ErrorCode.NONE, old.base_offset, -1, None, None)
                expected = recent[-1].base_sequence + len(recent[-1].values)
                if header.base_sequence != expected:
                    return _refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            recent.append(
                StoredBatch(
                    header.producer_id, header.producer_epoch, header.base_sequence, values, base_offset
                )
            )
        self.records += values
        return PartitionAnswer(ErrorCode.NONE, base_offset, -1, None, None)


def _refusal(code: ErrorCode) -> PartitionAnswer:
    return PartitionAnswer(code, -1, -1, None, None)


class TopicNaming(Enum):
    """The way in which the versions of the brokers name topics."""

    IDS = "Produce and Metadata name ids"
    NAMES_IN_PRODUCE = "Produce names topics by their names, as up to version 12"
    NO_IDS = "Metadata does not name ids either, as up to version 9"


@dataclass
class Faults:
    """Probabilities of faults for each request."""

    lost_request: float = 0.0
    lost_response: float = 0.0
    refused: float = 0.0
    rejected: float = 0.0
    """A batch that the broker rejects for good, such as one with an invalid record."""
    leader_moves: float = 0.0
    replaced: float = 0.0
    """A leader that stores a batch and is replaced before the batch is acknowledged."""
    slow: float = 0.0
    unconnected: float = 0.0
    """A request that waits until its connection is open, and all later ones to the broker with it."""
    recreated: float = 0.0
    """A deletion of the topic, which is soon created again without records."""
    most_records: int | None = None
    """A batch with more records is too large for the brokers."""
    naming: TopicNaming = TopicNaming.IDS


class ModelCluster(VirtualTime):
    """Brokers, a network and a producer core in virtual time. Everything follows from the seed."""

    def __init__(
        self,
        settings: ProducerSettings,
        seed: int,
        faults: Faults,
        partition_count: int = 3,
        make_core: Callable[..., ProducerCore] = ProducerCore,
    ) -> None:
        super().__init__(seed)
        self.faults = faults
        self.topic_id = UUID(int=1) if faults.recreated else ZERO_TOPIC_ID
        """The topic of the name now. While there is none, no request is for it."""
        self.topic_count = 1
        self.is_deleted = False
        self.partitions = [ModelPartition(leader=1 + index % 3) for index in range(partition_count)]
        self.deleted: list[list[ModelPartition]] = []
        """The partitions of the earlier topics of the name."""
        self.core = make_core(settings, choose=self.chance.randrange, jitter=self.chance.random)
        self.completed: list[ProducerBatch] = []
        self._connection_open_ms: dict[int, int] = {}
        self._connection_free_ms: dict[int, int] = {}
        self._response_free_ms: dict[int, int] = {}
        self._producer_ids = 100

    # -- time

    def run(self, until_ms: int) -> None:
        """Lets time pass, and polls the core at the moments that it names."""
        self.perform(self.core.poll(self.now_ms))
        while True:
            wake_ms = self.core.next_wake_ms(self.now_ms)
            next_ms = min(
                self._agenda[0][0] if self._agenda else until_ms, until_ms if wake_ms is None else wake_ms
            )
            next_ms = max(next_ms, self.now_ms)
            if next_ms >= until_ms:
                self.now_ms = until_ms
                return
            self.now_ms = next_ms
            if self._agenda and self._agenda[0][0] <= self.now_ms:
                heapq.heappop(self._agenda)[2]()
            else:
                assert wake_ms is not None
                effects = self.core.poll(self.now_ms)
                again_ms = self.core.next_wake_ms(self.now_ms)
                assert effects or again_ms is None or again_ms > self.now_ms, "the core wakes for nothing"
                self.perform(effects)

    def step(self, event: Event) -> None:
        self.perform(self.core.step(event, self.now_ms))

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendProduce():
                    self._send(effect)
                case RequestMetadata():
                    self.at(self.chance.randint(1, 20), self._answer_metadata)
                case RequestProducerId():
                    self.at(self.chance.randint(1, 20), self._answer_producer_id)
                case CompleteBatch(batch):
                    self.completed.append(batch)
                    for callback in batch.callbacks:
                        callback(batch)

    # -- brokers

    def _answer_metadata(self) -> None:
        if self._happens(self.faults.lost_request):
            self.step(MetadataFailed())
            return
        leaders = tuple(PartitionLeader(each.leader, each.leader_epoch) for each in self.partitions)
        nodes = tuple(Node(node_id, "model", 9092) for node_id in (1, 2, 3))
        has_ids = self.faults.naming is not TopicNaming.NO_IDS
        topic = TopicView("t", self.topic_id if has_ids else ZERO_TOPIC_ID, leaders)
        if self.is_deleted:
            topic = TopicView("t", ZERO_TOPIC_ID, (), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.step(MetadataReceived(nodes, (topic,)))

    def _answer_producer_id(self) -> None:
        if self._happens(self.faults.refused):
            self.step(ProducerIdRefused(KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)))
            return
        self._producer_ids += 1
        self.step(ProducerIdReceived(self._producer_ids, 0))

    def _delete(self) -> None:
        self.is_deleted = True
        self.deleted.append(self.partitions)
        self.partitions = [ModelPartition(leader=self.chance.randint(1, 3)) for _ in self.partitions]
        self.topic_count += 1
        self.topic_id = UUID(int=self.topic_count)
        self.at(self.chance.randint(0, MAX_DELETED_MS), self._create)

    def _create(self) -> None:
        self.is_deleted = False

    def _send(self, effect: SendProduce) -> None:
        open_ms = self._connection_open_ms.get(effect.node_id, -1)
        if open_ms < self.now_ms and self._happens(self.faults.unconnected):
            open_ms = self.now_ms + self.chance.randint(1, MAX_CONNECT_MS)
            self._connection_open_ms[effect.node_id] = open_ms
        if open_ms < self.now_ms:
            self._write(effect)
        else:
            self.at(open_ms - self.now_ms, lambda: self._write(effect))

    def _write(self, effect: SendProduce) -> None:
        node_id = effect.node_id
        if self.faults.naming is not TopicNaming.IDS:
            for batch in effect.unfinished:
                batch.topic_id = ZERO_TOPIC_ID
        data = [
            (batch.place, batch.topic_id, bytes(batch.encode(is_transactional=False)))
            for batch in effect.unfinished
        ]
        if not data:
            self.step(ProduceFailed(effect.request_id, False, "all batches ended before the request"))
            return
        delay_ms = self.chance.randint(1, 30)
        if self._happens(self.faults.slow):
            delay_ms += self.chance.randint(0, LATE_MS)
        arrival_ms = max(self.now_ms + delay_ms, self._connection_free_ms.get(node_id, 0))
        self._connection_free_ms[node_id] = arrival_ms
        if self._happens(self.faults.lost_request):
            was_written = self.chance.random() < 0.7
            if was_written and self.chance.random() < 0.5:  # the connection ends, the request arrives late
                self.at(self.chance.randint(0, LATE_MS), lambda: self.process(node_id, data))
            self.at(
                self.chance.randint(1, REQUEST_TIMEOUT_MS),
                lambda: self.step(ProduceFailed(effect.request_id, was_written, "the connection was lost")),
            )
            return
        self.at(arrival_ms - self.now_ms, lambda: self._receive(effect, data))

    def _receive(self, effect: SendProduce, data: list[tuple[TopicPartition, UUID, bytes]]) -> None:
        answers = self.process(effect.node_id, data)
        free_ms = max(self.now_ms + self.chance.randint(1, 30), self._response_free_ms.get(effect.node_id, 0))
        self._response_free_ms[effect.node_id] = free_ms
        event: Event = ProduceAnswered(effect.request_id, answers)
        if self._happens(self.faults.lost_response):
            event = ProduceFailed(effect.request_id, True, "the response was lost")
        self.at(free_ms - self.now_ms, lambda: self.step(event))

    def _is_too_large(self, batch: bytes) -> bool:
        most = self.faults.most_records
        return most is not None and parse_header(batch).record_count > most

    def process(
        self, node_id: int, data: list[tuple[TopicPartition, UUID, bytes]]
    ) -> dict[TopicPartition, PartitionAnswer]:
        answers = {}
        if not self.is_deleted and self._happens(self.faults.recreated):
            self._delete()
        for place, topic_id, batch in data:
            is_by_id = self.faults.naming is TopicNaming.IDS
            if self.is_deleted or (is_by_id and topic_id != self.topic_id):
                code = ErrorCode.UNKNOWN_TOPIC_ID if is_by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                answers[place] = _refusal(code)
                continue
            partition = self.partitions[place.partition]
            if self._happens(self.faults.leader_moves):
                partition.move_leader()
            if partition.leader != node_id:
                answers[place] = _refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif self._happens(self.faults.refused):
                answers[place] = _refusal(ErrorCode.NOT_ENOUGH_REPLICAS)
            elif self._happens(self.faults.rejected):
                answers[place] = _refusal(ErrorCode.INVALID_RECORD)
            elif self._is_too_large(batch):
                answers[place] = _refusal(ErrorCode.MESSAGE_TOO_LARGE)
            else:
                answers[place] = partition.append(batch)
                if self._happens(self.faults.refused):
                    answers[place] = _refusal(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
                elif answers[place].error_code == ErrorCode.NONE and self._happens(self.faults.replaced):
                    partition.move_leader()
                    answers[place] = answers[place]._replace(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return answers
