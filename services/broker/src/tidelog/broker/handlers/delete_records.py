"""DeleteRecords v0 to v2: everything below an offset is gone; -1 stands for the high watermark. Answered
with the low watermark: the least log start offset of the replicas that are alive.

The answer waits until the low watermark has reached the offset, so that no replica brings the records back,
or `timeout_ms` is over (REQUEST_TIMED_OUT). Refused, as in Kafka: an offset above the high watermark or
below -1 (OFFSET_OUT_OF_RANGE), a topic that is compacted only (POLICY_VIOLATION), an internal topic
(INVALID_TOPIC_EXCEPTION). Deviation: the new start is on disk before the answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.broker.partition.core import UP_TO_HIGH_WATERMARK
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import INTERNAL_TOPICS
from tidelog.runtime.purgatory import DelayedOperation
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.replica import Replica
    from tidelog.broker.request import RequestContext

INVALID_LOW_WATERMARK: Final = -1
Pending: TypeAlias = "tuple[Replica, int, DeleteRecordsPartitionResult]"
"""Whose low watermark has to reach which offset, and the answer that waits for it."""


async def handle(
    broker: Broker, request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse:
    now_ms = broker.clock.now_ms()
    pending: list[Pending] = []
    response = DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                topic.name, [_delete(broker, topic.name, part, now_ms, pending) for part in topic.partitions]
            )
            for topic in request.topics
        ]
    )
    # What was answered as deleted must not come back after a crash, and the periodic checkpoint may be a
    # minute away.
    deadline_ms = broker.timer.now_ms() + max(request.timeout_ms, 0)
    await asyncio.to_thread(broker.log_directory.checkpoint_log_start_offsets)
    if pending:
        await _until_deleted_everywhere(broker, pending, deadline_ms)
    return response


def _delete(
    broker: Broker, topic: str, asked: DeleteRecordsPartition, now_ms: int, pending: list[Pending]
) -> DeleteRecordsPartitionResult:
    try:
        replica = broker.leader_replica(topic, asked.partition_index)
        if topic in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        if replica.settings.is_compacted and not replica.settings.is_deleted:
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        offset = replica.core.high_watermark if asked.offset == UP_TO_HIGH_WATERMARK else asked.offset
        replica.delete_records(asked.offset, now_ms)
    except KafkaError as error:
        return DeleteRecordsPartitionResult(asked.partition_index, INVALID_LOW_WATERMARK, error.code)
    result = DeleteRecordsPartitionResult(asked.partition_index, _low_watermark(broker, replica))
    if result.low_watermark < offset:
        broker.log_start_advanced(replica.topic_partition)
        pending.append((replica, offset, result))
    return result


def _low_watermark(broker: Broker, replica: Replica) -> int:
    """Dead replicas don't count: they learn of the new start before they are in sync again."""
    core, alive = replica.core, broker.metadata.brokers
    followers = [other for other in core.replicas if other != core.broker_id and other in alive]
    return min([core.log_start_offset, *(core.follower_start_offset(other) for other in followers)])


async def _until_deleted_everywhere(broker: Broker, pending: list[Pending], deadline_ms: int) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    operation = DelayedDeleteRecords(broker, pending, done)
    broker.delete_records_purgatory.watch(
        operation, [replica.topic_partition for replica, _, _ in pending], deadline_ms
    )
    try:
        await done
    finally:
        broker.delete_records_purgatory.cancel(operation)


class DelayedDeleteRecords(DelayedOperation):
    """Answered when the low watermark of each partition has reached its offset, or the time is over."""

    __slots__ = ("_broker", "_done", "_pending")

    def __init__(self, broker: Broker, pending: list[Pending], done: asyncio.Future[None]) -> None:
        super().__init__()
        self._broker = broker
        self._pending = pending
        self._done = done

    def try_complete(self) -> bool:
        still = []
        for entry in self._pending:
            replica, offset, result = entry
            if not replica.core.is_leader:
                result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                continue
            result.low_watermark = _low_watermark(self._broker, replica)
            if result.low_watermark < offset:
                still.append(entry)
        self._pending = still
        return not still

    def on_expire(self) -> None:
        for _, _, result in self._pending:
            result.error_code = ErrorCode.REQUEST_TIMED_OUT

    def on_complete(self) -> None:
        if not self._done.done():
            self._done.set_result(None)
