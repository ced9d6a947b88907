"""New segments begin when they must, and index entries are where Kafka puts them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from brokerlab.logs import append, append_batches, files, make_batch, open_log, read_all
from tidelog.broker.log.log_config import LogConfig
from tidelog.model.errors import ErrorCode, KafkaError


def bases(directory: Path) -> list[int]:
    return [int(path.stem) for path in files(directory, ".log")]


def test_roll_by_size(tmp_path: Path) -> None:
    size = len(make_batch(0))
    log = open_log(tmp_path, LogConfig(segment_bytes=3 * size))
    batches = append_batches(log, 8)
    assert bases(tmp_path) == [0, 3, 6]
    assert [segment.size_bytes for segment in log.segments] == [3 * size, 3 * size, 2 * size]
    assert read_all(log) == batches


def test_a_batch_over_segment_bytes_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=100))
    with pytest.raises(KafkaError) as refusal:
        append(log, make_batch(0, value_bytes=100))
    assert refusal.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.log_end_offset == 0


def test_roll_by_timestamps_of_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_ms=100))
    for offset, timestamp in enumerate([1000, 1100, 1101, 1150, 900, 1202]):
        append(log, make_batch(offset, timestamp=timestamp), now_ms=5_000_000)
    assert bases(tmp_path) == [0, 2, 5]


def test_roll_by_age_if_batches_have_no_timestamp(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_ms=100), now_ms=1000)
    for offset, now_ms in enumerate([1000, 1100, 1101, 1102]):
        append(log, make_batch(offset, timestamp=-1), now_ms)
    assert bases(tmp_path) == [0, 2]


def test_jitter_brings_the_roll_forward_by_less_than_its_limit(tmp_path: Path) -> None:
    rolled_after = set()
    for partition in range(20):
        directory = tmp_path / f"t-{partition}"
        log = open_log(directory, LogConfig(segment_ms=1000, segment_jitter_ms=500))
        for offset in range(110):
            append(log, make_batch(offset, timestamp=10 * offset))
        rolled_after.add(10 * bases(directory)[1])
        log.close()
    assert len(rolled_after) > 5
    assert 500 <= min(rolled_after) <= max(rolled_after) <= 1010


def test_roll_when_the_index_is_full(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_index_bytes=60, index_interval_bytes=0))
    batches = append_batches(log, 12)
    assert bases(tmp_path) == [0, 5, 10]
    assert read_all(log) == batches


def test_roll_when_an_offset_is_too_far_from_the_first(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    offsets = [0, 2**31 - 1, 2**31, 2**40]
    for offset in offsets:
        append(log, make_batch(offset))
    assert bases(tmp_path) == [0, 2**31, 2**40]
    assert len(read_all(log)) == 4


def test_an_empty_segment_is_replaced_if_its_base_offset_does_not_fit(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, make_batch(2**33))
    assert bases(tmp_path) == [2**33]


def test_settings_may_change_at_any_time(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_batches(log, 3)
    log.config = LogConfig(segment_bytes=100)
    append_batches(log, 2)
    assert bases(tmp_path) == [0, 3, 4]


def test_index_entries(tmp_path: Path) -> None:
    """A batch gets an entry if more than `index.interval.bytes` were appended since the last entry.

    This is the rule of Kafka's LogSegment.
    """
    size = len(make_batch(0))
    log = open_log(tmp_path, LogConfig(index_interval_bytes=2 * size))
    for offset, timestamp in enumerate([10, 30, 20, 20, 20, 25, 40, 41, 42]):
        append(log, make_batch(offset, timestamp=timestamp))
    log.close()
    index = files(tmp_path, ".index")[0].read_bytes()
    assert list(struct.iter_unpack(">ii", index)) == [(3, 3 * size), (6, 6 * size)]
    time_index = files(tmp_path, ".timeindex")[0].read_bytes()
    assert list(struct.iter_unpack(">qi", time_index)) == [(30, 1), (40, 6), (42, 8)]


def test_a_finished_segment_keeps_its_greatest_timestamp(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=8 * len(make_batch(0)), index_interval_bytes=300)
    log = open_log(tmp_path, config)
    for offset in range(12):
        append(log, make_batch(offset, timestamp=1000 + offset))
    before = [(segment.max_timestamp, segment.offset_of_max_timestamp) for segment in log.segments]
    log.close()
    indexes = [path.read_bytes() for path in files(tmp_path, "index")]
    again = open_log(tmp_path, config, clean=True)
    assert [(segment.max_timestamp, segment.offset_of_max_timestamp) for segment in again.segments] == before
    assert [path.read_bytes() for path in files(tmp_path, "index")] == indexes, "no index was rebuilt"
    assert before == [(1007, 7), (1011, 11)]


def test_each_later_segment_begins_with_a_producer_snapshot(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=100))
    append_batches(log, 3)
    assert [path.name for path in files(tmp_path, ".snapshot")] == [
        f"{1:020d}.snapshot",
        f"{2:020d}.snapshot",
    ]
