"""Maintenance of tables, on request or by the schedule of a job: it compacts small files and deletes files
that no version needs.

Delta tables are maintained by OPTIMIZE and VACUUM. Their commits are kept, because they contain the ledger.
In a plain Parquet table, one commit replaces small files of a date by a large one, and strays are deleted.
This is safe beside a running job: commits only add files, and a compaction whose files another compaction
already removed has no effect (`ParquetCommits.files`).
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from tidelog.model.text import JsonObject
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.tables.archive_table import (
    COMMITS_DIRECTORY,
    DELTA,
    EVENT_DATE,
    STAGING_DIRECTORY,
    ParquetCommit,
    ParquetCommits,
    parquet_schema,
    table_format_of,
)
from tidelog.pipeline.tables.stored_files import StoredDirectory, absolute

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


DEFAULT_TARGET_FILE_BYTES: Final = 128 << 20
DEFAULT_KEEP_HOURS: Final = 168.0


@dataclass(frozen=True, slots=True)
class MaintenanceSettings:
    """`keep_hours` is the age below which files are kept for readers of older versions. Slower readers would
    fail.
    """

    target_file_bytes: int = DEFAULT_TARGET_FILE_BYTES
    keep_hours: float = DEFAULT_KEEP_HOURS
    optimizes: bool = True
    vacuums: bool = True


@dataclass(frozen=True, slots=True)
class MaintenanceSchedule:
    """`every_s` is the time between the end of one run and the next run. 0 means on request only."""

    every_s: float = 3600.0
    settings: MaintenanceSettings = MaintenanceSettings()


@dataclass(slots=True)
class MaintenanceSummary:
    """`packed` small files became `made` files, and `removed` unneeded files were deleted."""

    table: str
    packed: int = 0
    made: int = 0
    removed: int = 0
    seconds: float = 0.0

    def as_dict(self) -> JsonObject:
        return asdict(self)


LARGE_ENOUGH: Final = 0.75
"""The fraction of the target size above which a file is not rewritten, so that bytes are not rewritten
repeatedly.
"""


@dataclass(frozen=True, slots=True)
class Pack:
    """Files of one directory that are combined into one."""

    directory: str
    files: tuple[str, ...]
    size_bytes: int


def packs_of(sizes: Mapping[str, int], target_bytes: int) -> list[Pack]:
    """Returns packs of two or more files with about `target_bytes` at most. `sizes` maps a path to bytes.
    Files are combined in the order of their names, which is the order of their batches.
    """
    directories: dict[str, list[tuple[str, int]]] = {}
    for path, size_bytes in sorted(sizes.items()):
        if size_bytes < target_bytes * LARGE_ENOUGH:
            directories.setdefault(path.rpartition("/")[0], []).append((path, size_bytes))
    packs: list[Pack] = []
    for directory, files in sorted(directories.items()):
        packs += [
            Pack(directory, tuple(path for path, _ in run), sum(size for _, size in run))
            for run in _runs(files, target_bytes)
            if len(run) > 1
        ]
    return packs


def _runs(files: Iterable[tuple[str, int]], target_bytes: int) -> Iterable[Sequence[tuple[str, int]]]:
    run: list[tuple[str, int]] = []
    size_bytes = 0
    for path, own_bytes in files:
        if run and size_bytes + own_bytes > target_bytes:
            yield run
            run, size_bytes = [], 0
        run.append((path, own_bytes))
        size_bytes += own_bytes
    if run:
        yield run


_LEDGER_STAYS: Final[Mapping[str, str]] = {
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 36500 days",
}
_MAX_FILE_SIZE: Final = "spark.databricks.delta.optimize.maxFileSize"
_MIN_FILE_SIZE: Final = "spark.databricks.delta.optimize.minFileSize"
_CHECKS_RETENTION: Final = "spark.databricks.delta.retentionDurationCheck.enabled"
_LISTING_TASKS: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_VACUUM_TASKS: Final = "32"
"""The parallelism of VACUUM's listing. Spark's default of 10,000 tasks takes minutes for a table of a few
files.
"""
_LOGS_VACUUM: Final = "spark.databricks.delta.vacuum.logging.enabled"


def maintain_delta(spark: SparkSession, path: str, settings: MaintenanceSettings) -> MaintenanceSummary:
    """Maintains the table at the absolute `path`."""
    keep_ledger(spark, path)
    summary = MaintenanceSummary(path)
    if settings.optimizes:
        sizes = {
            _MAX_FILE_SIZE: str(settings.target_file_bytes),
            _MIN_FILE_SIZE: str(int(settings.target_file_bytes * LARGE_ENOUGH)),
        }
        with _settings(spark, sizes):
            metrics = spark.sql(f"OPTIMIZE delta.`{path}`").select("metrics.*").first()
        assert metrics is not None
        summary.packed, summary.made = metrics["numFilesRemoved"], metrics["numFilesAdded"]
    if settings.vacuums:
        summary.removed = _vacuum(spark, path, settings.keep_hours)
    return summary


def keep_ledger(spark: SparkSession, path: str) -> None:
    """Sets the table's properties, if necessary, so that Delta does not delete commits after 30 days."""
    rows = spark.sql(f"SHOW TBLPROPERTIES delta.`{path}`").collect()
    properties = {row["key"]: row["value"] for row in rows}
    missing = {name: value for name, value in _LEDGER_STAYS.items() if properties.get(name) != value}
    if missing:
        pairs = ", ".join(f"'{name}' = '{value}'" for name, value in missing.items())
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({pairs})")


def _vacuum(spark: SparkSession, path: str, keep_hours: float) -> int:
    """Vacuums the table and returns the number of deleted files, from the table's history."""
    changed = {_LOGS_VACUUM: "true", _LISTING_TASKS: _VACUUM_TASKS}
    if keep_hours < DEFAULT_KEEP_HOURS:
        changed[_CHECKS_RETENTION] = "false"
    with _settings(spark, changed):
        spark.sql(f"VACUUM delta.`{path}` RETAIN {keep_hours} HOURS").collect()
    last = (
        spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").select("operation", "operationMetrics").first()
    )
    if last is None or last["operation"] != "VACUUM END":
        return 0
    return int(last["operationMetrics"].get("numDeletedFiles", 0))


@contextmanager
def _settings(spark: SparkSession, changed: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in changed}
    for name, value in changed.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)


COMPACTION_DIRECTORY: Final = "_tidelog_compaction"
"""The staging directory of maintenance. The archive empties its own staging directory."""
_SECONDS_AN_HOUR: Final = 3600
OnPack = Callable[[int, int], None]
"""A callback that receives the number of packs that are done, and the total."""


def maintain_parquet(
    spark: SparkSession,
    path: str,
    settings: MaintenanceSettings,
    now_s: Callable[[], float],
    on_pack: OnPack = lambda _done, _of: None,
) -> MaintenanceSummary:
    """Maintains the table at the absolute `path`. Raises PipelineError."""
    commits = ParquetCommits(path)
    summary = MaintenanceSummary(path)
    if settings.optimizes:
        _compact(spark, commits, settings.target_file_bytes, now_s(), on_pack, summary)
    if settings.vacuums:
        summary.removed = _delete_unneeded(commits, now_s() - settings.keep_hours * _SECONDS_AN_HOUR)
    return summary


def _compact(
    spark: SparkSession,
    commits: ParquetCommits,
    target_bytes: int,
    now_s: float,
    on_pack: OnPack,
    summary: MaintenanceSummary,
) -> None:
    schema = parquet_schema(commits)
    if schema is None:
        return
    there = commits.directory.files()
    packs = packs_of({path: there[path] for path in commits.files() if path in there}, target_bytes)
    for number, pack in enumerate(packs):
        summary.made += _rewrite(spark, commits, schema, pack, f"{int(now_s * 1000):015d}-{number:06d}")
        summary.packed += len(pack.files)
        on_pack(number + 1, len(packs))


def _rewrite(spark: SparkSession, commits: ParquetCommits, schema: StructType, pack: Pack, name: str) -> int:
    """Rewrites the packs and returns the number of new files. Uncommitted files are later deleted like any
    file without a commit.
    """
    root = commits.directory.path
    name = f"{name}-{uuid.uuid4().hex[:12]}"
    staging = f"{COMPACTION_DIRECTORY}/{name}"
    columns = type(schema)([field for field in schema.fields if field.name != EVENT_DATE])
    rows = spark.read.schema(columns).parquet(*(f"{root}/{path}" for path in pack.files))
    rows.coalesce(1).write.parquet(f"{root}/{staging}")
    before, after = rows.count(), spark.read.schema(columns).parquet(f"{root}/{staging}").count()
    if before != after:
        raise PipelineError(f"{root}/{pack.directory}: {before} rows became {after}; nothing was changed")
    added = []
    for number, path in enumerate(sorted(commits.directory.files(staging))):
        if path.endswith(".parquet"):
            target = f"{pack.directory}/compact-{name}-{number:05d}.parquet"
            commits.directory.move(path, target)
            added.append(target)
    commits.write_compaction(name, ParquetCommit(tuple(added), schema.jsonValue(), removed=pack.files))
    commits.directory.delete_directory(staging)
    return len(added)


def _delete_unneeded(commits: ParquetCommits, before_s: float) -> int:
    """Deletes files that no commit names, and files that a compaction removed before `before_s`."""
    directory = commits.directory
    live = set(commits.files())
    written_s = directory.modified()
    commit_s = {name: at for name, at in written_s.items() if name.startswith(f"{COMMITS_DIRECTORY}/")}
    taken_s: dict[str, float] = {}
    for name, commit in commits.named_compactions().items():
        at = commit_s.get(f"{COMMITS_DIRECTORY}/{name}", before_s)
        for path in commit.removed:
            taken_s[path] = max(at, taken_s.get(path, at))
    removed = 0
    for path, at in written_s.items():
        is_data = path.startswith((f"{EVENT_DATE}=", f"{COMPACTION_DIRECTORY}/", f"{STAGING_DIRECTORY}/"))
        if is_data and path not in live and max(at, taken_s.get(path, at)) < before_s:
            directory.delete(path)
            removed += path.endswith(".parquet")
    return removed


_LOG: Final = logging.getLogger(__name__)
_LAST_RUN: Final = "tidelog-maintenance.json"


def maintain(
    spark: SparkSession,
    table: str,
    settings: MaintenanceSettings,
    *,
    on_pack: OnPack = lambda _done, _of: None,
) -> MaintenanceSummary:
    """Maintains the table. Raises PipelineError."""

    began_s = time.monotonic()
    path = absolute(table)
    if table_format_of(path) == DELTA:
        summary = maintain_delta(spark, path, settings)
    else:
        summary = maintain_parquet(spark, path, settings, time.time, on_pack)
    summary.seconds = time.monotonic() - began_s
    return summary


class ScheduledMaintenance:
    """Maintenance between two batches of a job. The time of the last run is stored beside the job's
    checkpoint, so that short jobs that run often are maintained, too.
    """

    def __init__(self, table: str, checkpoint: str, schedule: MaintenanceSchedule, now_s: float) -> None:
        self._table = table
        self._schedule = schedule
        self._directory = StoredDirectory(checkpoint)
        self._last_s = self._read(now_s)

    def run_if_due(self, spark: SparkSession, now_s: float) -> MaintenanceSummary | None:
        """Runs maintenance if it is due. A failure is logged, and the next due run tries again, so that the
        archive continues.
        """
        if self._schedule.every_s <= 0 or now_s - self._last_s < self._schedule.every_s:
            return None
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        summary = None
        try:
            summary = maintain(spark, self._table, self._schedule.settings)
        except (OSError, PipelineError, PySparkException, Py4JError) as error:
            reason = " ".join(str(error).split())[:500]
            _LOG.warning("maintenance of %s failed, the archive continues: %s", self._table, reason)
        self._last_s = now_s
        self._write()
        return summary

    def _read(self, now_s: float) -> float:
        text = self._directory.read(_LAST_RUN)
        try:
            if text is not None:
                return float(json.loads(text)["ended_s"])
        except (KeyError, TypeError, ValueError):
            _LOG.warning("%s/%s is damaged, so it is written again", self._directory.path, _LAST_RUN)
        self._last_s = now_s
        self._write()
        return now_s

    def _write(self) -> None:
        self._directory.write(_LAST_RUN, json.dumps({"ended_s": self._last_s}))
