"""Records with times that Spark or other readers of a table cannot represent go to the quarantine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import consume_messages
from brokerlab.raw_client import RawClient
from tidelog.pipeline.archive.job import run_archive
from tidelog.pipeline.archive.spec import ArchiveSpec
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.formats.value_format import ValueFormat, ValueKind
from tidelog.pipeline.tables.archive_table import read_table
from tidelog.pipeline.verify.job import verify
from tidelog.pipeline.verify.logs import BrokerLog
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]

NOW_MS = 1_700_000_000_000
LATEST_MS = 253_402_300_799_999  # the end of the year 9999
EARLIEST_MS = -62_135_596_800_000
TIMES = [
    NOW_MS,
    NOW_MS * 1_000_000,  # nanoseconds in a field of milliseconds
    LATEST_MS,
    LATEST_MS + 1,
    -9_300_000_000_000_000,
    EARLIEST_MS,
    EARLIEST_MS - 1,
    NOW_MS + 1,
]
BAD = [1, 3, 4, 6]
CONFIGS = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}


@pytest.mark.parametrize("kind", [ValueKind.RAW, ValueKind.JSON])
def test_impossible_times_go_to_the_quarantine(
    spark: SparkSession,
    broker: BrokerProcess,
    new_topic: Callable[..., str],
    tmp_path: Path,
    kind: ValueKind,
) -> None:
    topic, bad = new_topic(**CONFIGS), new_topic()
    spec = ArchiveSpec(
        name=f"of-{topic}",
        bootstrap=broker.bootstrap,
        table=str(tmp_path / "table"),
        checkpoint=str(tmp_path / "checkpoint"),
        topics=(topic,),
        table_format="parquet",
        value_format=ValueFormat(kind),
    )
    with RawClient(broker.bootstrap) as client:
        for number, time_ms in enumerate(TIMES):
            value = json.dumps({"number": number, "at": 10**17}).encode()
            answer = client.produce(topic, bytes(build_batch([Record(0, time_ms, b"k", value)])))
            assert answer.error_code == 0
    with pytest.raises(PipelineError, match=r"4 records cannot be read, .*years 1 to 9999.*--quarantine"):
        run_archive(spark, spec)
    summary = run_archive(spark, replace(spec, quarantine_topic=bad))
    assert (summary.rows, summary.quarantined) == (4, 4)
    assert (
        sorted(
            int(dict(message.headers())["tidelog.error.offset"])
            for message in consume_messages(broker.bootstrap, bad, 4)
        )
        == BAD
    )
    rows = read_table(spark, spec.table).selectExpr("kafka_offset", "year(event_date) AS year").collect()
    assert sorted(row["kafka_offset"] for row in rows) == [n for n in range(len(TIMES)) if n not in BAD]
    assert {row["year"] for row in rows} == {1, 2023, 9999}
    verdict = verify(spark, spec.table, BrokerLog(broker.bootstrap), quarantine_topic=bad)
    assert verdict.is_complete, verdict


def test_a_field_with_an_impossible_time_gives_no_partition(
    spark: SparkSession, broker: BrokerProcess, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic()
    spec = ArchiveSpec(
        name=f"of-{topic}",
        bootstrap=broker.bootstrap,
        table=str(tmp_path / "table"),
        checkpoint=str(tmp_path / "checkpoint"),
        topics=(topic,),
        table_format="parquet",
        value_format=ValueFormat(ValueKind.JSON),
        event_date_field="at",
    )
    with RawClient(broker.bootstrap) as client:
        for at in (NOW_MS * 1_000_000, LATEST_MS + 1, EARLIEST_MS - 1, LATEST_MS):
            client.produce(topic, bytes(build_batch([Record(0, NOW_MS, None, b'{"at": %d}' % at)])))
    run_archive(spark, spec)
    years = read_table(spark, spec.table).selectExpr("year(event_date) AS year").collect()
    assert sorted(row["year"] for row in years) == [2023, 2023, 2023, 9999]
