"""The commits of offsets: OffsetCommit, TxnOffsetCommit, and the offsets of a shard with their records.

If two commits of the same partition compete, the later one in the log wins. A transaction's offset counts
from the position where it was written, not from the position of the marker. So an older transactional
commit never replaces a later plain commit. Kafka's OffsetMetadataManager compares them in the same way.
KIP-447 describes transactional commits by members.

Records have Kafka's format (`OffsetCommitKey`, `OffsetCommitValue`). The value has the oldest version that
can express it: 1 with its own retention time (OffsetCommit 2-4), 4 with a topic id, otherwise 3.

The offsets of a deleted topic or group are marked at once, and no longer found from then on. Their tombstones
follow later (`Deletions`). A topic or group of the same name may have new offsets before then. The marks do
not apply to these, because they are later in the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.group_coordinator.groups.shared import Groups, OffsetCommitter
from tidelog.group_coordinator.shard_core import (
    CoordinatorRecord,
    Producer,
    ReplayedRecord,
    Reply,
    ShardDecision,
    ShardRequest,
)
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import record_codec
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tidelog.wire.messages.records.legacy_offset_commit import LegacyOffsetCommitKey, LegacyOffsetCommitValue
from tidelog.wire.messages.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from tidelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tidelog.wire.primitives import uvarint
from tidelog.wire.schema import ZERO_UUID

REMEMBERED_MS: Final = 7 * 86_400_000
"""The time that a silent producer's epoch is kept; longer than on brokers (producer.id.expiration.ms)."""
NO_EXPIRY: Final = WallMs(-1)
"""The expiry time of an offset without its own retention time; offsets.retention.minutes applies to it."""
MAX_TIME_MS: Final = (1 << 63) - 1
"""The largest time that a record of an offset can contain. A client may ask for a retention beyond it."""
FIRST_VERSION_BY_TOPIC_ID: Final = 10
"""The first OffsetCommit and OffsetFetch that name topics by id."""
_FIRST_VERSION_OF_MEMBER_EPOCHS: Final = 9
_FIRST_TRANSACTIONAL_VERSION_BY_TOPIC_ID: Final = 6
"""The first TxnOffsetCommit that names topics by id and states the errors of member epochs (KIP-1319)."""
LEGACY_KIND: Final = 0
_KIND: Final = 1
_KEY_START: Final = struct.Struct(">hh")
_VALUE_START: Final = struct.Struct(">hqi")
_TOPIC_ID_TAG: Final = b"\x01\x00\x10"
"""One tagged field with tag 0 and 16 bytes (version 4)."""
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_KEY = record_codec(OffsetCommitKey)
_VALUE = record_codec(OffsetCommitValue)
_LEGACY_KEY = record_codec(LegacyOffsetCommitKey)
_LEGACY_VALUE = record_codec(LegacyOffsetCommitValue)


class GroupPartition(NamedTuple):
    """A group and a partition for which the group has committed an offset."""

    group_id: str
    topic: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class CommittedOffset(NamedTuple):
    """An offset that a group has committed for one partition."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: WallMs
    expire_timestamp_ms: WallMs = NO_EXPIRY
    topic_id: UUID = ZERO_UUID


class Entry(NamedTuple):
    """A committed offset and the position of its commit in the log."""

    committed: CommittedOffset
    log_position: int


class _ProducerState(NamedTuple):
    """The last known state of a producer."""

    epoch: int
    coordinator_epoch: int
    seen_ms: WallMs


_UNKNOWN: Final = _ProducerState(-1, -1, WallMs(-1))


class OffsetTable:
    """The state that offset records describe. Decided and replayed records change it in the same way."""

    def __init__(self) -> None:
        self._groups: Final[dict[str, dict[TopicPartition, Entry]]] = {}
        self._open: Final[dict[int, dict[GroupPartition, Entry]]] = {}
        """Pending offsets of open transactions by producer id. Deleting the offsets leaves an empty entry."""
        self._pending_of: Final[dict[str, dict[TopicPartition, set[int]]]] = {}
        """For each group and partition, the producers whose open transactions have a pending offset."""
        self._marked_topics: Final[dict[str, int]] = {}
        self._marked_groups: Final[dict[str, int]] = {}
        """Deleted topics and groups, each with the position in the log before which its offsets are deleted.
        These have no tombstones yet. Either all or none of the offsets of a key are marked.
        """
        self._producers: Final[dict[int, _ProducerState]] = {}
        self._next_log_position = 0

    def group_ids(self) -> list[str]:
        """Returns the groups with committed or pending offsets."""
        return [*self._groups, *(group_id for group_id in self._pending_of if group_id not in self._groups)]

    def of_group(self, group_id: str) -> dict[TopicPartition, Entry]:
        """Returns the group's committed offsets. The caller must not change the returned dict."""
        entries = self._groups.get(group_id, {})
        if not self.has_marks:
            return entries
        return {
            partition: entry
            for partition, entry in entries.items()
            if not self._is_deleted(group_id, partition.topic, entry)
        }

    def entry(self, key: GroupPartition) -> Entry | None:
        """Returns the committed offset, unless it is marked as deleted."""
        entry = self._groups.get(key.group_id, {}).get(key.topic_partition)
        return None if entry is None or self._is_deleted(key.group_id, key.topic, entry) else entry

    def get(self, key: GroupPartition) -> CommittedOffset | None:
        entry = self.entry(key)
        return None if entry is None else entry.committed

    def is_unstable(self, key: GroupPartition) -> bool:
        """Returns whether an open transaction has a pending offset for this partition."""
        is_pending = key.topic_partition in self._pending_of.get(key.group_id, ())
        return is_pending and not self.is_marked(key)

    def unstable_partitions(self, group_id: str) -> frozenset[TopicPartition]:
        """Returns the partitions for which an open transaction has a pending offset."""
        pending = frozenset(self._pending_of.get(group_id, ()))
        if not self.has_marks:
            return pending
        return frozenset(
            partition for partition in pending if not self.is_marked(GroupPartition(group_id, *partition))
        )

    def has_offsets(self, group_id: str) -> bool:
        """Returns whether the group has committed or pending offsets, also if they are marked as deleted."""
        return group_id in self._groups or group_id in self._pending_of

    def all(self) -> Iterator[tuple[GroupPartition, CommittedOffset]]:
        """Yields the offsets of each group as they are when the iteration reaches the group. They may change
        meanwhile.
        """
        for group_id in list(self._groups):
            for (topic, partition), entry in list(self.of_group(group_id).items()):
                yield GroupPartition(group_id, topic, partition), entry.committed

    def all_partitions_of(self, group_id: str) -> list[TopicPartition]:
        """Returns the partitions with committed, pending or marked offsets of the group."""
        committed, pending = self._groups.get(group_id, {}), self._pending_of.get(group_id, {})
        return [*committed, *(partition for partition in pending if partition not in committed)]

    def has_open_transaction(self, producer_id: int) -> bool:
        return producer_id in self._open

    def newest_epoch(self, producer_id: int) -> int:
        return self._producers.get(producer_id, _UNKNOWN).epoch

    def newest_coordinator_epoch(self, producer_id: int) -> int:
        """Returns the coordinator epoch of the producer's newest marker since the shard was loaded."""
        return self._producers.get(producer_id, _UNKNOWN).coordinator_epoch

    def apply(
        self,
        key: GroupPartition,
        committed: CommittedOffset | None,
        producer: Producer | None,
        now_ms: WallMs,
        log_position: int | None = None,
    ) -> None:
        """Applies one record. `committed` is None for a tombstone.

        `log_position` is the record's offset while the log is replayed.
        """
        if log_position is None:
            log_position = self._next_log_position
        self._next_log_position = log_position + 1
        if producer is not None:
            self._note_producer(producer, now_ms)
            pending = self._open.setdefault(producer.producer_id, {})
            if committed is not None:
                if key not in pending:
                    partitions = self._pending_of.setdefault(key.group_id, {})
                    partitions.setdefault(key.topic_partition, set()).add(producer.producer_id)
                pending[key] = Entry(committed, log_position)
        elif committed is not None:
            self._put(key, Entry(committed, log_position))
        else:
            self._delete(key)

    def end(self, producer: Producer, is_commit: bool, now_ms: WallMs, coordinator_epoch: int = -1) -> None:
        """Applies a marker, whether or not the transaction has offsets here."""
        self._note_producer(producer, now_ms, coordinator_epoch)
        for key, entry in self._open.pop(producer.producer_id, {}).items():
            self._forget_pending(key, producer.producer_id)
            if is_commit:
                existing = self._groups.get(key.group_id, {}).get(key.topic_partition)
                if existing is None or existing.log_position < entry.log_position:
                    self._put(key, entry)

    def date_producers(self, now_ms: WallMs) -> None:
        """Dates every producer to `now_ms` after loading, because replayed markers have no time."""
        for producer_id, known in self._producers.items():
            self._producers[producer_id] = known._replace(seen_ms=now_ms)

    def forget_producers(self, now_ms: WallMs) -> None:
        """Drops the producers that have been silent for REMEMBERED_MS and have no open transaction."""
        silent = [
            producer_id
            for producer_id, known in self._producers.items()
            if now_ms - known.seen_ms > REMEMBERED_MS and producer_id not in self._open
        ]
        for producer_id in silent:
            del self._producers[producer_id]

    @property
    def has_marks(self) -> bool:
        return bool(self._marked_topics or self._marked_groups)

    def mark_topics(self, topics: Iterable[str]) -> None:
        """Marks the offsets of these topics as deleted."""
        self._marked_topics.update(dict.fromkeys(topics, self._next_log_position))

    def mark_group(self, group_id: str) -> None:
        """Marks the offsets of the group as deleted."""
        self._marked_groups[group_id] = self._next_log_position

    def forget_marks(self) -> None:
        """Forgets all marks, because all marked offsets have tombstones."""
        self._marked_topics.clear()
        self._marked_groups.clear()

    def is_marked(self, key: GroupPartition) -> bool:
        """Returns whether there are offsets of this key that are marked as deleted."""
        if key.topic not in self._marked_topics and key.group_id not in self._marked_groups:
            return False
        partition = key.topic_partition
        entry = self._groups.get(key.group_id, {}).get(partition)
        for producer_id in self._pending_of.get(key.group_id, {}).get(partition, ()):
            entry = self._open[producer_id][key]
            break  # the others are marked in the same way
        return entry is not None and self._is_deleted(key.group_id, key.topic, entry)

    def _is_deleted(self, group_id: str, topic: str, entry: Entry) -> bool:
        position = entry.log_position
        return position < self._marked_topics.get(topic, -1) or position < self._marked_groups.get(
            group_id, -1
        )

    def _note_producer(self, producer: Producer, now_ms: WallMs, coordinator_epoch: int = -1) -> None:
        producer_id, epoch = producer
        newest = max(coordinator_epoch, self.newest_coordinator_epoch(producer_id))
        self._producers[producer_id] = _ProducerState(epoch, newest, now_ms)

    def _put(self, key: GroupPartition, entry: Entry) -> None:
        self._groups.setdefault(key.group_id, {})[key.topic_partition] = entry

    def _delete(self, key: GroupPartition) -> None:
        """Deletes an offset, and its pending offsets, so that no transaction's end restores the offset."""
        group = self._groups.get(key.group_id)
        if group is not None:
            group.pop(key.topic_partition, None)
            if not group:
                del self._groups[key.group_id]
        for producer_id in list(self._pending_of.get(key.group_id, {}).get(key.topic_partition, ())):
            del self._open[producer_id][key]
            self._forget_pending(key, producer_id)

    def _forget_pending(self, key: GroupPartition, producer_id: int) -> None:
        partitions = self._pending_of.get(key.group_id, {})
        producers = partitions.get(key.topic_partition, set())
        producers.discard(producer_id)
        if not producers and partitions.pop(key.topic_partition, None) is not None and not partitions:
            del self._pending_of[key.group_id]


def offset_record(key: GroupPartition, committed: CommittedOffset | None) -> CoordinatorRecord:
    """Returns the record of a committed offset, or a tombstone if `committed` is None."""
    group_id, topic = key.group_id.encode(), key.topic.encode()
    key_bytes = b"".join(
        (
            _KEY_START.pack(_KIND, len(group_id)),
            group_id,
            _INT16.pack(len(topic)),
            topic,
            _INT32.pack(key.partition),
        )
    )
    if committed is None:
        return CoordinatorRecord(key_bytes, None)
    if committed.expire_timestamp_ms >= 0:
        return CoordinatorRecord(key_bytes, _VALUE.encode(OffsetCommitValue(*committed), 1))
    # Every commit of a present client takes these branches. Packing by hand is faster than the codec.
    metadata, time_bytes = committed.metadata.encode(), _INT64.pack(committed.commit_timestamp_ms)
    offset, leader_epoch, topic_id = committed.offset, committed.leader_epoch, committed.topic_id
    if topic_id is ZERO_UUID or topic_id == ZERO_UUID:
        start = _VALUE_START.pack(3, offset, leader_epoch) + _INT16.pack(len(metadata))
        return CoordinatorRecord(key_bytes, b"".join((start, metadata, time_bytes)))
    start = _VALUE_START.pack(4, offset, leader_epoch) + uvarint(len(metadata) + 1)
    value = b"".join((start, metadata, time_bytes, _TOPIC_ID_TAG, topic_id.bytes))
    return CoordinatorRecord(key_bytes, value)


def read_record(kind: int, record: ReplayedRecord) -> tuple[GroupPartition, CommittedOffset | None]:
    """Decodes a record of kind 0 or 1. Raises MalformedMessageError, UnsupportedVersionError."""
    if kind == LEGACY_KIND:
        legacy_key = _LEGACY_KEY.decode(record.key)
        key = GroupPartition(legacy_key.group, legacy_key.topic, legacy_key.partition)
        if record.value is None:
            return key, None
        legacy = _LEGACY_VALUE.decode(record.value)
        return key, CommittedOffset(legacy.offset, -1, legacy.metadata, WallMs(legacy.commit_timestamp))
    named = _KEY.decode(record.key)
    key = GroupPartition(named.group, named.topic, named.partition)
    if record.value is None:
        return key, None
    value = _VALUE.decode(record.value)
    return key, CommittedOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        WallMs(value.commit_timestamp),
        WallMs(value.expire_timestamp),
        value.topic_id,
    )


def delete_keys(table: OffsetTable, keys: Iterable[GroupPartition], decision: ShardDecision) -> None:
    """Deletes all offsets of these keys, committed and pending, with their tombstones."""
    for key in sorted(keys):
        decision.records.append(offset_record(key, None))
        table.apply(key, None, None, WallMs(-1))


class OffsetCommits:
    """The handler of OffsetCommit and TxnOffsetCommit."""

    def __init__(self, groups: Groups, table: OffsetTable) -> None:
        self._groups = groups
        self._table = table

    def commit(self, request: ShardRequest[OffsetCommitRequest], now_ms: WallMs) -> ShardDecision:
        decision = ShardDecision()
        asked = _Commit(self._groups, request, by_id=request.api_version >= FIRST_VERSION_BY_TOPIC_ID)
        error = asked.error_of_client(decision)
        retention_ms = request.message.retention_time_ms
        expire_ms = WallMs(min(now_ms + retention_ms, MAX_TIME_MS)) if retention_ms >= 0 else NO_EXPIRY
        for key, committed in asked.decide(error, now_ms, expire_ms):
            if self._table.is_marked(key):  # the tombstone must not follow the new offset
                delete_keys(self._table, (key,), decision)
            decision.records.append(offset_record(key, committed))
            self._table.apply(key, committed, None, now_ms)
        response = OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    topic.name or "",
                    topic.topic_id,
                    [OffsetCommitResponsePartition(index, error) for index, error in topic.errors],
                )
                for topic in asked.topics
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
        by_id = request.api_version >= _FIRST_TRANSACTIONAL_VERSION_BY_TOPIC_ID
        asked = _Commit(self._groups, request, by_id=by_id)
        producer = Producer(request.message.producer_id, request.message.producer_epoch)
        if producer.producer_epoch < self._table.newest_epoch(producer.producer_id):
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        else:
            error = asked.error_of_client(decision)
        table = self._table
        if error is ErrorCode.NONE and table.has_marks and any(map(table.is_marked, asked.keys())):
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        for key, committed in asked.decide(error, now_ms, NO_EXPIRY):
            decision.transaction = producer
            decision.records.append(offset_record(key, committed))
            self._table.apply(key, committed, producer, now_ms)
        response = TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    topic.name or "",
                    topic.topic_id,
                    [
                        TxnOffsetCommitResponsePartition(index, error if by_id else _error_before_v6(error))
                        for index, error in topic.errors
                    ],
                )
                for topic in asked.topics
            ]
        )
        decision.replies.append(Reply(request.reply_to, response))
        return decision


def _error_before_v6(error: ErrorCode) -> ErrorCode:
    """Returns the error that a client of an older TxnOffsetCommit knows for a stale member epoch."""
    return ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.STALE_MEMBER_EPOCH else error


class _Topic(NamedTuple):
    """A topic of a commit. The name is None if no topic has this id."""

    name: str | None
    topic_id: UUID
    partitions: Sequence[OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition]
    errors: list[tuple[int, ErrorCode]]
    """The error of each partition, which `decide` adds."""


class _Commit:
    """One request of either API, and the checks that both have in common.

    A request names each topic by its id or by its name.
    """

    __slots__ = ("_committer", "_group_id", "_groups", "topics")

    def __init__(
        self,
        groups: Groups,
        request: ShardRequest[OffsetCommitRequest] | ShardRequest[TxnOffsetCommitRequest],
        *,
        by_id: bool,
    ) -> None:
        message, names = request.message, groups.image.topic_names
        self._groups = groups
        self._group_id = message.group_id
        self._committer = OffsetCommitter(
            message.member_id,
            message.group_instance_id,
            message.generation_id_or_member_epoch,
            request.api_key,
            request.api_version,
            is_transactional=request.api_key == ApiKey.TXN_OFFSET_COMMIT,
        )
        self.topics = [
            _Topic(names.get(topic.topic_id), topic.topic_id, topic.partitions, [])
            if by_id
            else _Topic(topic.name, ZERO_UUID, topic.partitions, [])
            for topic in message.topics
        ]

    def keys(self) -> Iterator[GroupPartition]:
        """Returns the partitions to commit, without those of unknown topic ids."""
        for topic in self.topics:
            if topic.name is not None:
                for partition in topic.partitions:
                    yield GroupPartition(self._group_id, topic.name, partition.partition_index)

    def error_of_client(self, decision: ShardDecision) -> ErrorCode:
        """Returns whether the client may commit. A commit without a generation does not need a group."""
        group, committer = self._groups.by_id.get(self._group_id), self._committer
        if group is not None:
            return group.check_commit(committer, decision)
        if committer.generation_or_epoch < 0:
            return ErrorCode.NONE
        first = (
            _FIRST_TRANSACTIONAL_VERSION_BY_TOPIC_ID
            if committer.is_transactional
            else _FIRST_VERSION_OF_MEMBER_EPOCHS
        )
        return ErrorCode.ILLEGAL_GENERATION if committer.api_version < first else ErrorCode.GROUP_ID_NOT_FOUND

    def decide(
        self, error: ErrorCode, now_ms: WallMs, expire_ms: WallMs
    ) -> Iterable[tuple[GroupPartition, CommittedOffset]]:
        """Checks each partition, and returns the offsets to commit.

        An `error` other than NONE rejects all of them. The first offset of an absent group creates the group.
        A request may name a partition many times; its last offset counts.
        """
        groups, group_id = self._groups, self._group_id
        max_metadata_length = groups.settings.offset_metadata_max_bytes
        known_topics = groups.image.topics
        group = groups.by_id.get(group_id)
        check_partition = None if group is None else group.partition_commit_check(self._committer)
        commits: list[tuple[GroupPartition, CommittedOffset]] = []
        for topic in self.topics:
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
                topic.errors.append((index, refused))
                if refused is ErrorCode.NONE and name is not None:
                    committed = CommittedOffset(
                        partition.committed_offset,
                        partition.committed_leader_epoch,
                        metadata,
                        now_ms,
                        expire_ms,
                        topic.topic_id,
                    )
                    commits.append((GroupPartition(group_id, name, index), committed))
        if commits and group is None:
            groups.new_simple_group(group_id, now_ms)
        return commits if len(commits) == 1 else dict(commits).items()
