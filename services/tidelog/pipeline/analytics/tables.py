"""The tables of an analysis: their columns, and their rows as a Spark job computes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pandas as pd

from tidelog.pipeline.analytics import metric_names as names
from tidelog.pipeline.analytics.facts import Fact, Row
from tidelog.pipeline.analytics.partitions import LAG_POINTS, HistoryView, partition_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLACE: Final = "topic string, partition int"
_GROUP_PLACE: Final = f"consumer_group string, {_PLACE}"
PARTITION_TABLES: Final[Mapping[str, str]] = {
    "isr_episodes": f"{_PLACE}, began_after_ms bigint, began_ms bigint, ended_ms bigint, last_ms bigint, "
    "seconds double, is_open boolean, replicas int, least_in_sync int, shrinks int, expands int, "
    "under_min_isr_s double, unseen_s double, leaders array<int>, silent_brokers array<int>",
    "lag_trends": f"{_GROUP_PLACE}, at_ms bigint, state string, lag bigint, greatest_lag bigint, "
    "committed_offset bigint, produced_per_s double, consumed_per_s double, lag_per_s double, "
    "drain_s double, drained_ms bigint",
    "retention_forecasts": f"{_GROUP_PLACE}, at_ms bigint, verdict string, unread bigint, lost bigint, "
    "margin bigint, expires_s double, by_time_s double, by_offset_s double, loses_in_s double, "
    "drain_s double, loses_ms bigint",
    "partition_loads": f"{_PLACE}, leader int, replicas int, holders array<int>, bytes double, "
    "records double, records_per_s double, bytes_per_s double, leads_as_preferred boolean",
}
"""The suffix of time columns. Tables show columns `*_ms` as timestamps `*_at`."""

_FACT_ROW_SCHEMA: Final = "table_name string, row_json string"


def partition_results(facts: DataFrame, view: HistoryView) -> DataFrame:
    """Returns rows of every table as JSON, from one pass over all partitions."""
    from pyspark.sql import functions as f

    def analyse(key: tuple[str, int], frame: pd.DataFrame) -> pd.DataFrame:
        rows = partition_rows(key[0], int(key[1]), _facts(frame), view)
        return pd.DataFrame(
            [(table, json.dumps(row)) for table, row in rows], columns=["table_name", "row_json"]
        )

    chosen = facts.where(f.col("metric").isin(*names.OF_PARTITIONS))
    return chosen.groupBy("topic", "partition").applyInPandas(analyse, _FACT_ROW_SCHEMA)


def _facts(frame: pd.DataFrame) -> Iterator[Fact]:
    brokers = [None if pd.isna(b) else int(b) for b in frame["broker"]]
    for metric, broker, group, at_ms, value in zip(
        frame["metric"], brokers, frame["consumer_group"], frame["at_ms"], frame["value"], strict=True
    ):
        yield Fact(metric, broker, None, None, group, None, int(at_ms), float(value))


def rows_by_table(results: DataFrame) -> dict[str, list[Row]]:
    """Collects `partition_results` on the driver. There are a few rows for each partition and group."""
    found: dict[str, list[Row]] = {name: [] for name in (*PARTITION_TABLES, LAG_POINTS)}
    for row in results.collect():
        found[row.table_name].append(json.loads(row.row_json))
    for name in PARTITION_TABLES:
        found[name].sort(key=lambda row: (row.get("consumer_group", ""), row["topic"], row["partition"]))
    return found


def frame_of(spark: SparkSession, rows: Iterable[Row], columns: str) -> DataFrame:
    """Returns rows as a table. Column `began_ms` becomes the timestamp `began_at`."""
    from pyspark.sql import functions as f

    order = [column.split()[0] for column in columns.split(", ")]
    frame = spark.createDataFrame([tuple(row[name] for name in order) for row in rows], columns)
    return frame.select(
        *(
            f.timestamp_millis(name).alias(f"{name.removesuffix('_ms')}_at") if name.endswith("_ms") else name
            for name in order
        )
    )


def survey(facts: DataFrame, bucket_ms: int) -> DataFrame:
    """Returns the brokers' own figures (the last of each bucket) and, for each other metric, one row without
    a broker that gives its number of samples and their period. One job computes these few rows.
    """
    from pyspark.sql import functions as f

    is_own = f.col("metric").isin(*names.OF_BROKERS)
    return facts.groupBy(
        "metric",
        f.when(is_own, f.col("broker")).alias("broker"),
        f.when(is_own, f.floor(f.col("at_ms") / bucket_ms)).alias("bucket"),
    ).agg(
        f.count("*").alias("samples"),
        f.min("at_ms").alias("first_ms"),
        f.max("at_ms").alias("at_ms"),
        f.max_by("value", "at_ms").alias("value"),
        f.max_by("detail", "at_ms").alias("detail"),
    )
