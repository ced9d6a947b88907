"""OffsetFetch, versions 1-10.

A request names one group; from version 8 on it names many, of which the broker forwards those of one shard.
From version 9 on a member of a KIP-848 group identifies itself. From version 10 on topics have ids instead of
names. A partition without a committed offset has offset -1.

A request names few partitions, whose offsets are read in one step. If it asks for all offsets of a group, the
answer has those of its first step, and is made in steps because they may be many.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from tidelog.group_coordinator.answer_room import described_within_bound, freed_in_steps
from tidelog.group_coordinator.groups.offsets.offset_table import CommittedOffset, GroupPartition, OffsetTable
from tidelog.group_coordinator.groups.shared import Groups
from tidelog.group_coordinator.shard_core import ShardRequest
from tidelog.model.errors import ErrorCode
from tidelog.model.instants import WallMs
from tidelog.timing.steps import Steps
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


class OffsetFetching:
    """The evaluation of one request."""

    def __init__(self, groups: Groups, table: OffsetTable, request: ShardRequest[OffsetFetchRequest]) -> None:
        self._groups = groups
        self._table = table
        self._version = request.api_version
        self._message = request.message
        self._require_stable = request.message.require_stable

    def steps(self) -> Steps[OffsetFetchResponse]:
        """Returns the steps that make the response."""
        if self._version >= _FIRST_MULTI_GROUP_VERSION:
            return described_within_bound(
                self._message.groups,
                self._group,
                lambda group, error: OffsetFetchResponseGroup(group.group_id, [], error),
                lambda groups: OffsetFetchResponse(groups=groups),
            )
        return self._single()

    def _group(self, asked: OffsetFetchRequestGroup) -> Steps[OffsetFetchResponseGroup]:
        error = self._check(asked.group_id, asked.member_id, asked.member_epoch)
        if error is not ErrorCode.NONE:
            return OffsetFetchResponseGroup(asked.group_id, [], error)
        by_id = self._version >= _FIRST_VERSION_BY_TOPIC_ID
        if asked.topics is None:
            topics = yield from self._all(asked.group_id, by_id=by_id)
        else:
            topics = [
                self._by_id(asked.group_id, topic.topic_id, topic.partition_indexes)
                if by_id
                else self._by_name(asked.group_id, topic.name, topic.partition_indexes)
                for topic in asked.topics
            ]
        return OffsetFetchResponseGroup(asked.group_id, topics)

    def _single(self) -> Steps[OffsetFetchResponse]:
        group_id, topics = self._message.group_id, self._message.topics
        error = self._check(group_id, None, -1)
        if topics is None:
            found = [] if error is not ErrorCode.NONE else (yield from self._all(group_id, by_id=False))
        elif error is not ErrorCode.NONE:
            found = [
                OffsetFetchResponseTopics(
                    topic.name, ZERO_UUID, [_found(index, _NONE, error) for index in topic.partition_indexes]
                )
                for topic in topics
            ]
        else:
            found = [self._by_name(group_id, topic.name, topic.partition_indexes) for topic in topics]
        response = OffsetFetchResponse(
            error_code=error if self._version >= _FIRST_VERSION_WITH_GROUP_ERROR else ErrorCode.NONE
        )
        for topic in found:
            partitions: list[OffsetFetchResponsePartition] = []
            response.topics.append(OffsetFetchResponseTopic(topic.name, partitions))
            for of_group in topic.partitions:
                partitions.append(
                    OffsetFetchResponsePartition(
                        of_group.partition_index,
                        of_group.committed_offset,
                        of_group.committed_leader_epoch,
                        of_group.metadata,
                        of_group.error_code,
                    )
                )
                yield
            yield from freed_in_steps(topic)
        return response

    def _check(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Returns whether the client may fetch. An absent group has no offsets, which is not an error."""
        group = self._groups.by_id.get(group_id)
        return ErrorCode.NONE if group is None else group.check_offset_fetch(member_id, member_epoch)

    def _by_name(self, group_id: str, topic: str, indexes: Iterable[int]) -> OffsetFetchResponseTopics:
        found = [self._read(group_id, topic, index, ZERO_UUID) for index in indexes]
        return OffsetFetchResponseTopics(topic, ZERO_UUID, found)

    def _by_id(self, group_id: str, topic_id: UUID, indexes: Iterable[int]) -> OffsetFetchResponseTopics:
        name = self._groups.image.topic_names.get(topic_id)
        if name is None:
            unknown = [_found(index, _NONE, ErrorCode.UNKNOWN_TOPIC_ID) for index in indexes]
            return OffsetFetchResponseTopics("", topic_id, unknown)
        found = [self._read(group_id, name, index, topic_id) for index in indexes]
        return OffsetFetchResponseTopics(name, topic_id, found)

    def _read(self, group_id: str, topic: str, index: int, topic_id: UUID) -> OffsetFetchResponsePartitions:
        key = GroupPartition(group_id, topic, index)
        is_unstable = self._require_stable and self._table.is_unstable(key)
        return _of_topic(index, self._table.get(key) or _NONE, topic_id, is_unstable=is_unstable)

    def _all(self, group_id: str, *, by_id: bool) -> Steps[list[OffsetFetchResponseTopics]]:
        """Returns all of the group's offsets. With `by_id`, deleted topics are left out."""
        committed = list(self._table.of_group(group_id).items())
        unstable = self._table.unstable_partitions(group_id) if self._require_stable else frozenset()
        topics = self._groups.image.topics
        found: dict[str, OffsetFetchResponseTopics] = {}
        for partition, entry in committed:
            name, index = partition
            topic = found.get(name)
            if topic is None and (not by_id or name in topics):
                topic_id = topics[name].topic_id if by_id else ZERO_UUID
                topic = found[name] = OffsetFetchResponseTopics(name, topic_id, [])
            if topic is not None:
                topic.partitions.append(
                    _of_topic(index, entry.committed, topic.topic_id, is_unstable=partition in unstable)
                )
            yield
        return list(found.values())


def _of_topic(
    index: int, committed: CommittedOffset, topic_id: UUID, *, is_unstable: bool
) -> OffsetFetchResponsePartitions:
    """Returns the answer for an offset. It is not that of a deleted topic of the same name, which has another
    id. `topic_id` is ZERO_UUID if the client names the topic.
    """
    if is_unstable:
        return _found(index, _NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    if topic_id not in (committed.topic_id, ZERO_UUID) and committed.topic_id != ZERO_UUID:
        return _found(index, _NONE, ErrorCode.NONE)
    return _found(index, committed, ErrorCode.NONE)


def _found(index: int, committed: CommittedOffset, error: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        index, committed.offset, committed.leader_epoch, committed.metadata, error
    )
