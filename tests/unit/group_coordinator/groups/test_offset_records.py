"""Records of offsets have Kafka's format, whether encoded by hand or by the codec."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidelog.group_coordinator.groups.offset_commits import (
    CommittedOffset,
    GroupPartition,
    offset_record,
    read_record,
)
from tidelog.group_coordinator.shard_core import ReplayedRecord
from tidelog.wire.codec import record_codec
from tidelog.wire.messages.records.legacy_offset_commit import LegacyOffsetCommitKey, LegacyOffsetCommitValue
from tidelog.wire.messages.records.offset_commit import OffsetCommitKey, OffsetCommitValue

KEY = GroupPartition("grüppe", "a", 7)


@pytest.mark.parametrize(
    ("committed", "version"),
    [
        (CommittedOffset(5, 3, "", 1_000), 3),
        (CommittedOffset(2**40, -1, "wörds", 2**41), 3),
        (CommittedOffset(5, -1, "m", 1_000, 2_000), 1),
        (CommittedOffset(5, 3, "m", 1_000, -1, UUID(int=9)), 4),
        (CommittedOffset(2**40, -1, "wörds" * 30, 2**41, -1, UUID(int=2**127)), 4),
        (CommittedOffset(5, 3, "m", 1_000, -1, UUID(int=0)), 3),
    ],
)
def test_records_equal_those_of_the_codec(committed: CommittedOffset, version: int) -> None:
    record = offset_record(KEY, committed)
    assert record.key == record_codec(OffsetCommitKey).encode(OffsetCommitKey(*KEY))
    assert record.value == record_codec(OffsetCommitValue).encode(OffsetCommitValue(*committed), version)
    assert read_record(1, ReplayedRecord(*record, 0, None)) == (KEY, committed)
    tombstone = offset_record(KEY, None)
    assert tombstone == (record.key, None)
    assert read_record(1, ReplayedRecord(*tombstone, 0, None)) == (KEY, None)


def test_legacy_records_of_kafka() -> None:
    key = record_codec(LegacyOffsetCommitKey).encode(LegacyOffsetCommitKey(*KEY))
    value = record_codec(LegacyOffsetCommitValue).encode(LegacyOffsetCommitValue(5, "m", 1_000))
    expected = CommittedOffset(5, -1, "m", 1_000)
    assert read_record(0, ReplayedRecord(key, value, 0, None)) == (KEY, expected)
    assert read_record(0, ReplayedRecord(key, None, 0, None)) == (KEY, None)
