"""Opening a log: the files that are read, trusted, cut and rebuilt."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerlab.logs import append, append_batches, files, kill, make_batch, open_log, read_all
from tidelog.broker.log.directory_files import LogStorageError
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.recovery import load_segments
from tidelog.broker.partition.producer_state import Duplicate
from tidelog.model.errors import KafkaError
from tidelog.records.batch import parse_header

SIZE = len(make_batch(0))
HOUR_MS = 3_600_000
THREE_A_SEGMENT = LogConfig(segment_bytes=3 * SIZE, index_interval_bytes=0)


def damage(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def test_a_tail_torn_anywhere_is_cut_to_the_last_whole_batch(tmp_path: Path) -> None:
    whole = [make_batch(0, 2), make_batch(2, 1, value_bytes=3), make_batch(3, 3, value_bytes=1)]
    content = b"".join(whole)
    ends = [0]
    for batch in whole:
        ends.append(ends[-1] + len(batch))
    for length in range(len(content) + 1):
        for filler in (b"", b"\0" * 100, b"\xff" * 70):
            directory = tmp_path / f"{length}-{filler[:1].hex()}"
            directory.mkdir()
            torn = content[:length] + filler
            (directory / f"{0:020d}.log").write_bytes(torn)
            log = open_log(directory)
            kept = max(number for number, end in enumerate(ends) if torn[:end] == content[:end])
            assert read_all(log) == whole[:kept]
            assert log.size_bytes == files(directory, ".log")[0].stat().st_size == ends[kept]
            assert (log.cut_at_opening is None) == (ends[kept] == len(torn))
            follower = make_batch(log.log_end_offset)
            append(log, follower)
            assert read_all(log) == [*whole[:kept], follower]
            kill(log)


def test_damage_ends_the_log_and_removes_later_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path, THREE_A_SEGMENT)
    batches = append_batches(log, 11)
    kill(log)
    damage(files(tmp_path, ".log")[1], SIZE + 70)
    log = open_log(tmp_path, THREE_A_SEGMENT)
    assert read_all(log) == batches[:4]
    assert log.log_end_offset == 4
    assert [path.name for path in files(tmp_path, ".log")] == [f"{0:020d}.log", f"{3:020d}.log"]
    assert log.cut_at_opening is not None
    assert "CRC" in log.cut_at_opening
    assert all(int(path.stem) <= 4 for path in files(tmp_path, ".snapshot"))


def test_what_damage_takes_out_of_a_log_is_kept_aside(tmp_path: Path) -> None:
    log = open_log(tmp_path, THREE_A_SEGMENT)
    batches = append_batches(log, 11)
    kill(log)
    damage(files(tmp_path, ".log")[1], SIZE + 70)
    segments = {path.name: path.read_bytes() for path in files(tmp_path, ".log")}
    kill(open_log(tmp_path, THREE_A_SEGMENT))
    kept = {path.name: path.read_bytes() for path in files(tmp_path, ".stranded")}
    assert kept == {
        f"{3:020d}.log.from-{SIZE}.stranded": segments[f"{3:020d}.log"][SIZE:],
        f"{6:020d}.log.stranded": segments[f"{6:020d}.log"],
        f"{9:020d}.log.stranded": segments[f"{9:020d}.log"],
    }
    assert b"".join(kept.values()).endswith(b"".join(batches[5:]))


def test_zeros_behind_the_last_batch_are_not_kept(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_batches(log, 2)
    kill(log)
    with files(tmp_path, ".log")[0].open("ab") as file:
        file.write(b"\0" * 5_000_000)
    log = open_log(tmp_path)
    assert log.log_end_offset == 2
    assert log.was_damaged
    assert files(tmp_path, ".stranded") == []


@pytest.mark.parametrize("number", [1, 3], ids=["a middle segment", "the last segment"])
@pytest.mark.parametrize("ending", ["clean", "killed"])
def test_damage_in_what_was_on_disk_changes_no_file(tmp_path: Path, number: int, ending: str) -> None:
    """A crash can't damage what was flushed, so nothing says that the records behind are not wanted."""
    log = open_log(tmp_path, THREE_A_SEGMENT)
    append_batches(log, 11)
    log.close()
    damage(files(tmp_path, ".log")[number], SIZE + 70)
    files(tmp_path, ".index")[number].unlink()
    before = {path: path.read_bytes() for path in files(tmp_path, ".log")}
    with pytest.raises(LogStorageError, match=r"CRC does not match.*tidelog doctor"):
        open_log(tmp_path, THREE_A_SEGMENT, clean=ending == "clean", recovery_point=11)
    assert {path: path.read_bytes() for path in files(tmp_path, ".log")} == before


def test_a_segment_that_ends_too_early_in_the_middle_changes_no_file(tmp_path: Path) -> None:
    log = open_log(tmp_path, THREE_A_SEGMENT)
    append_batches(log, 11)
    log.close()
    with files(tmp_path, ".log")[1].open("r+b") as file:
        file.truncate(2 * SIZE + 5)
    files(tmp_path, ".index")[1].unlink()
    with pytest.raises(LogStorageError, match="are left"):
        open_log(tmp_path, THREE_A_SEGMENT, clean=True)
    assert len(files(tmp_path, ".log")) == 4
    assert files(tmp_path, ".log")[1].stat().st_size == 2 * SIZE + 5


def test_segments_below_the_recovery_point_are_not_read(tmp_path: Path) -> None:
    log = open_log(tmp_path, THREE_A_SEGMENT)
    append_batches(log, 8)
    log.flush(3)
    assert log.recovery_point == 3
    kill(log)
    damage(files(tmp_path, ".log")[0], 70)
    log = open_log(tmp_path, THREE_A_SEGMENT, recovery_point=log.recovery_point)
    assert log.log_end_offset == 8


def test_after_a_clean_stop_nothing_is_checked(tmp_path: Path) -> None:
    log = open_log(tmp_path, THREE_A_SEGMENT)
    append_batches(log, 8)
    log.close()
    for path in files(tmp_path, ".log"):
        damage(path, 70)
    log = open_log(tmp_path, THREE_A_SEGMENT, clean=True)
    assert (log.log_end_offset, log.cut_at_opening) == (8, None)


def test_a_clean_start_does_not_change_lookups_by_time_and_rolls(tmp_path: Path) -> None:
    config = LogConfig(segment_ms=100)
    log = open_log(tmp_path, config)
    for offset, timestamp in enumerate([1000, 1050, 1020]):
        append(log, make_batch(offset, timestamp=timestamp))
    log.close()
    log = open_log(tmp_path, config, clean=True)
    assert log.max_timestamp_offset() == (1, 1050, 0)
    append(log, make_batch(3, timestamp=1100))
    append(log, make_batch(4, timestamp=1101))
    assert [segment.base_offset for segment in log.segments] == [0, 4]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("contents", [None, b"", b"\0" * 7, b"\0" * 240, b"\xff" * 24])
def test_missing_or_invalid_indexes_are_rebuilt(tmp_path: Path, suffix: str, contents: bytes | None) -> None:
    log = open_log(tmp_path, THREE_A_SEGMENT)
    batches = append_batches(log, 8)
    log.close()
    good = {path: path.read_bytes() for path in files(tmp_path, suffix)}
    for path in good:
        if contents is None:
            path.unlink()
        else:
            path.write_bytes(contents)
    log = open_log(tmp_path, THREE_A_SEGMENT, clean=True)
    assert read_all(log) == batches
    assert log.offset_for_timestamp(1000) == (0, 1000, 0)
    log.close()
    if contents != b"":
        assert {path: path.read_bytes() for path in files(tmp_path, suffix)} == good


def test_leftovers_are_removed(tmp_path: Path) -> None:
    log = open_log(tmp_path, THREE_A_SEGMENT)
    batches = append_batches(log, 4)
    kill(log)
    for name in (
        f"{0:020d}.log.deleted",
        f"{9:020d}.index",
        f"{9:020d}.timeindex",
        f"{9:020d}.txnindex",
        f"{3:020d}.log.cleaned",
        "leader-epoch-checkpoint.tmp",
    ):
        (tmp_path / name).write_bytes(b"rubbish")
    log = open_log(tmp_path, THREE_A_SEGMENT)
    assert read_all(log) == batches
    assert {path.name.split(".", 1)[-1] for path in tmp_path.iterdir()} == {
        "log",
        "index",
        "timeindex",
        "snapshot",
    } | {"leader-epoch-checkpoint", "segments-checkpoint"}


def test_a_start_finishes_an_interrupted_swap(tmp_path: Path) -> None:
    log = open_log(tmp_path, THREE_A_SEGMENT)
    batches = append_batches(log, 8)
    kill(log)
    compacted = [batches[2], batches[5]]
    (tmp_path / f"{0:020d}.log.swap").write_bytes(b"".join(compacted))
    (tmp_path / f"{0:020d}.index.swap").write_bytes(b"")
    log = open_log(tmp_path, THREE_A_SEGMENT)
    assert read_all(log) == [*compacted, *batches[6:]]
    assert [segment.base_offset for segment in log.segments] == [0, 6]


def test_a_crash_that_lost_the_end_of_a_log_after_delete_records(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_batches(log, 5)
    kill(log)
    log = open_log(tmp_path, log_start_offset=20, high_watermark=20)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (20, 20, 0)
    batches = append_batches(log, 1)
    assert read_all(log) == batches


@pytest.mark.parametrize(
    ("log_start_offset", "high_watermark", "is_clean"),
    [(10**12, 5, False), (10**12, 5, True), (6, 6, True), (0, 6, True), (20, 19, False)],
)
def test_a_log_that_ends_too_early_is_not_opened(
    tmp_path: Path, log_start_offset: int, high_watermark: int, is_clean: bool
) -> None:
    log = open_log(tmp_path)
    batches = append_batches(log, 5)
    log.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(LogStorageError, match="the log ends at 5, but"):
        open_log(tmp_path, log_start_offset=log_start_offset, high_watermark=high_watermark, clean=is_clean)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before, "nothing was removed"
    log = open_log(tmp_path, clean=is_clean)
    assert read_all(log) == batches


def test_leader_epochs_follow_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for epoch in range(3):
        log.leader_epochs.assign(epoch, log.log_end_offset)
        log.persist_leader_epochs()
        append_batches(log, 2, leader_epoch=epoch)
    log.leader_epochs.assign(7, 6)
    log.persist_leader_epochs()
    kill(log)
    log = open_log(tmp_path)
    assert [tuple(entry) for entry in log.leader_epochs] == [(0, 0), (1, 2), (2, 4)], (
        "epochs without batches are removed"
    )
    kill(log)
    path = files(tmp_path, ".log")[0]
    path.write_bytes(path.read_bytes()[:-5])
    (tmp_path / "leader-epoch-checkpoint").unlink()
    log = open_log(tmp_path)
    assert log.log_end_offset == 5
    assert [tuple(entry) for entry in log.leader_epochs] == [(0, 0), (1, 2), (2, 4)]
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n3\n0 0\n1 2\n2 4\n"


def test_batches_of_an_older_magic_are_refused(tmp_path: Path) -> None:
    old = bytearray(make_batch(0))
    old[16] = 1
    (tmp_path / f"{0:020d}.log").write_bytes(old)
    log = open_log(tmp_path)
    assert log.log_end_offset == 0
    assert log.cut_at_opening is not None
    assert "magic 1" in log.cut_at_opening


def test_a_directory_that_cannot_be_read_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}.log").mkdir()
    with pytest.raises(LogStorageError):
        open_log(tmp_path)


def test_recovery_restores_the_producers(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=4 * SIZE))
    for number in range(40):
        producer = number % 3
        append(
            log,
            make_batch(
                log.log_end_offset,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=number // 3,
                timestamp=number,
            ),
        )
    expected = [
        (row, log.producer_state.stored_batches(row.producer_id)) for row in log.producer_state.describe()
    ]
    kill(log)
    for lost in (0, 1, 99):
        for path in files(tmp_path, ".snapshot")[-lost:]:
            if lost == 1:
                damage(path, 8)
            else:
                path.unlink()
        log = open_log(tmp_path, LogConfig(segment_bytes=4 * SIZE))
        state = log.producer_state
        assert sorted((row, state.stored_batches(row.producer_id)) for row in state.describe()) == sorted(
            expected
        )
        kill(log)


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_producers_outlive_the_segments_of_their_batches(tmp_path: Path, is_killed: bool) -> None:
    """Retention removed all of a producer's batches. A repeat is still one, and a gap is still refused."""
    config = LogConfig(segment_bytes=3 * SIZE, retention_ms=1)
    log = open_log(tmp_path, config)

    def batch(number: int) -> bytes:
        return make_batch(number, producer_id=7, producer_epoch=0, base_sequence=number)

    for number in range(8):
        append(log, batch(number))
    assert log.delete_old_segments(HOUR_MS, 8) > 0
    assert log.log_start_offset == 8
    log.remove_deleted_files(2 * HOUR_MS)
    if is_killed:
        kill(log)
    else:
        log.close()
    log = open_log(tmp_path, config, clean=not is_killed, log_start_offset=8)
    assert log.log_end_offset == 8
    state = log.producer_state
    assert isinstance(state.check(parse_header(batch(7)), 0), Duplicate)
    assert state.check(parse_header(batch(8)), 0) is None
    with pytest.raises(KafkaError, match="sequence 9 after sequence 7"):
        state.check(parse_header(batch(9)), 0)


def test_a_clean_stop_leaves_one_snapshot_at_the_end(tmp_path: Path) -> None:
    for _ in range(4):
        log = open_log(tmp_path, clean=True)
        append_batches(log, 2)
        log.close()
    open_log(tmp_path, clean=True)
    assert [path.name for path in files(tmp_path, ".snapshot")] == [f"{8:020d}.snapshot"]


def test_truncation_restores_earlier_producers(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=4 * SIZE))
    for number in range(20):
        append(log, make_batch(number, producer_id=1, producer_epoch=0, base_sequence=number))
    log.truncate_to(9, now_ms=0)
    assert [batch.last_sequence for batch in log.producer_state.stored_batches(1)] == [4, 5, 6, 7, 8]
    assert (log.log_end_offset, log.recovery_point) == (9, 0)


def test_opening_an_empty_directory_makes_one_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path / "deep" / "t-0", log_start_offset=5)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    assert [path.name for path in files(tmp_path / "deep" / "t-0", "")] == [
        f"{5:020d}.index",
        f"{5:020d}.log",
        f"{5:020d}.timeindex",
        "segments-checkpoint",
    ]
    assert load_segments.__doc__
