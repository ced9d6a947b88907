"""ListOffsets v1 to v11: earliest (-2), latest (-1), max timestamp (-3), earliest local (-4), latest tiered
(-5), earliest pending upload (-6), or a time.

There is no tiered storage: -4 is the earliest offset, -5 and -6 have no answer (offset -1), as in Kafka
with it switched off.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_FIRST_VERSION_OF: Final = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


def handle(
    broker: Broker, request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse | Coroutine[Any, Any, ListOffsetsResponse]:
    if any(_reads_disk(part.timestamp) for topic in request.topics for part in topic.partitions):
        return asyncio.to_thread(_answer, broker, request, context)
    return _answer(broker, request, context)


def _reads_disk(timestamp: int) -> bool:
    return timestamp >= 0 or timestamp == MAX_TIMESTAMP


def _answer(broker: Broker, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
    """Reads only, so it may run in a thread beside the event loop."""
    asked = Counter(
        (topic.name, part.partition_index) for topic in request.topics for part in topic.partitions
    )
    topics = []
    for topic in request.topics:
        partitions = []
        for part in topic.partitions:
            try:
                if asked[topic.name, part.partition_index] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "a partition is named twice")
                partitions.append(
                    _lookup(broker, topic.name, part, request.isolation_level, context.api_version)
                )
            except KafkaError as error:
                partitions.append(
                    ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=error.code)
                )
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
    return ListOffsetsResponse(topics=topics)


def _lookup(
    broker: Broker, topic: str, asked: ListOffsetsPartition, isolation_level: int, version: int
) -> ListOffsetsPartitionResponse:
    timestamp = asked.timestamp
    if timestamp < EARLIEST_PENDING_UPLOAD or version < _FIRST_VERSION_OF.get(timestamp, 0):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    replica = broker.leader_replica(topic, asked.partition_index)
    core, log = replica.core, replica.log
    error = core.leadership_error(asked.current_leader_epoch)
    if error:
        raise KafkaError(error)
    answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
    limit = core.read_limit(isolation_level)
    if timestamp == LATEST:
        answer.offset, answer.leader_epoch = limit, core.leader_epochs.epoch_for_offset(limit)
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        answer.offset = core.log_start_offset
        answer.leader_epoch = core.leader_epochs.epoch_for_offset(answer.offset)
    elif timestamp not in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        found = (
            log.max_timestamp_offset() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
        )
        if found is not None and found.offset < limit:
            answer.offset, answer.timestamp, answer.leader_epoch = (
                found.offset,
                found.timestamp,
                found.leader_epoch,
            )
    return answer
