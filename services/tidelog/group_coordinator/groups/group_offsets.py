"""OffsetFetch, OffsetDelete, the markers of transactions for pending offsets, the deletion of topics and
groups, and the expiry of offsets.

Source: Kafka's `OffsetMetadataManager`; KIP-98 (transactions), KIP-211 (expiry), KIP-848.

Many offsets are deleted in steps that each take a few milliseconds (`Deletions`): they are marked at once,
and their tombstones follow in several turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Final
from uuid import UUID

from tidelog.group_coordinator.groups.offset_commits import (
    FIRST_VERSION_BY_TOPIC_ID,
    CommittedOffset,
    GroupPartition,
    OffsetTable,
    delete_keys,
    read_record,
)
from tidelog.group_coordinator.groups.shared import (
    Group,
    Groups,
    TimerKey,
    WhenDeleted,
    answer,
)
from tidelog.group_coordinator.shard_core import (
    EndMarker,
    Producer,
    ReplayedRecord,
    Reply,
    SetTimer,
    ShardDecision,
    ShardRequest,
    described_within_bound,
    freed_in_steps,
)
from tidelog.kernel.instants import WallMs
from tidelog.kernel.steps import Steps
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
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
from tidelog.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidelog.wire.schema import ZERO_UUID

_BUMPING_VERSION: Final = 2
"""The `transaction.version` from which each end of a transaction raises the epoch (KIP-890)."""
_FIRST_MULTI_GROUP_VERSION: Final = 8
_FIRST_VERSION_WITH_GROUP_ERROR: Final = 2
MAX_DELETED_AT_ONCE: Final = 250
"""The offsets that are deleted in one turn. All shards of a coordinator may have a turn at the same time."""
MAX_SOUGHT_AT_ONCE: Final = 2_500
"""The groups and offsets among which those to delete are sought in one turn."""
DELETIONS_TIMER: Final = TimerKey("offsets", "deletions")
DELETIONS_PAUSE_MS: Final = 20
"""The pause between two turns of a shard."""
_NONE: Final = CommittedOffset(-1, -1, "", WallMs(-1))


class GroupOffsets:
    """The committed offsets of all groups of a shard."""

    def __init__(self, groups: Groups, table: OffsetTable) -> None:
        self._groups = groups
        self._table = table
        self._deletions = Deletions(self._table)

    def fetch(self, request: ShardRequest[OffsetFetchRequest], now_ms: WallMs) -> ShardDecision:
        return answer(request, OffsetFetching(self._groups, self._table, request).steps())

    def delete(self, request: ShardRequest[OffsetDeleteRequest], now_ms: WallMs) -> ShardDecision:
        message = request.message
        group = self._groups.by_id.get(message.group_id)
        if not message.group_id:
            error = ErrorCode.INVALID_GROUP_ID
        else:
            error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else group.check_offset_delete()
        if group is None or error is not ErrorCode.NONE:
            return answer(request, OffsetDeleteResponse(error_code=error))
        decision = ShardDecision()
        topics = []
        for topic in message.topics:
            is_subscribed = group.is_subscribed_to(topic.name)
            topic_error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed else ErrorCode.NONE
            results = []
            for partition in topic.partitions:
                key = GroupPartition(message.group_id, topic.name, partition.partition_index)
                if not self._groups.image.has_partition(topic.name, partition.partition_index):
                    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    results.append(OffsetDeleteResponsePartition(partition.partition_index, unknown))
                    continue
                if not is_subscribed and (self._table.get(key) or self._table.is_unstable(key)):
                    delete_keys(self._table, (key,), decision)
                results.append(OffsetDeleteResponsePartition(partition.partition_index, topic_error))
            topics.append(OffsetDeleteResponseTopic(topic.name, results))
        decision.replies.append(Reply(request.reply_to, OffsetDeleteResponse(topics=topics)))
        return decision

    def end_transactions(
        self, request: ShardRequest[WriteTxnMarkersRequest], now_ms: WallMs
    ) -> ShardDecision:
        """Decides on WriteTxnMarkers for the shard's own partition, whose only writer is the shard."""
        decision = ShardDecision()
        results = []
        for marker in request.message.markers:
            error = self._end_transaction(marker, decision, now_ms)
            topics = [
                WritableTxnMarkerTopicResult(
                    topic.name,
                    [WritableTxnMarkerPartitionResult(index, error) for index in topic.partition_indexes],
                )
                for topic in marker.topics
            ]
            results.append(WritableTxnMarkerResult(marker.producer_id, topics))
        decision.replies.append(Reply(request.reply_to, WriteTxnMarkersResponse(results)))
        return decision

    def _end_transaction(
        self, marker: WritableTxnMarker, decision: ShardDecision, now_ms: WallMs
    ) -> ErrorCode:
        """Decides on one marker.

        A marker is written if it ends a transaction or has a newer epoch, so that late requests of the older
        epoch are rejected. A repeated marker changes nothing.
        """
        producer = Producer(marker.producer_id, marker.producer_epoch)
        known_epoch = self._table.newest_epoch(producer.producer_id)
        is_open = self._table.has_open_transaction(producer.producer_id)
        bumps = marker.transaction_version >= _BUMPING_VERSION
        if producer.producer_epoch < known_epoch or (
            producer.producer_epoch == known_epoch and is_open and bumps
        ):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if marker.coordinator_epoch < self._table.newest_coordinator_epoch(producer.producer_id):
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if not is_open and producer.producer_epoch == known_epoch:
            return ErrorCode.NONE
        if decision.marker is not None:
            # A decision holds one marker. The error makes the transaction's coordinator retry the others.
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        decision.marker = EndMarker(producer, marker.transaction_result, marker.coordinator_epoch)
        self._table.end(producer, marker.transaction_result, now_ms, marker.coordinator_epoch)
        return ErrorCode.NONE

    def has_offsets(self, group_id: str) -> bool:
        return self._table.has_offsets(group_id)

    def delete_group(self, group_id: str, decision: ShardDecision, done: WhenDeleted | None = None) -> bool:
        return self._deletions.group_deleted(group_id, done, decision)

    def deactivate(self) -> list[Reply]:
        return self._deletions.deactivate()

    def committed_partitions(self, group_id: str) -> list[TopicPartition]:
        return list(self._table.of_group(group_id))

    def expire(
        self, group: Group, partitions: Iterable[TopicPartition], now_ms: WallMs, decision: ShardDecision
    ) -> None:
        retention_ms = self._groups.settings.offsets_retention_minutes * 60_000
        expired = set()
        for partition in partitions:
            key = GroupPartition(group.group_id, *partition)
            entry = self._table.entry(key)
            if entry is None:
                continue  # deleted since the partitions were listed
            since_ms = group.offsets_expire_from(partition.topic, entry.committed.commit_timestamp_ms)
            if since_ms is None or since_ms < 0:  # not yet, or at an unknown time
                continue
            own_limit_ms = entry.committed.expire_timestamp_ms
            limit_ms = own_limit_ms if own_limit_ms >= 0 else since_ms + retention_ms
            if limit_ms <= now_ms and not self._table.is_unstable(key):
                expired.add(key)
        delete_keys(self._table, expired, decision)

    def forget_producers(self, now_ms: WallMs) -> None:
        """Forgets the producers that have been silent for long."""
        self._table.forget_producers(now_ms)

    def committed_offsets(self) -> Iterator[tuple[GroupPartition, CommittedOffset]]:
        """Returns all committed offsets, for the lag metrics."""
        return self._table.all()

    def replay(self, kind: int, record: ReplayedRecord, offset: int) -> None:
        """Applies a record of kind 0 or 1. Raises MalformedMessageError, UnsupportedVersionError."""
        key, committed = read_record(kind, record)
        self._table.apply(key, committed, record.transaction, record.timestamp_ms, offset)

    def replay_marker(self, producer: Producer, is_commit: bool) -> None:
        self._table.end(producer, is_commit, WallMs(-1))

    def activate(self, now_ms: WallMs) -> None:
        """Adds the groups that have offsets but no record of their own."""
        for group_id in sorted(set(self._table.group_ids()) - self._groups.by_id.keys()):
            self._groups.new_simple_group(group_id, now_ms)
        self._table.date_producers(now_ms)

    def topics_deleted(self, topics: Collection[str], decision: ShardDecision) -> None:
        """Deletes the offsets of deleted topics, a part of them later if they are many."""
        self._deletions.topics_deleted(topics, decision)

    def timer_fired(self, key: TimerKey, now_ms: WallMs) -> ShardDecision:
        """Deletes more offsets of deleted topics and groups."""
        decision = ShardDecision()
        self._deletions.go_on(decision)
        return decision


class _Sought:
    """A group among whose offsets the marked ones are sought."""

    __slots__ = ("done", "group_id", "partitions")

    def __init__(self, group_id: str, partitions: list[TopicPartition], done: WhenDeleted | None) -> None:
        self.group_id = group_id
        self.partitions = partitions
        """The partitions that are still to be looked at."""
        self.done = done


class Deletions:
    """The marked offsets of one shard, whose tombstones are to be written."""

    def __init__(self, table: OffsetTable) -> None:
        self._table = table
        self._sought: _Sought | None = None
        """The group that is looked through at present. There is one while a deletion is under way."""
        self._deleted_groups: deque[tuple[str, WhenDeleted | None]] = deque()
        self._round: deque[str] = deque()
        """The other groups that are looked through for offsets of deleted topics."""
        self._begins_again = False
        """Whether topics were deleted since the round through all groups began."""

    def topics_deleted(self, topics: Collection[str], decision: ShardDecision) -> None:
        """Deletes all offsets of these topics that there are now."""
        self._table.mark_topics(topics)
        self._begins_again = True
        if self._sought is None:
            self._sought = self._next()
            self.go_on(decision)

    def group_deleted(self, group_id: str, done: WhenDeleted | None, decision: ShardDecision) -> bool:
        """Deletes all offsets of a group that there are now.

        Returns False if the deletion takes more than this turn. `done` is called at its end then.
        """
        partitions = self._table.all_partitions_of(group_id)
        if not partitions or len(partitions) + len(decision.records) <= MAX_DELETED_AT_ONCE:
            delete_keys(
                self._table, [GroupPartition(group_id, *partition) for partition in partitions], decision
            )
            return True
        self._table.mark_group(group_id)
        self._deleted_groups.append((group_id, done))
        if self._sought is None:
            self._sought = self._next()
            self._set_timer(decision)
        return False

    def go_on(self, decision: ShardDecision) -> None:
        """Deletes some marked offsets."""
        looked_at = deleted = 0
        while self._sought and deleted < MAX_DELETED_AT_ONCE and looked_at < MAX_SOUGHT_AT_ONCE:
            group_id, partitions = self._sought.group_id, self._sought.partitions
            some = partitions[deleted - MAX_DELETED_AT_ONCE :]
            del partitions[deleted - MAX_DELETED_AT_ONCE :]
            keys = [GroupPartition(group_id, *partition) for partition in some]
            marked = [key for key in keys if self._table.is_marked(key)]
            delete_keys(self._table, marked, decision)
            deleted += len(marked)
            looked_at += 1 + len(some)
            if not partitions:
                if self._sought.done is not None:
                    decision.replies += self._sought.done(ErrorCode.NONE)
                self._sought = self._next()
        if self._sought is not None:
            self._set_timer(decision)
        else:
            self._table.forget_marks()

    def deactivate(self) -> list[Reply]:
        """Returns the replies that still wait. The next owner of the shard has the other offsets."""
        waiting = [done for _, done in self._deleted_groups]
        if self._sought is not None:
            waiting.append(self._sought.done)
        self._sought = None
        self._deleted_groups.clear()
        return [
            reply
            for done in waiting
            if done is not None
            for reply in done(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        ]

    def _next(self) -> _Sought | None:
        """Returns the next group to look through, or None at the end of all deletions."""
        done: WhenDeleted | None = None
        if self._deleted_groups:
            group_id, done = self._deleted_groups.popleft()
        else:
            if not self._round and self._begins_again:
                self._begins_again = False
                self._round.extend(self._table.group_ids())
            if not self._round:
                return None
            group_id = self._round.popleft()
        return _Sought(group_id, self._table.all_partitions_of(group_id), done)

    @staticmethod
    def _set_timer(decision: ShardDecision) -> None:
        decision.timers.append(SetTimer(DELETIONS_TIMER, DELETIONS_PAUSE_MS))


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
        by_id = self._version >= FIRST_VERSION_BY_TOPIC_ID
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
