"""The files of a plain Parquet table after compactions, and the files that are deleted, without Spark."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tidelog.pipeline.tables.archive_table import ParquetCommit, ParquetCommits
from tidelog.pipeline.tables.maintenance import (
    COMPACTION_DIRECTORY,
    MaintenanceSchedule,
    MaintenanceSettings,
    MaintenanceSummary,
    ScheduledMaintenance,
    maintain_parquet,
)

DATE = "event_date=2026-01-01"
SCHEMA: dict[str, Any] = {"type": "struct", "fields": []}
DAY_S = 86_400.0


def commits_of(path: Path, *batches: tuple[str, ...]) -> ParquetCommits:
    commits = ParquetCommits(str(path))
    for number, names in enumerate(batches):
        commits.write_batch(number, ParquetCommit(tuple(f"{DATE}/{name}" for name in names), SCHEMA))
        for name in names:
            put(path, f"{DATE}/{name}")
    return commits


def put(path: Path, name: str, age_s: float = 0) -> None:
    (path / name).parent.mkdir(parents=True, exist_ok=True)
    (path / name).write_bytes(b"x")
    grow_old(path / name, age_s)


def grow_old(file: Path, age_s: float) -> None:
    os.utime(file, (time.time() - age_s,) * 2)


def compact(commits: ParquetCommits, name: str, removed: tuple[str, ...], added: str) -> None:
    paths = tuple(f"{DATE}/{each}" for each in removed)
    commits.write_compaction(name, ParquetCommit((f"{DATE}/{added}",), SCHEMA, removed=paths))
    put(Path(commits.directory.path), f"{DATE}/{added}")


def names(commits: ParquetCommits) -> list[str]:
    return [path.removeprefix(f"{DATE}/") for path in commits.files()]


def test_a_compaction_replaces_its_files_and_may_be_compacted_again(tmp_path: Path) -> None:
    commits = commits_of(tmp_path, ("a", "b"), ("c",))
    compact(commits, "1", ("a", "b"), "ab")
    assert names(commits) == ["ab", "c"]
    compact(commits, "2", ("ab", "c"), "abc")
    assert names(commits) == ["abc"]


def test_of_two_compactions_of_the_same_file_one_counts(tmp_path: Path) -> None:
    commits = commits_of(tmp_path, ("a", "b"), ("c",))
    compact(commits, "2", ("b", "c"), "bc")
    assert names(commits) == ["a", "bc"]
    compact(commits, "1", ("a", "b"), "ab")  # its clock was slow; the rows are the same either way
    assert names(commits) == ["ab", "c"]
    compact(commits, "3", ("a", "bc"), "abc")  # by one that had seen the losing compaction
    assert names(commits) == ["ab", "c"]


def vacuum(path: Path, keep_s: float) -> int:
    settings = MaintenanceSettings(keep_hours=keep_s / 3600, optimizes=False)
    spark: Any = None  # only the files are checked
    return maintain_parquet(spark, str(path), settings, time.time).removed


def test_only_old_unreferenced_files_are_deleted(tmp_path: Path) -> None:
    commits = commits_of(tmp_path, ("live", "taken"), ("taken-just-now",))
    compact(commits, "1", ("taken",), "made")
    compact(commits, "2", ("taken-just-now",), "made-just-now")
    for file in (tmp_path / DATE).iterdir():
        grow_old(file, 9 * DAY_S)
    grow_old(tmp_path / "_tidelog_commits" / "compact-1.json", 8 * DAY_S)
    put(tmp_path, f"{DATE}/stray", 8 * DAY_S)
    put(tmp_path, f"{DATE}/batch-on-its-way")
    put(tmp_path, f"{COMPACTION_DIRECTORY}/killed/part.parquet", 8 * DAY_S)
    put(tmp_path, "_tidelog_staging/on-its-way/part.parquet")
    put(tmp_path, "README", 8 * DAY_S)
    before = set(commits.directory.files())
    vacuum(tmp_path, 7 * DAY_S)
    gone = before - set(commits.directory.files())
    assert gone == {f"{DATE}/taken", f"{DATE}/stray", f"{COMPACTION_DIRECTORY}/killed/part.parquet"}
    assert names(commits) == ["live", "made", "made-just-now"]


def test_a_schedule_is_kept_beside_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def maintain(_spark: Any, table: str, _settings: MaintenanceSettings) -> MaintenanceSummary:
        runs.append(table)
        return MaintenanceSummary(table)

    monkeypatch.setattr("tidelog.pipeline.tables.maintenance.maintain", maintain)
    spark: Any = None
    checkpoint, schedule = str(tmp_path / "c"), MaintenanceSchedule(every_s=60)
    first = ScheduledMaintenance("t", checkpoint, schedule, now_s=1000)
    assert first.run_if_due(spark, 1059) is None
    again = ScheduledMaintenance("t", checkpoint, schedule, now_s=1050)  # a short job that runs often
    assert again.run_if_due(spark, 1060) is not None
    assert again.run_if_due(spark, 1061) is None
    third = ScheduledMaintenance("t", checkpoint, schedule, now_s=1100)
    assert third.run_if_due(spark, 1119) is None
    assert third.run_if_due(spark, 1120) is not None
    assert runs == ["t", "t"]
    never = ScheduledMaintenance("t", checkpoint, MaintenanceSchedule(every_s=0), now_s=0)
    assert never.run_if_due(spark, 10**9) is None


def test_a_failure_of_maintenance_does_not_stop_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def maintain(*_: Any) -> MaintenanceSummary:
        raise OSError("disk full")

    monkeypatch.setattr("tidelog.pipeline.tables.maintenance.maintain", maintain)
    spark: Any = None
    scheduled = ScheduledMaintenance("t", str(tmp_path / "c"), MaintenanceSchedule(every_s=60), now_s=0)
    assert scheduled.run_if_due(spark, 60) is None
    assert "maintenance of t failed, the archive continues: disk full" in caplog.text
    assert scheduled.run_if_due(spark, 61) is None


def test_a_damaged_note_of_the_last_run_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "tidelog-maintenance.json").write_text("{")
    spark: Any = None
    scheduled = ScheduledMaintenance("t", str(tmp_path), MaintenanceSchedule(every_s=60), now_s=100)
    assert scheduled.run_if_due(spark, 150) is None
