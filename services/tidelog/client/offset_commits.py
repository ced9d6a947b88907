"""Commits offsets of a group without members, for jobs that assign partitions themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tidelog.client.answers import raise_on_error
from tidelog.client.cluster import Cluster
from tidelog.client.coordinators import GROUP, coordinator_of, until_loaded
from tidelog.client.core.request_parts import in_parts
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

_LAST_VERSION_BY_NAME: Final = 9
_OF_MEMBERS_ONLY: Final = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.STALE_MEMBER_EPOCH,
)


class CommittedOffset(NamedTuple):
    """A committed offset: the next one to read. `leader_epoch` is that of the previous record, or -1."""

    offset: int
    leader_epoch: int = -1


def commit_offsets(
    cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset], metadata: str = ""
) -> None:
    """Commits offsets. Raises KafkaError (NON_EMPTY_GROUP if the group has members), ClientError."""
    for part in in_parts(sorted(offsets.items())):
        _commit_offsets(cluster, group_id, part, metadata)


def _commit_offsets(
    cluster: Cluster, group_id: str, offsets: list[tuple[TopicPartition, CommittedOffset]], metadata: str
) -> None:
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for place, committed in offsets:
        topics.setdefault(place.topic, []).append(
            OffsetCommitRequestPartition(place.partition, committed.offset, committed.leader_epoch, metadata)
        )
    request = OffsetCommitRequest(
        group_id, topics=[OffsetCommitRequestTopic(name, partitions=rows) for name, rows in topics.items()]
    )

    def ask() -> None:
        answer = coordinator_of(cluster, GROUP, group_id).call(
            request, OffsetCommitResponse, at_least=6, at_most=_LAST_VERSION_BY_NAME
        )
        for topic in answer.topics:
            for row in topic.partitions:
                if row.error_code in _OF_MEMBERS_ONLY:
                    raise KafkaError(
                        ErrorCode.NON_EMPTY_GROUP,
                        f"group '{group_id}' has members that commit its offsets; choose another group",
                    )
                subject = f"group '{group_id}', topic '{topic.name}' partition {row.partition_index}"
                raise_on_error(row.error_code, subject)

    until_loaded(cluster, ask)
