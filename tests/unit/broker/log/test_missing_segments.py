"""A segment whose file was deleted is noticed, whatever happened to the log before.

A random log is written, compacted or not, with DeleteRecords, retention, truncation, clean stops, and deaths
of the process at any file operation. It always opens as the broker left it. Without any one of its segments,
it does not.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from brokerlab.logs import append_batches, files, kill, make_batch, open_log, read_all
from brokerlab.random_logs import RandomLife
from tidelog.broker.log.directory_files import LogStorageError, PartitionDirectory, SegmentsCheckpoint
from tidelog.broker.log.log_config import LogConfig
from tidelog.log_format.directory import decode_base_offsets, encode_base_offsets

SIZE = len(make_batch(0))
THREE_A_SEGMENT = LogConfig(segment_bytes=3 * SIZE, file_delete_delay_ms=0)
LIST = "segments-checkpoint"


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests stop processes, not machines, so nothing needs an fsync."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _fd: None)


@given(st.integers(0, 2**32), st.booleans(), st.booleans(), st.data())
def test_a_deleted_segment_is_always_noticed(
    seed: int, is_compacted: bool, clean: bool, data: st.DataObject
) -> None:
    note(f"seed {seed}")
    root = Path(tempfile.mkdtemp(prefix="tidelog-missing-"))
    try:
        with pytest.MonkeyPatch.context() as monkeypatch:
            life = RandomLife(root / "t-0", seed, is_compacted=is_compacted)
            life.go_on(monkeypatch)
        life.end(clean=clean)
        segments = [path for path in files(life.directory, ".log") if path.stat().st_size]
        if segments:
            deleted = data.draw(st.sampled_from(segments))
            content = deleted.read_bytes()
            deleted.unlink()
            with pytest.raises(LogStorageError, match=f"segments are missing.*{deleted.name}"):
                life.opened(clean=clean)
            deleted.write_bytes(content)
        kill(life.opened(clean=clean))
    finally:
        shutil.rmtree(root)


def closed_log(directory: Path, batches: int = 12) -> list[bytes]:
    """Leaves a log with three batches in each segment, and returns the batches."""
    log = open_log(directory, THREE_A_SEGMENT)
    written = append_batches(log, batches)
    log.close()
    return written


def segment_file(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}.log"


@pytest.mark.parametrize("base_offset", [0, 3, 9])
def test_the_error_names_the_offsets_and_the_next_step(tmp_path: Path, base_offset: int) -> None:
    closed_log(tmp_path)
    segment_file(tmp_path, base_offset).unlink()
    offsets = f"of offsets {base_offset} to {base_offset + 2}" if base_offset < 9 else "from offset 9"
    with pytest.raises(LogStorageError, match=offsets) as caught:
        open_log(tmp_path, THREE_A_SEGMENT, clean=True)
    assert f"Restore the files, or remove {tmp_path}/{LIST} to serve what is left" in str(caught.value)
    assert len(files(tmp_path, ".log")) == 3, "opening removes nothing"


def test_removing_the_list_serves_what_is_left(tmp_path: Path) -> None:
    written = closed_log(tmp_path)
    segment_file(tmp_path, 3).unlink()
    (tmp_path / LIST).unlink()
    log = open_log(tmp_path, THREE_A_SEGMENT, clean=True)
    assert read_all(log) == written[:3] + written[6:]
    log.close()
    segment_file(tmp_path, 6).unlink()
    with pytest.raises(LogStorageError, match="of offsets 6 to 8"):
        open_log(tmp_path, THREE_A_SEGMENT, clean=True)


def test_many_missing_segments_make_a_short_message(tmp_path: Path) -> None:
    closed_log(tmp_path, 60)
    for path in files(tmp_path, ".log"):
        path.unlink()
    with pytest.raises(LogStorageError, match=r"of offsets 6 to 8, 17 more\. Restore"):
        open_log(tmp_path, THREE_A_SEGMENT, clean=True)


def test_a_crash_of_the_machine_may_lose_new_segments(tmp_path: Path) -> None:
    written = closed_log(tmp_path)
    segment_file(tmp_path, 6).unlink()
    with pytest.raises(
        LogStorageError, match="of offsets 6 to 8"
    ):  # below the recovery point: it was on disk
        open_log(tmp_path, THREE_A_SEGMENT, recovery_point=7, is_suspect=True)
    log = open_log(tmp_path, THREE_A_SEGMENT, recovery_point=6, is_suspect=True)
    assert read_all(log) == written[:6]
    assert log.was_damaged
    assert "6.log: the file is missing" in log.cut_at_opening
    kill(log)
    kill(open_log(tmp_path, THREE_A_SEGMENT, recovery_point=6))


@pytest.mark.parametrize("is_suspect", [False, True], ids=["process died", "machine crashed"])
@pytest.mark.parametrize("recovery_point", [0, 12])
def test_the_only_replica_is_served_from_the_first_segment_that_exists(
    tmp_path: Path, recovery_point: int, is_suspect: bool
) -> None:
    written = closed_log(tmp_path)
    for base_offset in (0, 3):
        segment_file(tmp_path, base_offset).unlink()
    log = open_log(
        tmp_path,
        THREE_A_SEGMENT,
        recovery_point=recovery_point,
        is_suspect=is_suspect,
        is_only_replica=True,
    )
    assert (log.log_start_offset, log.log_end_offset) == (6, 12)
    assert read_all(log) == written[6:]
    kill(log)
    segment_file(tmp_path, 9).unlink()
    with pytest.raises(LogStorageError, match="from offset 9"):  # not at the beginning
        open_log(tmp_path, THREE_A_SEGMENT, recovery_point=12, is_only_replica=True)


def test_segments_behind_a_hole_are_kept_aside(tmp_path: Path) -> None:
    closed_log(tmp_path)
    behind = segment_file(tmp_path, 9).read_bytes()
    for _ in range(2):  # the second time, the file has the name already
        segment_file(tmp_path, 6).unlink(missing_ok=True)
        segment_file(tmp_path, 9).write_bytes(behind)
        (tmp_path / LIST).write_bytes(encode_base_offsets([0, 3, 6, 9]))
        kill(open_log(tmp_path, THREE_A_SEGMENT, recovery_point=6, is_suspect=True))
    kept = files(tmp_path, ".stranded")
    assert [path.name for path in kept] == [f"{9:020d}.log.1.stranded", f"{9:020d}.log.stranded"]
    assert [path.read_bytes() for path in kept] == [behind, behind]


def test_a_crash_of_the_machine_may_lose_the_end(tmp_path: Path) -> None:
    written = closed_log(tmp_path)
    segment_file(tmp_path, 9).unlink()
    log = open_log(tmp_path, THREE_A_SEGMENT, recovery_point=6, is_suspect=True)
    assert read_all(log) == written[:9]
    assert not log.was_damaged, "the high watermark decides whether this is a loss"


@pytest.mark.parametrize("content", [b"", b"\0" * 30, b"0\n2\n0\n", b"0\n2\n0\n3", b"1\n1\n0\n"])
def test_a_damaged_list_is_written_again(tmp_path: Path, content: bytes) -> None:
    closed_log(tmp_path)
    (tmp_path / LIST).write_bytes(content)
    kill(open_log(tmp_path, THREE_A_SEGMENT, clean=True))
    assert decode_base_offsets((tmp_path / LIST).read_bytes()) == [0, 3, 6, 9]


def test_retention_frees_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, THREE_A_SEGMENT)
    append_batches(log, 12)
    log.increment_log_start_offset(6)
    assert log.delete_old_segments(0, 12) == 2

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "replace", refuse)
        assert log.remove_deleted_files(0) == 2
    assert not (tmp_path / LIST).exists()
    kill(log)
    kill(open_log(tmp_path, THREE_A_SEGMENT, log_start_offset=6))
    assert decode_base_offsets((tmp_path / LIST).read_bytes()) == [6, 9]


def test_names_are_removed_durably_before_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the machine must not bring back the name of a segment that the broker removed."""
    steps: list[str] = []
    log = open_log(tmp_path, THREE_A_SEGMENT)
    append_batches(log, 12)
    log.increment_log_start_offset(3)
    log.delete_old_segments(0, 12)
    unlink = os.unlink

    def note_sync(fd: int) -> None:
        steps.append(str(Path(f"/proc/self/fd/{fd}").readlink()))

    def note_unlink(path: str) -> None:
        steps.append(path)
        unlink(path)

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, note_sync)
    monkeypatch.setattr(os, "unlink", note_unlink)
    log.remove_deleted_files(0)
    assert steps[:3] == [str(tmp_path / LIST), str(tmp_path), str(segment_file(tmp_path, 0))]


@given(st.lists(st.integers(0, 2**63 - 1), max_size=20, unique=True))
def test_a_list_cut_anywhere_is_refused(base_offsets: list[int]) -> None:
    content = encode_base_offsets(base_offsets)
    assert decode_base_offsets(content) == sorted(base_offsets)
    for length in range(len(content)):
        with pytest.raises(ValueError):
            decode_base_offsets(content[:length])


def test_a_swap_that_is_called_off_restores_the_list(tmp_path: Path) -> None:
    directory = PartitionDirectory(str(tmp_path))
    checkpoint = SegmentsCheckpoint(directory)
    checkpoint.add([0, 3, 6])
    checkpoint.remove([3, 6])
    assert SegmentsCheckpoint.read(directory).missing([]) == [0]
    checkpoint.add([3, 6])
    assert SegmentsCheckpoint.read(directory).missing([3]) == [0, 6]
