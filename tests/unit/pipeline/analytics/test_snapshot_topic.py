"""Spark reads snapshots in a topic through the broker, and from its segment files."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from brokerlab.broker_process import BrokerProcess
from observabilitylab import synthetic
from tidelog.client.cluster import Cluster
from tidelog.pipeline.analytics import history
from tidelog.pipeline.analytics.facts import Fact, facts_of, node_ids
from tidelog.pipeline.analytics.scrape import send_snapshots, snapshot_producer
from tidelog.pipeline.analytics.snapshots import snapshot_record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark]
BEGAN_MS = 1_790_000_040_000
SPAN_MS = 45_000
CHECKPOINT_WAIT_S = 60.0


def rows(facts: DataFrame) -> list[Fact]:
    return sorted((Fact(*row) for row in facts.collect()), key=str)


def test_facts_of_a_topic_are_those_of_its_pages(
    spark: SparkSession, broker: BrokerProcess, new_topic: Callable[..., str]
) -> None:
    told = [sample for sample in synthetic.samples(BEGAN_MS) if sample.at_ms <= BEGAN_MS + SPAN_MS]
    topic = new_topic(2, **{"retention.ms": "-1"})
    with Cluster(broker.bootstrap) as client, snapshot_producer(client, topic) as producer:
        for (instance, at_ms), page in synthetic.pages(told).items():
            send_snapshots(producer, topic, [snapshot_record(instance, {}, at_ms, page, None)])
        send_snapshots(
            producer,
            topic,
            [
                snapshot_record("down:1", {}, BEGAN_MS, None, "refused"),
                snapshot_record("odd:1", {}, BEGAN_MS, "kafka_log_log_size{ 1", None),
            ],
        )
    start_ms = BEGAN_MS + 15_000
    wanted = [sample for sample in told if sample.at_ms >= start_ms]
    expected = sorted(facts_of(wanted, node_ids(told)), key=str)
    live = history.read_snapshot_topic(spark, broker.bootstrap, topic, start_ms, {})
    end_ms = BEGAN_MS + SPAN_MS
    assert rows(history.from_snapshots(live, start_ms, end_ms)) == expected
    files = history.read_snapshot_segments(spark, str(broker.data_dir), topic)
    deadline_s = time.monotonic() + CHECKPOINT_WAIT_S
    # Files are read up to the checkpointed high watermark, which the broker writes every few seconds.
    while (found := rows(history.from_snapshots(files, start_ms, end_ms))) != expected:
        assert time.monotonic() < deadline_s, f"{len(found)} of {len(expected)}"
        time.sleep(1)
        files = history.read_snapshot_segments(spark, str(broker.data_dir), topic)
