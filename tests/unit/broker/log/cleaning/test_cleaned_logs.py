"""Cleaned random logs have the records that a plain model of compaction predicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerlab.log_cleaning import clean_log, cleaning_job, contents, swap_in
from brokerlab.logs import OwnedLog, append, make_batch, open_log
from brokerlab.random_logs import RandomWriter
from tidelog.broker.log.cleaning.cleaning_job import (
    CleanedSegment,
    CleaningDone,
    CleaningFailed,
    CleaningJob,
    LastRecord,
    SourceSegment,
    decode_answer,
    encode_answer,
)
from tidelog.broker.log.cleaning.offset_map import MAP_ENTRY_BYTES
from tidelog.broker.log.cleaning.worker import clean
from tidelog.broker.log.log_config import LogConfig
from tidelog.records.aborted import AbortedTransaction
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=20_000, index_interval_bytes=512, cleanup_policy=frozenset({"compact"}))


def records_of(log: OwnedLog) -> list[Record]:
    return [
        record
        for batch in contents(Path(log.directory.path))
        if not batch.header.is_control
        for record in batch.records
    ]


def write_keys(log: OwnedLog, count: int, keys: int, *, codec: int = 0, a_batch: int = 7) -> None:
    while log.log_end_offset < count:
        base = log.log_end_offset
        records = [
            Record(base + n, NOW_MS, b"key-%d" % ((base + n) ** 2 % keys), b"v") for n in range(a_batch)
        ]
        append(log, bytes(build_batch(records, compression=codec, leader_epoch=0)))
        if base % 5 == 0:
            append(log, bytes(build_batch([Record(base + a_batch, NOW_MS, b"key-0", b"v")], leader_epoch=0)))
    log.roll(NOW_MS)


@pytest.mark.parametrize("codec", range(5))
def test_a_small_map_takes_more_rounds_to_the_same_result(tmp_path: Path, codec: int) -> None:
    logs = []
    for name, map_keys in (("small", 37), ("large", 10_000)):
        log = open_log(tmp_path / name, CONFIG)
        write_keys(log, 3_000, 500, codec=codec)
        rounds = 0
        while log.clean_offset < log.log_end_offset:
            before = log.clean_offset
            job = cleaning_job(log, NOW_MS, dedupe_buffer_bytes=map_keys * MAP_ENTRY_BYTES * 10 // 9 + 1)
            done = clean_log(log, job)
            assert done.keys <= max(map_keys, 2)
            assert done.clean_offset > before, "no progress"
            rounds += 1
        assert (rounds > 5) == (name == "small")
        logs.append(log)
    assert records_of(logs[0]) == records_of(logs[1])
    newest = {record.key: record.offset for record in records_of(logs[0])}
    assert len(newest) == len(records_of(logs[0]))


@pytest.mark.parametrize("seed", range(6))
def test_small_buffers_give_the_same_result(tmp_path: Path, seed: int) -> None:
    """Some batches are larger than the buffer, and chunks end anywhere in a batch."""
    results = []
    for name, buffer_bytes in (("small", 1), ("odd", 1_237), ("large", 1 << 20)):
        log = open_log(tmp_path / name, CONFIG)
        writer = RandomWriter(seed, NOW_MS)
        writer.write(log, 150)
        writer.end_all(log)
        log.roll(writer.now_ms)
        clean_log(log, cleaning_job(log, writer.now_ms, io_buffer_bytes=buffer_bytes))
        results.append(contents(Path(log.directory.path)))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("seed", range(6))
def test_offsets_too_far_apart_for_marks_give_the_same_result(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for name in ("marks", "keys"):
        log = open_log(tmp_path / name, CONFIG)
        writer = RandomWriter(seed, NOW_MS)
        writer.write(log, 150)
        writer.end_all(log)
        log.roll(writer.now_ms)
        with monkeypatch.context() as patch:
            if name == "keys":
                patch.setattr("tidelog.broker.log.cleaning.offset_map._FLAGS_SHARE", 1 << 40)
            clean_log(log, cleaning_job(log, writer.now_ms))
        results.append(contents(Path(log.directory.path)))
    assert results[0] == results[1]


def test_cleaning_twice_changes_nothing_more(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", CONFIG)
    writer = RandomWriter(1, NOW_MS)
    writer.write(log, 200)
    writer.end_all(log)
    log.roll(writer.now_ms)
    clean_log(log, cleaning_job(log, writer.now_ms))
    log.clean_offset = 0
    once = [batch.records for batch in contents(Path(log.directory.path)) if batch.records]
    clean_log(log, cleaning_job(log, writer.now_ms))
    assert [batch.records for batch in contents(Path(log.directory.path)) if batch.records] == once


@pytest.mark.parametrize("key_bytes", [0, 1, 29, 30, 31, 63, 64, 300])
@pytest.mark.parametrize("a_batch", [1, 3])
def test_keys_of_any_length(tmp_path: Path, key_bytes: int, a_batch: int) -> None:
    log = open_log(tmp_path / "t-0", CONFIG)
    keys = {b"x" * key_bytes, (b"x" * key_bytes)[:-1] + b"y"} if key_bytes else {b""}
    for _ in range(5):
        for key in sorted(keys):
            base = log.log_end_offset
            records = [Record(base + n, NOW_MS, key, b"%d" % (base + n)) for n in range(a_batch)]
            append(log, bytes(build_batch(records, leader_epoch=0)))
    log.roll(NOW_MS)
    end = log.log_end_offset
    clean_log(log, cleaning_job(log, NOW_MS))
    found = records_of(log)
    assert {record.key for record in found} == keys
    assert len(found) == len(keys)
    assert [record.offset for record in found] == list(
        range(end - 1, end - 1 - len(keys) * a_batch, -a_batch)
    )[::-1]


def test_a_tombstone_is_removed_after_its_delete_horizon(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", CONFIG)
    for value in (b"v", None):
        append(log, bytes(build_batch([Record(log.log_end_offset, NOW_MS, b"k", value)], leader_epoch=0)))
    append(log, make_batch(2))
    log.roll(NOW_MS)
    for now_ms, left in ((NOW_MS, [None]), (NOW_MS + 999, [None]), (NOW_MS + 1_000, [])):
        log.clean_offset = 0
        clean_log(log, cleaning_job(log, now_ms, delete_retention_ms=1_000))
        assert [record.value for record in records_of(log) if record.key == b"k"] == left
        assert all(record.timestamp == NOW_MS for record in records_of(log) if record.key == b"k")


def test_a_cleaned_log_is_recovered_and_appended_to(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", CONFIG)
    write_keys(log, 2_000, 50)
    clean_log(log, cleaning_job(log, NOW_MS))
    before = records_of(log)
    log.close_files()  # like a process that was killed
    for path in Path(log.directory.path).glob("*.*index"):
        path.unlink()
    log = open_log(tmp_path / "t-0", CONFIG)
    assert log.cut_at_opening is None
    assert records_of(log) == before
    end = log.log_end_offset
    append(log, make_batch(end))
    assert log.log_end_offset == end + 1
    log.close()


def test_jobs_and_answers_round_trip() -> None:
    job = CleaningJob(
        "/d",
        (SourceSegment(0, 5, 100, 8, 12),),
        0,
        5,
        1,
        2,
        3,
        4,
        5,
        6,
        0.9,
        7,
        1.7976931348623157e308,
        (LastRecord(1, 2, 3),),
        (AbortedTransaction(1, 2, 3, 4),),
    )
    assert CleaningJob.decode(job.encode()) == job
    for answer in (
        CleanedSegment((0, 5), 0, 10, 100, 5, 6, 7, 8, 9),
        CleaningDone(1, 2, 3, 4, 5, 6),
        CleaningFailed("why", is_damage=True),
    ):
        assert decode_answer(encode_answer(answer)) == answer
    for nonsense in (b"", b"[]", b'["CleaningDone", 1]', b'["Other"]', b"{"):
        with pytest.raises(ValueError, match=r".*"):
            decode_answer(nonsense)


def test_a_reader_between_two_swaps_sees_a_complete_log(tmp_path: Path) -> None:
    """After each swap of several segments, the log can be read completely, and offsets increase."""
    log = open_log(tmp_path / "t-0", CONFIG)
    write_keys(log, 6_000, 3_000)
    job = cleaning_job(log, NOW_MS)
    exchanges = 0
    for answer in clean(job):
        if isinstance(answer, CleanedSegment):
            swap_in(log, answer)
            exchanges += 1
            offset, last = 0, -1
            while (stretch := log.read(offset, 4_000, log.log_end_offset)) is not None:
                assert stretch.next_offset > last
                last = offset = stretch.next_offset
                stretch.release()
            assert offset == log.log_end_offset
    assert exchanges > 3
