"""Maintenance of plain Parquet tables: one commit replaces small files of a date by a large one, and strays
are deleted.

This is safe beside a running job. Commits only add files, and a compaction whose files another compaction
already removed has no effect (`ParquetCommits.files`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.maintenance.packing import Pack, packs_of
from tidelog.pipeline.maintenance.schedule import MaintenanceSettings
from tidelog.pipeline.maintenance.summary import MaintenanceSummary
from tidelog.pipeline.parquet_commits import (
    COMMITS_DIRECTORY,
    EVENT_DATE,
    STAGING_DIRECTORY,
    ParquetCommit,
    ParquetCommits,
)
from tidelog.pipeline.tables import parquet_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

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
