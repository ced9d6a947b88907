"""OffsetForLeaderEpoch v2 to v4: returns the offset at which a leader epoch ends in this log (KIP-101,
KIP-320). Consumers use it to detect that the log was truncated, and followers use it before they copy from a
new leader.

Only the leader answers, also to the debugging replica id -2. If this log does not know the epoch, or the
epoch is -1, the answer is (-1, -1) without an error.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.timing.slices import in_slices
from tidelog.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from tidelog.broker.hosting.hosted_partitions import HostedPartitions
    from tidelog.broker.requests.request import RequestContext


class OffsetForLeaderEpochHandler:
    """Answers OffsetForLeaderEpoch."""

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
