"""The rows of the source equal those of Spark's Kafka connector, without a broker."""

from __future__ import annotations

import random
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.functions import col, lit, timestamp_millis

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import create_topic
from tidelog.pipeline import segments
from tidelog.pipeline.errors import sentence_of
from tidelog.pipeline.segments.storage import Storage
from tidelog.pipeline.segments.visible import visible_logs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPIC = "flights"
APPEND_TIME_TOPIC = "arrivals"
DAY_MS = 86_400_000
START_MS = 1_700_000_000_000
RECORDS = 2_000
KEPT = {"retention.ms": "-1"}  # the timestamps of these records are long ago
HEADERS = [("n", "1"), ("none", None), ("\u00e9", b"\xff")]
VISIBLE_TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with both topics, which contain every codec, headers, nulls, committed and aborted
    transactions.
    """
    directory = tmp_path_factory.mktemp("segments-broker")
    settings = {"replica.high.watermark.checkpoint.interval.ms": "200"}
    process = BrokerProcess(directory / "data", directory / "broker.log", settings).start()
    create_topic(process.bootstrap, TOPIC, 2, {"segment.bytes": str(2**20), **KEPT})
    create_topic(process.bootstrap, APPEND_TIME_TOPIC, 1, {"message.timestamp.type": "LogAppendTime", **KEPT})
    fill(process.bootstrap)
    wait_until_visible(process.data_dir)
    yield process
    process.stop()
    shutil.rmtree(directory / "data", ignore_errors=True)


def fill(bootstrap: str) -> None:
    source = random.Random(7)
    for at, codec in enumerate(CODECS):
        producer = Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "batch.num.messages": 50}
        )
        for number in range(at, RECORDS, len(CODECS)):
            producer.produce(
                TOPIC,
                key=None if number % 7 == 0 else f"key-{number}",
                value=None if number % 11 == 0 else source.randbytes(number % 3_000),
                partition=number % 2,
                timestamp=START_MS + number * 60_000,
                headers=[("n", str(number)), ("none", None), ("\u00e9", b"\xff")]
                if number % 5 == 0
                else None,
            )
            if number % 400 == at:
                producer.flush()
        producer.produce(APPEND_TIME_TOPIC, value=codec, timestamp=START_MS)
        producer.flush()
    for number, is_committed in enumerate((True, False, True)):
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": str(uuid.uuid4())})
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(20):
            producer.produce(TOPIC, value=f"transaction {number}", partition=0, timestamp=START_MS - DAY_MS)
        producer.flush()
        (producer.commit_transaction if is_committed else producer.abort_transaction)()


def wait_until_visible(data_dir: Path) -> None:
    """Waits until the two newest checkpoints contain what was produced."""
    deadline = time.monotonic() + VISIBLE_TIMEOUT_S
    expected = {(TOPIC, 0): RECORDS // 2 + 3 * 21, (TOPIC, 1): RECORDS // 2, (APPEND_TIME_TOPIC, 0): 5}
    while True:
        logs = visible_logs(Storage(), [str(data_dir)])
        seen = {(log.topic, log.partition): log.end_offset for log in logs}
        if seen == expected:
            return
        assert time.monotonic() < deadline, f"{seen} after {VISIBLE_TIMEOUT_S} s"
        time.sleep(0.1)


def read(spark: SparkSession, broker: BrokerProcess, **options: str) -> DataFrame:
    segments.register(spark)
    reader = spark.read.format("tidelog").options(**{"subscribe": TOPIC, **options})
    return reader.load(str(broker.data_dir))


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(map(tuple, frame.collect()), key=lambda row: (row[2], row[3], row[4]))


def test_rows_equal_those_of_the_connector(spark: SparkSession, broker: BrokerProcess) -> None:
    connector = spark.read.format("kafka").options(
        **{
            "kafka.bootstrap.servers": broker.bootstrap,
            "subscribe": f"{TOPIC},{APPEND_TIME_TOPIC}",
            "includeHeaders": "true",
            "kafka.isolation.level": "read_committed",
        }
    )
    seen = read(spark, broker, subscribe=f"{TOPIC},{APPEND_TIME_TOPIC}", splitBytes="300000")
    expected = connector.load()
    assert seen.dtypes == expected.dtypes
    assert seen.rdd.getNumPartitions() > 4
    assert rows(seen) == rows(expected)
    assert seen.count() == RECORDS + 40 + len(CODECS)


def test_filters_are_kept_and_pushed(spark: SparkSession, broker: BrokerProcess) -> None:
    at = timestamp_millis(lit(START_MS + 1_500 * 60_000))
    for chosen, count, tasks in (
        ((col("partition") == 1) & (col("offset") >= 100) & (col("offset") < 350), 250, 1),
        (col("partition").isin(1, 7) & (col("offset") == 3), 1, 1),
        (col("topic") == "other", 0, 1),
        (col("timestamp") >= at, 500, 2),
        ((col("timestamp") >= at) & (col("partition") == 0), 250, 1),
        (col("timestamp") < timestamp_millis(lit(START_MS)), 40, 2),
    ):
        filtered = read(spark, broker).filter(chosen)
        assert filtered.count() == count, chosen
        assert filtered.rdd.getNumPartitions() == tasks, chosen
        plan = filtered._jdf.queryExecution().executedPlan().toString()
        assert "BatchScan tidelog" in plan
        assert "Filter (" not in plan, "Spark is to check nothing again"


def test_columns_and_offsets_by_options(spark: SparkSession, broker: BrokerProcess) -> None:
    seen = read(
        spark,
        broker,
        columns="offset,Value",
        startingOffsets='{"flights": {"0": 10, "1": -1}}',
        endingOffsets='{"flights": {"0": 15}}',
    )
    assert seen.columns == ["offset", "value"]
    assert sorted(row.offset for row in seen.collect()) == [10, 11, 12, 13, 14]


def test_uncommitted_records_are_read_if_asked_for(spark: SparkSession, broker: BrokerProcess) -> None:
    assert read(spark, broker, isolationLevel="read_uncommitted", columns="offset").count() == RECORDS + 60


def test_missing_offsets_are_named(spark: SparkSession, broker: BrokerProcess) -> None:
    with pytest.raises(PySparkException) as caught:
        read(spark, broker, endingOffsets='{"flights":{"1":1010}}').count()
    assert sentence_of(caught.value) == (
        "flights-1: offsets 1000 to 1009 cannot be read: the log may be read to 1000"
    )


def test_damage_found_by_a_task_is_named(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(broker.data_dir, copy)
    segment = copy / f"{TOPIC}-1" / f"{0:020}.log"
    damaged = bytearray(segment.read_bytes())
    damaged[200] ^= 1
    segment.write_bytes(damaged)
    frame = spark.read.format("tidelog").option("subscribe", TOPIC).load(str(copy))
    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        frame.count()
    sentence = sentence_of(caught.value)
    assert sentence is not None
    assert sentence.startswith(
        f"flights-1: {segment} is damaged at position 0, offset 0: its checksum differs"
    )


def test_another_schema_is_refused(spark: SparkSession, broker: BrokerProcess) -> None:
    with pytest.raises(PySparkException, match="choose from its own columns"):
        spark.read.format("tidelog").schema("age int").load(str(broker.data_dir)).count()


def test_wrong_options_are_named(spark: SparkSession, broker: BrokerProcess) -> None:
    with pytest.raises(PySparkException, match="there is no column 'values'"):
        read(spark, broker, columns="values")
