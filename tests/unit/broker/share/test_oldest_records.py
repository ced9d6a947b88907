"""The look-ups of the oldest records: at most one for each batch, and a bounded number in a scrape."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

import pytest

from tidelog.broker.log.directory_files import LogStorageError
from tidelog.broker.log.time_lookup import TimestampedOffset
from tidelog.broker.share import share_partitions
from tidelog.broker.share.share_partitions import OldestOffset, OldestRecords
from tidelog.model.topics import SharePartitionKey
from tidelog.records.batch import NO_TIMESTAMP


class BatchesOfTen:
    """A log of batches with ten records. The timestamp is the last offset."""

    def __init__(self) -> None:
        self.lookups = 0
        self.is_broken = False

    def batch_timestamp(self, offset: int) -> TimestampedOffset | None:
        self.lookups += 1
        if self.is_broken:
            raise LogStorageError("broken")
        last = offset // 10 * 10 + 9
        return TimestampedOffset(last, NO_TIMESTAMP if last == 99 else last, 0)


def key(partition: int) -> SharePartitionKey:
    return SharePartitionKey("group", UUID(int=1), partition)


def timestamps(
    records: OldestRecords, log: BatchesOfTen, *offsets: int, leader_epoch: int = 1
) -> dict[int, int]:
    oldest = {
        key(number): OldestOffset(cast(Any, log), leader_epoch, offset)
        for number, offset in enumerate(offsets)
    }
    return {found.partition: timestamp for found, timestamp in records.timestamps(oldest)}


def test_a_batch_is_looked_up_once() -> None:
    records, log = OldestRecords(), BatchesOfTen()
    assert timestamps(records, log, 3) == {0: 9}
    assert timestamps(records, log, 9) == {0: 9}
    assert log.lookups == 1
    assert timestamps(records, log, 10) == {0: 19}
    assert log.lookups == 2


def test_another_leader_epoch_and_an_earlier_offset_are_looked_up_again() -> None:
    records, log = OldestRecords(), BatchesOfTen()
    timestamps(records, log, 13)
    timestamps(records, log, 13, leader_epoch=2)
    assert log.lookups == 2
    assert timestamps(records, log, 2, leader_epoch=2) == {0: 9}


def test_batches_without_a_timestamp_and_broken_logs_have_no_age() -> None:
    records, log = OldestRecords(), BatchesOfTen()
    assert timestamps(records, log, 95) == {}
    log.is_broken = True
    assert timestamps(records, log, 5) == {}


def test_a_scrape_looks_up_a_limited_number_and_the_next_one_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share_partitions, "MAX_LOOKUPS", 2)
    records, log = OldestRecords(), BatchesOfTen()
    assert timestamps(records, log, 1, 1, 1) == {0: 9, 1: 9}
    assert timestamps(records, log, 1, 1, 1) == {0: 9, 1: 9, 2: 9}
    assert timestamps(records, log, 11, 11, 11) == {0: 19, 1: 19}
    assert timestamps(records, log, 21, 21, 21) == {2: 29, 0: 29}
