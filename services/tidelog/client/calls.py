"""The requests that both blocking functions and the clients on asyncio send.

Each has the versions that support it and the meaning of its response. Both send a `Call` over a connection,
and repeat it in their own ways.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from tidelog.client.core.cluster_view import EpochEnd, partitions_by_topic
from tidelog.client.errors import request_error
from tidelog.model.protocol_values import (
    CONSUMER_REPLICA_ID,
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    MAX_TIMESTAMP,
    READ_UNCOMMITTED,
    UNKNOWN_EPOCH,
)
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from tidelog.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidelog.wire.schema import Message

GROUP: Final = 0
TRANSACTION: Final = 1
"""The types of coordinators in FindCoordinator."""
NO_MEMBER_EPOCH: Final = -1
LAST_BY_NAME: Final = 9
"""The last version of OffsetCommit and OffsetFetch that names topics. Later ones have their ids (KIP-848)."""
_LIST_OFFSETS_SINCE: Final[Mapping[int, int]] = {
    MAX_TIMESTAMP: 7,  # KIP-734
    EARLIEST_LOCAL_TIMESTAMP: 8,  # KIP-405
    LATEST_TIERED_TIMESTAMP: 9,  # KIP-1005
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,  # KIP-1023
}
"""The first version that supports each special timestamp. Older ones would interpret it as a real time.

Source: Kafka's ListOffsetsRequest.
"""
_WITH_TIMESTAMPS: Final = 1
_WITH_ISOLATION: Final = 2
"""The first versions whose response has a timestamp, and whose request has an isolation level."""
_EPOCHS_FOR_CONSUMERS_SINCE: Final = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request and the class of its response. `read` returns what the response means, or raises
    KafkaError.
    """

    request: Message
    answer: type[Message]
    read: Callable[[Any], T]
    at_least: int = 0
    at_most: int | None = None


class FoundCoordinator(NamedTuple):
    node_id: int
    host: str
    port: int


def find_coordinator(kind: int, key: str) -> Call[FoundCoordinator]:
    """Asks any broker for the coordinator of a group or a transactional id."""

    def read(answer: FindCoordinatorResponse) -> FoundCoordinator:
        found = answer.coordinators[0] if answer.coordinators else answer
        if found.error_code:
            raise request_error(found.error_code, f"coordinator of '{key}'", found.error_message)
        return FoundCoordinator(found.node_id, found.host, found.port)

    return Call(FindCoordinatorRequest(key, kind, [key]), FindCoordinatorResponse, read)


def list_offsets(
    timestamps: Mapping[TopicPartition, int], *, isolation_level: int = READ_UNCOMMITTED, timeout_ms: int = 0
) -> Call[dict[TopicPartition, ListOffsetsPartitionResponse]]:
    """Asks a leader for the first offset at or after a timestamp, which may be a special one, of each
    partition. A result may be an error.
    """
    topics = [
        ListOffsetsTopic(
            name,
            [
                ListOffsetsPartition(index, timestamp=timestamps[TopicPartition(name, index)])
                for index in indexes
            ],
        )
        for name, indexes in partitions_by_topic(timestamps).items()
    ]
    least = _WITH_ISOLATION if isolation_level else _WITH_TIMESTAMPS
    for timestamp in set(timestamps.values()) & _LIST_OFFSETS_SINCE.keys():
        least = max(least, _LIST_OFFSETS_SINCE[timestamp])

    def read(answer: ListOffsetsResponse) -> dict[TopicPartition, ListOffsetsPartitionResponse]:
        return {
            TopicPartition(topic.name, row.partition_index): row
            for topic in answer.topics
            for row in topic.partitions
        }

    request = ListOffsetsRequest(CONSUMER_REPLICA_ID, isolation_level, topics, timeout_ms)
    return Call(request, ListOffsetsResponse, read, least)


def epoch_ends(
    epochs: Mapping[TopicPartition, int], leader_epochs: Mapping[TopicPartition, int] | None = None
) -> Call[dict[TopicPartition, EpochEnd]]:
    """Asks a leader for the ends of epochs in its log. With `leader_epochs`, the broker checks that it
    leads in these epochs.
    """
    known = leader_epochs or {}
    topics = [
        OffsetForLeaderTopic(
            name,
            [
                OffsetForLeaderPartition(index, known.get(place, UNKNOWN_EPOCH), epochs[place])
                for index in indexes
                for place in (TopicPartition(name, index),)
            ],
        )
        for name, indexes in partitions_by_topic(epochs).items()
    ]

    def read(answer: OffsetForLeaderEpochResponse) -> dict[TopicPartition, EpochEnd]:
        return {
            TopicPartition(topic.topic, row.partition): EpochEnd(
                row.error_code, row.leader_epoch, row.end_offset
            )
            for topic in answer.topics
            for row in topic.partitions
        }

    request = OffsetForLeaderEpochRequest(CONSUMER_REPLICA_ID, topics)
    least = 0 if leader_epochs is None else _EPOCHS_FOR_CONSUMERS_SINCE
    return Call(request, OffsetForLeaderEpochResponse, read, least)


def commit_offsets(
    group_id: str,
    offsets: Mapping[TopicPartition, tuple[int, int, uuid.UUID | None]],
    *,
    epoch: int = NO_MEMBER_EPOCH,
    member_id: str = "",
    instance_id: str | None = None,
    metadata: str = "",
) -> Call[dict[TopicPartition, int]]:
    """Commits offsets with the epochs of the records before them and the ids of their topics. The result is
    the error code of each partition. Without a member, the group must not have any.
    """
    topics: dict[tuple[str, uuid.UUID], OffsetCommitRequestTopic] = {}
    for place, (offset, leader_epoch, topic_id) in offsets.items():
        key = (place.topic, topic_id or ZERO_TOPIC_ID)
        topics.setdefault(key, OffsetCommitRequestTopic(*key)).partitions.append(
            OffsetCommitRequestPartition(place.partition, offset, leader_epoch, metadata)
        )
    names = {topic_id: name for name, topic_id in topics}

    def read(answer: OffsetCommitResponse) -> dict[TopicPartition, int]:
        return {
            TopicPartition(topic.name or names[topic.topic_id], row.partition_index): row.error_code
            for topic in answer.topics
            for row in topic.partitions
        }

    request = OffsetCommitRequest(group_id, epoch, member_id, instance_id, topics=list(topics.values()))
    return Call(request, OffsetCommitResponse, read, 6, LAST_BY_NAME if ZERO_TOPIC_ID in names else None)


def fetch_offsets(
    groups: list[OffsetFetchRequestGroup], *, requires_stable: bool = False, has_topic_ids: bool = False
) -> Call[list[OffsetFetchResponseGroup]]:
    """Asks a coordinator for the committed offsets of its groups. A result may be an error."""

    def read(answer: OffsetFetchResponse) -> list[OffsetFetchResponseGroup]:
        return answer.groups

    request = OffsetFetchRequest(groups=groups, require_stable=requires_stable)
    return Call(request, OffsetFetchResponse, read, 8, None if has_topic_ids else LAST_BY_NAME)
