"""The metrics history as a DataFrame of facts, from any source. A Spark task fetches each part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pandas as pd

from tidelog.pipeline.analytics.brokers import DEFAULT_INTERVAL_MS
from tidelog.pipeline.analytics.facts import Fact, facts_of, node_ids
from tidelog.pipeline.analytics.metric_names import ALL, BUILD_INFO
from tidelog.pipeline.analytics.prometheus import Prometheus, slices_of
from tidelog.pipeline.analytics.snapshots import snapshot_facts
from tidelog.pipeline.analytics.text_format import ExpositionError
from tidelog.pipeline.session import is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FACT_SCHEMA: Final = (
    "metric string, broker int, topic string, partition int, consumer_group string, detail string, "
    "at_ms bigint, value double"
)
LONGEST_SLICE_MS: Final = 3 * 3_600_000
_PARTS_A_TASK: Final = 20
UNKNOWN_PARALLELISM: Final = 4
_NULLABLE_NUMBERS: Final = ("broker", "partition")


@dataclass(frozen=True, slots=True)
class PrometheusHistory:
    """A history in Prometheus, which has answered. `nodes` maps instances of brokers to their ids."""

    prometheus: Prometheus
    start_ms: int
    end_ms: int
    step_ms: int
    nodes: Mapping[str, int]


def find_history(
    prometheus: Prometheus, start_ms: int, end_ms: int, step_ms: int | None = None
) -> PrometheusHistory:
    """Asks Prometheus for the brokers, without Spark. A `step_ms` of None means the scrape interval. Raises
    PipelineError.
    """
    if step_ms is None:
        step_ms = prometheus.scrape_interval_ms(BUILD_INFO, end_ms) or DEFAULT_INTERVAL_MS
    nodes = _nodes(prometheus, start_ms, end_ms, step_ms)
    return PrometheusHistory(prometheus, start_ms, end_ms, step_ms, nodes)


def from_prometheus(spark: SparkSession, found: PrometheusHistory) -> DataFrame:
    """Reads a history from Prometheus."""
    prometheus, nodes = found.prometheus, found.nodes
    metrics = [metric for metric in ALL if metric != BUILD_INFO]
    parts = slices_of(metrics, found.start_ms, found.end_ms, found.step_ms, LONGEST_SLICE_MS)
    tasks = min(len(parts), max(spark_parallelism(spark), len(parts) // _PARTS_A_TASK))

    def fetch(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            for number in frame["id"]:
                yield _frame(facts_of(prometheus.samples(parts[number]), nodes))

    return spark.range(0, len(parts), 1, tasks).mapInPandas(fetch, FACT_SCHEMA)


def from_snapshots(snapshots: DataFrame, start_ms: int, end_ms: int) -> DataFrame:
    """Converts records with the Kafka connector's columns, including headers (`includeHeaders`)."""
    from pyspark.sql import functions as f

    at_ms = f.unix_millis(f.col("timestamp"))
    chosen = snapshots.where(at_ms.between(start_ms, end_ms)).select(
        "key", "value", "headers", at_ms.alias("at_ms")
    )

    def parse(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield _frame(_facts_of_rows(frame))

    return chosen.mapInPandas(parse, FACT_SCHEMA)


def read_snapshot_topic(
    spark: SparkSession, bootstrap: str, topic: str, start_ms: int, settings: Mapping[str, str]
) -> DataFrame:
    """Reads the snapshot topic with Spark's Kafka connector, from the first record of the given time on."""
    reader = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .option("startingTimestamp", str(start_ms))
        .option("startingOffsetsByTimestampStrategy", "latest")
        # Retention deletes old snapshots while newer ones are read. The remaining snapshots are the history.
        .option("failOnDataLoss", "false")
        .options(**{f"kafka.{name}": value for name, value in settings.items()})
    )
    return reader.load()


def read_snapshot_segments(spark: SparkSession, path: str, topic: str) -> DataFrame:
    """Reads the snapshot topic with the segment source, without the brokers."""
    from tidelog.pipeline.segments import register

    register(spark)
    return spark.read.format("tidelog").option("path", path).option("subscribe", topic).load()


def spark_parallelism(spark: SparkSession) -> int:
    """Returns the number of concurrent tasks. A session of Spark Connect does not report it."""
    return UNKNOWN_PARALLELISM if is_remote(spark) else int(spark.sparkContext.defaultParallelism)


def _nodes(prometheus: Prometheus, start_ms: int, end_ms: int, step_ms: int) -> dict[str, int]:
    """Finds the instances of the brokers. These are few series that hardly change, so coarse steps suffice,
    and they also show short-lived instances.
    """
    found: dict[str, int] = {}
    for part in slices_of((BUILD_INFO,), start_ms, end_ms, step_ms, end_ms - start_ms + step_ms):
        found |= node_ids(prometheus.samples(part))
    return found


def _facts_of_rows(frame: pd.DataFrame) -> Iterator[Fact]:
    for row in frame.itertuples(index=False):
        headers = [(h["key"], h["value"]) for h in (row.headers if row.headers is not None else ())]
        try:
            yield from snapshot_facts(row.key, row.value, headers, int(row.at_ms))
        except ExpositionError:
            continue  # a foreign record in the topic must not hide the others


def _frame(facts: Iterable[Fact]) -> pd.DataFrame:
    frame = pd.DataFrame.from_records(list(facts), columns=Fact._fields)
    for name in _NULLABLE_NUMBERS:
        frame[name] = frame[name].astype("Int32")
    return frame
