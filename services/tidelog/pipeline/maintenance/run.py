"""Runs the maintenance of a table of either format, on request or by the schedule of its job."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Final

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.maintenance.schedule import MaintenanceSchedule, MaintenanceSettings
from tidelog.pipeline.maintenance.summary import MaintenanceSummary
from tidelog.pipeline.stored_files import StoredDirectory, absolute
from tidelog.pipeline.tables import DELTA, table_format_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.pipeline.maintenance.parquet import OnPack

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
    from tidelog.pipeline.maintenance.delta import maintain_delta
    from tidelog.pipeline.maintenance.parquet import maintain_parquet

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
