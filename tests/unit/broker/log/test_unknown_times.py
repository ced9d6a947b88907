"""Batches whose header has no right greatest timestamp, as older brokers stored them, are never old."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from brokerlab.logs import OwnedLog, append, make_batch, open_log
from tidelog.broker.log.log_config import LogConfig, segments_with_unread_times
from tidelog.records.batch import assemble_batch, parse_header, set_log_append_time

NOW_MS = 1_700_000_000_000
WEEK_MS = 7 * 86_400_000
SIZE = len(make_batch(0))
CONFIG = LogConfig(segment_bytes=2 * SIZE, index_interval_bytes=0, retention_ms=WEEK_MS)


def without_max(batch: bytes, max_timestamp: int) -> bytes:
    """Returns the batch with a wrong greatest timestamp and a right CRC."""
    return bytes(assemble_batch(parse_header(batch)._replace(max_timestamp=max_timestamp), batch[61:]))


def append_one(log: OwnedLog, timestamp: int, max_timestamp: int | None = None) -> None:
    batch = make_batch(log.log_end_offset, timestamp=timestamp)
    append(log, batch if max_timestamp is None else without_max(batch, max_timestamp), NOW_MS)


def received(log: OwnedLog, timestamp: int, max_timestamp: int) -> None:
    batch = without_max(make_batch(log.log_end_offset, timestamp=timestamp), max_timestamp)
    log.append_received(memoryview(batch), [parse_header(batch)], NOW_MS)


@pytest.mark.parametrize("max_timestamp", [-1, 0, NOW_MS - 1])
@pytest.mark.parametrize("is_received", [False, True])
def test_records_of_a_wrong_header_are_found_by_their_times(
    tmp_path: Path, max_timestamp: int, is_received: bool
) -> None:
    log = open_log(tmp_path, CONFIG)
    for number in range(6):
        if is_received:
            received(log, NOW_MS + number, max_timestamp)
        else:
            append_one(log, NOW_MS + number, max_timestamp)
    for _ in range(2):
        for number in range(6):
            found = log.offset_for_timestamp(NOW_MS + number)
            assert found is not None
            assert found[:2] == (number, NOW_MS + number)
        assert log.offset_for_timestamp(NOW_MS + 6) is None
        assert log.batch_timestamp(3)[1] == -1  # type: ignore[index]
        log.close()
        log = open_log(tmp_path, CONFIG, clean=True)


def test_a_time_index_of_an_older_broker_hides_no_record(tmp_path: Path) -> None:
    log = open_log(tmp_path, CONFIG)
    for number in range(4):
        append_one(log, NOW_MS + number, 0)
    log.close()
    for base_offset in (0, 2):
        (tmp_path / f"{base_offset:020d}.timeindex").write_bytes(struct.pack(">qi", 0, 0))
    log = open_log(tmp_path, CONFIG, clean=True)
    for number in range(4):
        assert log.offset_for_timestamp(NOW_MS + number)[:2] == (number, NOW_MS + number)  # type: ignore[index]


@pytest.mark.parametrize("max_timestamp", [-1, 0])
def test_retention_counts_unknown_times_from_the_last_append(tmp_path: Path, max_timestamp: int) -> None:
    log = open_log(tmp_path, CONFIG, now_ms=NOW_MS)
    for _ in range(6):
        append_one(log, NOW_MS, max_timestamp)
    assert log.delete_old_segments(NOW_MS + WEEK_MS, 6) == 0
    assert log.delete_old_segments(NOW_MS + WEEK_MS + 1, 6) == 3


def test_an_unknown_time_beside_an_old_one_keeps_the_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, CONFIG, now_ms=NOW_MS)
    append_one(log, NOW_MS - 2 * WEEK_MS)
    append_one(log, NOW_MS, max_timestamp=-1)
    append_one(log, NOW_MS)
    assert log.delete_old_segments(NOW_MS + WEEK_MS, 3) == 0
    assert log.delete_old_segments(NOW_MS + WEEK_MS + 1, 3) == 2


@pytest.mark.parametrize("second_max", [None, -1])
def test_after_a_start_retention_reads_the_headers_of_segments_that_only_look_old(
    tmp_path: Path, second_max: int | None
) -> None:
    log = open_log(tmp_path, CONFIG, now_ms=NOW_MS)
    append_one(log, NOW_MS - 2 * WEEK_MS)
    append_one(log, NOW_MS - 2 * WEEK_MS, second_max)
    append_one(log, NOW_MS)
    log.close()
    for segment in tmp_path.glob("*.log"):
        os.utime(segment, ns=(NOW_MS * 1_000_000, NOW_MS * 1_000_000))
    log = open_log(tmp_path, CONFIG, now_ms=NOW_MS, clean=True)
    assert log.delete_old_segments(NOW_MS, 3) == 0, "nobody knows yet"
    unread = segments_with_unread_times(log.segments, CONFIG, NOW_MS)
    assert [segment.base_offset for segment in unread] == [0]
    for segment in unread:
        segment.learn_unknown_times(segment.read_unknown_times())
    assert segments_with_unread_times(log.segments, CONFIG, NOW_MS) == []
    assert log.delete_old_segments(NOW_MS, 3) == (1 if second_max is None else 0)


def test_a_segment_that_was_written_last_long_ago_needs_no_reading(tmp_path: Path) -> None:
    log = open_log(tmp_path, CONFIG, now_ms=NOW_MS)
    for _ in range(3):
        append_one(log, NOW_MS)
    log.close()
    for segment in tmp_path.glob("*.log"):
        os.utime(segment, ns=(NOW_MS * 1_000_000, NOW_MS * 1_000_000))
    log = open_log(tmp_path, CONFIG, now_ms=NOW_MS, clean=True)
    later_ms = NOW_MS + WEEK_MS + 1
    assert segments_with_unread_times(log.segments, CONFIG, later_ms) == []
    assert log.delete_old_segments(later_ms, 3) == 2


def test_a_time_of_the_broker_is_known_whatever_the_client_wrote(tmp_path: Path) -> None:
    log = open_log(tmp_path, CONFIG)
    batch = bytearray(make_batch(0, timestamp=NOW_MS + WEEK_MS))
    header = set_log_append_time(batch, parse_header(batch), 0, NOW_MS)  # type: ignore[arg-type]
    append(log, bytes(batch), NOW_MS)
    assert header.max_timestamp < header.base_timestamp
    assert log.batch_timestamp(0)[1] == NOW_MS  # type: ignore[index]
    assert log.offset_for_timestamp(NOW_MS)[:2] == (0, NOW_MS)  # type: ignore[index]
    assert log.offset_for_timestamp(NOW_MS + 1) is None
