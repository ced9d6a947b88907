"""Records of offsets are Kafka's, whether written by hand or by the codec."""

from __future__ import annotations

from uuid import UUID

import pytest
from tidelog.group_coordinator.groups.offsets.offset_records import (
    CommittedOffset,
    Position,
    read_record,
    record_of,
)
from tidelog.group_coordinator.shard_core import ReplayedRecord
from tidelog.wire.codec import record_codec
from tidelog.wire.messages.records.legacy_offset_commit import LegacyOffsetCommitKey, LegacyOffsetCommitValue
from tidelog.wire.messages.records.offset_commit import OffsetCommitKey, OffsetCommitValue

POSITION = Position("grüppe", "a", 7)


@pytest.mark.parametrize(
    ("committed", "version"),
    [
        (CommittedOffset(5, 3, "", 1_000), 3),
        (CommittedOffset(2**40, -1, "wörds", 2**41), 3),
        (CommittedOffset(5, -1, "m", 1_000, 2_000), 1),
        (CommittedOffset(5, 3, "m", 1_000, -1, UUID(int=9)), 4),
    ],
)
def test_as_the_codec_writes_them(committed: CommittedOffset, version: int) -> None:
    record = record_of(POSITION, committed)
    assert record.key == record_codec(OffsetCommitKey).encode(OffsetCommitKey(*POSITION))
    assert record.value == record_codec(OffsetCommitValue).encode(OffsetCommitValue(*committed), version)
    assert read_record(1, ReplayedRecord(*record, 0, None)) == (POSITION, committed)
    tombstone = record_of(POSITION, None)
    assert tombstone == (record.key, None)
    assert read_record(1, ReplayedRecord(*tombstone, 0, None)) == (POSITION, None)


def test_what_kafka_wrote_long_ago() -> None:
    key = record_codec(LegacyOffsetCommitKey).encode(LegacyOffsetCommitKey(*POSITION))
    value = record_codec(LegacyOffsetCommitValue).encode(LegacyOffsetCommitValue(5, "m", 1_000))
    expected = CommittedOffset(5, -1, "m", 1_000)
    assert read_record(0, ReplayedRecord(key, value, 0, None)) == (POSITION, expected)
    assert read_record(0, ReplayedRecord(key, None, 0, None)) == (POSITION, None)
