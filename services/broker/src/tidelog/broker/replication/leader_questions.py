"""What followers ask a leader beside records: where a leader epoch ends in its log, and where its log begins
and ends. Many partitions in one request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

OFFSET_FOR_LEADER_EPOCH_VERSION: Final = 4
LIST_OFFSETS_VERSION: Final = 8
MAX_PARTITIONS_PER_QUESTION: Final = 2_000
EARLIEST: Final = -2
LATEST: Final = -1


class EpochEndAnswer(NamedTuple):
    topic_partition: TopicPartition
    error_code: int
    epoch: int
    end_offset: int


class OffsetAnswer(NamedTuple):
    error_code: int
    offset: int


def epoch_end_request(
    replica_id: int, questions: Iterable[tuple[TopicPartition, int, int]]
) -> OffsetForLeaderEpochRequest:
    """`questions`: (partition, current leader epoch, epoch whose end is asked for)."""
    topics: dict[str, OffsetForLeaderTopic] = {}
    for (topic, partition), current_leader_epoch, epoch in questions:
        topics.setdefault(topic, OffsetForLeaderTopic(topic, [])).partitions.append(
            OffsetForLeaderPartition(partition, current_leader_epoch, epoch)
        )
    return OffsetForLeaderEpochRequest(replica_id=replica_id, topics=list(topics.values()))


def epoch_end_answers(response: OffsetForLeaderEpochResponse) -> Iterator[EpochEndAnswer]:
    for topic in response.topics:
        for part in topic.partitions:
            yield EpochEndAnswer(
                TopicPartition(topic.topic, part.partition),
                part.error_code,
                part.leader_epoch,
                part.end_offset,
            )


def offset_request(
    replica_id: int, questions: Iterable[tuple[TopicPartition, int]], timestamp: int
) -> ListOffsetsRequest:
    """`questions`: (partition, current leader epoch). EARLIEST: the leader's log start; LATEST: for a
    follower its log end, not its high watermark.
    """
    topics: dict[str, ListOffsetsTopic] = {}
    for (topic, partition), current_leader_epoch in questions:
        topics.setdefault(topic, ListOffsetsTopic(topic, [])).partitions.append(
            ListOffsetsPartition(partition, current_leader_epoch, timestamp)
        )
    return ListOffsetsRequest(replica_id=replica_id, topics=list(topics.values()))


def offset_answers(response: ListOffsetsResponse) -> dict[TopicPartition, OffsetAnswer]:
    return {
        TopicPartition(topic.name, part.partition_index): OffsetAnswer(part.error_code, part.offset)
        for topic in response.topics
        for part in topic.partitions
    }
