"""Reads, sets and deletes the start offsets of share groups (KIP-932)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tidelog.client.admin.groups import coordinator_of, until_loaded
from tidelog.client.calls import GROUP
from tidelog.client.cluster import Cluster, raise_on_error, raise_on_group_error
from tidelog.client.core.cluster_view import in_parts
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
)
from tidelog.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
)
from tidelog.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)

_ASK_AGAIN = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""The errors of a topic that pass. An unknown topic, which counts as retriable elsewhere, is an outcome."""


@dataclass(frozen=True, slots=True)
class ShareOffset:
    """The progress of a share group in a partition.

    `start_offset` is that of the first record whose delivery is not complete, None if the group has not begun
    to read. `lag` is the number of records whose delivery is not complete, None if the broker does not know
    it: Kafka states it since 4.2 (KIP-1226).
    """

    start_offset: int | None
    lag: int | None


def describe_share_offsets(cluster: Cluster, group_id: str) -> dict[TopicPartition, ShareOffset]:
    """Returns the progress of a share group in all partitions that it reads or has read.

    A group that does not exist has none. Raises KafkaError, ClientError.
    """
    request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(group_id, topics=None)])

    def ask() -> dict[TopicPartition, ShareOffset]:
        coordinator = coordinator_of(cluster, GROUP, group_id)
        found = coordinator.call(request, DescribeShareGroupOffsetsResponse).groups[0]
        raise_on_group_error(found.error_code, group_id, found.error_message)
        offsets: dict[TopicPartition, ShareOffset] = {}
        for topic in found.topics:
            for row in topic.partitions:
                place = TopicPartition(topic.topic_name, row.partition_index)
                subject = f"group '{group_id}', topic '{place.topic}' partition {place.partition}"
                raise_on_error(row.error_code, subject, row.error_message)
                offsets[place] = ShareOffset(_unless_negative(row.start_offset), _unless_negative(row.lag))
        return offsets

    return until_loaded(cluster, ask)


def start_offsets(offsets: Mapping[TopicPartition, ShareOffset]) -> dict[TopicPartition, int]:
    """Returns the start offsets of the partitions that the group has begun to read."""
    return {
        place: offset.start_offset for place, offset in offsets.items() if offset.start_offset is not None
    }


def alter_share_offsets(cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Sets start offsets of a share group without members. The group is created if it does not exist.

    Raises KafkaError (NON_EMPTY_GROUP if the group has members), ClientError.
    """
    for part in in_parts(sorted(offsets.items())):
        _alter_share_offsets(cluster, group_id, part)


def _alter_share_offsets(cluster: Cluster, group_id: str, offsets: list[tuple[TopicPartition, int]]) -> None:
    topics: dict[str, list[AlterShareGroupOffsetsRequestPartition]] = {}
    for place, offset in offsets:
        topics.setdefault(place.topic, []).append(
            AlterShareGroupOffsetsRequestPartition(place.partition, offset)
        )
    request = AlterShareGroupOffsetsRequest(
        group_id, [AlterShareGroupOffsetsRequestTopic(name, rows) for name, rows in topics.items()]
    )

    def ask() -> None:
        coordinator = coordinator_of(cluster, GROUP, group_id)
        answer = coordinator.call(request, AlterShareGroupOffsetsResponse)
        raise_on_group_error(answer.error_code, group_id, answer.error_message)
        for topic in answer.responses:
            for row in topic.partitions:
                place = TopicPartition(topic.topic_name, row.partition_index)
                subject = f"group '{group_id}', topic '{place.topic}' partition {place.partition}"
                raise_on_error(row.error_code, subject, row.error_message)

    until_loaded(cluster, ask)


def delete_share_offsets(cluster: Cluster, group_id: str, topics: Collection[str]) -> dict[str, ErrorCode]:
    """Deletes the start offsets of topics of a share group without members, and returns each topic's result.

    The result of a topic that the group does not read is UNKNOWN_TOPIC_OR_PARTITION. Raises KafkaError
    (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND), ClientError.
    """
    done: dict[str, ErrorCode] = {}

    def ask() -> None:
        for part in in_parts(sorted(set(topics) - done.keys())):
            ask_for(part)

    def ask_for(left: list[str]) -> None:
        request = DeleteShareGroupOffsetsRequest(
            group_id, [DeleteShareGroupOffsetsRequestTopic(name) for name in left]
        )
        coordinator = coordinator_of(cluster, GROUP, group_id)
        answer = coordinator.call(request, DeleteShareGroupOffsetsResponse)
        raise_on_group_error(answer.error_code, group_id, answer.error_message)
        for row in answer.responses:
            if row.error_code not in _ASK_AGAIN:
                done[row.topic_name] = ErrorCode(row.error_code)
        for row in answer.responses:
            if row.error_code in _ASK_AGAIN:
                subject = f"group '{group_id}', topic '{row.topic_name}'"
                raise_on_error(row.error_code, subject, row.error_message)

    until_loaded(cluster, ask)
    return done


def _unless_negative(number: int) -> int | None:
    return number if number >= 0 else None
