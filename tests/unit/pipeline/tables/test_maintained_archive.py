"""An archive that runs by interval maintains its table between batches, and nothing is missing afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import produce_values
from tidelog.pipeline.archive.job import run_archive
from tidelog.pipeline.archive.spec import ArchiveSpec
from tidelog.pipeline.tables.ledger import CommitEntry
from tidelog.pipeline.tables.maintenance import MaintenanceSchedule, MaintenanceSettings
from tidelog.pipeline.verify.job import verify
from tidelog.pipeline.verify.logs import BrokerLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]
BATCHES = 3
AT_ONCE_S = 1e-6
"""Maintenance runs after each batch."""


def test_small_files_are_combined_while_the_archive_runs(
    spark: SparkSession, broker: BrokerProcess, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic()
    table = tmp_path / "table"
    spec = ArchiveSpec(
        name=f"of-{topic}",
        bootstrap=broker.bootstrap,
        table=str(table),
        checkpoint=str(tmp_path / "checkpoint"),
        topics=(topic,),
        table_format="parquet",
        interval_ms=100,
        maintenance=MaintenanceSchedule(AT_ONCE_S, MaintenanceSettings(keep_hours=0)),
    )
    seen: list[CommitEntry] = []
    files_at: list[int] = []

    def data_files() -> int:
        return len(list(table.glob("event_date=*/*.parquet")))

    def committed(entry: CommitEntry) -> None:
        seen.append(entry)
        files_at.append(data_files())
        if len(seen) < BATCHES:
            produce_values(broker.bootstrap, topic, [b"more"] * 5)

    produce_values(broker.bootstrap, topic, [b"first"] * 5)
    # A stop also interrupts maintenance, so the test waits until maintenance has finished.
    summary = run_archive(
        spark, spec, on_commit=committed, stops=lambda: len(seen) == BATCHES and data_files() == 1
    )
    assert (summary.batches, summary.rows) == (BATCHES, 5 * BATCHES)
    # A batch is reported before its files are compacted: the files of the previous batch, and its own.
    assert files_at == [1, 2, 2]
    verdict = verify(spark, spec.table, BrokerLog(broker.bootstrap))
    assert verdict.is_complete, verdict
    assert verdict.rows == 5 * BATCHES
