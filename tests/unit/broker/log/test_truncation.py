"""Truncation: nothing that the log remembers of the removed records is used for those that replace them."""

from __future__ import annotations

from pathlib import Path

from brokerlab.logs import append, append_batches, files, kill, make_batch, open_log, read_all
from tidelog.broker.log.log_config import LogConfig

SIZE = len(make_batch(0))


def test_places_of_readers_are_forgotten(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_batches(log, 10)
    read_all(log, max_bytes=1)
    log.truncate_to(4, 0)
    appended = append_batches(log, 6, value_bytes=50)
    for offset in (9, 7, 5):
        stretch = log.read(offset, 1, 10)
        assert stretch is not None
        assert stretch.read() == appended[offset - 4]
    assert [len(batch) for batch in read_all(log, max_bytes=1)] == [SIZE] * 4 + [SIZE + 40] * 6


def test_timestamps_are_those_of_the_remaining_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(index_interval_bytes=0))
    for offset in range(10):
        append(log, make_batch(offset, timestamp=100 * offset))
    log.truncate_to(4, 0)
    assert log.max_timestamp_offset() == (3, 300, 0)
    assert log.offset_for_timestamp(301) is None
    for offset in range(4, 10):
        append(log, make_batch(offset, timestamp=310 + offset))
    assert log.offset_for_timestamp(318) == (8, 318, 0)
    log.close()
    entries = files(tmp_path, ".timeindex")[0].read_bytes()
    times = [int.from_bytes(entries[at : at + 8], "big") for at in range(0, len(entries), 12)]
    assert times == [100, 200, 300, 315, 316, 317, 318, 319]


def test_indexes_already_on_file_are_cut(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(index_interval_bytes=0))
    append_batches(log, 100)
    log.flush()
    log.truncate_to(50, 0)
    batches = read_all(log) + append_batches(log, 50, value_bytes=30)
    assert log.recovery_point == 50
    log.close()
    again = open_log(tmp_path, LogConfig(index_interval_bytes=0), clean=True)
    assert read_all(again) == batches
    again = open_log(tmp_path, LogConfig(index_interval_bytes=0), clean=True)
    for offset in range(99, -1, -1):  # backwards, so that the log remembers no place
        stretch = again.read(offset, 1, 100)
        assert stretch is not None
        assert stretch.read() == batches[offset]


def test_names_of_segments_that_retention_dropped_may_be_used_again(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=SIZE, retention_bytes=0, file_delete_delay_ms=1000))
    append_batches(log, 3)
    assert log.delete_old_segments(0, 3) == 3
    log.truncate_fully_and_start_at(0, 1)
    batches = append_batches(log, 3, value_bytes=9)
    assert log.remove_deleted_files(5000) == 4
    kill(log)
    assert read_all(open_log(tmp_path)) == batches


def test_an_earlier_segment_becomes_the_active_one_again(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=4 * SIZE))
    batches = append_batches(log, 11)
    assert log.truncate_to(6, 0)
    assert not log.truncate_to(6, 0)
    assert [segment.base_offset for segment in log.segments] == [0, 4]
    assert [path.name for path in files(tmp_path, ".snapshot")] == [f"{4:020d}.snapshot"]
    batches = batches[:6] + append_batches(log, 5, value_bytes=8)
    assert read_all(log) == batches
    kill(log)
    assert read_all(open_log(tmp_path)) == batches


def test_truncation_removes_leader_epochs(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for epoch, offset in ((0, 0), (3, 4), (4, 8)):
        log.leader_epochs.assign(epoch, offset)
        append_batches(log, 4, leader_epoch=epoch)
    log.truncate_to(8, 0)
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n0 0\n3 4\n"
    log.truncate_fully_and_start_at(100, 0)
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n0\n"
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)


def test_truncation_within_a_batch_removes_the_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = make_batch(0, 5)
    append(log, first)
    append(log, make_batch(5, 5))
    log.truncate_to(7, 0)
    assert log.log_end_offset == 5
    assert read_all(log) == [first]


def test_truncation_to_the_first_offset_keeps_the_producers_before_it(tmp_path: Path) -> None:
    """Retention removed the batch that began the transaction, but the snapshot at the roll still has it."""
    log = open_log(tmp_path, LogConfig(retention_bytes=0, retention_ms=-1))
    append(log, make_batch(0, producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True))
    assert log.delete_old_segments(0, log.log_end_offset) == 1
    append(log, make_batch(1))
    log.truncate_to(1, 0)
    assert (log.log_start_offset, log.log_end_offset) == (1, 1)
    assert log.producer_state.first_unstable_offset == 0
    assert [batch.last_sequence for batch in log.producer_state.stored_batches(9)] == [0]


def test_a_restart_forgets_the_producers(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, make_batch(0, producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True))
    log.roll(0)
    log.truncate_fully_and_start_at(50, 0)
    assert log.producer_state.first_unstable_offset is None
    log.close()
    again = open_log(tmp_path, log_start_offset=50, recovery_point=50, clean=True)
    assert again.producer_state.first_unstable_offset is None
