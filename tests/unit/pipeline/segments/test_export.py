"""The content of exports, the effect of a second run, and the errors that stop an export."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from brokerlab.logs import OwnedLog, append, make_batch, make_marker, open_log
from tidelog.broker.log.directory_files import write_offsets, write_topic_id
from tidelog.broker.log.log_config import LogConfig
from tidelog.log_format.directory import HIGH_WATERMARK_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.commands.export_segments import command
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.export import ExportSettings, ExportSummary, export_segments
from tidelog.pipeline.segments.log_files import OffsetsMissingError
from tidelog.pipeline.segments.storage import Storage, WritableStorage
from tidelog.pipeline.segments.visible import visible_logs
from tidelog.records.aborted import AbortedTransaction

PLACE = TopicPartition("t", 0)
TOPIC_ID = uuid.UUID(int=7)


class Source:
    """A broker's directory with one partition whose segments hold two batches each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        config = LogConfig(segment_bytes=260, index_interval_bytes=1, retention_ms=-1, file_delete_delay_ms=0)
        self.log: OwnedLog = open_log(root / "t-0", config)
        write_topic_id(root / "t-0", TOPIC_ID)

    def write(self, batches: int) -> None:
        for _ in range(batches):
            append(self.log, make_batch(self.log.log_end_offset, 1, value_bytes=20))
        self.checkpoint()

    def abort_a_transaction(self) -> None:
        offset = self.log.log_end_offset
        batch = make_batch(offset, producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
        append(self.log, batch)
        append(self.log, make_marker(offset + 1, is_commit=False, producer_id=9))

    def checkpoint(self) -> None:
        self.log.flush()
        write_offsets(self.root / HIGH_WATERMARK_CHECKPOINT, {PLACE: self.log.log_end_offset})
        write_offsets(self.root / LOG_START_OFFSET_CHECKPOINT, {PLACE: self.log.log_start_offset})

    def lose_before(self, offset: int) -> None:
        self.log.increment_log_start_offset(offset)
        self.log.delete_old_segments(0, self.log.log_end_offset)
        self.log.remove_deleted_files(0)
        self.checkpoint()

    @property
    def active_base(self) -> int:
        return self.log.segments[-1].base_offset


@pytest.fixture
def source(tmp_path: Path) -> Iterable[Source]:
    (tmp_path / "broker").mkdir()
    made = Source(tmp_path / "broker")
    yield made
    made.log.close_files()


def export(source: Source, target: Path, **settings: bool) -> ExportSummary:
    return export_segments(
        ExportSettings(Storage(), WritableStorage(), **settings), [str(source.root)], None, str(target)
    )


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name[:1].isdecimal()}


def test_closed_segments_are_exported_unchanged_and_readable(source: Source, tmp_path: Path) -> None:
    source.write(4)
    source.abort_a_transaction()
    source.write(5)
    summary = export(source, tmp_path / "out")
    assert summary.ends == {PLACE: source.active_base}
    exported, there = contents(tmp_path / "out" / "t-0"), contents(source.root / "t-0")
    assert {name for name in exported if name.endswith(".log")} == {
        name for name in there if name.endswith(".log") and int(name[:20]) < source.active_base
    }
    assert all(there[name] == content for name, content in exported.items())
    [log] = visible_logs(Storage(), [str(tmp_path / "out")])
    assert (log.start_offset, log.end_offset) == (0, source.active_base)
    assert log.aborted == (AbortedTransaction(9, 4, 5, 6),)
    assert log.topic_id is not None


def test_a_second_run_copies_only_new_segments(source: Source, tmp_path: Path) -> None:
    source.write(6)
    first = export(source, tmp_path / "out")
    again = export(source, tmp_path / "out")
    assert first.copied_files and not again.copied_files
    source.write(4)
    more = export(source, tmp_path / "out")
    assert 0 < more.copied_files < first.copied_files + 3
    assert more.ends == {PLACE: source.active_base}


def test_segments_that_retention_deletes_remain_in_the_export(source: Source, tmp_path: Path) -> None:
    source.write(8)
    export(source, tmp_path / "out")
    source.lose_before(5)
    assert source.log.segments[0].base_offset > 0
    source.write(3)
    export(source, tmp_path / "out")
    [log] = visible_logs(Storage(), [str(tmp_path / "out")])
    assert (log.start_offset, log.end_offset) == (0, source.active_base)


def test_offsets_deleted_before_the_export_stop_it_with_their_range(source: Source, tmp_path: Path) -> None:
    source.write(6)
    end = export(source, tmp_path / "out").ends[PLACE]
    source.write(8)
    source.lose_before(end + 3)
    with pytest.raises(
        OffsetsMissingError, match=f"t-0: offsets {end} to {end + 2} cannot be read"
    ) as caught:
        export(source, tmp_path / "out")
    assert (caught.value.start, caught.value.end) == (end, end + 3)
    summary = export(source, tmp_path / "out", accepts_loss=True)
    assert summary.lost == {PLACE: ((end, end + 3),)}
    [log] = visible_logs(Storage(), [str(tmp_path / "out")])
    assert log.start_offset == end + 3  # a gap must not look like compaction
    assert export(source, tmp_path / "out").lost == summary.lost


def test_a_copy_killed_within_a_file_is_resumed(source: Source, tmp_path: Path) -> None:
    source.write(8)
    died_after = 3

    class Dying(WritableStorage):
        def write(self, path: str, chunks: Iterable[bytes | pa.Buffer]) -> None:
            nonlocal died_after
            died_after -= 1
            if not died_after:
                Path(f"{path}.part").write_bytes(b"half")
                raise KeyboardInterrupt
            super().write(path, chunks)

    with pytest.raises(KeyboardInterrupt):
        export_segments(ExportSettings(Storage(), Dying()), [str(source.root)], None, str(tmp_path / "out"))
    with pytest.raises(
        PipelineError, match=r"not a log directory|committed"
    ):  # nothing counts as exported yet
        visible_logs(Storage(), [str(tmp_path / "out")])
    summary = export(source, tmp_path / "out")
    assert summary.kept_files
    [log] = visible_logs(Storage(), [str(tmp_path / "out")])
    assert log.end_offset == source.active_base


def test_damage_at_the_target_is_found_on_request_and_repaired(source: Source, tmp_path: Path) -> None:
    source.write(6)
    export(source, tmp_path / "out")
    victim = tmp_path / "out" / "t-0" / f"{0:020d}.log"
    right = victim.read_bytes()
    victim.write_bytes(bytes([right[0] ^ 1]) + right[1:])
    assert not export(source, tmp_path / "out").copied_files
    assert export(source, tmp_path / "out", verifies_all=True).copied_files == 1
    assert victim.read_bytes() == right


def test_a_target_that_stores_something_else_is_refused(source: Source, tmp_path: Path) -> None:
    source.write(6)

    class Lying(WritableStorage):
        def write(self, path: str, chunks: Iterable[bytes | pa.Buffer]) -> None:
            super().write(path, (bytes(chunk)[:-1] + b"x" for chunk in chunks))

    with pytest.raises(PipelineError, match="reads back with"):
        export_segments(ExportSettings(Storage(), Lying()), [str(source.root)], None, str(tmp_path / "out"))


def test_merged_segments_are_removed_from_the_export(source: Source, tmp_path: Path) -> None:
    source.write(8)
    export(source, tmp_path / "out")
    segments = source.log.segments
    merged, into = segments[1], segments[0]
    joined = Path(into.path).read_bytes() + Path(merged.path).read_bytes()
    source.log.close_files()
    Path(into.path).write_bytes(joined)  # the result of compaction: one segment instead of two
    for suffix in (".log", ".index", ".timeindex", ".snapshot"):
        Path(merged.directory.file(merged.base_offset, suffix)).unlink(missing_ok=True)
    summary = export(source, tmp_path / "out")
    assert summary.removed_files >= 3
    there = contents(tmp_path / "out" / "t-0")
    assert f"{merged.base_offset:020d}.log" not in there
    assert there[f"{0:020d}.log"] == joined


def test_a_topic_created_again_is_not_mixed_with_the_old_one(source: Source, tmp_path: Path) -> None:
    source.write(6)
    export(source, tmp_path / "out")
    write_topic_id(source.root / "t-0", uuid.UUID(int=8))
    with pytest.raises(PipelineError, match="another topic"):
        export(source, tmp_path / "out")


def test_the_command_reports_its_actions(source: Source, tmp_path: Path) -> None:
    source.write(6)
    done = CliRunner().invoke(command, [str(source.root), "--to", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "each file read back" in done.output and "1 partition, " in done.output
    shutil.rmtree(tmp_path / "out")
    done = CliRunner().invoke(command, [str(source.root), "--to", str(tmp_path / "out"), "--json"])
    assert f'"end_offset": {source.active_base}' in done.output
    again = CliRunner().invoke(command, [str(source.root), "--to", str(tmp_path / "o"), "--format", "json"])
    assert json.loads(again.output) == json.loads(done.output)
    table = CliRunner().invoke(command, [str(source.root), "--to", str(tmp_path / "t"), "--format", "table"])
    assert "exported to offset" in table.output
    plain = CliRunner().invoke(command, [str(source.root), "--to", str(tmp_path / "p"), "--format", "plain"])
    assert "exported to offset" not in plain.output
