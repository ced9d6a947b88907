"""Retention by `retention.ms`, `retention.bytes` and DeleteRecords, and the delayed removal of the files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from brokerlab.logs import OwnedLog, append, append_batches, files, kill, make_batch, open_log, read_all
from tidelog.broker.log.log_config import LogConfig
from tidelog.model.errors import ErrorCode, KafkaError

SIZE = len(make_batch(0))
HOUR_MS = 3_600_000


@pytest.fixture
def make_log(tmp_path: Path) -> Callable[..., OwnedLog]:
    """A log of ten segments with one batch each; batch n has timestamp n * 1000."""

    def make(**config: object) -> OwnedLog:
        log = open_log(tmp_path, LogConfig(**{"segment_bytes": SIZE, "retention_ms": -1} | config))  # type: ignore[arg-type]
        for offset in range(10):
            append(log, make_batch(offset, timestamp=offset * 1000))
        return log

    return make


def test_retention_by_size(make_log: Callable[..., OwnedLog]) -> None:
    log = make_log(retention_bytes=4 * SIZE - 1)
    assert log.delete_old_segments(0, 10) == 6
    assert (log.log_start_offset, log.size_bytes) == (6, 4 * SIZE)
    log.config = LogConfig(retention_ms=-1, retention_bytes=3 * SIZE)
    assert log.delete_old_segments(0, 10) == 1
    assert log.size_bytes == 3 * SIZE


def test_retention_by_the_greatest_timestamp_of_a_segment(make_log: Callable[..., OwnedLog]) -> None:
    log = make_log(retention_ms=5000)
    assert log.delete_old_segments(8000, 10) == 3
    assert log.delete_old_segments(8000, 10) == 0
    assert log.delete_old_segments(9000, 10) == 1
    assert log.log_start_offset == 4


def test_a_young_segment_protects_the_older_ones_behind_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=SIZE, retention_ms=100))
    for offset, timestamp in enumerate([0, 5000, 0, 0]):
        append(log, make_batch(offset, timestamp=timestamp))
    assert log.delete_old_segments(1000, 4) == 1


def test_all_records_can_be_removed_and_offsets_continue(
    make_log: Callable[..., OwnedLog], tmp_path: Path
) -> None:
    log = make_log(retention_ms=1)
    assert log.delete_old_segments(HOUR_MS, 10) == 10
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (10, 10, 0)
    assert log.delete_old_segments(2 * HOUR_MS, 10) == 0, "the empty active segment stays"
    log.remove_deleted_files(2 * HOUR_MS)
    assert [path.name for path in files(tmp_path, ".log")] == [f"{10:020d}.log"]
    batches = append_batches(log, 2)
    assert read_all(log) == batches


def test_nothing_at_or_above_the_high_watermark_is_removed(make_log: Callable[..., OwnedLog]) -> None:
    log = make_log(retention_ms=1)
    assert log.delete_old_segments(HOUR_MS, 4) == 4
    assert log.log_start_offset == 4


def test_nothing_is_removed_without_limits(make_log: Callable[..., OwnedLog]) -> None:
    assert make_log().delete_old_segments(10**15, 10) == 0


def test_a_compacted_topic_loses_only_segments_below_the_log_start(
    make_log: Callable[..., OwnedLog],
) -> None:
    log = make_log(retention_ms=1, retention_bytes=1, cleanup_policy=frozenset({"compact"}))
    assert log.delete_old_segments(HOUR_MS, 10) == 0
    log.increment_log_start_offset(3)
    assert log.delete_old_segments(HOUR_MS, 10) == 3


def test_segments_without_timestamps_age_by_their_file(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=2 * SIZE, retention_ms=1000), now_ms=500)
    for offset in range(6):
        append(log, make_batch(offset, timestamp=-1), now_ms=500 + 600 * offset)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]
    assert log.delete_old_segments(2100, 6) == 0
    assert log.delete_old_segments(2101, 6) == 1


def test_delete_records_hides_at_once_and_frees_whole_segments_later(
    make_log: Callable[..., OwnedLog],
) -> None:
    log = make_log()
    assert log.increment_log_start_offset(4)
    assert not log.increment_log_start_offset(3)
    with pytest.raises(KafkaError) as refusal:
        log.read(3, 100, 10)
    assert refusal.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.size_bytes == 10 * SIZE
    assert log.delete_old_segments(0, 10) == 4
    assert log.size_bytes == 6 * SIZE
    with pytest.raises(KafkaError):
        log.increment_log_start_offset(11)


def test_the_log_start_within_a_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    batch = make_batch(0, 10)
    append(log, batch)
    log.increment_log_start_offset(5)
    assert read_all(log) == [batch], "the client discards the records before the offset that it requested"
    kill(log)
    again = open_log(tmp_path, log_start_offset=5)
    assert (again.log_start_offset, again.log_end_offset) == (5, 10)


def test_leader_epochs_begin_where_the_log_begins(make_log: Callable[..., OwnedLog], tmp_path: Path) -> None:
    log = make_log()
    for epoch, offset in ((0, 0), (1, 3), (2, 6)):
        log.leader_epochs.assign(epoch, offset)
    log.increment_log_start_offset(4)
    assert [tuple(entry) for entry in log.leader_epochs] == [(1, 4), (2, 6)]
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n1 4\n2 6\n"


def test_files_are_removed_after_the_delay_but_readers_keep_theirs(
    make_log: Callable[..., OwnedLog], tmp_path: Path
) -> None:
    log = make_log(retention_ms=1, file_delete_delay_ms=60_000)
    being_sent = log.read(2, 1000, 10)
    assert being_sent is not None
    assert log.delete_old_segments(HOUR_MS, 10) == 10
    assert log.has_deleted_files
    assert log.remove_deleted_files(HOUR_MS + 59_999) == 0
    assert log.remove_deleted_files(HOUR_MS + 60_000) == 10
    assert not log.has_deleted_files
    assert being_sent.read() == make_batch(2, timestamp=2000)
    being_sent.release()
    assert [path.name for path in files(tmp_path, ".snapshot")] == [f"{10:020d}.snapshot"]
    with pytest.raises(OSError):
        being_sent.read()


def test_a_name_is_free_again_after_truncation_though_old_files_wait_for_removal(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=SIZE))
    append_batches(log, 5)
    log.truncate_fully_and_start_at(0, now_ms=0)
    batches = append_batches(log, 3, value_bytes=9)
    log.truncate_to(1, now_ms=1)
    batches = batches[:1] + append_batches(log, 2, value_bytes=8)
    assert log.remove_deleted_files(HOUR_MS) == 7
    assert read_all(log) == batches
    kill(log)
    assert read_all(open_log(tmp_path)) == batches
