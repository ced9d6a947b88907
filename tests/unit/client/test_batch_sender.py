"""Sending batches: retries, sequence numbers and errors."""

from __future__ import annotations

from typing import Any

import pytest

from brokerlab.scripted_broker import ScriptedBroker
from tidelog.client.batch_sender import ACKS_LEADER, BatchSender
from tidelog.client.cluster import Cluster
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.batch import BatchHeader, parse_header
from tidelog.records.record import Record
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.init_producer_id import InitProducerIdResponse
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)


class OneTopicBroker(ScriptedBroker):
    """A topic `t` with two partitions. `codes` are the error codes of the next produce responses."""

    def __init__(self, codes: list[int]) -> None:
        self.codes = codes
        self.partition_count = 2
        self.is_silent = False
        super().__init__(
            {
                ApiKey.METADATA: self._metadata,
                ApiKey.INIT_PRODUCER_ID: lambda request, version: InitProducerIdResponse(0, 0, 42, 7),
                ApiKey.PRODUCE: self._produce,
            }
        )

    def _metadata(self, request: Any, version: int) -> MetadataResponse:
        partitions = [
            MetadataResponsePartition(0, index, 1, 0, [1], [1]) for index in range(self.partition_count)
        ]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(1, "127.0.0.1", self.port)],
            topics=[MetadataResponseTopic(0, "t", partitions=partitions)],
        )

    def _produce(self, request: Any, version: int) -> ProduceResponse | None:
        code = self.codes.pop(0) if self.codes else 0
        if code == ErrorCode.NETWORK_EXCEPTION:
            return None
        topic = request.topic_data[0]
        if self.is_silent:
            return ProduceResponse([TopicProduceResponse("t", topic.topic_id, [])])
        rows = [PartitionProduceResponse(p.index, code, 100 + p.index) for p in topic.partition_data]
        return ProduceResponse([TopicProduceResponse("t", topic.topic_id, rows)])

    def headers(self) -> list[tuple[int, BatchHeader]]:
        return [
            (partition.index, parse_header(partition.records))
            for request in self.requests_of(ProduceRequest)
            for partition in request.topic_data[0].partition_data
        ]


def records(count: int) -> list[Record]:
    return [Record(offset, 1000, None, b"v") for offset in range(count)]


def test_one_request_carries_all_partitions_of_a_leader() -> None:
    with OneTopicBroker([]) as broker, Cluster(broker.bootstrap, timeout_s=10) as cluster:
        sender = BatchSender(cluster, cluster.topic("t"))
        assert sender.send({0: records(2), 1: records(1)}) == {0: 100, 1: 101}
        assert len(broker.requests_of(ProduceRequest)) == 1


def test_sequence_numbers_continue_in_each_partition() -> None:
    with OneTopicBroker([]) as broker, Cluster(broker.bootstrap, timeout_s=10) as cluster:
        sender = BatchSender(cluster, cluster.topic("t"))
        for count in (3, 2, 1):
            sender.send({0: records(count)})
        sender.send({1: records(1)})
        found = [(i, h.producer_id, h.producer_epoch, h.base_sequence) for i, h in broker.headers()]
    assert found == [(0, 42, 7, 0), (0, 42, 7, 3), (0, 42, 7, 5), (1, 42, 7, 0)]


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NETWORK_EXCEPTION])
def test_a_temporary_failure_is_retried_with_the_same_batch(code: ErrorCode) -> None:
    with OneTopicBroker([code]) as broker, Cluster(broker.bootstrap, timeout_s=10) as cluster:
        sender = BatchSender(cluster, cluster.topic("t"))
        assert sender.send({0: records(2)}) == {0: 100}
        first, second = broker.headers()
        assert first == second
        assert len(broker.requests_of(MetadataRequest)) >= 2  # the leader was looked up again


def test_a_duplicate_counts_as_stored() -> None:
    codes = [ErrorCode.NETWORK_EXCEPTION, ErrorCode.DUPLICATE_SEQUENCE_NUMBER]
    with OneTopicBroker(list(codes)) as broker, Cluster(broker.bootstrap, timeout_s=10) as cluster:
        assert BatchSender(cluster, cluster.topic("t")).send({0: records(1)}) == {0: 100}


def test_a_refusal_is_raised_at_once() -> None:
    with (
        OneTopicBroker([ErrorCode.MESSAGE_TOO_LARGE]) as broker,
        Cluster(broker.bootstrap, timeout_s=10) as cluster,
    ):
        with pytest.raises(KafkaError, match="topic 't' partition 0: MESSAGE_TOO_LARGE") as refusal:
            BatchSender(cluster, cluster.topic("t")).send({0: records(1)})
        assert refusal.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert len(broker.requests_of(ProduceRequest)) == 1


def test_acks_1_has_no_producer_id() -> None:
    with OneTopicBroker([]) as broker, Cluster(broker.bootstrap, timeout_s=10) as cluster:
        BatchSender(cluster, cluster.topic("t"), acks=ACKS_LEADER).send({0: records(1)})
        ((_, header),) = broker.headers()
    assert (header.producer_id, header.base_sequence) == (-1, -1)


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_partition_without_an_answer_is_an_error(is_gone: bool) -> None:
    """Its topic was created again without it, or the response leaves it out."""
    with OneTopicBroker([]) as broker, Cluster(broker.bootstrap, timeout_s=0.5) as cluster:
        sender = BatchSender(cluster, cluster.topic("t"))
        if is_gone:
            broker.partition_count = 1
            sender.topic = cluster.topic("t")
        broker.is_silent = not is_gone
        with pytest.raises(KafkaError, match="topic 't' partition 1: UNKNOWN_TOPIC_OR_PARTITION"):
            sender.send({1: records(1)})
        assert len(broker.requests_of(ProduceRequest)) < 20
