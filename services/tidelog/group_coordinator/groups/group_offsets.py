"""OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete, the markers of transactions, and expiry.

Source: Kafka's `OffsetMetadataManager`; KIP-98 (transactions), KIP-211 (expiry), KIP-447 (transactional
commits by members), KIP-848.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.group_coordinator.groups.offset_table import (
    NO_EXPIRY,
    CommittedOffset,
    Deletions,
    GroupPartition,
    OffsetTable,
    delete_keys,
    offset_record,
    read_record,
)
from tidelog.group_coordinator.groups.shared import (
    Group,
    Groups,
    OffsetCommitter,
    TimerKey,
    WhenDeleted,
    answer,
)
from tidelog.group_coordinator.shard_core import (
    EndMarker,
    Producer,
    ReplayedRecord,
    Reply,
    ShardDecision,
    ShardRequest,
    described_within_bound,
    freed_in_steps,
)
from tidelog.kernel.instants import WallMs
from tidelog.kernel.steps import Steps
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
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
from tidelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
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

MAX_TIME_MS: Final = (1 << 63) - 1
"""The largest time that a record of an offset can contain. A client may ask for a retention beyond it."""
_FIRST_VERSION_BY_TOPIC_ID: Final = 10
_FIRST_VERSION_OF_MEMBER_EPOCHS: Final = 9
_FIRST_TRANSACTIONAL_VERSION_BY_TOPIC_ID: Final = 6
"""The first TxnOffsetCommit that names topics by id and states the errors of member epochs (KIP-1319)."""
_BUMPING_VERSION: Final = 2
"""The `transaction.version` from which each end of a transaction raises the epoch (KIP-890)."""
_FIRST_MULTI_GROUP_VERSION: Final = 8
_FIRST_VERSION_WITH_GROUP_ERROR: Final = 2
_NONE: Final = CommittedOffset(-1, -1, "", WallMs(-1))


class GroupOffsets:
    """The committed offsets of all groups of a shard."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._table = OffsetTable()
        self._deletions = Deletions(self._table)

    def commit(self, request: ShardRequest[OffsetCommitRequest], now_ms: WallMs) -> ShardDecision:
        decision = ShardDecision()
        message = request.message
        committer = _committer(request)
        error = _check_commit(self._groups, message.group_id, committer, decision)
        topics = self._topics(message.topics, by_id=request.api_version >= _FIRST_VERSION_BY_TOPIC_ID)
        retention_ms = message.retention_time_ms
        expire_ms = WallMs(min(now_ms + retention_ms, MAX_TIME_MS)) if retention_ms >= 0 else NO_EXPIRY
        found = _decide_commit(self._groups, message.group_id, committer, topics, error, now_ms, expire_ms)
        for key, committed in _last_of_each(found.commits):
            if self._table.is_marked(key):  # the tombstone must not follow the new offset
                self._decide(key, None, decision, now_ms)
            self._decide(key, committed, decision, now_ms)
        response = OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    topic.name or "",
                    topic.topic_id,
                    [OffsetCommitResponsePartition(index, error) for index, error in errors],
                )
                for topic, errors in found.results
            ]
        )
        decision.replies.append(Reply(request.reply_to, response))
        return decision

    def commit_in_transaction(
        self, request: ShardRequest[TxnOffsetCommitRequest], now_ms: WallMs
    ) -> ShardDecision:
        """Decides on a TxnOffsetCommit.

        The broker has verified with the transaction's coordinator that the transaction is open. A producer
        epoch older than the newest known one is rejected, as the append would be. While older offsets of
        these partitions are being deleted, the client gets an error after which it asks again: their
        tombstones cannot be part of a transaction.
        """
        decision = ShardDecision()
        message = request.message
        committer = _committer(request)
        producer = Producer(message.producer_id, message.producer_epoch)
        if producer.producer_epoch < self._table.newest_epoch(producer.producer_id):
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        else:
            error = _check_commit(self._groups, message.group_id, committer, decision)
        by_id = request.api_version >= _FIRST_TRANSACTIONAL_VERSION_BY_TOPIC_ID
        topics = self._topics(message.topics, by_id=by_id)
        if error is ErrorCode.NONE and self._has_marked(message.group_id, topics):
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        found = _decide_commit(self._groups, message.group_id, committer, topics, error, now_ms, NO_EXPIRY)
        if found.commits:
            decision.transaction = producer
        for key, committed in _last_of_each(found.commits):
            decision.records.append(offset_record(key, committed))
            self._table.apply(key, committed, producer, now_ms)
        response = TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    topic.name or "",
                    topic.topic_id,
                    [
                        TxnOffsetCommitResponsePartition(index, error if by_id else _error_before_v6(error))
                        for index, error in errors
                    ],
                )
                for topic, errors in found.results
            ]
        )
        decision.replies.append(Reply(request.reply_to, response))
        return decision

    def _has_marked(self, group_id: str, topics: list[_Topic]) -> bool:
        """Returns whether the deletion of offsets for some of these partitions is under way."""
        return self._table.has_marks and any(
            self._table.is_marked(GroupPartition(group_id, topic.name, partition.partition_index))
            for topic in topics
            if topic.name is not None
            for partition in topic.partitions
        )

    def _topics(
        self, topics: Sequence[OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic], *, by_id: bool
    ) -> list[_Topic]:
        """Returns the topics of a request, which names each by its id or by its name."""
        if not by_id:
            return [_Topic(topic.name, ZERO_UUID, topic.partitions) for topic in topics]
        names = self._groups.image.topic_names
        return [_Topic(names.get(topic.topic_id), topic.topic_id, topic.partitions) for topic in topics]

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
                    self._decide(key, None, decision, now_ms)
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

    def _decide(
        self, key: GroupPartition, committed: CommittedOffset | None, decision: ShardDecision, now_ms: WallMs
    ) -> None:
        decision.records.append(offset_record(key, committed))
        self._table.apply(key, committed, None, now_ms)


class _Topic(NamedTuple):
    """A topic of a commit request. The name is None if no topic has this id."""

    name: str | None
    topic_id: UUID
    partitions: Sequence[OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition]


def _error_before_v6(error: ErrorCode) -> ErrorCode:
    """Returns the error that a client of an older TxnOffsetCommit knows for a stale member epoch."""
    return ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.STALE_MEMBER_EPOCH else error


class _CommitResult(NamedTuple):
    """The offsets to commit, and the error of each requested partition."""

    commits: list[tuple[GroupPartition, CommittedOffset]]
    results: list[tuple[_Topic, list[tuple[int, ErrorCode]]]]


def _last_of_each(
    commits: list[tuple[GroupPartition, CommittedOffset]],
) -> Iterable[tuple[GroupPartition, CommittedOffset]]:
    """Returns the last commit of each partition, because a request may name a partition many times."""
    return commits if len(commits) == 1 else dict(commits).items()


def _committer(
    request: ShardRequest[OffsetCommitRequest] | ShardRequest[TxnOffsetCommitRequest],
) -> OffsetCommitter:
    message = request.message
    return OffsetCommitter(
        message.member_id,
        message.group_instance_id,
        message.generation_id_or_member_epoch,
        request.api_key,
        request.api_version,
        is_transactional=request.api_key == ApiKey.TXN_OFFSET_COMMIT,
    )


def _check_commit(
    groups: Groups, group_id: str, committer: OffsetCommitter, decision: ShardDecision
) -> ErrorCode:
    """Returns whether the client may commit. A commit without a generation does not need a group."""
    group = groups.by_id.get(group_id)
    if group is None:
        if committer.generation_or_epoch < 0:
            return ErrorCode.NONE
        first = (
            _FIRST_TRANSACTIONAL_VERSION_BY_TOPIC_ID
            if committer.is_transactional
            else _FIRST_VERSION_OF_MEMBER_EPOCHS
        )
        if committer.api_version < first:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.GROUP_ID_NOT_FOUND
    return group.check_commit(committer, decision)


def _decide_commit(
    groups: Groups,
    group_id: str,
    committer: OffsetCommitter,
    topics: list[_Topic],
    error: ErrorCode,
    now_ms: WallMs,
    expire_ms: WallMs,
) -> _CommitResult:
    """Checks each partition. An `error` other than NONE rejects all of them. The first offset of an absent
    group creates the group.
    """
    max_metadata_length = groups.settings.offset_metadata_max_bytes
    known_topics = groups.image.topics
    group = groups.by_id.get(group_id)
    check_partition = None if group is None else group.partition_commit_check(committer)
    found = _CommitResult([], [])
    for topic in topics:
        errors: list[tuple[int, ErrorCode]] = []
        found.results.append((topic, errors))
        name = topic.name
        known = None if name is None else known_topics.get(name)
        partition_count = 0 if known is None else known.partition_count
        for partition in topic.partitions:
            index = partition.partition_index
            metadata = partition.committed_metadata or ""
            refused = error
            if refused is ErrorCode.NONE:
                if name is None:
                    refused = ErrorCode.UNKNOWN_TOPIC_ID
                elif known is None or not 0 <= index < partition_count:
                    refused = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif len(metadata) > max_metadata_length:
                    refused = ErrorCode.OFFSET_METADATA_TOO_LARGE
                elif check_partition is not None:
                    refused = check_partition(known.topic_id, index)
            errors.append((index, refused))
            if refused is ErrorCode.NONE and name is not None:
                committed = CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    metadata,
                    now_ms,
                    expire_ms,
                    topic.topic_id,
                )
                found.commits.append((GroupPartition(group_id, name, index), committed))
    if found.commits and group is None:
        groups.new_simple_group(group_id, now_ms)
    return found


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
