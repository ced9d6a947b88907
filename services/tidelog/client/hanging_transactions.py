"""Finds and aborts hanging transactions (KIP-664): open in a partition, but unknown to their coordinator.

Such a transaction holds back the last stable offset for ever, because no coordinator will end it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.client.admin import places_by_leader
from tidelog.client.answers import raise_on_error
from tidelog.client.cluster import Cluster
from tidelog.client.connection import BrokerConnection
from tidelog.client.coordinators import ANY_DURATION, Transaction, describe_transaction, list_transactions
from tidelog.client.core.delivery_errors import request_error
from tidelog.client.core.request_parts import in_parts
from tidelog.client.errors import ClientError
from tidelog.model.coordinator_shards import ShardKind, shard_for
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import NO_LEADER
from tidelog.model.topics import TRANSACTION_STATE_TOPIC, TopicPartition
from tidelog.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
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
    topics: dict[str, list[int]] = {}
    for place in places:
        topics.setdefault(place.topic, []).append(place.partition)
    request = DescribeProducersRequest([TopicRequest(name, rows) for name, rows in topics.items()])
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
