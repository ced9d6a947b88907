"""DescribeTopicPartitions v0: topics in the order of their names, one page of partitions at a time (KIP-966).

A page has at most `response_partition_limit` partitions, and at most `max.request.partition.size.limit`.
`next_cursor` is the start of the next page. Deviation: an invalid topic name is answered with
INVALID_TOPIC_EXCEPTION; Kafka fails the whole request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.broker.security.authorization.judging import TOPIC_OPERATIONS
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import NO_LEADER
from tidelog.model.topics import INTERNAL_TOPICS, topic_name_problem
from tidelog.rpc.broker_commands import PartitionState, TopicState
from tidelog.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.cluster.current_settings import CurrentSettings
    from tidelog.broker.cluster.metadata_view import MetadataView
    from tidelog.broker.requests.request import RequestContext


class DescribeTopicPartitionsHandler:
    """Answers DescribeTopicPartitions."""

    def __init__(self, settings: CurrentSettings, metadata: MetadataView) -> None:
        self._settings = settings
        self._metadata = metadata

    def handle(
        self, request: DescribeTopicPartitionsRequest, context: RequestContext
    ) -> DescribeTopicPartitionsResponse:
        try:
            names = self._names(request)
        except KafkaError as error:
            return DescribeTopicPartitionsResponse(
                topics=[
                    DescribeTopicPartitionsResponseTopic(error_code=error.code, name=topic.name)
                    for topic in request.topics
                ]
            )
        limit = max(
            min(request.response_partition_limit, self._settings.broker.max_request_partition_size_limit), 1
        )
        return self._page(names, request.cursor, limit)

    def _names(self, request: DescribeTopicPartitionsRequest) -> Iterable[str]:
        """Returns the topics from the cursor's topic on. A request without topics asks for all of them."""
        cursor = request.cursor
        first = cursor.topic_name if cursor is not None else ""
        names: Sequence[str]
        if request.topics:
            names = sorted({topic.name for topic in request.topics if topic.name >= first})
        else:
            names = self._metadata.sorted_topics()
        if cursor is not None and cursor.partition_index < 0:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"The cursor's partition index {cursor.partition_index} is invalid"
            )
        if cursor is not None and request.topics and first not in names:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"The request does not contain the cursor's topic {first}"
            )
        # The page may end after a few of very many topics.
        return islice(names, bisect_left(names, first), None)

    def _page(
        self, names: Iterable[str], cursor: Cursor | None, limit: int
    ) -> DescribeTopicPartitionsResponse:
        response = DescribeTopicPartitionsResponse()
        left = limit
        for name in names:
            if left == 0:
                response.next_cursor = Cursor(name, 0)
                break
            state = self._metadata.topics.get(name)
            if state is None:
                response.topics.append(_unknown_topic(name))
                continue
            first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
            end = min(first + left, len(state.partitions))
            response.topics.append(self._topic(state, state.partitions[first:end]))
            if end < len(state.partitions):
                response.next_cursor = Cursor(name, end)
                break
            left -= max(end - first, 0)
        return response

    def _topic(
        self, state: TopicState, partitions: Iterable[PartitionState]
    ) -> DescribeTopicPartitionsResponseTopic:
        return DescribeTopicPartitionsResponseTopic(
            name=state.name,
            topic_id=state.topic_id,
            is_internal=state.name in INTERNAL_TOPICS,
            partitions=[self._partition(partition) for partition in partitions],
            topic_authorized_operations=TOPIC_OPERATIONS,
        )

    def _partition(self, state: PartitionState) -> DescribeTopicPartitionsResponsePartition:
        return DescribeTopicPartitionsResponsePartition(
            partition_index=state.partition,
            leader_id=state.leader if state.leader in self._metadata.brokers else NO_LEADER,
            leader_epoch=state.leader_epoch,
            replica_nodes=list(state.replicas),
            isr_nodes=list(state.isr),
            eligible_leader_replicas=list(state.elr),
            last_known_elr=list(state.last_known_elr),
            offline_replicas=self._metadata.offline_replicas(state),
        )


def _unknown_topic(name: str) -> DescribeTopicPartitionsResponseTopic:
    is_illegal = topic_name_problem(name) is not None
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.INVALID_TOPIC_EXCEPTION if is_illegal else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
