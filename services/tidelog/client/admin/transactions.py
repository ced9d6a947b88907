"""Transactions: which of them hang, how they are ended, and a writer that uses them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.client.admin.groups import (
    ANY_DURATION,
    Transaction,
    coordinator_of,
    describe_transaction,
    list_transactions,
)
from tidelog.client.admin.topics import places_by_leader
from tidelog.client.calls import TRANSACTION
from tidelog.client.cluster import BrokerConnection, Cluster, Topic, until_answered
from tidelog.client.core.cluster_view import in_parts, partitions_by_topic
from tidelog.client.errors import ClientError, raise_on_error, request_error
from tidelog.model.coordinator_shards import ShardKind, shard_for
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import ACKS_ALL, NO_LEADER
from tidelog.model.topics import TRANSACTION_STATE_TOPIC, TopicPartition
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tidelog.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from tidelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

NO_TRANSACTION: Final = -1
_FIRST_COORDINATOR_EPOCH: Final = 0


@dataclass(frozen=True, slots=True)
class PartitionProducer:
    """A producer that the leader of a partition remembers.

    `start_offset` is the first offset of its open transaction, or -1. `last_timestamp_ms` is the time of its
    last batch in milliseconds since 1970, or -1. `coordinator_epoch` is -1 if no coordinator has ended a
    transaction of the producer in this partition yet.
    """

    place: TopicPartition
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    start_offset: int

    @property
    def is_in_transaction(self) -> bool:
        return self.start_offset > NO_TRANSACTION


class HangingSearch(NamedTuple):
    """The producers of the transactions that hang, and of those that nobody can judge now.

    A producer in `unjudged` has a transaction that lasts too long and that no coordinator has named, but the
    coordinators of `unread_shards`, which are partitions of `__transaction_state`, were not all asked.
    """

    hanging: tuple[PartitionProducer, ...]
    unjudged: tuple[PartitionProducer, ...]
    unread_shards: tuple[TopicPartition, ...]


def describe_producers(cluster: Cluster, places: Iterable[TopicPartition]) -> list[PartitionProducer]:
    """Returns the producers of partitions. Raises KafkaError, ClientError."""
    found: list[PartitionProducer] = []
    for leader, of_leader in places_by_leader(cluster, places).items():
        for left in in_parts(of_leader):
            while left:
                left = _ask_for_producers(cluster.broker(leader), left, found)
    return sorted(found, key=lambda producer: (producer.place, producer.producer_id))


def _ask_for_producers(
    broker: BrokerConnection, places: Sequence[TopicPartition], found: list[PartitionProducer]
) -> list[TopicPartition]:
    """Adds the producers of partitions to `found`. Returns the partitions to ask for again, because a broker
    limits the producers in one answer.
    """
    topics = [TopicRequest(name, indexes) for name, indexes in partitions_by_topic(places).items()]
    request = DescribeProducersRequest(topics)
    answer = broker.call(request, DescribeProducersResponse)
    rows = [
        (TopicPartition(topic.name, row.partition_index), row)
        for topic in answer.topics
        for row in topic.partitions
    ]
    has_producers = any(row.active_producers for _, row in rows)
    again: list[TopicPartition] = []
    for place, row in rows:
        if has_producers and row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            again.append(place)
            continue
        raise_on_error(row.error_code, f"producers of {place}", row.error_message)
        found += [
            PartitionProducer(
                place,
                producer.producer_id,
                producer.producer_epoch,
                producer.last_sequence,
                producer.last_timestamp,
                producer.coordinator_epoch,
                producer.current_txn_start_offset,
            )
            for producer in row.active_producers
        ]
    return again


def find_hanging(
    cluster: Cluster, places: Iterable[TopicPartition], *, now_ms: int, max_transaction_timeout_ms: int
) -> HangingSearch:
    """Searches these partitions. Raises KafkaError, ClientError if a partition's producers are unreadable."""
    late = late_producers(describe_producers(cluster, places), now_ms, max_transaction_timeout_ms)
    if not late:
        return HangingSearch((), (), ())
    asked = transactions_of(cluster, {producer.producer_id for producer in late})
    return judged(unknown_to_coordinators(late, asked.known), asked)


class AskedCoordinators(NamedTuple):
    """The answers of all coordinators about some producers. `known` maps producer ids to their transactions.
    `unread_shards` are the partitions of `__transaction_state` of which no coordinator could be asked.
    """

    known: Mapping[int, Transaction]
    unread_shards: Collection[TopicPartition]


def transactions_of(cluster: Cluster, producer_ids: Collection[int]) -> AskedCoordinators:
    """Asks all coordinators. Raises KafkaError, ClientError.

    A shard without a leader belongs to no broker's list of transactions, and a shard that moves between two
    lists may be in neither.
    """
    before = _shard_leaders(cluster)
    silent: set[int] = set()
    listed = list_transactions(cluster, [], ANY_DURATION, silent=silent)
    shards = _shard_leaders(cluster)
    unread = {
        shard
        for shard, led in shards.items()
        if led.leader == NO_LEADER or led.leader in silent or led != before.get(shard)
    }
    known: dict[int, Transaction] = {}
    for row in listed:
        if row.producer_id not in producer_ids:
            continue
        try:
            known[row.producer_id] = describe_transaction(cluster, row.transactional_id)
        except (KafkaError, ClientError) as error:
            if isinstance(error, ClientError) or error.is_retriable:
                shard = shard_for(ShardKind.TRANSACTION, row.transactional_id, len(shards))
                unread.add(shard.topic_partition)
            elif error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:  # it expired in between
                raise
    return AskedCoordinators(known, unread)


def judged(unknown: Iterable[PartitionProducer], asked: AskedCoordinators) -> HangingSearch:
    """Divides producers that no coordinator knows. A transaction that an unread shard may know does not
    count as hanging.
    """
    hanging: list[PartitionProducer] = []
    unjudged: list[PartitionProducer] = []
    for producer in unknown:
        is_unjudged = asked.unread_shards and producer.producer_id not in asked.known
        (unjudged if is_unjudged else hanging).append(producer)
    return HangingSearch(
        tuple(hanging), tuple(unjudged), tuple(sorted(asked.unread_shards)) if unjudged else ()
    )


class _ShardLeader(NamedTuple):
    """The live broker that leads a shard, or -1, and its epoch."""

    leader: int
    leader_epoch: int


def _shard_leaders(cluster: Cluster) -> dict[TopicPartition, _ShardLeader]:
    live = {broker.broker_id for broker in cluster.describe().brokers}
    topic = cluster.topics([TRANSACTION_STATE_TOPIC]).get(TRANSACTION_STATE_TOPIC)
    return {
        TopicPartition(TRANSACTION_STATE_TOPIC, part.index): _ShardLeader(
            part.leader if part.leader in live else NO_LEADER, part.leader_epoch
        )
        for part in (() if topic is None else topic.partitions)
    }


def late_producers(
    producers: Iterable[PartitionProducer], now_ms: int, max_transaction_timeout_ms: int
) -> list[PartitionProducer]:
    """Returns the producers whose open transaction has lasted longer than a transaction may."""
    return [
        producer
        for producer in producers
        if producer.is_in_transaction and now_ms - producer.last_timestamp_ms > max_transaction_timeout_ms
    ]


def unknown_to_coordinators(
    producers: Iterable[PartitionProducer], transactions: Mapping[int, Transaction]
) -> list[PartitionProducer]:
    """Returns the producers whose transaction does not contain the partition, according to its coordinator.

    `transactions` maps producer ids to what the coordinators know.
    """
    hanging: list[PartitionProducer] = []
    for producer in producers:
        transaction = transactions.get(producer.producer_id)
        if transaction is None or producer.place not in transaction.partitions:
            hanging.append(producer)
    return hanging


def abort_transaction(
    cluster: Cluster, place: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> None:
    """Writes a marker that aborts the producer's open transaction in the partition.

    `coordinator_epoch` -1 means that no coordinator has ended a transaction of the producer there. Raises
    KafkaError (CLUSTER_AUTHORIZATION_FAILED, INVALID_TXN_STATE, INVALID_PRODUCER_EPOCH, ...), ClientError.
    """
    marker = WritableTxnMarker(
        producer_id,
        producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(place.topic, [place.partition])],
        coordinator_epoch=max(_FIRST_COORDINATOR_EPOCH, coordinator_epoch),
    )
    (leader,) = places_by_leader(cluster, [place])
    answer = cluster.broker(leader).call(WriteTxnMarkersRequest([marker]), WriteTxnMarkersResponse)
    codes = [row.error_code for found in answer.markers for topic in found.topics for row in topic.partitions]
    if not codes:
        raise request_error(ErrorCode.UNKNOWN_SERVER_ERROR, f"abort in {place}")
    raise_on_error(codes[0], f"abort of producer {producer_id} in {place}")


TRANSACTION_TIMEOUT_MS: Final = 30_000
_LAST_INIT_OF_V1: Final = 4
_LAST_ADD_OF_CLIENTS: Final = 3
_LAST_END_OF_V1: Final = 4
_LAST_PRODUCE_OF_V1: Final = 11
"""The last versions before KIP-890's second part, in which the produce request adds the partitions."""


class TransactionalWriter:
    """A producer for one topic, or for more if a write names another one. It is not thread-safe.

    Every call is retried while a coordinator or leader moves.
    """

    def __init__(self, cluster: Cluster, topic: Topic, transactional_id: str) -> None:
        """Claims the transactional id and fences its previous producer. Raises KafkaError, ClientError."""
        self._cluster = cluster
        self._topic = topic
        self._id = transactional_id
        self._sequences: dict[tuple[str, int], int] = {}
        self._producer_id, self._epoch = until_answered(cluster, self._initialise)

    def write(self, partition: int, records: Sequence[Record], topic: Topic | None = None) -> None:
        """Sends one batch. The first batch opens the transaction. Raises KafkaError, ClientError."""
        place = topic or self._topic
        until_answered(self._cluster, lambda: self._add(place, partition))
        sequence = self._sequences.get((place.name, partition), 0)
        batch = build_batch(
            records,
            base_offset=0,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        self._sequences[place.name, partition] = sequence + len(records)
        until_answered(self._cluster, lambda: self._produce(place, partition, batch))

    def end(self, *, commits: bool) -> None:
        """Commits or aborts the transaction. Raises KafkaError, ClientError."""
        request = EndTxnRequest(self._id, self._producer_id, self._epoch, commits)

        def ask() -> None:
            answer = self._coordinator().call(request, EndTxnResponse, at_most=_LAST_END_OF_V1)
            raise_on_error(answer.error_code, f"transactional id '{self._id}'")

        until_answered(self._cluster, ask)

    def _coordinator(self) -> BrokerConnection:
        return coordinator_of(self._cluster, TRANSACTION, self._id)

    def _initialise(self) -> tuple[int, int]:
        request = InitProducerIdRequest(self._id, TRANSACTION_TIMEOUT_MS)
        answer = self._coordinator().call(request, InitProducerIdResponse, at_most=_LAST_INIT_OF_V1)
        raise_on_error(answer.error_code, f"transactional id '{self._id}'")
        return answer.producer_id, answer.producer_epoch

    def _add(self, place: Topic, partition: int) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(place.name, [partition])],
        )
        answer = self._coordinator().call(request, AddPartitionsToTxnResponse, at_most=_LAST_ADD_OF_CLIENTS)
        for topic in answer.results_by_topic_v3_and_below:
            for row in topic.results_by_partition:
                raise_on_error(row.partition_error_code, f"transactional id '{self._id}'")

    def _produce(self, place: Topic, partition: int, batch: bytearray) -> None:
        rows = [PartitionProduceData(partition, batch)]
        topic = TopicProduceData(place.name, place.topic_id, rows)
        request = ProduceRequest(self._id, ACKS_ALL, self._cluster.timeout_ms, [topic])
        leader = next(p.leader for p in self._cluster.topic(place.name).partitions if p.index == partition)
        answer = self._cluster.broker(leader).call(
            request,
            ProduceResponse,
            at_least=3,
            at_most=_LAST_PRODUCE_OF_V1,
            wait_ms=self._cluster.timeout_ms,
        )
        row = answer.responses[0].partition_responses[0]
        raise_on_error(row.error_code, f"topic '{place.name}' partition {partition}", row.error_message)
