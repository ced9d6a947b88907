"""Records of committed offsets, in Kafka's format (`OffsetCommitKey`, `OffsetCommitValue`).

The value's version is the oldest that can say it: 1 with a retention of its own (OffsetCommit 2-4), 4 with a
topic id, else 3.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.group_coordinator.shard_core import CoordinatorRecord, ReplayedRecord
from tidelog.wire.codec import record_codec
from tidelog.wire.messages.records.legacy_offset_commit import LegacyOffsetCommitKey, LegacyOffsetCommitValue
from tidelog.wire.messages.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from tidelog.wire.schema import ZERO_UUID

LEGACY_KIND: Final = 0
_KIND: Final = 1
_KEY_START: Final = struct.Struct(">hh")
_VALUE_START: Final = struct.Struct(">hqih")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_KEY = record_codec(OffsetCommitKey)
_VALUE = record_codec(OffsetCommitValue)
_LEGACY_KEY = record_codec(LegacyOffsetCommitKey)
_LEGACY_VALUE = record_codec(LegacyOffsetCommitValue)


class Position(NamedTuple):
    """What an offset is committed for."""

    group_id: str
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    """-1: as long as offsets.retention.minutes say."""
    topic_id: UUID = ZERO_UUID


def record_of(position: Position, committed: CommittedOffset | None) -> CoordinatorRecord:
    """None makes it a tombstone."""
    group_id, topic = position.group_id.encode(), position.topic.encode()
    key = b"".join(
        (
            _KEY_START.pack(_KIND, len(group_id)),
            group_id,
            _INT16.pack(len(topic)),
            topic,
            _INT32.pack(position.partition),
        )
    )
    if committed is None:
        return CoordinatorRecord(key, None)
    if committed.expire_timestamp_ms < 0 and committed.topic_id is ZERO_UUID:  # nearly all: by hand
        metadata = committed.metadata.encode()
        value = b"".join(
            (
                _VALUE_START.pack(3, committed.offset, committed.leader_epoch, len(metadata)),
                metadata,
                _INT64.pack(committed.commit_timestamp_ms),
            )
        )
        return CoordinatorRecord(key, value)
    version = 3 if committed.topic_id == ZERO_UUID else 4
    if committed.expire_timestamp_ms >= 0:
        version = 1
    return CoordinatorRecord(key, _VALUE.encode(OffsetCommitValue(*committed), version))


def read_record(kind: int, record: ReplayedRecord) -> tuple[Position, CommittedOffset | None]:
    """Raises MalformedMessageError, UnsupportedVersionError."""
    if kind == LEGACY_KIND:
        key = _LEGACY_KEY.decode(record.key)
        position = Position(key.group, key.topic, key.partition)
        if record.value is None:
            return position, None
        legacy: LegacyOffsetCommitValue = _LEGACY_VALUE.decode(record.value)
        return position, CommittedOffset(legacy.offset, -1, legacy.metadata, legacy.commit_timestamp)
    named = _KEY.decode(record.key)
    position = Position(named.group, named.topic, named.partition)
    if record.value is None:
        return position, None
    value = _VALUE.decode(record.value)
    return position, CommittedOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        value.topic_id,
    )
