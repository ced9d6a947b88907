"""Topics are written to tables on Spark: each record once, wherever a run breaks off, with the progress in
the group.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import end_offset, new_producer, produce_values
from tidelog.cli.main import main
from tidelog.pipeline.archive import batch as batch_module
from tidelog.pipeline.archive.job import run_archive
from tidelog.pipeline.archive.sink import DeltaSink, OtherRunError, ParquetSink
from tidelog.pipeline.archive.spec import ArchiveSpec
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.tables.archive_table import ledger_of, read_table
from tidelog.pipeline.tables.ledger import CommitEntry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]


@pytest.fixture
def new_spec(
    broker: BrokerProcess, new_topic: Callable[..., str], tmp_path: Path
) -> Callable[..., ArchiveSpec]:
    def make(partitions: int = 1, **fields: Any) -> ArchiveSpec:
        # Some records of these tests are years old.
        topic = new_topic(partitions=partitions, **{"retention.ms": "-1"})
        return ArchiveSpec(
            name=f"of-{topic}",
            bootstrap=broker.bootstrap,
            table=str(tmp_path / "table"),
            checkpoint=str(tmp_path / "checkpoint"),
            topics=(topic,),
            cluster_timeout_s=10.0,
            **fields,
        )

    return make


def group_offsets(broker: BrokerProcess, group: str) -> dict[int, tuple[int, int]]:
    """Returns partition -> committed offset and lag, as `tidelog group` shows them."""
    shown = CliRunner().invoke(main, ["group", "describe", group, "--bootstrap-server", broker.bootstrap])
    assert shown.exit_code == 0, shown.output
    rows = [line.split("\t") for line in shown.output.splitlines()[2:]]
    return {int(row[1]): (int(row[2]), int(row[4])) for row in rows}


def places(table: DataFrame) -> list[tuple[int, int]]:
    rows = table.select("kafka_partition", "kafka_offset").collect()
    return sorted((row[0], row[1]) for row in rows)


def taken(ledger: list[CommitEntry]) -> list[tuple[int, int, int, int]]:
    """Returns partition, start, end and count of all ranges."""
    return sorted((r.partition, r.start, r.end, r.count) for entry in ledger for r in entry.ranges)


def test_records_are_archived_unchanged_and_the_group_is_at_the_end(
    spark: SparkSession, broker: BrokerProcess, new_spec: Callable[..., ArchiveSpec]
) -> None:
    spec = new_spec(partitions=2, max_offsets_per_trigger=30)
    (topic,) = spec.topics
    producer = new_producer(broker.bootstrap, transactional_id=f"of-{topic}")
    producer.init_transactions(30)
    for commits in (True, False, True):
        producer.begin_transaction()
        for number in range(10):
            producer.produce(
                topic,
                key=None if number % 2 else b"",
                value=None if number == 3 else b"%d" % number,
                headers=[("h", b"1"), ("h", None)] if number == 4 else None,
                partition=number % 2,
                timestamp=1_700_000_000_000,
            )
        producer.flush(30)
        producer.commit_transaction(30) if commits else producer.abort_transaction(30)
    summary = run_archive(spark, spec)
    rows = read_table(spark, spec.table).orderBy("kafka_offset").collect()
    assert summary.rows == len(rows) == 20
    zero = [row for row in rows if row.kafka_partition == 0]
    assert [row.kafka_offset for row in zero] == [
        0,
        1,
        2,
        3,
        4,
        *range(12, 17),
    ]  # markers and aborted records
    assert (bytes(zero[0].kafka_key), bytes(zero[2].kafka_value)) == (b"", b"4")
    assert [(h.key, h.value and bytes(h.value)) for h in zero[2].kafka_headers] == [("h", b"1"), ("h", None)]
    tombstone = next(row for row in rows if row.kafka_partition == 1 and row.kafka_offset == 1)
    assert (tombstone.kafka_key, tombstone.kafka_value) == (None, None)
    assert str(zero[0].event_date) == "2023-11-14"
    ledger = ledger_of(spark, spec.table)
    assert sum(r.count for entry in ledger for r in entry.ranges) == 20
    assert all(r.leader_epochs == ((0, r.start),) for entry in ledger for r in entry.ranges)
    assert group_offsets(broker, spec.consumer_group) == {0: (18, 0), 1: (18, 0)}
    assert end_offset(broker.bootstrap, topic, 0) == 18
    assert run_archive(spark, spec).batches == 0


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_an_interrupted_job_causes_no_loss_and_no_duplicates(
    spark: SparkSession,
    broker: BrokerProcess,
    new_spec: Callable[..., ArchiveSpec],
    monkeypatch: pytest.MonkeyPatch,
    table_format: str,
) -> None:
    spec = new_spec(partitions=2, table_format=table_format)
    for partition in range(2):
        produce_values(broker.bootstrap, spec.topics[0], [b"x%d" % n for n in range(30)], partition)
    sink = DeltaSink if table_format == "delta" else ParquetSink

    def broken(real: Callable[..., Any], when: str) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            if when == "after":
                real(*arguments)
            raise RuntimeError(f"killed {when} it")

        return run

    for owner, name, when in (
        (sink, "append", "before"),
        (sink, "append", "after"),
        (batch_module, "commit_progress", "after"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, broken(getattr(owner, name), when))
            with pytest.raises((PipelineError, RuntimeError), match=f"killed {when} it"):
                run_archive(spark, spec)
    run_archive(spark, spec)
    assert places(read_table(spark, spec.table)) == [(p, n) for p in range(2) for n in range(30)]
    ledger = ledger_of(spark, spec.table)
    assert [entry.batch_id for entry in ledger] == [0]
    assert taken(ledger) == [(0, 0, 30, 30), (1, 0, 30, 30)]
    assert group_offsets(broker, spec.consumer_group) == {0: (30, 0), 1: (30, 0)}


def test_the_ledger_replaces_a_lost_checkpoint(
    spark: SparkSession, broker: BrokerProcess, new_spec: Callable[..., ArchiveSpec], tmp_path: Path
) -> None:
    spec = new_spec()
    produce_values(broker.bootstrap, spec.topics[0], [b"a"] * 10)
    run_archive(spark, spec)
    produce_values(broker.bootstrap, spec.topics[0], [b"b"] * 5)
    second = replace(spec, checkpoint=str(tmp_path / "second"))
    assert run_archive(spark, second).rows == 5
    assert taken(ledger_of(spark, spec.table)) == [(0, 0, 10, 10), (0, 10, 15, 5)]
    with pytest.raises(PipelineError, match="use the checkpoint that is further ahead"):
        run_archive(spark, spec)


def test_with_an_interval_the_archive_runs_until_it_is_stopped(
    spark: SparkSession, broker: BrokerProcess, new_spec: Callable[..., ArchiveSpec]
) -> None:
    spec = new_spec(interval_ms=100, table_format="parquet")
    produce_values(broker.bootstrap, spec.topics[0], [b"a"] * 10)
    seen: list[CommitEntry] = []

    def committed(entry: CommitEntry) -> None:
        seen.append(entry)
        if len(seen) == 1:
            produce_values(broker.bootstrap, spec.topics[0], [b"b"] * 5)

    summary = run_archive(spark, spec, on_commit=committed, stops=lambda: len(seen) == 2)
    assert (summary.batches, summary.rows) == (2, 15)
    assert taken(seen) == [(0, 0, 10, 10), (0, 10, 15, 5)]


def test_two_runs_at_once_are_distinguished_from_a_restarted_one(
    spark: SparkSession, broker: BrokerProcess, new_spec: Callable[..., ArchiveSpec]
) -> None:
    spec = new_spec()
    produce_values(broker.bootstrap, spec.topics[0], [b"a"] * 10)
    run_archive(spark, spec)
    rows = read_table(spark, spec.table)
    (entry,) = ledger_of(spark, spec.table)
    sink = DeltaSink(spark, spec)
    sink.append(rows, entry)  # Delta skips it
    shorter = replace(entry, ranges=(replace(entry.ranges[0], end=7, count=7),))
    with pytest.raises(OtherRunError, match="another run writes to the table"):
        sink.append(rows, shorter)
    assert rows.count() == 10


def test_json_becomes_columns_and_unreadable_values_are_counted(
    spark: SparkSession,
    broker: BrokerProcess,
    new_spec: Callable[..., ArchiveSpec],
    new_topic: Callable[..., str],
) -> None:
    from tidelog.pipeline.formats.value_format import ValueFormat, ValueKind

    quarantine = new_topic()
    spec = new_spec(value_format=ValueFormat(ValueKind.JSON), event_date_field="day")
    first = [json.dumps({"day": "2024-02-29", "delay": n}).encode() for n in range(5)]
    produce_values(broker.bootstrap, spec.topics[0], [*first, b"{no"])
    with pytest.raises(PipelineError, match=r"1 records cannot be read, .*-0 offset 5: .*--quarantine"):
        run_archive(spark, spec)
    spec = replace(spec, quarantine_topic=quarantine)
    summary = run_archive(spark, spec)
    assert (summary.rows, summary.quarantined) == (5, 1)
    produce_values(
        broker.bootstrap, spec.topics[0], [json.dumps({"day": "2024-03-01", "carrier": "AA"}).encode()]
    )
    run_archive(spark, spec)
    rows = read_table(spark, spec.table).orderBy("kafka_offset").collect()
    assert [(str(row.event_date), row.delay, row.carrier) for row in rows][-2:] == [
        ("2024-02-29", 4, None),
        ("2024-03-01", None, "AA"),
    ]
    assert end_offset(broker.bootstrap, quarantine) == 1
    assert [(r.count, r.quarantined, r.stored) for e in ledger_of(spark, spec.table) for r in e.ranges] == [
        (6, 1, 5),
        (1, 0, 1),
    ]
