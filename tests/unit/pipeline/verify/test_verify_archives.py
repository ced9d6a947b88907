"""Tables of both formats, made by an archive, are verified with brokers and with segment files."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import create_topic, new_producer
from tidelog.cli.main import main
from tidelog.pipeline.archive.job import run_archive
from tidelog.pipeline.archive.spec import ArchiveSpec
from tidelog.pipeline.segments.storage import Storage
from tidelog.pipeline.segments.visible import visible_logs
from tidelog.pipeline.verify.job import verify
from tidelog.pipeline.verify.logs import BrokerLog, SegmentLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC: Final = "verified"
CHECKPOINT_TIMEOUT_S: Final = 60.0
ROWS: Final = 20 + 20 + 10
HOLES: Final = {"marker": 4, "abort": 10}


@dataclass(frozen=True)
class Archived:
    broker: BrokerProcess
    directory: Path

    def table(self, table_format: str) -> str:
        return str(self.directory / table_format)

    def segments(self) -> SegmentLog:
        return SegmentLog((str(self.broker.data_dir),))


def produce(bootstrap: str) -> None:
    """Writes to partition 0: 20 plain, 10 committed, 5 aborted; to partition 1: 10 committed, 5 aborted, 10
    plain.
    """
    plain = new_producer(bootstrap, compression_type="zstd")
    transactional = new_producer(bootstrap, transactional_id=TOPIC)
    transactional.init_transactions(30)

    def send(producer: Any, partition: int, count: int) -> None:
        for number in range(count):
            key = b"k%d" % number if number % 3 else None
            producer.produce(
                TOPIC, b"v%d" % number, key=key, partition=partition, headers=[("n", b"%d" % number)]
            )
        producer.flush(30)

    send(plain, 0, 20)
    for partitions, commits, count in (((0, 1), True, 10), ((0, 1), False, 5)):
        transactional.begin_transaction()
        for partition in partitions:
            send(transactional, partition, count)
        (transactional.commit_transaction if commits else transactional.abort_transaction)(30)
    send(plain, 1, 10)


@pytest.fixture(scope="module")
def archived(
    spark: SparkSession, broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Archived:
    create_topic(broker.bootstrap, TOPIC, 2)
    produce(broker.bootstrap)
    made = Archived(broker, tmp_path_factory.mktemp("archived"))
    for table_format, batch in (("delta", 30), ("parquet", 1000)):
        spec = ArchiveSpec(
            name=f"to-{table_format}",
            bootstrap=broker.bootstrap,
            table=made.table(table_format),
            checkpoint=f"{made.table(table_format)}.checkpoint",
            topics=(TOPIC,),
            table_format=table_format,  # type: ignore[arg-type]
            max_offsets_per_trigger=batch,
        )
        assert run_archive(spark, spec).rows == ROWS
    deadline = time.monotonic() + CHECKPOINT_TIMEOUT_S
    while time.monotonic() < deadline:  # the broker writes its checkpoint every five seconds
        logs = visible_logs(Storage(), [str(broker.data_dir)], [TOPIC], unknown_is_empty=True)
        if sorted(log.end_offset for log in logs) == [27, 37]:
            return made
        time.sleep(0.2)
    raise AssertionError(f"visible are {logs} only")


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Runs the command in this process, and keeps the session."""
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    yield lambda *words: CliRunner().invoke(main, ["pipeline", "verify", *words])
    spark.sparkContext.setLogLevel("ERROR")


@pytest.mark.spark
@pytest.mark.integration
def test_the_command_reports_a_sound_table_as_complete(
    archived: Archived, run: Callable[..., Result], tmp_path: Path
) -> None:
    page = tmp_path / "verdict.html"
    result = run(
        archived.table("delta"), "--bootstrap-server", archived.broker.bootstrap, "--html", str(page)
    )
    assert result.exit_code == 0, (result.output, result.exception)
    assert result.stdout.splitlines() == [
        f"{archived.table('delta')}: complete: rows {ROWS}, lost 0, duplicated 0, changed 0, "
        "holes 14 explained (marker 4, abort 10)"
    ]
    assert '<span class="complete">complete</span>' in page.read_text()


@pytest.mark.spark
@pytest.mark.integration
def test_plain_parquet_is_verified_with_segments_only(spark: SparkSession, archived: Archived) -> None:
    verdict = verify(spark, archived.table("parquet"), archived.segments())
    assert (verdict.problems, verdict.rows, verdict.holes) == ((), ROWS, HOLES)


@pytest.mark.spark
@pytest.mark.integration
def test_a_row_removed_from_a_file_is_found_in_segments(spark: SparkSession, archived: Archived) -> None:
    table = Path(archived.table("parquet"))
    file = max(table.glob("event_date=*/*.parquet"), key=lambda each: each.stat().st_size)
    rows = pq.ParquetFile(file).read()
    removed = rows.column("kafka_offset")[0].as_py()
    sound = file.read_bytes()
    checksum = file.with_name(f".{file.name}.crc")
    checksum.unlink(missing_ok=True)
    pq.write_table(rows.slice(1), file, use_deprecated_int96_timestamps=True)  # as Spark does
    try:
        verdict = verify(spark, str(table), archived.segments())
    finally:
        file.write_bytes(sound)
    assert (verdict.rows, verdict.lost, verdict.duplicated, verdict.changed) == (ROWS - 1, 1, 0, 0)
    assert [problem.kind for problem in verdict.problems] == ["lost"]
    assert f"1 records, offsets {removed}" in verdict.problems[0].text


@pytest.mark.spark
@pytest.mark.integration
def test_faults_in_a_delta_table_are_reported_by_offset(
    spark: SparkSession, archived: Archived, run: Callable[..., Result]
) -> None:
    table = archived.table("delta")
    at = "kafka_partition = {} and kafka_offset = {}".format
    spark.sql(f"DELETE FROM delta.`{table}` WHERE {at(0, 3)}")
    spark.sql(f"UPDATE delta.`{table}` SET kafka_value = encode('x', 'utf-8') WHERE {at(0, 25)}")
    spark.sql(f"INSERT INTO delta.`{table}` SELECT * FROM delta.`{table}` WHERE {at(1, 2)}")
    result = run(table, "--bootstrap-server", archived.broker.bootstrap, "--json")
    assert result.exit_code == 1, (result.output, result.exception)
    found = json.loads(result.stdout)
    assert (found["rows"], found["lost"], found["duplicated"], found["changed"]) == (ROWS, 1, 1, 1)
    assert found["holes"] == HOLES
    assert sorted((p["kind"], p["partition"], p["text"].rpartition(" ")[2]) for p in found["problems"]) == [
        ("changed", 0, "25"),
        ("duplicated", 1, "2"),
        ("lost", 0, "3"),
    ]
    with_segments = verify(spark, table, archived.segments())
    assert [p.text for p in with_segments.problems] == [p["text"] for p in found["problems"]]
    spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {_last_sound_version(spark, table)}")
    assert verify(spark, table, BrokerLog(archived.broker.bootstrap)).is_complete


def _last_sound_version(spark: SparkSession, table: str) -> int:
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table}`")
    return int(history.where("userMetadata is not null").agg({"version": "max"}).collect()[0][0])


@pytest.mark.spark
def test_a_directory_that_is_no_table_is_reported_in_one_sentence(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    result = run(str(tmp_path), "--segments", str(tmp_path))
    assert result.exit_code == 1
    assert f"{tmp_path} holds no table of an archive" in result.output
    result = run(str(tmp_path), "--client-set", "a=b", "--segments", str(tmp_path))
    assert "with --segments no broker is asked" in result.output
