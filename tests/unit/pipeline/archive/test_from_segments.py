"""An archive begins with a broker's files and continues with its live topic: each record once, without a gap
between the parts.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition as ClientPartition

from brokerlab.broker_process import BrokerProcess, free_port
from brokerlab.clients import admin_client, end_offset, new_producer, produce_values
from tidelog.cli.main import main
from tidelog.client.errors import ClientError
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.archive.from_segments import SegmentFiles, begin_offsets, explained, run_from_segments
from tidelog.pipeline.archive.spec import ArchiveSpec
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.log_files import PartitionLog
from tidelog.pipeline.segments.storage import Storage
from tidelog.pipeline.segments.visible import visible_logs
from tidelog.pipeline.tables.archive_table import ledger_of, read_table
from tidelog.pipeline.tables.ledger import CommitEntry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT_TIMEOUT_S = 60.0


def produce_transactions(broker: BrokerProcess, topic: str) -> None:
    producer = new_producer(broker.bootstrap, transactional_id=topic)
    producer.init_transactions(30)
    for commits in (True, False, True):
        producer.begin_transaction()
        for number in range(10):
            producer.produce(topic, b"in transaction %d" % number, partition=0)
        producer.flush(30)
        (producer.commit_transaction if commits else producer.abort_transaction)(30)


def wait_for_checkpoint(directory: Path, topic: str, end: int) -> None:
    """Waits until the broker has written the checkpoint, which happens every five seconds."""
    deadline = time.monotonic() + CHECKPOINT_TIMEOUT_S
    while time.monotonic() < deadline:
        logs = visible_logs(Storage(), [str(directory)], [topic], unknown_is_empty=True)
        if logs[0].end_offset >= end:
            return
        time.sleep(0.2)
    raise AssertionError(f"{topic} is visible to {logs[0].end_offset} only, not {end}")


def spec_for(broker: BrokerProcess, topic: str, tmp_path: Path) -> ArchiveSpec:
    return ArchiveSpec(
        name=f"of-{topic}",
        bootstrap=broker.bootstrap,
        table=str(tmp_path / "table"),
        checkpoint=str(tmp_path / "checkpoint"),
        topics=(topic,),
        table_format="parquet",
        max_offsets_per_trigger=1000,
        cluster_timeout_s=2.0,
    )


def offsets_in(spark: SparkSession, spec: ArchiveSpec) -> list[int]:
    return sorted(row[0] for row in read_table(spark, spec.table).select("kafka_offset").collect())


@pytest.mark.spark
@pytest.mark.integration
def test_files_then_live_each_record_once(
    spark: SparkSession, broker: BrokerProcess, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic()
    produce_transactions(broker, topic)  # offsets 0-9 kept, 10 marker, 11-20 aborted, 21, 22-31 kept, 32
    wait_for_checkpoint(broker.data_dir, topic, 33)
    spec = spec_for(broker, topic, tmp_path)
    files = SegmentFiles((str(broker.data_dir),))
    committed: list[CommitEntry] = []

    nobody = replace(spec, bootstrap=f"127.0.0.1:{free_port()}")
    with pytest.raises(ClientError):  # brokers are needed only after the files are finished
        run_from_segments(spark, nobody, files, on_commit=committed.append)
    kept = [*range(10), *range(22, 32)]
    assert offsets_in(spark, spec) == kept
    assert sum(each.count for entry in committed for each in entry.ranges) == 20

    produce_values(broker.bootstrap, topic, [b"live"] * 5)
    summary = run_from_segments(spark, spec, files)
    assert offsets_in(spark, spec) == [*kept, *range(33, 38)]
    ranges = [each for entry in ledger_of(spark, spec.table) for each in entry.ranges]
    assert [each.start for each in ranges] == [0, *(each.end for each in ranges[:-1])]
    assert len({each.topic_id for each in ranges}) == 1
    assert all(each.leader_epochs for each in ranges)
    assert summary.rows == 5
    assert (tmp_path / "checkpoint" / "offsets" / "0").exists()
    shown = CliRunner().invoke(
        main, ["group", "describe", spec.consumer_group, "--bootstrap-server", broker.bootstrap]
    )
    assert f"\t{end_offset(broker.bootstrap, topic)}\t" in shown.output


@pytest.mark.spark
@pytest.mark.integration
def test_a_gap_between_files_and_live_log_is_named(
    spark: SparkSession, broker: BrokerProcess, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic()
    produce_values(broker.bootstrap, topic, [b"x"] * 12)
    wait_for_checkpoint(broker.data_dir, topic, 12)
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copytree(broker.data_dir / f"{topic}-0", copy / f"{topic}-0")
    shutil.copy(broker.data_dir / "replication-offset-checkpoint", copy)
    produce_values(broker.bootstrap, topic, [b"y"] * 8)
    deleted = admin_client(broker.bootstrap).delete_records([ClientPartition(topic, 0, 17)])
    for future in deleted.values():
        future.result(30)
    spec = spec_for(broker, topic, tmp_path)
    with pytest.raises(PipelineError, match=f"{topic}-0: 5 offsets, 12 to 16"):
        run_from_segments(spark, spec, SegmentFiles((str(copy),)))
    assert offsets_in(spark, spec) == list(range(12))
    summary = run_from_segments(spark, replace(spec, on_data_loss="go_on"), SegmentFiles((str(copy),)))
    assert summary.given_up == 5
    assert offsets_in(spark, spec) == [*range(12), *range(17, 20)]


def log(start: int, end: int) -> PartitionLog:
    return PartitionLog("t", "AAAAAAAAAAAAAAAAAAAABw", 0, "/d", start, end, end, ((3, 0),), ())


def test_the_archive_begins_where_the_table_ends_or_the_log_starts() -> None:
    assert begin_offsets([log(4, 9)], {}) == {("t", 0): 4}
    assert begin_offsets([log(4, 9)], {TopicPartition("t", 0): 7}) == {("t", 0): 7}


def test_sparks_long_error_becomes_one_sentence() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):\n"
        '  File "x.py", line 1, in partitions\n'
        "tidelog.pipeline.segments.log_files.OffsetsMissingError: t-0: offsets 3 to 4 cannot be read: gone\n"
        " SQLSTATE: 38000\n=== Streaming Query ===\nIdentifier"
    )
    assert str(explained(text)) == (
        "the archive stopped: t-0: offsets 3 to 4 cannot be read: gone; "
        "start it again to continue where it was"
    )
    assert "what else" in str(explained("what else\n=== Streaming Query ===\n"))
