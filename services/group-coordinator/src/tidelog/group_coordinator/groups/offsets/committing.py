"""OffsetCommit, TxnOffsetCommit and OffsetDelete: who may, and what is then committed."""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from uuid import UUID

from tidelog.group_coordinator.groups.offsets.offset_records import CommittedOffset, Position
from tidelog.group_coordinator.groups.shared import Groups, OffsetCommitter
from tidelog.group_coordinator.shard_core import Decision, ShardRequest
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tidelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tidelog.wire.schema import ZERO_UUID

FIRST_VERSION_BY_TOPIC_ID: Final = 10
_FIRST_VERSION_OF_MEMBER_EPOCHS: Final = 9


class Commit(NamedTuple):
    position: Position
    committed: CommittedOffset


def committer_of(request: ShardRequest) -> OffsetCommitter:
    message = request.message
    is_transactional = request.api_key == ApiKey.TXN_OFFSET_COMMIT
    return OffsetCommitter(
        member_id=message.member_id,
        group_instance_id=message.group_instance_id,
        generation_or_epoch=message.generation_id
        if is_transactional
        else message.generation_id_or_member_epoch,
        api_key=request.api_key,
        api_version=request.api_version,
        is_transactional=is_transactional,
    )


def check(groups: Groups, request: ShardRequest, decision: Decision, now_ms: int) -> ErrorCode:
    """Whether who asks may commit. A group that nobody is a member of comes to be by its offsets."""
    committer = committer_of(request)
    group = groups.by_id.get(request.message.group_id)
    if group is None:
        if committer.generation_or_epoch < 0:
            groups.new_simple_group(request.message.group_id, now_ms)
            return ErrorCode.NONE
        if committer.is_transactional or committer.api_version < _FIRST_VERSION_OF_MEMBER_EPOCHS:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.GROUP_ID_NOT_FOUND
    return group.check_commit(committer, now_ms, decision)


class _Topic(NamedTuple):
    name: str | None
    topic_id: UUID
    partitions: Any


def _topics(groups: Groups, request: ShardRequest) -> list[_Topic]:
    """A topic id that nobody knows has no name."""
    if request.api_key == ApiKey.OFFSET_COMMIT and request.api_version >= FIRST_VERSION_BY_TOPIC_ID:
        names = groups.image.topic_names
        return [
            _Topic(names.get(topic.topic_id), topic.topic_id, topic.partitions)
            for topic in request.message.topics
        ]
    return [_Topic(topic.name, ZERO_UUID, topic.partitions) for topic in request.message.topics]


def decide(
    groups: Groups, request: ShardRequest, error: ErrorCode, now_ms: int
) -> tuple[list[Commit], OffsetCommitResponse | TxnOffsetCommitResponse]:
    """What is committed, if `error` doesn't refuse it all, and what is answered."""
    expire_ms = -1
    if request.api_key == ApiKey.OFFSET_COMMIT and request.message.retention_time_ms >= 0:
        expire_ms = now_ms + request.message.retention_time_ms
    max_metadata_length = groups.settings.offset_metadata_max_bytes
    known_topics = groups.image.topics
    group = groups.by_id.get(request.message.group_id)
    check_singly = None if group is None else group.check_commits_singly(committer_of(request))
    commits: list[Commit] = []
    results: list[tuple[_Topic, list[tuple[int, ErrorCode]]]] = []
    for topic in _topics(groups, request):
        errors: list[tuple[int, ErrorCode]] = []
        results.append((topic, errors))
        known = None if topic.name is None else known_topics.get(topic.name)
        partition_count = 0 if known is None else known.partition_count
        for partition in topic.partitions:
            metadata = partition.committed_metadata or ""
            refused = error
            if refused is ErrorCode.NONE and topic.name is None:
                refused = ErrorCode.UNKNOWN_TOPIC_ID
            elif refused is ErrorCode.NONE and not 0 <= partition.partition_index < partition_count:
                refused = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif refused is ErrorCode.NONE and len(metadata) > max_metadata_length:
                refused = ErrorCode.OFFSET_METADATA_TOO_LARGE
            elif refused is ErrorCode.NONE and check_singly is not None and topic.name is not None:
                refused = check_singly(known_topics[topic.name].topic_id, partition.partition_index)
            errors.append((partition.partition_index, refused))
            if refused is ErrorCode.NONE and topic.name is not None:
                commits.append(
                    Commit(
                        Position(request.message.group_id, topic.name, partition.partition_index),
                        CommittedOffset(
                            partition.committed_offset,
                            partition.committed_leader_epoch,
                            metadata,
                            now_ms,
                            expire_ms,
                            topic.topic_id,
                        ),
                    )
                )
    if request.api_key == ApiKey.TXN_OFFSET_COMMIT:
        return commits, _transactional_response(results)
    return commits, _response(results)


def _response(results: list[tuple[_Topic, list[tuple[int, ErrorCode]]]]) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                topic.name or "",
                topic.topic_id,
                [OffsetCommitResponsePartition(index, error) for index, error in errors],
            )
            for topic, errors in results
        ]
    )


def _transactional_response(
    results: list[tuple[_Topic, list[tuple[int, ErrorCode]]]],
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                topic.name or "",
                [TxnOffsetCommitResponsePartition(index, error) for index, error in errors],
            )
            for topic, errors in results
        ]
    )
