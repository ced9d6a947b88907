"""Maintenance keeps the rows and the ledger of both kinds of tables, in fewer files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from tidelog.pipeline.archive.sink import sink_of
from tidelog.pipeline.archive.spec import ArchiveSpec
from tidelog.pipeline.tables.archive_table import ledger_of, read_table
from tidelog.pipeline.tables.ledger import CommitEntry
from tidelog.pipeline.tables.maintenance import MaintenanceSettings, maintain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
BATCHES = 2
"""The number of batches. Each is a Delta commit, which is the most expensive part."""


def rows(spark: SparkSession, batch: int) -> DataFrame:
    """Returns rows of two dates. The second batch has one more column."""
    columns = ["id AS kafka_offset", "date_add(DATE'2026-01-01', CAST(id % 2 AS INT)) AS event_date"]
    more = ["CAST(id AS STRING) AS seat"] if batch else []
    return spark.range(batch * 6, batch * 6 + 6).coalesce(1).selectExpr(*columns, *more)


def data_files(table: Path) -> list[Path]:
    return list(table.glob("event_date=*/*.parquet"))


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_fewer_files_hold_the_same_rows_and_ledger(
    spark: SparkSession, tmp_path: Path, table_format: Literal["delta", "parquet"]
) -> None:
    table = tmp_path / "table"
    spec = ArchiveSpec("a", "unused", str(table), str(tmp_path / "c"), ("t",), table_format=table_format)
    sink = sink_of(spark, spec)
    sink.create(rows(spark, 0).schema)
    for batch in range(BATCHES):
        sink.append(rows(spark, batch), CommitEntry("a", batch, ("kafka_offset",), ()))
    before = sorted(map(tuple, read_table(spark, str(table)).collect()), key=str)
    assert len(data_files(table)) == 2 * BATCHES
    summary = maintain(spark, str(table), MaintenanceSettings(keep_hours=0))
    assert (summary.packed, summary.made, summary.removed) == (2 * BATCHES, 2, 2 * BATCHES)
    assert len(data_files(table)) == 2
    assert sorted(map(tuple, read_table(spark, str(table)).collect()), key=str) == before
    assert [entry.batch_id for entry in ledger_of(spark, str(table))] == list(range(BATCHES))
