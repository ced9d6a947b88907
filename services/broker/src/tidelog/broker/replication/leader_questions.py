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
    topic_partition: TopicPartition
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
    replica_id: int, topic_partition: TopicPartition, current_leader_epoch: int, timestamp: int
) -> ListOffsetsRequest:
    """EARLIEST: the leader's log start; LATEST: for a follower its log end, not its high watermark."""
    part = ListOffsetsPartition(topic_partition.partition, current_leader_epoch, timestamp)
    return ListOffsetsRequest(replica_id=replica_id, topics=[ListOffsetsTopic(topic_partition.topic, [part])])


def offset_answer(response: ListOffsetsResponse) -> OffsetAnswer:
    """The one partition asked for."""
    topic = response.topics[0]
    part = topic.partitions[0]
    return OffsetAnswer(TopicPartition(topic.name, part.partition_index), part.error_code, part.offset)
