"""A transactional producer that sends one batch at a time, for checks and repairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidelog.client.answers import raise_on_error
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.connection import BrokerConnection
from tidelog.client.coordinators import TRANSACTION, coordinator_of, until_loaded
from tidelog.model.protocol_values import ACKS_ALL
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tidelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

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
        self._producer_id, self._epoch = until_loaded(cluster, self._initialise)

    def write(self, partition: int, records: Sequence[Record], topic: Topic | None = None) -> None:
        """Sends one batch. The first batch opens the transaction. Raises KafkaError, ClientError."""
        place = topic or self._topic
        until_loaded(self._cluster, lambda: self._add(place, partition))
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
        until_loaded(self._cluster, lambda: self._produce(place, partition, batch))

    def end(self, *, commits: bool) -> None:
        """Commits or aborts the transaction. Raises KafkaError, ClientError."""
        request = EndTxnRequest(self._id, self._producer_id, self._epoch, commits)

        def ask() -> None:
            answer = self._coordinator().call(request, EndTxnResponse, at_most=_LAST_END_OF_V1)
            raise_on_error(answer.error_code, f"transactional id '{self._id}'")

        until_loaded(self._cluster, ask)

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
        timeout_ms = int(self._cluster.timeout_s * 1000)
        rows = [PartitionProduceData(partition, batch)]
        topic = TopicProduceData(place.name, place.topic_id, rows)
        request = ProduceRequest(self._id, ACKS_ALL, timeout_ms, [topic])
        leader = next(p.leader for p in self._cluster.topic(place.name).partitions if p.index == partition)
        answer = self._cluster.broker(leader).call(
            request, ProduceResponse, at_least=3, at_most=_LAST_PRODUCE_OF_V1, wait_ms=timeout_ms
        )
        row = answer.responses[0].partition_responses[0]
        raise_on_error(row.error_code, f"topic '{place.name}' partition {partition}", row.error_message)
