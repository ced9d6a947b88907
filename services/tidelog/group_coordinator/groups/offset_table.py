"""All committed and pending offsets of a shard, their records, and their deletion.

If two commits of the same partition compete, the later one in the log wins. A transaction's offset counts
from the position where it was written, not from the position of the marker. So an older transactional
commit never replaces a later plain commit. Kafka's OffsetMetadataManager compares them in the same way.

Records have Kafka's format (`OffsetCommitKey`, `OffsetCommitValue`). The value has the oldest version that
can express it: 1 with its own retention time (OffsetCommit 2-4), 4 with a topic id, otherwise 3.

Many offsets are deleted in steps that each take a few milliseconds. The offsets of a deleted topic or group
are marked at once, and no longer found from then on. Their tombstones follow in several turns. A topic or
group of the same name may have new offsets before then. The marks do not apply to these, because they are
later in the log.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.group_coordinator.groups.shared import TimerKey, WhenDeleted
from tidelog.group_coordinator.shard_core import (
    CoordinatorRecord,
    Producer,
    ReplayedRecord,
    Reply,
    SetTimer,
    ShardDecision,
)
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.wire.codec import record_codec
from tidelog.wire.messages.records.legacy_offset_commit import LegacyOffsetCommitKey, LegacyOffsetCommitValue
from tidelog.wire.messages.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from tidelog.wire.primitives import uvarint
from tidelog.wire.schema import ZERO_UUID

REMEMBERED_MS: Final = 7 * 86_400_000
"""The time that a silent producer's epoch is kept; longer than on brokers (producer.id.expiration.ms)."""
NO_EXPIRY: Final = WallMs(-1)
"""The expiry time of an offset without its own retention time; offsets.retention.minutes applies to it."""
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


MAX_DELETED_AT_ONCE: Final = 250
"""The offsets that are deleted in one turn. All shards of a coordinator may have a turn at the same time."""
MAX_SOUGHT_AT_ONCE: Final = 2_500
"""The groups and offsets among which those to delete are sought in one turn."""
DELETIONS_TIMER: Final = TimerKey("offsets", "deletions")
DELETIONS_PAUSE_MS: Final = 20
"""The pause between two turns of a shard."""


def delete_keys(table: OffsetTable, keys: Iterable[GroupPartition], decision: ShardDecision) -> None:
    """Deletes all offsets of these keys, committed and pending, with their tombstones."""
    for key in sorted(keys):
        decision.records.append(offset_record(key, None))
        table.apply(key, None, None, WallMs(-1))


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
