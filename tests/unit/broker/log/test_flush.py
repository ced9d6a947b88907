"""Flushes make the right files durable; other threads may flush, look up and remove files during appends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from brokerlab.logs import append, append_batches, files, kill, make_batch, open_log, read_all
from tidelog.broker.log.log_config import LogConfig

SIZE = len(make_batch(0))


def test_flush_is_due_by_time_and_roll(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(flush_ms=500, segment_bytes=100 * SIZE), now_ms=1000)
    assert not log.is_flush_due(10_000), "nothing to flush"
    append_batches(log, 10)
    assert not log.is_flush_due(1499)
    assert log.is_flush_due(1500)
    log.flush(now_ms=1600)
    assert (log.recovery_point, log.is_flush_due(1600)) == (10, False)
    log.config = LogConfig(segment_bytes=11 * SIZE)
    append_batches(log, 2)
    assert log.is_flush_due(1600), "a segment was rolled"
    log.flush(5)
    assert log.recovery_point == 10, "the recovery point never moves back"


def test_a_flush_up_to_an_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_batches(log, 10)
    log.flush(4)
    assert log.recovery_point == 4
    log.truncate_to(2, 0)
    assert log.recovery_point == 2
    log.flush(99)
    assert log.recovery_point == 2


def test_flushed_indexes_are_on_file(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(index_interval_bytes=0))
    for offset in range(11):
        append(log, make_batch(offset, timestamp=offset))
    assert [path.stat().st_size for path in files(tmp_path, "index")] == [0, 0]
    log.flush()
    assert {path.suffix: path.stat().st_size for path in files(tmp_path, "index")} == {
        ".index": 80,
        ".timeindex": 120,
    }


def test_other_threads_work_during_appends(tmp_path: Path) -> None:
    config = LogConfig(
        segment_bytes=200 * SIZE,
        index_interval_bytes=0,
        retention_bytes=2000 * SIZE,
        retention_ms=-1,
        file_delete_delay_ms=0,
    )
    log = open_log(tmp_path, config)
    append(log, make_batch(0, timestamp=0))
    done = threading.Event()
    failures: list[str] = []

    def look_up() -> None:
        found = log.offset_for_timestamp(log.log_end_offset - 5)
        if found is None or found.offset != found.timestamp:
            failures.append(f"time lookup found {found}")
        latest = log.max_timestamp_offset()
        if latest is None or latest.offset != latest.timestamp:
            failures.append(f"max timestamp found {latest}")

    def repeat(duty: Callable[[], object]) -> None:
        try:
            while not done.is_set():
                duty()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test fails with it
            failures.append(repr(error))

    duties: list[Callable[[], object]] = [log.flush, look_up, lambda: log.remove_deleted_files(10)]
    threads = [threading.Thread(target=repeat, args=(duty,)) for duty in duties]
    for thread in threads:
        thread.start()
    for offset in range(1, 8000):
        append(log, make_batch(offset, timestamp=offset))
        if offset % 50 == 0:
            stretch = log.read(offset - 20, 5 * SIZE, offset)
            assert stretch is not None
            assert len(stretch.read()) == 5 * SIZE
            stretch.release()
        if offset % 500 == 0:
            log.delete_old_segments(0, offset)
    done.set()
    for thread in threads:
        thread.join()
    assert not failures
    log.flush()
    log.remove_deleted_files(10)
    kill(log)
    again = open_log(tmp_path, config, recovery_point=log.recovery_point)
    assert again.log_start_offset == log.log_start_offset > 0
    assert read_all(again) == [
        make_batch(offset, timestamp=offset) for offset in range(again.log_start_offset, 8000)
    ]
