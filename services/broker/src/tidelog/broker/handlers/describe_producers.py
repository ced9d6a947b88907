"""DescribeProducers v0: the idempotent and transactional producers that a partition's leader remembers
(KIP-664).
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
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext


def handle(
    broker: Broker, request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                topic.name, [_partition(broker, topic.name, index) for index in topic.partition_indexes]
            )
            for topic in request.topics
        ]
    )


def _partition(broker: Broker, topic: str, index: int) -> PartitionResponse:
    problem = topic_name_problem(topic)
    if problem is not None:
        return PartitionResponse(index, ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    try:
        replica = broker.leader_replica(topic, index)
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
