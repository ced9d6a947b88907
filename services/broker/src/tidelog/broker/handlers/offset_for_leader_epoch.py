"""OffsetForLeaderEpoch v2 to v4: where a leader epoch ends in this log (KIP-101, KIP-320); consumers find
out so whether the log was truncated.

Only the leader answers. An epoch that this log does not know, and -1, are answered (-1, -1) without an
error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext


def handle(
    broker: Broker, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic.topic, [_end_offset(broker, topic.topic, part) for part in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _end_offset(broker: Broker, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    replica = broker.replicas.get(TopicPartition(topic, asked.partition))
    if replica is None:
        return EpochEndOffset(broker.no_replica_error(topic, asked.partition).code, asked.partition)
    core = replica.core
    error_code = core.leadership_error(asked.current_leader_epoch)
    if error_code:
        return EpochEndOffset(error_code, asked.partition)
    epoch, end_offset = core.leader_epochs.end_offset_for(asked.leader_epoch, core.log_end_offset)
    return EpochEndOffset(error_code, asked.partition, epoch, end_offset)
