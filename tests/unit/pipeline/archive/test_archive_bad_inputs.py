"""An archive that cannot continue says so in one sentence, before it loses or duplicates a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import CLIENT_TIMEOUT_S, admin_client, create_topic, produce_values
from tidelog.pipeline.archive.batch import OffsetsMissingError
from tidelog.pipeline.archive.job import run_archive
from tidelog.pipeline.archive.spec import GO_ON, ArchiveSpec
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.tables.archive_table import ledger_of, read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]


@pytest.fixture
def spec(broker: BrokerProcess, new_topic: Callable[..., str], tmp_path: Path) -> ArchiveSpec:
    topic = new_topic()
    return ArchiveSpec(
        name=f"of-{topic}",
        bootstrap=broker.bootstrap,
        table=str(tmp_path / "table"),
        checkpoint=str(tmp_path / "checkpoint"),
        topics=(topic,),
        table_format="parquet",
        cluster_timeout_s=10.0,
    )


def delete_topic(bootstrap: str, name: str) -> None:
    admin_client(bootstrap).delete_topics([name])[name].result(CLIENT_TIMEOUT_S)


def delete_records(bootstrap: str, topic: str, before: int) -> None:
    """Deletes records as retention would."""
    place = TopicPartition(topic, 0, before)
    for future in admin_client(bootstrap).delete_records([place]).values():
        future.result(CLIENT_TIMEOUT_S)


def test_a_topic_that_was_deleted_or_created_again_is_reported(
    spark: SparkSession, broker: BrokerProcess, spec: ArchiveSpec
) -> None:
    (topic,) = spec.topics
    produce_values(broker.bootstrap, topic, [b"a"] * 5)
    run_archive(spark, spec)
    delete_topic(broker.bootstrap, topic)
    with pytest.raises(PipelineError, match=f"topic '{topic}' was deleted; its archived records"):
        run_archive(spark, spec)
    with pytest.raises(PipelineError, match=f"topic '{topic}' does not exist; 'tidelog topic list'"):
        run_archive(spark, replace(spec, table=f"{spec.table}-2", checkpoint=f"{spec.checkpoint}-2"))
    create_topic(broker.bootstrap, topic)
    produce_values(broker.bootstrap, topic, [b"b"] * 9)
    with pytest.raises(PipelineError, match=f"topic '{topic}' was deleted and created again"):
        run_archive(spark, spec)
    assert read_table(spark, spec.table).count() == 5


def test_deleted_records_stop_the_job_or_are_recorded_in_the_ledger(
    spark: SparkSession, broker: BrokerProcess, spec: ArchiveSpec
) -> None:
    (topic,) = spec.topics
    produce_values(broker.bootstrap, topic, [b"a"] * 10)
    run_archive(spark, spec)
    produce_values(broker.bootstrap, topic, [b"b"] * 10)
    delete_records(broker.bootstrap, topic, 15)
    with pytest.raises(OffsetsMissingError, match=f"{topic}-0: 5 offsets, 10 to 14. To continue") as stopped:
        run_archive(spark, spec)
    assert [(each.start, each.end) for each in stopped.value.missing] == [(10, 15)]
    summary = run_archive(spark, replace(spec, on_data_loss=GO_ON))
    assert (summary.rows, summary.given_up) == (5, 5)
    given_up, taken = ledger_of(spark, spec.table)[-1].ranges
    assert (given_up.start, given_up.end, given_up.count, given_up.skipped) == (
        10,
        15,
        0,
        "lost to retention",
    )
    assert (taken.start, taken.end, taken.count, taken.skipped) == (15, 20, 5, None)
    assert sorted(row[0] for row in read_table(spark, spec.table).select("kafka_offset").collect()) == [
        *range(10),
        *range(15, 20),
    ]


def test_a_path_that_holds_something_else_is_refused(
    spark: SparkSession, spec: ArchiveSpec, tmp_path: Path
) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "letter.txt").write_text("dear")
    with pytest.raises(PipelineError, match=r"other files \(letter.txt\): name an empty directory"):
        run_archive(spark, spec)
    somebodys = str(tmp_path / "somebodys")
    spark.range(1).write.format("delta").save(somebodys)
    with pytest.raises(PipelineError, match="holds a delta table, but parquet was requested"):
        run_archive(spark, replace(spec, table=somebodys))
    with pytest.raises(PipelineError, match="is a table, but not the table of an archive"):
        run_archive(spark, replace(spec, table=somebodys, table_format="delta"))
