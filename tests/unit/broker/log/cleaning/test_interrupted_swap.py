"""The process dies at any file operation of a swap of segments, and again at any one of the next start.

The log then still has the newest record of each key and all its offsets, and it can be cleaned again.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from brokerlab.log_cleaning import clean_log, cleaning_job, contents, transaction_indexes
from brokerlab.logs import OwnedLog, files, kill, open_log
from brokerlab.random_logs import ProcessDied, RandomWriter, dies_at
from tidelog.broker.log.cleaning.cleaning_job import CleanedSegment
from tidelog.broker.log.cleaning.segment_swap import SegmentSwap
from tidelog.broker.log.cleaning.worker import clean
from tidelog.broker.log.log_config import LogConfig
from tidelog.records.batch import iterate_headers
from tidelog.records.record import iterate_records

CONFIG = LogConfig(segment_bytes=20_000, index_interval_bytes=512, cleanup_policy=frozenset({"compact"}))
NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests stop processes, not machines, so nothing needs an fsync."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _fd: None)


def newest_committed(log: OwnedLog) -> dict[bytes, tuple[int, bytes | None]]:
    """Returns the last value of each key that a read_committed reader finds, without tombstones."""
    newest: dict[bytes, tuple[int, bytes | None]] = {}
    aborted = log.aborted_transactions(0, log.log_end_offset)
    offset = 0
    while offset < log.log_end_offset:
        stretch = log.read(offset, 1 << 20, log.log_end_offset)
        if stretch is None:
            break
        data = stretch.read()
        stretch.release()
        for at, header in iterate_headers(data):
            offset = header.last_offset + 1
            is_aborted = header.is_transactional and any(
                entry.producer_id == header.producer_id
                and entry.first_offset <= header.base_offset <= entry.last_offset
                for entry in aborted
            )
            if header.is_control or is_aborted:
                continue
            for record in iterate_records(data[at : at + header.size_bytes]):
                if record.key is not None:
                    newest[record.key] = (record.offset, record.value)
    return {key: found for key, found in newest.items() if found[1] is not None}


@pytest.fixture(scope="module")
def dirty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with transactions and tombstones that was cleaned once, so that some can be removed now."""
    directory = tmp_path_factory.mktemp("dirty") / "t-0"
    writer = RandomWriter(3, NOW_MS)
    log = open_log(directory, CONFIG)
    for _ in range(2):
        writer.write(log, 120)
        writer.end_all(log)
        log.roll(writer.now_ms)
        clean_log(log, cleaning_job(log, writer.now_ms, delete_retention_ms=0))
    writer.write(log, 120)
    writer.end_all(log)
    log.roll(writer.now_ms)
    log.close()
    for leftover in files(directory, ".deleted"):
        leftover.unlink()
    return directory


def opened(directory: Path) -> OwnedLog:
    log = open_log(directory, CONFIG, recovery_point=1 << 40)
    log.clean_offset = 0
    return log


def exchange(log: OwnedLog, cleaned: CleanedSegment) -> None:
    swap = SegmentSwap(log, [s for s in log.segments if s.base_offset in cleaned.replaces], cleaned)
    swap.announce()
    assert swap.install()
    swap.finish()
    swap.finished(0)


def check(directory: Path, expected: dict[bytes, tuple[int, bytes | None]], end_offset: int) -> None:
    log = opened(directory)
    assert log.log_end_offset == end_offset
    assert newest_committed(log) == expected
    for leftover in (".cleaned", ".swap", ".deleted"):
        assert not files(directory, leftover)
    clean_log(log, cleaning_job(log, NOW_MS + 100_000_000, delete_retention_ms=0))
    assert newest_committed(log) == expected
    log.close()


def test_death_at_any_step(dirty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(dirty)
    expected, end_offset = newest_committed(log), log.log_end_offset
    log.close()
    step, deaths = 0, 0
    while True:
        directory = tmp_path / f"died{step}" / "t-0"
        shutil.copytree(dirty, directory)
        log = opened(directory)
        job = cleaning_job(log, NOW_MS + 100_000_000, delete_retention_ms=0)
        with dies_at(monkeypatch, step) as seen:
            try:
                for answer in clean(job):
                    if isinstance(answer, CleanedSegment):
                        exchange(log, answer)
            except ProcessDied:
                deaths += 1
        died = len(seen) > step
        kill(log)
        check(directory, expected, end_offset)
        shutil.rmtree(directory.parent)
        if not died:
            break
        step += 1 if step < 40 else 9  # the complete first swap, and samples of the later ones
    assert deaths > 30


@pytest.mark.slow
def test_death_during_the_next_start(dirty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(dirty)
    expected, end_offset = newest_committed(log), log.log_end_offset
    log.close()
    broken = tmp_path / "broken" / "t-0"
    shutil.copytree(dirty, broken)
    log = opened(broken)
    job = cleaning_job(log, NOW_MS + 100_000_000, delete_retention_ms=0)
    cleaned = next(answer for answer in clean(job) if isinstance(answer, CleanedSegment))
    assert len(cleaned.replaces) > 2, "several segments go into one"
    swap = SegmentSwap(log, [s for s in log.segments if s.base_offset in cleaned.replaces], cleaned)
    swap.announce()
    kill(log)
    for path in files(broken, ".cleaned"):
        path.unlink()
    for step in range(100):
        directory = tmp_path / f"again{step}" / "t-0"
        shutil.copytree(broken, directory)
        with dies_at(monkeypatch, step) as seen:
            try:
                kill(opened(directory))
            except ProcessDied:
                assert len(seen) > step
        check(directory, expected, end_offset)
        shutil.rmtree(directory.parent)
        if len(seen) <= step:
            break
    else:
        raise AssertionError("does a start carry out so many file operations?")
    assert step > 10


def test_a_start_finishes_a_swap_with_its_transaction_index(dirty: Path, tmp_path: Path) -> None:
    directory, done = tmp_path / "t-0", tmp_path / "done" / "t-0"
    shutil.copytree(dirty, directory)
    shutil.copytree(dirty, done)
    log = opened(done)
    job = cleaning_job(log, NOW_MS, delete_retention_ms=1 << 40)
    clean_log(log, job)
    log.close()
    log = opened(directory)
    for answer in clean(cleaning_job(log, NOW_MS, delete_retention_ms=1 << 40)):
        if isinstance(answer, CleanedSegment):
            sources = [s for s in log.segments if s.base_offset in answer.replaces]
            SegmentSwap(log, sources, answer).announce()
    kill(log)
    opened(directory).close()
    assert contents(directory) == contents(done)
    assert transaction_indexes(directory) == transaction_indexes(done)


def test_a_disk_error_leaves_the_log_unchanged(
    dirty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "t-0"
    shutil.copytree(dirty, directory)
    log = opened(directory)
    expected = newest_committed(log)
    answers = clean(cleaning_job(log, NOW_MS, delete_retention_ms=0))
    cleaned = next(answer for answer in answers if isinstance(answer, CleanedSegment))
    swap = SegmentSwap(log, [s for s in log.segments if s.base_offset in cleaned.replaces], cleaned)
    before = log.segments
    with monkeypatch.context() as patch:

        def refuse(*_: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(os, "rename", refuse)
        with pytest.raises(Exception, match="cannot be swapped in"):
            swap.announce()
    assert log.segments == before
    assert newest_committed(log) == expected
    log.close()
