"""Ranges keep files open, the number of open files is bounded, and sequential readers need no search."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brokerlab.logs import append_batches, make_batch, open_log, read_all
from tidelog.broker.log import segmented_log
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.segment import OpenSegments

SIZE = len(make_batch(0))


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_range_outlives_the_deletion_of_its_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", LogConfig(segment_bytes=SIZE, retention_bytes=0, file_delete_delay_ms=0))
    batches = append_batches(log, 4)
    stretch = log.read(1, 1000, 4)
    assert stretch is not None
    log.delete_old_segments(0, 4)
    log.remove_deleted_files(0)
    log.mark_deleted(str(tmp_path / "t-0.deleted"))
    assert stretch.read() == batches[1]
    fd = stretch.fileno()
    stretch.release()
    stretch.release()
    with pytest.raises(OSError):
        os.fstat(fd)


def test_descriptors_are_bounded(tmp_path: Path) -> None:
    open_segments = OpenSegments(max_open=10)
    before = open_descriptors()
    logs = [
        open_log(tmp_path / f"t-{number}", LogConfig(segment_bytes=3 * SIZE), open_segments=open_segments)
        for number in range(20)
    ]
    assert open_descriptors() == before, "no file is open before its first use"
    batches = [append_batches(log, 12) for log in logs]
    for _ in range(2):
        for log, expected in zip(logs, batches, strict=True):
            assert read_all(log) == expected
    assert len(open_segments) == 10
    assert open_descriptors() <= before + 3 * 10
    held = [log.read(0, 1000, 12) for log in logs]
    assert len(open_segments) >= 20, "a file that is being sent stays open"
    for stretch, expected in zip(held, batches, strict=True):
        assert stretch is not None
        assert expected[0] in stretch.read()
        stretch.release()
    for log in logs:
        log.close()
    assert len(open_segments) == 0
    assert open_descriptors() == before


def test_a_segment_just_used_is_not_the_one_closed(tmp_path: Path) -> None:
    open_segments = OpenSegments(max_open=2)
    logs = [open_log(tmp_path / f"t-{number}", open_segments=open_segments) for number in range(6)]
    for log in logs:
        append_batches(logs[0], 1)
        append_batches(log, 1)
    assert logs[0].segments[0].fd >= 0


def test_a_sequential_reader_does_not_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    append_batches(log, 100)
    searched: list[int] = []
    find = segmented_log.batch_with
    monkeypatch.setattr(
        segmented_log, "batch_with", lambda segment, offset: searched.append(offset) or find(segment, offset)
    )
    read_all(log, max_bytes=5 * SIZE)
    assert searched == [0]
    append_batches(log, 1)
    tail = log.read(100, 1000, 101)
    assert tail is not None
    tail.release()
    assert searched == [0], "a reader that was at the end continues there"


def test_many_readers_are_remembered_but_not_without_bound(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_batches(log, 1000)
    for offset in range(0, 1000, 3):
        stretch = log.read(offset, 2 * SIZE, 1000)
        assert stretch is not None
        assert stretch.next_offset == min(offset + 2, 1000)
        stretch.release()
    assert len(log._places) <= segmented_log.PLACES_REMEMBERED


def test_a_range_ends_below_the_offset_it_may_not_reach(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    batches = append_batches(log, 50)
    for upper in (1, 7, 49, 50):
        stretch = log.read(0, 1 << 20, upper)
        assert stretch is not None
        assert stretch.read() == b"".join(batches[:upper])
        assert (len(stretch), stretch.next_offset) == (upper * SIZE, upper)
        stretch.release()
    assert log.read(7, 1 << 20, 7) is None
    assert log.read(50, 1 << 20, 50) is None
