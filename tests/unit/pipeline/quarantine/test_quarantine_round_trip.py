"""Records that an archive could not read are listed, put back, and read when it can; then the table is
complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import consume_messages, produce_values
from tidelog.cli.main import main
from tidelog.pipeline.archive.job import run_archive
from tidelog.pipeline.archive.spec import ArchiveSpec
from tidelog.pipeline.formats.value_format import NewFields, ValueFormat, ValueKind
from tidelog.pipeline.tables.archive_table import read_table
from tidelog.pipeline.verify.job import verify
from tidelog.pipeline.verify.logs import BrokerLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]
REASON = "field seat"
SCHEMA = "delay BIGINT"


def run(broker: BrokerProcess, *arguments: str) -> str:
    told = CliRunner().invoke(
        main, ["pipeline", "quarantine", *arguments, "--bootstrap-server", broker.bootstrap]
    )
    assert told.exit_code == 0, told.output
    return told.output


def test_replayed_records_are_archived_once(
    spark: SparkSession, broker: BrokerProcess, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, bad = new_topic(), new_topic()
    strict = ValueFormat(ValueKind.JSON, new_fields=NewFields.QUARANTINE)
    spec = ArchiveSpec(
        name=f"of-{topic}",
        bootstrap=broker.bootstrap,
        table=str(tmp_path / "table"),
        checkpoint=str(tmp_path / "checkpoint"),
        topics=(topic,),
        table_format="parquet",
        value_format=strict,
        quarantine_topic=bad,
    )
    good = [json.dumps({"delay": n}).encode() for n in range(3)]
    produce_values(broker.bootstrap, topic, good)
    run_archive(spark, replace(spec, value_format=ValueFormat(ValueKind.JSON)))
    produce_values(broker.bootstrap, topic, [b'{"delay": 3, "seat": "4A"}', b"{no", b'{"delay": 4}'])
    summary = run_archive(spark, spec)
    assert (summary.rows, summary.quarantined) == (1, 2)
    reasons = {
        (headers := dict(message.headers()))["tidelog.error.offset"]: headers["tidelog.error.reason"]
        for message in consume_messages(broker.bootstrap, bad, 2)
    }
    assert sorted(reasons) == [b"3", b"4"]
    assert REASON.encode() in reasons[b"3"]
    told = json.loads(run(broker, "list", bad, "--json"))
    assert (told["waiting"], len(told["reasons"])) == (2, 2)

    # The archive was at fault, and now it has a column for the field.
    run(broker, "replay", bad, "--reason", REASON, "--execute")
    assert run_archive(spark, replace(spec, value_format=ValueFormat(ValueKind.JSON))).rows == 1
    rows = read_table(spark, spec.table).orderBy("kafka_offset").collect()
    assert [(row.delay, row.seat) for row in rows] == [*((n, None) for n in (0, 1, 2, 4)), (3, "4A")]
    told = json.loads(run(broker, "list", bad, "--json"))
    assert (told["waiting"], told["replayed"]) == (1, 1)
    verdict = verify(spark, spec.table, BrokerLog(broker.bootstrap), quarantine_topic=bad)
    assert verdict.is_complete, verdict
    assert verdict.holes["quarantined"] == 2
