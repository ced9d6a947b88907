"""DeleteRecords v0 to v2: deletes all records below an offset, or below the high watermark if the offset is
-1. The response contains the low watermark, which is the least log start offset of the live replicas.

The response waits until the low watermark has reached the offset, so that no replica brings the records back,
or until `timeout_ms` has passed (REQUEST_TIMED_OUT). As in Kafka, the broker refuses an offset above the high
watermark or below -1 (OFFSET_OUT_OF_RANGE), a topic that is only compacted (POLICY_VIOLATION) and an internal
topic (INVALID_TOPIC_EXCEPTION). Deviation: the new start is on disk before the response is sent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.broker.requests.waiting import Waiter
from tidelog.kernel.instants import MonotonicMs
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import UP_TO_HIGH_WATERMARK
from tidelog.model.topics import INTERNAL_TOPICS
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from collections.abc import Hashable

    from tidelog.broker.cluster.view import MetadataView
    from tidelog.broker.hosting.hosted_partitions import HostedPartitions
    from tidelog.broker.hosting.replica import Replica
    from tidelog.broker.log.log_directory import LogDirectory
    from tidelog.broker.requests.request import RequestContext
    from tidelog.broker.requests.waiting import WaitingRequests
    from tidelog.kernel.timer import Timer

INVALID_LOW_WATERMARK: Final = -1
Pending: TypeAlias = "tuple[Replica, int, DeleteRecordsPartitionResult]"
"""A replica, the offset that its low watermark must reach, and its part of the response."""


class DeleteRecordsHandler:
    """Answers DeleteRecords."""

    def __init__(
        self,
        metadata: MetadataView,
        hosted: HostedPartitions,
        waiting: WaitingRequests,
        log_directory: LogDirectory,
        timer: Timer,
    ) -> None:
        self._metadata = metadata
        self._hosted = hosted
        self._waiting = waiting
        self._log_directory = log_directory
        self._timer = timer

    async def handle(self, request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
        pending: list[Pending] = []
        response = DeleteRecordsResponse(
            topics=[
                DeleteRecordsTopicResult(
                    topic.name, [self._delete(topic.name, part, pending) for part in topic.partitions]
                )
                for topic in request.topics
            ]
        )
        # Records that the response reports as deleted must not come back after a crash, and the next periodic
        # checkpoint may be a minute away.
        deadline_ms = MonotonicMs(self._timer.monotonic_ms() + max(request.timeout_ms, 0))
        await asyncio.to_thread(self._log_directory.checkpoint_log_start_offsets)
        if pending:
            await self._until_deleted_everywhere(pending, deadline_ms)
        return response

    def _delete(
        self, topic: str, asked: DeleteRecordsPartition, pending: list[Pending]
    ) -> DeleteRecordsPartitionResult:
        try:
            replica = self._hosted.leader_replica(topic, asked.partition_index)
            if topic in INTERNAL_TOPICS:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
            if replica.settings.is_compacted and not replica.settings.is_deleted:
                raise KafkaError(ErrorCode.POLICY_VIOLATION)
            offset = replica.core.high_watermark if asked.offset == UP_TO_HIGH_WATERMARK else asked.offset
            replica.delete_records(asked.offset)
        except KafkaError as error:
            return DeleteRecordsPartitionResult(asked.partition_index, INVALID_LOW_WATERMARK, error.code)
        result = DeleteRecordsPartitionResult(asked.partition_index, _low_watermark(self._metadata, replica))
        if result.low_watermark < offset:
            self._waiting.log_start_advanced(replica.topic_partition)
            pending.append((replica, offset, result))
        return result

    async def _until_deleted_everywhere(self, pending: list[Pending], deadline_ms: MonotonicMs) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        operation = DelayedDeleteRecords(self._metadata, pending, done)
        self._waiting.delete_records.watch(
            operation, [replica.topic_partition for replica, _, _ in pending], deadline_ms
        )
        try:
            await done
        finally:
            self._waiting.delete_records.cancel(operation)


def _low_watermark(metadata: MetadataView, replica: Replica) -> int:
    """Returns the least log start offset of the replicas on live brokers. The other replicas learn the new
    start before they are in sync again.
    """
    core, alive = replica.core, metadata.brokers
    followers = [other for other in core.replicas if other != core.broker_id and other in alive]
    return min([core.log_start_offset, *(core.follower_start_offset(other) for other in followers)])


class DelayedDeleteRecords(Waiter):
    """A request that waits until the low watermark of each partition has reached its offset, or until its
    timeout.
    """

    __slots__ = ("_brokers", "_done", "_metadata", "_pending")

    def __init__(self, metadata: MetadataView, pending: list[Pending], done: asyncio.Future[None]) -> None:
        super().__init__()
        self._metadata = metadata
        self._pending: dict[Hashable, list[Pending]] = {}
        for entry in pending:
            self._pending.setdefault(entry[0].topic_partition, []).append(entry)
        self._brokers = metadata.brokers
        self._done = done

    def on_change(self, key: Hashable | None) -> bool:
        """Fills in the results of what no longer waits."""
        brokers = self._metadata.brokers
        if key is None or brokers is not self._brokers:
            # Followers that are no longer alive do not count, and no partition's change says so.
            self._brokers = brokers
            partitions = tuple(self._pending)
        else:
            partitions = (key,)
        for partition in partitions:
            still = self._undeleted(self._pending.pop(partition, []))
            if still:
                self._pending[partition] = still
        return not self._pending

    def _undeleted(self, pending: list[Pending]) -> list[Pending]:
        """Returns what still waits, and fills in the results of what does not."""
        still = []
        for entry in pending:
            replica, offset, result = entry
            if not replica.core.is_leader:
                result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                continue
            result.low_watermark = _low_watermark(self._metadata, replica)
            if result.low_watermark < offset:
                still.append(entry)
        return still

    def on_expire(self) -> None:
        for pending in self._pending.values():
            for _, _, result in pending:
                result.error_code = ErrorCode.REQUEST_TIMED_OUT

    def on_complete(self) -> None:
        if not self._done.done():
            self._done.set_result(None)
