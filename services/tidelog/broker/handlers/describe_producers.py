"""DescribeProducers v0: the idempotent and transactional producers that a replica of a partition remembers
(KIP-664). As in Kafka, followers answer, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import topic_name_problem
from tidelog.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.hosted_partitions import HostedPartitions
    from tidelog.broker.request import RequestContext


class DescribeProducersHandler:
    """Answers DescribeProducers."""

    def __init__(self, hosted: HostedPartitions) -> None:
        self._hosted = hosted

    def handle(self, request: DescribeProducersRequest, context: RequestContext) -> DescribeProducersResponse:
        return DescribeProducersResponse(
            topics=[
                TopicResponse(
                    topic.name, [self._partition(topic.name, index) for index in topic.partition_indexes]
                )
                for topic in request.topics
            ]
        )

    def _partition(self, topic: str, index: int) -> PartitionResponse:
        problem = topic_name_problem(topic)
        if problem is not None:
            return PartitionResponse(index, ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        try:
            replica = self._hosted.replica(topic, index)
        except KafkaError as error:
            return PartitionResponse(index, error.code, error.message)
        return PartitionResponse(
            index,
            active_producers=[
                ProducerState(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.last_timestamp,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_start_offset=producer.current_txn_start_offset,
                )
                for producer in replica.core.producers.describe()
            ],
        )
