"""The files that belong to a plain Parquet table, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.pipeline.archive.survey import next_offsets
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.tables.archive_table import ParquetCommit, ParquetCommits, ParquetTable
from tidelog.pipeline.tables.ledger import CommitEntry

SCHEMA = {"type": "struct", "fields": []}


def test_files_are_those_added_and_not_removed(tmp_path: Path) -> None:
    commits = ParquetCommits(str(tmp_path))
    assert commits.table() is None
    commits.create(ParquetTable("flights", "raw"))
    assert commits.table() == ParquetTable("flights", "raw")
    entry = CommitEntry("flights", 0, (), ())
    commits.write_batch(0, ParquetCommit(("d/a", "d/b"), SCHEMA, entry=entry))
    commits.write_batch(1, ParquetCommit(("d/c",), SCHEMA))
    assert commits.files() == ["d/a", "d/b", "d/c"]
    commits.write_compaction("x", ParquetCommit(("d/ab",), SCHEMA, removed=("d/a", "d/b")))
    assert commits.files() == ["d/ab", "d/c"]
    assert [each.entry for each in commits.batches()] == [entry, None]


def test_an_incomplete_commit_does_not_count(tmp_path: Path) -> None:
    commits = ParquetCommits(str(tmp_path))
    commits.create(ParquetTable("flights", "raw"))
    (tmp_path / "_tidelog_commits" / f"{0:020d}.json.tmp").write_text('{"for')
    assert commits.all() == []


def test_a_commit_of_another_release_is_reported(tmp_path: Path) -> None:
    (tmp_path / "_tidelog_commits").mkdir()
    (tmp_path / "_tidelog_commits" / "table.json").write_text('{"format": 9}')
    with pytest.raises(PipelineError, match="use the release that wrote it"):
        ParquetCommits(str(tmp_path)).table()


def test_nothing_archived_has_no_progress() -> None:
    assert next_offsets([]) == {}
