"""Finds and aborts hanging transactions (KIP-664): open in a partition, but unknown to their coordinator.

Such a transaction holds back the last stable offset for ever, because no coordinator will end it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.client.admin import places_by_leader
from tidelog.client.answers import error_of, raise_on_error
from tidelog.client.cluster import Cluster
from tidelog.client.coordinators import ANY_DURATION, Transaction, describe_transaction, list_transactions
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
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
_PARTITIONS_A_REQUEST: Final = 500
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


def describe_producers(cluster: Cluster, places: Iterable[TopicPartition]) -> list[PartitionProducer]:
    """Returns the producers of partitions. Raises KafkaError, ClientError."""
    found: list[PartitionProducer] = []
    for leader, of_leader in places_by_leader(cluster, places).items():
        for start in range(0, len(of_leader), _PARTITIONS_A_REQUEST):
            topics: dict[str, list[int]] = {}
            for place in of_leader[start : start + _PARTITIONS_A_REQUEST]:
                topics.setdefault(place.topic, []).append(place.partition)
            request = DescribeProducersRequest([TopicRequest(name, rows) for name, rows in topics.items()])
            answer = cluster.broker(leader).call(request, DescribeProducersResponse)
            for topic in answer.topics:
                for row in topic.partitions:
                    place = TopicPartition(topic.name, row.partition_index)
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
    return sorted(found, key=lambda producer: (producer.place, producer.producer_id))


def find_hanging(
    cluster: Cluster, places: Iterable[TopicPartition], *, now_ms: int, max_transaction_timeout_ms: int
) -> list[PartitionProducer]:
    """Returns the producers of hanging transactions in these partitions. Raises KafkaError, ClientError."""
    late = late_producers(describe_producers(cluster, places), now_ms, max_transaction_timeout_ms)
    if not late:
        return []
    wanted = {producer.producer_id for producer in late}
    known: dict[int, Transaction] = {}
    for row in list_transactions(cluster, [], ANY_DURATION):
        if row.producer_id not in wanted:
            continue
        try:
            known[row.producer_id] = describe_transaction(cluster, row.transactional_id)
        except KafkaError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:  # it expired in between
                raise
    return unknown_to_coordinators(late, known)


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
    """Returns the producers whose coordinator does not count the partition to the transaction.

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
        raise error_of(ErrorCode.UNKNOWN_SERVER_ERROR, f"abort in {place}")
    raise_on_error(codes[0], f"abort of producer {producer_id} in {place}")
