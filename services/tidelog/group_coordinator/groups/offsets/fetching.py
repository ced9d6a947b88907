"""OffsetFetch, versions 1-10.

A request names one group; from version 8 on it names many, of which the broker forwards those of one shard.
From version 9 on a member of a KIP-848 group identifies itself. From version 10 on topics have ids instead of
names. A partition without a committed offset has offset -1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.group_coordinator.answer_room import described_within_bound
from tidelog.group_coordinator.groups.offsets.offset_table import CommittedOffset, GroupPartition, OffsetTable
from tidelog.group_coordinator.groups.shared import Groups
from tidelog.group_coordinator.shard_core import ShardRequest
from tidelog.model.errors import ErrorCode
from tidelog.model.instants import WallMs
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from tidelog.wire.schema import ZERO_UUID

_FIRST_MULTI_GROUP_VERSION: Final = 8
_FIRST_VERSION_BY_TOPIC_ID: Final = 10
_FIRST_VERSION_WITH_GROUP_ERROR: Final = 2
_NONE: Final = CommittedOffset(-1, -1, "", WallMs(-1))


class _Found(NamedTuple):
    """The answer for one partition."""

    partition: int
    committed: CommittedOffset
    error: ErrorCode


class _FoundTopic(NamedTuple):
    """The answer for one topic."""

    name: str
    topic_id: UUID
    partitions: list[_Found]


class OffsetFetching:
    """The evaluation of one request."""

    def __init__(self, groups: Groups, table: OffsetTable, request: ShardRequest[OffsetFetchRequest]) -> None:
        self._groups = groups
        self._table = table
        self._version = request.api_version
        self._message = request.message
        self._require_stable = request.message.require_stable

    def response(self) -> OffsetFetchResponse:
        if self._version >= _FIRST_MULTI_GROUP_VERSION:
            groups = described_within_bound(
                self._message.groups,
                self._group,
                lambda group, error: OffsetFetchResponseGroup(group.group_id, [], error),
            )
            return OffsetFetchResponse(groups=groups)
        return self._single()

    def _group(self, asked: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
        error = self._check(asked.group_id, asked.member_id, asked.member_epoch)
        if error is not ErrorCode.NONE:
            return OffsetFetchResponseGroup(asked.group_id, [], error)
        by_id = self._version >= _FIRST_VERSION_BY_TOPIC_ID
        if asked.topics is None:
            found = self._all(asked.group_id, by_id=by_id)
        else:
            found = [
                self._by_id(asked.group_id, topic.topic_id, topic.partition_indexes)
                if by_id
                else self._by_name(asked.group_id, topic.name, topic.partition_indexes)
                for topic in asked.topics
            ]
        return OffsetFetchResponseGroup(
            asked.group_id,
            [
                OffsetFetchResponseTopics(
                    topic.name,
                    topic.topic_id,
                    [
                        OffsetFetchResponsePartitions(
                            index, committed.offset, committed.leader_epoch, committed.metadata, failed
                        )
                        for index, committed, failed in topic.partitions
                    ],
                )
                for topic in found
            ],
        )

    def _single(self) -> OffsetFetchResponse:
        group_id, topics = self._message.group_id, self._message.topics
        error = self._check(group_id, None, -1)
        if topics is None:
            found = [] if error is not ErrorCode.NONE else self._all(group_id, by_id=False)
        elif error is not ErrorCode.NONE:
            found = [
                _FoundTopic(
                    topic.name, ZERO_UUID, [_Found(index, _NONE, error) for index in topic.partition_indexes]
                )
                for topic in topics
            ]
        else:
            found = [self._by_name(group_id, topic.name, topic.partition_indexes) for topic in topics]
        return OffsetFetchResponse(
            topics=[
                OffsetFetchResponseTopic(
                    topic.name,
                    [
                        OffsetFetchResponsePartition(
                            index, committed.offset, committed.leader_epoch, committed.metadata, failed
                        )
                        for index, committed, failed in topic.partitions
                    ],
                )
                for topic in found
            ],
            error_code=error if self._version >= _FIRST_VERSION_WITH_GROUP_ERROR else ErrorCode.NONE,
        )

    def _check(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Returns whether the client may fetch. An absent group has no offsets, which is not an error."""
        group = self._groups.by_id.get(group_id)
        return ErrorCode.NONE if group is None else group.check_offset_fetch(member_id, member_epoch)

    def _by_name(self, group_id: str, topic: str, indexes: Iterable[int]) -> _FoundTopic:
        return _FoundTopic(topic, ZERO_UUID, [self._found(group_id, topic, index) for index in indexes])

    def _by_id(self, group_id: str, topic_id: UUID, indexes: Iterable[int]) -> _FoundTopic:
        name = self._groups.image.topic_names.get(topic_id)
        if name is None:
            unknown = [_Found(index, _NONE, ErrorCode.UNKNOWN_TOPIC_ID) for index in indexes]
            return _FoundTopic("", topic_id, unknown)
        return _FoundTopic(
            name, topic_id, [self._found(group_id, name, index, topic_id) for index in indexes]
        )

    def _all(self, group_id: str, *, by_id: bool) -> list[_FoundTopic]:
        """Returns all of the group's offsets in the order of topic names.

        With `by_id`, deleted topics are left out.
        """
        indexes: dict[str, list[int]] = {}
        for topic, partition in sorted(self._table.of_group(group_id)):
            indexes.setdefault(topic, []).append(partition)
        if not by_id:
            return [self._by_name(group_id, topic, partitions) for topic, partitions in indexes.items()]
        topics: Mapping[str, object] = self._groups.image.topics
        return [
            self._by_id(group_id, self._groups.image.topics[topic].topic_id, partitions)
            for topic, partitions in indexes.items()
            if topic in topics
        ]

    def _found(self, group_id: str, topic: str, index: int, topic_id: UUID = ZERO_UUID) -> _Found:
        key = GroupPartition(group_id, topic, index)
        if self._require_stable and self._table.is_unstable(key):
            return _Found(index, _NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        committed = self._table.get(key) or _NONE
        if topic_id not in (committed.topic_id, ZERO_UUID) and committed.topic_id != ZERO_UUID:
            committed = _NONE  # the offset belongs to a deleted topic of the same name
        return _Found(index, committed, ErrorCode.NONE)
