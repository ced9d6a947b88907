"""If the disk is full or fails, an append is refused and the log does not change; later appends succeed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerlab.logs import append, append_batches, kill, make_batch, open_log, read_all
from tidelog.broker.log import segmented_log
from tidelog.broker.log.directory_files import LogStorageError
from tidelog.broker.log.log_config import LogConfig
from tidelog.model.errors import ErrorCode


class Disk:
    """A replacement of `os` in the log that fails on demand."""

    def __init__(self) -> None:
        self.room_bytes = 1 << 40
        self.truncates = True

    def pwrite(self, fd: int, data: bytes, position: int) -> int:
        if self.room_bytes <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.pwrite(fd, memoryview(data)[: self.room_bytes], position)
        self.room_bytes -= written
        return written

    def ftruncate(self, fd: int, length: int) -> None:
        if not self.truncates:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.ftruncate(fd, length)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(segmented_log, "os", disk)
    return disk


@pytest.mark.parametrize("room_bytes", [0, 1, 60, 75])
@pytest.mark.parametrize("truncates", [True, False])
def test_an_append_to_a_full_disk_changes_nothing(
    tmp_path: Path, disk: Disk, room_bytes: int, truncates: bool
) -> None:
    log = open_log(tmp_path)
    batches = append_batches(log, 3)
    disk.room_bytes, disk.truncates = room_bytes, truncates
    with pytest.raises(LogStorageError) as refusal:
        append(log, make_batch(3))
    assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_end_offset, log.size_bytes) == (3, sum(map(len, batches)))
    assert read_all(log) == batches
    disk.room_bytes = 1 << 40
    if not truncates:
        with pytest.raises(LogStorageError):
            append(log, make_batch(3))
        disk.truncates = True
    batches += append_batches(log, 1, value_bytes=0)
    assert read_all(log) == batches
    kill(log)
    log = open_log(tmp_path)
    assert read_all(log) == batches
    assert log.cut_at_opening is None


def test_the_rest_of_a_failed_append_is_cut_before_the_next_segment(tmp_path: Path, disk: Disk) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=200))
    batches = append_batches(log, 1)
    disk.room_bytes, disk.truncates = 70, False
    with pytest.raises(LogStorageError):
        append(log, make_batch(1))
    disk.room_bytes = 1 << 40
    with pytest.raises(LogStorageError):
        append(log, make_batch(1, value_bytes=100))
    assert len(log.segments) == 1
    disk.truncates = True
    batches += append_batches(log, 2, value_bytes=100)
    assert len(log.segments) == 3
    kill(log)
    log = open_log(tmp_path, LogConfig(segment_bytes=200))
    assert read_all(log) == batches
    disk.room_bytes, disk.truncates = 70, False
    with pytest.raises(LogStorageError):
        append(log, make_batch(3))
    disk.truncates = True
    log.close()
    assert open_log(tmp_path, clean=True).cut_at_opening is None


def test_a_failed_roll_leaves_the_log_unchanged(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=200))
    batches = append_batches(log, 2)
    obstacle = tmp_path / f"{2:020d}.log"
    obstacle.mkdir()
    with pytest.raises(LogStorageError):
        append(log, make_batch(2))
    assert read_all(log) == batches
    obstacle.rmdir()
    batches += append_batches(log, 2)
    assert read_all(log) == batches
    assert len(log.segments) == 2


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_index_entries_wait_in_memory_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, LogConfig(index_interval_bytes=0))
    index = log.segments[-1].offset_index
    with monkeypatch.context() as full:
        full.setattr(type(index), "spill", no_space)
        batches = append_batches(log, 3000)
        assert read_all(log) == batches
        with pytest.raises(LogStorageError):
            log.flush()
        assert log.recovery_point == 0
    batches += append_batches(log, 2000)
    log.flush()
    assert log.recovery_point == 5000
    assert read_all(log) == batches
    log.close()
    assert (tmp_path / f"{0:020d}.index").stat().st_size == 4999 * 8


@pytest.mark.parametrize(
    "action",
    [
        lambda log: log.flush(),
        lambda log: log.close(),
        lambda log: log.truncate_to(1, 0),
        lambda log: log.truncate_fully_and_start_at(9, 0),
        lambda log: log.persist_leader_epochs(),
        lambda log: log.mark_deleted(str(log.directory.path) + "/nowhere/else"),
    ],
)
def test_each_failure_is_a_storage_error(tmp_path: Path, action: Callable[[object], None]) -> None:
    log = open_log(tmp_path / "t-0")
    append_batches(log, 3)
    (tmp_path / "t-0").rename(tmp_path / "away")
    with pytest.raises(LogStorageError):
        action(log)


def test_clients_do_not_learn_the_paths_of_the_broker() -> None:
    error = LogStorageError("/var/lib/tidelog/t-0/00000000000000000000.log: append failed: disk full")
    assert "/" not in str(error.message)
    assert str(error).startswith("/var/lib/tidelog"), "the broker's own log has the reason"
