"""DescribeProducers v0: the idempotent and transactional producers that a replica of a partition remembers
(KIP-664). As in Kafka, followers answer, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition, topic_name_problem
from tidelog.timing.slices import in_slices
from tidelog.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tidelog.broker.hosting.hosted_partitions import HostedPartitions
    from tidelog.broker.requests.request import RequestContext
    from tidelog.timing.steps import Steps

MAX_PRODUCERS_IN_ANSWER: Final = 50_000
"""The most producers that one answer describes, except that its first partition is always described. That is
as many as one partition remembers.
"""


class DescribeProducersHandler:
    """Answers DescribeProducers.

    Deviation: an answer describes at most MAX_PRODUCERS_IN_ANSWER producers. For further partitions it has
    UNKNOWN_TOPIC_OR_PARTITION, which is the only error after which Kafka's clients ask the same broker again,
    for these partitions alone. Each request gets the producers of at least one partition, so they end.
    """

    def __init__(self, hosted: HostedPartitions) -> None:
        self._hosted = hosted

    def handle(
        self, request: DescribeProducersRequest, context: RequestContext
    ) -> DescribeProducersResponse | Coroutine[object, None, DescribeProducersResponse]:
        return in_slices(self._answer(request))

    def _answer(self, request: DescribeProducersRequest) -> Steps[DescribeProducersResponse]:
        # A partition that is named repeatedly is described once, so that a small request has no large answer.
        asked = dict.fromkeys(
            TopicPartition(topic.name, index) for topic in request.topics for index in topic.partition_indexes
        )
        topics: dict[str, TopicResponse] = {}
        described = 0
        for topic, index in asked:
            answer = yield from self._partition(topic, index, described)
            described += len(answer.active_producers)
            topics.setdefault(topic, TopicResponse(topic)).partitions.append(answer)
            yield
        return DescribeProducersResponse(topics=list(topics.values()))

    def _partition(self, topic: str, index: int, described: int) -> Steps[PartitionResponse]:
        """Describes one partition. `described` is the number of producers that the answer has already."""
        problem = topic_name_problem(topic)
        if problem is not None:
            return PartitionResponse(index, ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        try:
            producers = self._hosted.replica(topic, index).core.producers
        except KafkaError as error:
            return PartitionResponse(index, error.code, error.message)
        if described and described + len(producers) > MAX_PRODUCERS_IN_ANSWER:
            return PartitionResponse(
                index,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"one answer describes at most {MAX_PRODUCERS_IN_ANSWER:,} producers; ask again",
            )
        answer = PartitionResponse(index)
        for producer in producers.each_described():
            answer.active_producers.append(
                ProducerState(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.last_timestamp,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_start_offset=producer.current_txn_start_offset,
                )
            )
            yield
        return answer
