"""An hour with known results in a real Prometheus, read as scraped, by steps, and by the whole job."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kuberneteslab import synthetic
from kuberneteslab.prometheus import Prometheus as PrometheusProcess
from tidelog.pipeline.analytics.facts import Sample
from tidelog.pipeline.analytics.job import Analysis, Wishes, analyse, load_of, write_tables
from tidelog.pipeline.analytics.prometheus import (
    FACT_SCHEMA,
    Prometheus,
    Slice,
    find_history,
    from_prometheus,
    slices_of,
)
from tidelog.pipeline.commands.analytics import summary
from tidelog.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus isn't installed"),
]
BEGAN_MS = 1_790_000_040_000
END_MS = BEGAN_MS + synthetic.LENGTH_MS
LAG = "kafka_consumergroup_lag"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("prometheus")
    text = directory / "history.txt"
    text.write_text(synthetic.open_metrics(synthetic.samples(BEGAN_MS)))
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(directory / "data")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    # The samples are years old. Without this setting, Prometheus would delete them at once.
    with PrometheusProcess(directory, [], retention="100y") as process:
        yield process.url


def fetched(
    prometheus: Prometheus,
    metric: str,
    longest_ms: int = 3_600_000_000,
    step_ms: int | None = synthetic.INTERVAL_MS,
) -> list[Sample]:
    parts = slices_of((metric,), BEGAN_MS, END_MS, step_ms, longest_ms)
    return [sample for part in parts for sample in prometheus.samples(part)]


def told(samples: list[Sample], metric: str) -> set[tuple[Any, ...]]:
    return {
        (s.at_ms, s.value, tuple(sorted((n, v) for n, v in s.labels.items() if n != "__name__")))
        for s in samples
        if s.metric == metric
    }


def test_without_a_step_each_sample_is_read_once_as_it_was_scraped(url: str) -> None:
    truth = list(synthetic.samples(BEGAN_MS))
    for metric in (LAG, "kafka_log_log_size", "kafka_topic_partition_in_sync_replica"):
        found = fetched(Prometheus(url), metric, 600_000, None)
        assert told(found, metric) == told(truth, metric)
        assert len(found) == len([sample for sample in truth if sample.metric == metric])


def test_sliced_range_queries_give_each_sample_without_ended_series(url: str) -> None:
    truth = list(synthetic.samples(BEGAN_MS))
    prometheus = Prometheus(url)
    assert told(fetched(prometheus, LAG, 600_000), LAG) == told(truth, LAG)
    metric = "kafka_topic_partition_in_sync_replica"
    found = told(fetched(prometheus, metric), metric)
    assert found >= told(truth, metric)
    echoes = {(at_ms, labels) for at_ms, _, labels in found - told(truth, metric)}
    assert len(echoes) <= 8, "one step after a leader's end, not the five minutes of a plain selector"


def test_only_the_matching_series_and_the_interval_as_scraped(url: str) -> None:
    both = Prometheus(url, 'consumergroup=~"slow|asleep",topic="flights"')
    groups = {sample.labels["consumergroup"] for sample in fetched(both, LAG)}
    assert groups == {"slow", "asleep"}
    others = Prometheus(url, 'consumergroup!="slow"')
    assert {s.labels["consumergroup"] for s in fetched(others, LAG)} == {"asleep", "behind", "catching-up"}
    assert both.scrape_interval_ms(LAG, END_MS) == synthetic.INTERVAL_MS
    assert both.scrape_interval_ms("no_such_metric", END_MS) is None


def test_a_rejected_query_and_a_missing_prometheus_are_reported_in_one_sentence(url: str) -> None:
    with pytest.raises(PipelineError, match="rejected"):
        next(Prometheus(url).samples(Slice(LAG, 0, END_MS, 1000)))  # more points than one answer may have
    with pytest.raises(PipelineError, match="does not answer"):
        Prometheus("http://127.0.0.1:9").scrape_interval_ms(LAG, END_MS)
    with pytest.raises(PipelineError, match="http://HOST"):
        Prometheus("127.0.0.1:9090").scrape_interval_ms(LAG, END_MS)
    with pytest.raises(PipelineError, match="--match"):
        Prometheus(url, "namespace=kafka").scrape_interval_ms(LAG, END_MS)


@pytest.fixture(scope="module")
def facts(spark: SparkSession, url: str) -> DataFrame:
    return from_prometheus(spark, find_history(Prometheus(url), BEGAN_MS, END_MS)).persist()


@pytest.fixture(scope="module")
def analysis(facts: DataFrame) -> Analysis:
    return analyse(facts, Wishes(synthetic.INTERVAL_MS, synthetic.LENGTH_MS), lambda _: None)


@pytest.mark.spark
def test_each_episode_is_found_with_its_broker(analysis: Analysis) -> None:
    episodes = analysis.rows["isr_episodes"]
    with_broker_2 = {key for key, replicas in synthetic.REPLICAS.items() if 2 in replicas}
    assert {(row["topic"], row["partition"]) for row in episodes} == with_broker_2
    for row in episodes:
        assert row["began_ms"] == BEGAN_MS + synthetic.AWAY_FROM_S * 1000
        assert row["ended_ms"] == BEGAN_MS + synthetic.BACK_IN_SYNC_S * 1000
        assert row["silent_brokers"] == [2]
        assert (row["under_min_isr_s"] > 0) == (row["topic"] == synthetic.HOT)
    (moved,) = [row for row in episodes if (row["topic"], row["partition"]) == (synthetic.FLIGHTS, 1)]
    assert moved["leaders"][:2] == [2, 3]


@pytest.mark.spark
def test_skew_and_replicas_are_derived_from_the_metrics_only(analysis: Analysis) -> None:
    hot, even = analysis.skews
    assert (hot.topic, hot.hottest_partition) == (synthetic.HOT, 0)
    assert hot.rate_over_mean == pytest.approx(4)
    assert even.rate_over_mean == pytest.approx(1)
    loads = {load.key: load for load in map(load_of, analysis.rows["partition_loads"])}
    assert {key: set(load.holders) for key, load in loads.items()} == {
        key: set(replicas) for key, replicas in synthetic.REPLICAS.items()
    }
    assert all(load.holders[0] == synthetic.REPLICAS[key][0] for key, load in loads.items())
    assert analysis.proposal.left_out == 0
    assert analysis.racks == {1: "r1", 2: "r2", 3: "r3"}


@pytest.mark.spark
def test_tables_are_written_with_the_history(
    spark: SparkSession, facts: DataFrame, analysis: Analysis, tmp_path: Path
) -> None:
    names = write_tables(spark, facts, analysis, str(tmp_path), "parquet")
    frames = {name: spark.read.parquet(str(tmp_path / name)) for name in names}
    assert frames["isr_episodes"].count() == 6
    assert frames["broker_loads"].count() == 6
    assert frames["history"].count() == analysis.facts
    draining = frames["history"].where(f"metric = '{LAG}' AND consumer_group = 'catching-up'")
    (row,) = draining.orderBy("at").tail(1)
    assert (row.at.timestamp() * 1000, row.value, row.topic) == (END_MS, 4000.0, synthetic.FLIGHTS)
    assert summary(analysis).startswith(f"{analysis.facts:,} samples; 6 ISR episodes (0 open); 1 of 2 topics")


@pytest.mark.spark
def test_a_history_without_tidelog_is_reported(spark: SparkSession) -> None:
    empty = spark.createDataFrame([], FACT_SCHEMA)
    with pytest.raises(PipelineError, match="has no sample"):
        analyse(empty, Wishes(15_000, 1), lambda _: None)
