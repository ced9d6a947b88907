"""ListOffsets and OffsetForLeaderEpoch: the offsets of a log by time and by leader epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Final

from tidelog.kernel.slices import in_slices
from tidelog.kernel.steps import all_at_once
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidelog.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tidelog.broker.hosting.hosted_partitions import HostedPartitions
    from tidelog.broker.requests.request import RequestContext

DEBUGGING_REPLICA_ID: Final = -2
"""Followers also answer requests with this replica id."""
_FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE: Final = 5
_FIRST_VERSION_OF: Final = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}


class ListOffsetsHandler:
    """ListOffsets v1 to v11: the offset for a timestamp, or for one of these values: earliest (-2), latest
    (-1), max timestamp (-3), earliest local (-4), latest tiered (-5), earliest pending upload (-6).

    There is no tiered storage: -4 is the earliest offset, and -5 and -6 have no answer (offset -1), as in a
    Kafka without tiered storage.

    Clients see the log up to the high watermark, followers (replica id >= 0) see all of it. A new leader
    whose high watermark has not reached the start of its epoch does not know yet which records were
    acknowledged. A client that asks for the latest offset, or for a timestamp without an offset, then gets
    OFFSET_NOT_AVAILABLE (before v5 LEADER_NOT_AVAILABLE) and retries (KIP-207).
    """

    def __init__(self, hosted: HostedPartitions, record_walks: Executor) -> None:
        self._hosted = hosted
        self._record_walks = record_walks

    def handle(
        self, request: ListOffsetsRequest, context: RequestContext
    ) -> ListOffsetsResponse | Coroutine[object, None, ListOffsetsResponse]:
        if any(_reads_disk(part.timestamp) for topic in request.topics for part in topic.partitions):
            return self._answer_in_thread(request, context)
        return in_slices(self._answer(request, context))

    async def _answer_in_thread(
        self, request: ListOffsetsRequest, context: RequestContext
    ) -> ListOffsetsResponse:
        loop, steps = context.connection.loop, self._answer(request, context)
        return await loop.run_in_executor(self._record_walks, all_at_once, steps)

    def _answer(
        self, request: ListOffsetsRequest, context: RequestContext
    ) -> Generator[None, None, ListOffsetsResponse]:
        """Returns the response. Only reads, so it may run in a thread beside the event loop."""
        asked = Counter(
            (topic.name, part.partition_index) for topic in request.topics for part in topic.partitions
        )
        topics = []
        for topic in request.topics:
            partitions = []
            for part in topic.partitions:
                times = asked[topic.name, part.partition_index]
                if not times:
                    continue  # the first of its entries has been refused
                try:
                    if times > 1:
                        asked[topic.name, part.partition_index] = 0
                        raise KafkaError(
                            ErrorCode.INVALID_REQUEST, "The request contains the partition twice"
                        )
                    partitions.append(self._lookup(topic.name, part, request, context.api_version))
                except KafkaError as error:
                    partitions.append(
                        ListOffsetsPartitionResponse(
                            partition_index=part.partition_index, error_code=error.code
                        )
                    )
                yield
            yield
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
        return ListOffsetsResponse(topics=topics)

    def _lookup(
        self, topic: str, asked: ListOffsetsPartition, request: ListOffsetsRequest, version: int
    ) -> ListOffsetsPartitionResponse:
        timestamp = asked.timestamp
        if timestamp < EARLIEST_PENDING_UPLOAD_TIMESTAMP or version < _FIRST_VERSION_OF.get(timestamp, 0):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        replica = self._hosted.replica(topic, asked.partition_index)
        core, log = replica.core, replica.log
        error = core.leadership_error(asked.current_leader_epoch)
        is_debugging = request.replica_id == DEBUGGING_REPLICA_ID
        if error and not (is_debugging and error == ErrorCode.NOT_LEADER_OR_FOLLOWER):
            raise KafkaError(error)
        answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
        is_follower = request.replica_id >= 0
        limit = core.log_end_offset if is_follower else core.read_limit(request.isolation_level)
        is_limit_known = is_follower or core.is_high_watermark_known
        if timestamp == LATEST_TIMESTAMP:
            if not is_limit_known:
                raise _not_available(version)
            answer.offset, answer.leader_epoch = limit, core.leader_epochs.epoch_for_offset(limit)
        elif timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            answer.offset = core.log_start_offset
            answer.leader_epoch = core.leader_epochs.epoch_for_offset(answer.offset)
        elif timestamp not in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
            found = (
                log.max_timestamp_offset()
                if timestamp == MAX_TIMESTAMP
                else log.offset_for_timestamp(timestamp)
            )
            if found is not None and found.offset < limit:
                answer.offset, answer.timestamp, answer.leader_epoch = (
                    found.offset,
                    found.timestamp,
                    found.leader_epoch,
                )
            elif not is_limit_known:
                raise _not_available(version)
        return answer


def _reads_disk(timestamp: int) -> bool:
    return timestamp >= 0 or timestamp == MAX_TIMESTAMP


def _not_available(version: int) -> KafkaError:
    if version < _FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE:
        return KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
    return KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)


class OffsetForLeaderEpochHandler:
    """OffsetForLeaderEpoch v2 to v4: returns the offset at which a leader epoch ends in this log (KIP-101,
    KIP-320). Consumers use it to detect that the log was truncated, and followers use it before they copy
    from a new leader.

    Only the leader answers, also to the debugging replica id -2. If this log does not know the epoch, or the
    epoch is -1, the answer is (-1, -1) without an error.
    """

    def __init__(self, hosted: HostedPartitions) -> None:
        self._hosted = hosted

    def handle(
        self, request: OffsetForLeaderEpochRequest, context: RequestContext
    ) -> OffsetForLeaderEpochResponse | Coroutine[object, None, OffsetForLeaderEpochResponse]:
        return in_slices(self._answer(request))

    def _answer(
        self, request: OffsetForLeaderEpochRequest
    ) -> Generator[None, None, OffsetForLeaderEpochResponse]:
        topics = []
        for topic in request.topics:
            partitions = []
            for part in topic.partitions:
                partitions.append(self._end_offset(topic.topic, part))
                yield
            topics.append(OffsetForLeaderTopicResult(topic.topic, partitions))
            yield
        return OffsetForLeaderEpochResponse(topics=topics)

    def _end_offset(self, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
        replica = self._hosted.replicas.get(TopicPartition(topic, asked.partition))
        if replica is None:
            return EpochEndOffset(self._hosted.no_replica_error(topic, asked.partition).code, asked.partition)
        core = replica.core
        error_code = core.leadership_error(asked.current_leader_epoch)
        if error_code:
            return EpochEndOffset(error_code, asked.partition)
        epoch, end_offset = core.epoch_end(asked.leader_epoch)
        return EpochEndOffset(ErrorCode.NONE, asked.partition, epoch, end_offset)
