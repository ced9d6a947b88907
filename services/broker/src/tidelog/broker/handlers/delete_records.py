"""DeleteRecords v0 to v2: everything below an offset is gone; -1 stands for the high watermark. Answered
with the low watermark.

Refused, as in Kafka: an offset above the high watermark or below -1 (OFFSET_OUT_OF_RANGE), a topic that
is compacted only (POLICY_VIOLATION), an internal topic (INVALID_TOPIC_EXCEPTION). Deviation: does not
wait for followers, of which there are none yet, and the new start is on disk before the answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import INTERNAL_TOPICS
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext

INVALID_LOW_WATERMARK: Final = -1


async def handle(
    broker: Broker, request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse:
    now_ms = broker.clock.now_ms()
    response = DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                topic.name, [_delete(broker, topic.name, part, now_ms) for part in topic.partitions]
            )
            for topic in request.topics
        ]
    )
    # What was answered as deleted must not come back after a crash, and the periodic checkpoint may be a
    # minute away.
    await asyncio.to_thread(broker.log_directory.checkpoint_log_start_offsets)
    return response


def _delete(
    broker: Broker, topic: str, asked: DeleteRecordsPartition, now_ms: int
) -> DeleteRecordsPartitionResult:
    try:
        replica = broker.leader_replica(topic, asked.partition_index)
        if topic in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        if replica.settings.is_compacted and not replica.settings.is_deleted:
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        low_watermark = replica.delete_records(asked.offset, now_ms)
    except KafkaError as error:
        return DeleteRecordsPartitionResult(asked.partition_index, INVALID_LOW_WATERMARK, error.code)
    return DeleteRecordsPartitionResult(asked.partition_index, low_watermark)
