"""Maintenance of Delta tables by OPTIMIZE and VACUUM. Their commits are kept, because they contain the
ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tidelog.pipeline.maintenance.packing import LARGE_ENOUGH
from tidelog.pipeline.maintenance.schedule import DEFAULT_KEEP_HOURS, MaintenanceSettings
from tidelog.pipeline.maintenance.summary import MaintenanceSummary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
