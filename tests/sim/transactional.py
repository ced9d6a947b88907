"""Transactional producers of both protocol versions, and readers that see only committed records."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final

from sim.clients import (
    ACKS_ALL,
    PRODUCE_TIMEOUT_MS,
    REQUEST_TIMEOUT_S,
    RETRY_S,
    Metadata,
    SimConsumer,
)
from sim.group_members import NO_OFFSET, CoordinatorAddress
from sim.histories import Transaction, TransactionHistory, transaction_value
from sim.network import Network
from sim.plan import TOPIC
from sim.requests import ask
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import iterate_headers
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tidelog.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from tidelog.wire.messages.end_txn import EndTxnRequest
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest
from tidelog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

INIT_VERSION: Final = 4
OFFSET_FETCH_VERSION: Final = 7
MAX_RECORDS_A_BATCH: Final = 3
MAX_BATCHES: Final = 3
COMMIT_SHARE: Final = 0.75
OFFSET_SHARE: Final = 0.5
FORGET_SHARE: Final = 0.05
"""The share of transactions that the client neither commits nor aborts, because it disappears in the
middle.
"""
ATTEMPTS: Final = 40
READ_COMMITTED: Final = 1


class Versions:
    """The versions of the requests of one kind of client."""

    def __init__(self, *, bumps_epoch: bool) -> None:
        self.bumps_epoch = bumps_epoch
        """True for KIP-890: each transaction has a new epoch, and a write adds its partition."""
        self.produce = 12 if bumps_epoch else 10
        self.end = 5 if bumps_epoch else 4
        self.offsets = 5 if bumps_epoch else 3


class LifeOverError(Exception):
    """The client has to start again, because it is fenced or cannot know the outcome."""


class SimTransactionalProducer:
    """Runs one transaction after the other. Each writes to some partitions and may commit an offset."""

    def __init__(
        self,
        name: str,
        partitions: list[TopicPartition],
        addresses: tuple[CoordinatorAddress, CoordinatorAddress],
        network: Network,
        metadata: Metadata,
        history: TransactionHistory,
        chance: random.Random,
        *,
        versions: Versions,
        timeout_ms: int,
        mean_pause_s: float,
    ) -> None:
        self.name = name
        self.is_stopped = False
        self.is_idle = False
        self.last_error = ""
        self._partitions = partitions
        self._coordinator, self._group_coordinator = addresses
        self._network = network
        self._metadata = metadata
        self._history = history
        self._chance = chance
        self._versions = versions
        self._timeout_ms = timeout_ms
        self._mean_pause_s = mean_pause_s
        self._producer_id = -1
        self._producer_epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._number = 0

    @property
    def group(self) -> str:
        return f"group-of-{self.name}"

    async def run(self) -> None:
        while not self.is_stopped:
            try:
                await self._begin_life()
                while not self.is_stopped:
                    await asyncio.sleep(self._chance.expovariate(1 / self._mean_pause_s))
                    await self._transaction()
            except LifeOverError as error:
                self.last_error = str(error)
        while True:  # leaves no open transaction
            try:
                await self._begin_life()
                break
            except LifeOverError as error:
                self.last_error = str(error)
        self.is_idle = True

    # -- requests

    async def _pause(self) -> None:
        await asyncio.sleep(RETRY_S * (0.5 + self._chance.random()))

    async def _ask(self, address: CoordinatorAddress, message: Any, version: int) -> Any:
        """Asks once. Raises ConnectionError if the outcome is unknown. Returns None if the request was
        certainly not sent.
        """
        broker = await address.broker()
        if broker is None:
            await self._pause()
            return None
        try:
            return await ask(
                self._network,
                broker,
                message,
                version,
                timeout_s=REQUEST_TIMEOUT_S,
                over_tcp=not self._versions.bumps_epoch,
            )
        except ConnectionError:
            address.forget()
            await self._pause()
            raise

    async def _until_done(self, address: CoordinatorAddress, message: Any, version: int) -> Any:
        """Returns the answer without an error. Only clients whose epoch identifies the transaction repeat a
        request without an answer, because others cannot distinguish a late copy from a request of the next
        transaction.
        """
        for _ in range(ATTEMPTS):
            try:
                answer = await self._ask(address, message, version)
            except ConnectionError as error:
                self.last_error = str(error)
                if not self._versions.bumps_epoch:
                    raise LifeOverError(f"{type(message).__name__} without an answer") from error
                continue
            if answer is None:
                continue
            code = _error_of(answer)
            if not code:
                return answer
            self.last_error = code.name
            if code in _RETRIABLE:
                if code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                    address.forget()
                await self._pause()
                continue
            raise LifeOverError(f"{type(message).__name__}: {code.name}")
        raise LifeOverError(f"{type(message).__name__} too often: {self.last_error}")

    # -- transactions

    async def _begin_life(self) -> None:
        """Gets a new epoch, which aborts or completes an open transaction."""
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=self._timeout_ms)
        while True:
            try:
                answer = await self._ask(self._coordinator, request, INIT_VERSION)
            except ConnectionError as error:
                self.last_error = str(error)
                continue
            if answer is None:
                continue
            if not answer.error_code:
                break
            self.last_error = f"InitProducerId {ErrorCode(answer.error_code).name}"
            self._coordinator.forget()
            await self._pause()
        self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    async def _transaction(self) -> None:
        chance = self._chance
        self._number += 1
        transaction = self._history.begin(self.name, self._number)
        wants_commit = chance.random() < COMMIT_SHARE
        partitions = chance.sample(self._partitions, chance.randint(1, len(self._partitions)))
        if not self._versions.bumps_epoch:
            await self._add_partitions(partitions)
        for topic_partition in partitions:
            for _ in range(chance.randint(1, MAX_BATCHES)):
                await self._write(transaction, topic_partition)
        if chance.random() < OFFSET_SHARE:
            await self._commit_offset(transaction)
        if chance.random() < FORGET_SHARE:
            raise LifeOverError("it goes away")
        transaction.wants_commit = wants_commit
        request = EndTxnRequest(self.name, self._producer_id, self._producer_epoch, wants_commit)
        answer = await self._until_done(self._coordinator, request, self._versions.end)
        self._history.was_told(transaction, is_commit=wants_commit)
        if self._versions.bumps_epoch:
            self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch
            self._sequences.clear()

    async def _add_partitions(self, partitions: list[TopicPartition]) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(TOPIC, [p.partition for p in partitions])],
        )
        await self._until_done(self._coordinator, request, 3)

    async def _write(self, transaction: Transaction, topic_partition: TopicPartition) -> None:
        count = self._chance.randint(1, MAX_RECORDS_A_BATCH)
        values = [transaction_value(transaction, number) for number in range(count)]
        sequence = self._sequences.get(topic_partition, 0)
        batch = bytes(
            build_batch(
                [Record(number, -1, None, value, []) for number, value in enumerate(values)],
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                base_sequence=sequence,
                is_transactional=True,
            )
        )
        request = ProduceRequest(
            transactional_id=self.name,
            acks=ACKS_ALL,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[
                TopicProduceData(
                    name=TOPIC,
                    partition_data=[PartitionProduceData(topic_partition.partition, memoryview(batch))],
                )
            ],
        )
        for _ in range(ATTEMPTS):
            leader = await self._metadata.leader(topic_partition)
            if leader is None:
                await self._pause()
                continue
            try:
                answer = await ask(
                    self._network,
                    f"broker-{leader.broker_id}",
                    request,
                    self._versions.produce,
                    timeout_s=REQUEST_TIMEOUT_S,
                )
            except ConnectionError as error:
                self.last_error = str(error)
                continue
            code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
            if not code:
                self._sequences[topic_partition] = sequence + count
                written = transaction.written
                written[topic_partition] = written.get(topic_partition, 0) + count
                return
            self.last_error = f"Produce {code.name}"
            if code not in _RETRIABLE:
                break
            await self._pause()
        raise LifeOverError(self.last_error)

    async def _commit_offset(self, transaction: Transaction) -> None:
        """Commits the number of the transaction as an offset, with its name as metadata."""
        if not self._versions.bumps_epoch:
            request = AddOffsetsToTxnRequest(self.name, self._producer_id, self._producer_epoch, self.group)
            await self._until_done(self._coordinator, request, 3)
        offset = TxnOffsetCommitRequestPartition(0, transaction.number, -1, transaction.name)
        commit = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.group,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(TOPIC, partitions=[offset])],
        )
        await self._until_done(self._group_coordinator, commit, self._versions.offsets)
        transaction.commits_offset = True

    async def committed_offset(self) -> str | None:
        """Returns the name committed with the last transaction that committed one. It asks until it gets an
        answer.
        """
        request = OffsetFetchRequest(
            group_id=self.group, topics=[OffsetFetchRequestTopic(TOPIC, [0])], require_stable=True
        )
        while True:
            try:
                answer = await self._ask(self._group_coordinator, request, OFFSET_FETCH_VERSION)
            except ConnectionError:
                continue
            if answer is None:
                continue
            if answer.error_code or answer.topics[0].partitions[0].error_code:
                self._group_coordinator.forget()
                await self._pause()
                continue
            found = answer.topics[0].partitions[0]
            return None if found.committed_offset == NO_OFFSET else found.metadata


def _error_of(answer: Any) -> ErrorCode:
    """Returns the first error in an answer."""
    codes = [getattr(answer, "error_code", 0)]
    for topic in getattr(answer, "results_by_topic_v3_and_below", ()):
        codes += [result.partition_error_code for result in topic.results_by_partition]
    for topic in getattr(answer, "topics", ()):
        codes += [partition.error_code for partition in topic.partitions]
    return ErrorCode(next((code for code in codes if code), 0))


_RETRIABLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class SimCommittedReader(SimConsumer):
    """Reads with isolation read_committed, and leaves out records that the broker lists as aborted."""

    ISOLATION = READ_COMMITTED

    def __init__(self, *arguments: Any, history: TransactionHistory, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._history = history

    def _take(self, data: Any) -> None:
        """Filters like real clients: an aborted transaction is left out from its first offset to its
        marker.
        """
        records = bytes(data.records or b"")
        aborted = sorted(data.aborted_transactions or [], key=lambda entry: entry.first_offset)
        ongoing: set[int] = set()
        for position, header in iterate_headers(records):
            while aborted and aborted[0].first_offset <= header.last_offset:
                ongoing.add(aborted.pop(0).producer_id)
            batch = records[position : position + header.size_bytes]
            if header.last_offset < self.position:
                if header.is_control:
                    ongoing.discard(header.producer_id)
                continue
            self._invariants.shown(self.topic_partition, header, batch, self._name)
            self.position = header.last_offset + 1
            if header.is_control:
                ongoing.discard(header.producer_id)
            elif header.is_transactional and header.producer_id in ongoing:
                self._history.hidden(self.topic_partition, header, batch, self._name)
            else:
                self._history.shown(self.topic_partition, header, batch, self._name)
