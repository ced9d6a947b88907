"""The analytics job: from facts to tables, a plan and a report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.client.rebalance_plan import Assignment, plan_json
from tidelog.pipeline.analytics import metric_names as names
from tidelog.pipeline.analytics.brokers import BrokerView, look_at_brokers
from tidelog.pipeline.analytics.facts import Fact, Row
from tidelog.pipeline.analytics.partitions import LAG_POINTS, HistoryView
from tidelog.pipeline.analytics.plan import BY_LOAD, Proposal, propose
from tidelog.pipeline.analytics.series import interval_ms
from tidelog.pipeline.analytics.skew import PartitionLoad, TopicSkew, topic_skews
from tidelog.pipeline.analytics.tables import (
    PARTITION_TABLES,
    frame_of,
    partition_results,
    rows_by_table,
    survey,
)
from tidelog.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import Row as SparkRow

TREND_WINDOW_MS: Final = 30 * 60_000
MAX_BROKER_POINTS: Final = 5000
PICTURE_POINTS: Final = 300
PLAN_FILE: Final = "reassignment.json"
_INTERVAL_SAMPLES: Final = 2000
_WRITERS: Final = 4

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options of an analysis. `assignment` and `racks` come from the cluster, if the cluster was asked.
    `span_ms` is the approximate length of the history.
    """

    trend_window_ms: int = TREND_WINDOW_MS
    plan_way: str = BY_LOAD
    leaving: tuple[int, ...] = ()
    assignment: Assignment | None = None
    racks: Mapping[int, str | None] | None = None
    span_ms: int = 86_400_000


@dataclass(frozen=True, slots=True)
class Analysis:
    """The result of an analysis. Rows have the tables' columns, with times in columns `*_ms`."""

    start_ms: int
    end_ms: int
    facts: int
    brokers: BrokerView
    rows: Mapping[str, Sequence[Row]]
    lag_history: Mapping[str, Sequence[tuple[int, float]]]
    skews: Sequence[TopicSkew]
    proposal: Proposal


def analyse(facts: DataFrame, wishes: Wishes, tell: Tell) -> Analysis:
    """Analyses the history. Raises PipelineError if the history lacks the necessary metrics."""
    from pyspark.storagelevel import StorageLevel

    facts = facts.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        tell("fetching the history")
        rows = survey(facts, max(1, wishes.span_ms // MAX_BROKER_POINTS)).collect()
        if not rows:
            raise PipelineError(
                f"the history has no sample of {names.IN_SYNC} or similar metrics in that period: is "
                "tidelog scraped, "
                "is --match right, is --since long enough?"
            )
        start_ms, end_ms = min(row.first_ms for row in rows), max(row.at_ms for row in rows)
        count = sum(row.samples for row in rows)
        brokers = _look_at_brokers(facts, rows, end_ms, wishes)
        bucket_ms = max(brokers.interval_ms, (end_ms - start_ms) // PICTURE_POINTS)
        view = HistoryView(
            start_ms, end_ms, brokers.interval_ms, wishes.trend_window_ms, brokers.heard, bucket_ms
        )
        tell(f"looking at partitions and groups: {count:,} samples")
        found = rows_by_table(partition_results(facts, view))
        lags = _lag_history(found.pop(LAG_POINTS), view)
        tell("planning")
        loads = [load_of(row) for row in found["partition_loads"]]
        proposal = propose(
            loads,
            wishes.racks if wishes.racks is not None else brokers.racks,
            assignment=wishes.assignment,
            leaving=wishes.leaving,
            way=wishes.plan_way,
        )
    finally:
        facts.unpersist()
    return Analysis(start_ms, end_ms, count, brokers, found, lags, topic_skews(loads), proposal)


def write_tables(spark: SparkSession, analysis: Analysis, directory: str, table_format: str) -> list[str]:
    """Writes the tables, replacing the earlier content. Returns their names."""
    frames = {
        name: frame_of(spark, analysis.rows[name], columns) for name, columns in PARTITION_TABLES.items()
    }
    frames["brokers"] = frame_of(spark, analysis.brokers.rows, _BROKER_COLUMNS)
    skews = [dataclasses.asdict(skew) for skew in analysis.skews]
    frames["topic_skews"] = frame_of(spark, skews, _SKEW_COLUMNS)
    frames["broker_loads"] = frame_of(spark, load_rows(analysis.proposal), _LOAD_COLUMNS)
    frames["reassignments"] = frame_of(spark, move_rows(analysis.proposal), _MOVE_COLUMNS)

    def write(name: str) -> None:
        writer = frames[name].coalesce(1).write.format(table_format).mode("overwrite")
        if table_format == "delta":
            writer = writer.option("overwriteSchema", "true")
        writer.save(f"{directory.rstrip('/')}/{name}")

    # The tables are small. Committing them, one after the other, takes most of the time.
    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(write, frames))
    return list(frames)


def write_plan(proposal: Proposal, path: Path) -> None:
    """Writes the plan in the form of `kafka-reassign-partitions --reassignment-json-file`. Raises
    PipelineError.
    """
    try:
        path.write_text(plan_json(proposal.moves), "utf-8")
    except OSError as error:
        raise PipelineError(f"{path}: {error.strerror}") from error


def load_rows(proposal: Proposal) -> list[Row]:
    """Returns the brokers' loads now and after the plan."""
    return [
        {"is_planned": is_planned, **dataclasses.asdict(load)}
        for is_planned, loads in ((False, proposal.before), (True, proposal.after))
        for load in loads
    ]


def move_rows(proposal: Proposal) -> list[Row]:
    """Returns the plan as rows of a table."""
    return [
        {
            "topic": move.topic,
            "partition": move.partition,
            "replicas": list(move.before),
            "planned": list(move.after),
        }
        for move in proposal.moves
    ]


_BROKER_COLUMNS: Final = (
    "broker int, is_alive boolean, silent_s double, isr_shrinks bigint, isr_expands bigint, "
    "disk_bytes double, disk_free_bytes double, disk_full_s double"
)
_SKEW_COLUMNS: Final = (
    "topic string, partitions int, bytes double, records_per_s double, bytes_over_mean double, "
    "rate_over_mean double, rate_variation double, hottest_partition int"
)
_LOAD_COLUMNS: Final = (
    "is_planned boolean, broker int, replicas int, leaders int, bytes double, "
    "written_bytes_per_s double, led_bytes_per_s double"
)
_MOVE_COLUMNS: Final = "topic string, partition int, replicas array<int>, planned array<int>"


def _look_at_brokers(facts: DataFrame, rows: Sequence[SparkRow], end_ms: int, wishes: Wishes) -> BrokerView:
    told = [
        Fact(row.metric, row.broker, None, None, None, row.detail, row.at_ms, row.value)
        for row in rows
        if row.broker is not None
    ]
    fallback = None
    if not any(fact.metric == names.HELD for fact in told):
        fallback = _usual_interval_ms(facts)
    return look_at_brokers(
        told, end_ms=end_ms, trend_window_ms=wishes.trend_window_ms, fallback_interval_ms=fallback
    )


def _usual_interval_ms(facts: DataFrame) -> int | None:
    """Returns the usual interval of one partition's ISR or lag samples, for histories of an exporter only."""
    from pyspark.sql import functions as f

    for metric in (names.IN_SYNC, names.LAG):
        of_metric = facts.where(f.col("metric") == metric)
        first = of_metric.select("topic", "partition", "consumer_group").limit(1).collect()
        if not first:
            continue
        same = [f.col(name).eqNullSafe(first[0][name]) for name in ("topic", "partition", "consumer_group")]
        times = of_metric.where(same[0] & same[1] & same[2]).select("at_ms").distinct().orderBy("at_ms")
        found = interval_ms([row.at_ms for row in times.limit(_INTERVAL_SAMPLES).collect()], 0)
        return found or None
    return None


def load_of(row: Row) -> PartitionLoad:
    """Converts a row of `partition_loads`."""
    return PartitionLoad(
        row["topic"],
        row["partition"],
        row["leader"],
        row["replicas"],
        tuple(row["holders"]),
        row["bytes"],
        row["records"],
        row["records_per_s"],
        row["bytes_per_s"],
    )


def _lag_history(points: Sequence[Row], view: HistoryView) -> dict[str, list[tuple[int, float]]]:
    """Returns the lag of a group over all partitions, as the last value of each bucket."""
    sums: dict[str, dict[int, float]] = {}
    for row in points:
        by_bucket = sums.setdefault(row["consumer_group"], {})
        for bucket, lag in zip(row["buckets"], row["lags"], strict=True):
            by_bucket[bucket] = by_bucket.get(bucket, 0.0) + lag
    return {
        group: [(view.start_ms + bucket * view.bucket_ms, lag) for bucket, lag in sorted(by_bucket.items())]
        for group, by_bucket in sorted(sums.items())
    }
