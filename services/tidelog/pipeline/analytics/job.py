"""The analytics job: from the facts of a history to tables and a plan."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tidelog.client.admin.reassignments import Assignment
from tidelog.pipeline.analytics import facts as metrics
from tidelog.pipeline.analytics.facts import (
    SILENT_INTERVALS,
    Fact,
    Point,
    Row,
    after_last_fall,
    latest,
    newest_by_time,
    slope_per_s,
)
from tidelog.pipeline.analytics.isr import Sighting, agreed, episodes_of, silent_in
from tidelog.pipeline.analytics.loads import (
    PartitionLoad,
    Proposal,
    TopicSkew,
    holders_of,
    propose,
    topic_skews,
)
from tidelog.pipeline.errors import PipelineError

TREND_WINDOW_MS: Final = 30 * 60_000
MAX_BROKER_POINTS: Final = 5000
_WRITERS: Final = 4
_PLACE: Final = "topic string, partition int"
PARTITION_TABLES: Final[Mapping[str, str]] = {
    "isr_episodes": f"{_PLACE}, began_after_ms bigint, began_ms bigint, ended_ms bigint, last_ms bigint, "
    "seconds double, is_open boolean, replicas int, least_in_sync int, shrinks int, expands int, "
    "under_min_isr_s double, unseen_s double, leaders array<int>, silent_brokers array<int>",
    "partition_loads": f"{_PLACE}, leader int, replicas int, holders array<int>, bytes double, "
    "records double, records_per_s double, bytes_per_s double, leads_as_preferred boolean",
}
"""The columns of tables with rows of partitions. Tables show columns `*_ms` as timestamps `*_at`."""
_OTHER_TABLES: Final[Mapping[str, str]] = {
    "topic_skews": "topic string, partitions int, bytes double, records_per_s double, "
    "bytes_over_mean double, rate_over_mean double, rate_variation double, hottest_partition int",
    "broker_loads": "is_planned boolean, broker int, replicas int, leaders int, bytes double, "
    "written_bytes_per_s double, led_bytes_per_s double",
    "reassignments": f"{_PLACE}, replicas array<int>, planned array<int>",
}

Told: TypeAlias = dict[str, dict[Any, list[Point]]]
"""A map of metric to teller (or consumer group) to sorted points. A teller's type depends on the metric."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options of an analysis. `assignment` and `racks` come from the cluster, if the cluster was asked.
    `span_ms` is the approximate length of the history, and `interval_ms` the time between two samples.
    """

    interval_ms: int
    span_ms: int
    trend_window_ms: int = TREND_WINDOW_MS
    leaving: tuple[int, ...] = ()
    assignment: Assignment | None = None
    racks: Mapping[int, str | None] | None = None


class HistoryView(NamedTuple):
    """Facts about the whole history. `heard` maps a broker to the sorted times of its scrapes."""

    end_ms: int
    interval_ms: int
    trend_window_ms: int
    heard: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Analysis:
    """The result of an analysis. Rows have the tables' columns, with times in columns `*_ms`."""

    facts: int
    racks: Mapping[int, str | None]
    rows: Mapping[str, Sequence[Row]]
    skews: Sequence[TopicSkew]
    proposal: Proposal


def analyse(facts: DataFrame, wishes: Wishes, tell: Callable[[str], None]) -> Analysis:
    """Analyses the history, which is read twice. Raises PipelineError if it lacks the necessary metrics."""
    tell("fetching the history")
    count, end_ms, told = _survey(facts, max(1, wishes.span_ms // MAX_BROKER_POINTS))
    racks, heard = look_at_brokers(told, end_ms, wishes.interval_ms)
    view = HistoryView(end_ms, wishes.interval_ms, wishes.trend_window_ms, heard)
    tell(f"looking at partitions: {count:,} samples")
    rows = _rows_by_table(facts, view)
    tell("planning")
    loads = [load_of(row) for row in rows["partition_loads"]]
    told_racks = racks if wishes.racks is None else wishes.racks
    proposal = propose(loads, told_racks, assignment=wishes.assignment, leaving=wishes.leaving)
    return Analysis(count, racks, rows, topic_skews(loads), proposal)


def load_of(row: Row) -> PartitionLoad:
    """Converts a row of `partition_loads`."""
    columns = {field.name: row[field.name] for field in dataclasses.fields(PartitionLoad)}
    return PartitionLoad(**{**columns, "holders": tuple(row["holders"])})


def write_tables(
    spark: SparkSession, facts: DataFrame, analysis: Analysis, directory: str, table_format: str
) -> list[str]:
    """Writes the history and the other tables, replacing the earlier content. Returns their names."""
    proposal = analysis.proposal
    rows: dict[str, Iterable[Row]] = {
        **analysis.rows,
        "topic_skews": [dataclasses.asdict(skew) for skew in analysis.skews],
        "broker_loads": [
            {"is_planned": is_planned, **dataclasses.asdict(load)}
            for is_planned, loads in ((False, proposal.before), (True, proposal.after))
            for load in loads
        ],
        "reassignments": [
            {"topic": m.topic, "partition": m.partition, "replicas": m.before, "planned": m.after}
            for m in proposal.moves
        ],
    }
    columns = {**PARTITION_TABLES, **_OTHER_TABLES}
    frames = {name: _frame_of(spark, rows[name], columns[name]).coalesce(1) for name in columns}
    frames["history"] = facts.withColumn("at", f.timestamp_millis("at_ms")).drop("at_ms")

    def write(name: str) -> None:
        writer = frames[name].write.format(table_format).mode("overwrite")
        if table_format == "delta":
            writer = writer.option("overwriteSchema", "true")
        writer.save(f"{directory.rstrip('/')}/{name}")

    # Most tables are small. Committing them, one after the other, would take most of the time.
    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(write, frames))
    return list(frames)


def _survey(facts: DataFrame, bucket_ms: int) -> tuple[int, int, list[Fact]]:
    """Returns the number of samples, the time of the last one, and the brokers' own figures (the last of each
    bucket). One job computes these few rows.
    """
    is_own = f.col("metric").isin(*metrics.OF_BROKERS)
    rows = (
        facts.groupBy(
            "metric",
            f.when(is_own, f.col("broker")).alias("broker"),
            f.when(is_own, f.floor(f.col("at_ms") / bucket_ms)).alias("bucket"),
        )
        .agg(
            f.count("*").alias("samples"),
            f.max("at_ms").alias("at_ms"),
            f.max_by("detail", "at_ms").alias("detail"),
        )
        .collect()
    )
    if not rows:
        raise PipelineError(
            f"the history has no sample of {metrics.IN_SYNC} or similar metrics in that period: is tidelog "
            "scraped, is --match right, is --since long enough?"
        )
    told = [
        Fact(row.metric, row.broker, None, None, None, row.detail, row.at_ms, 0.0)
        for row in rows
        if row.broker is not None
    ]
    return sum(row.samples for row in rows), max(row.at_ms for row in rows), told


def look_at_brokers(
    told: Iterable[Fact], end_ms: int, interval_ms: int
) -> tuple[dict[int, str | None], dict[int, tuple[int, ...]]]:
    """Returns the racks of the live brokers, and the sorted times at which each broker was scraped."""
    heard: dict[int, set[int]] = defaultdict(set)
    newest: dict[int, tuple[int, str | None]] = {}
    for fact in told:
        if fact.broker is not None and fact.metric == metrics.HELD:
            heard[fact.broker].add(fact.at_ms)
        elif fact.broker is not None and fact.metric == metrics.BROKER_INFO:
            newest[fact.broker] = max(newest.get(fact.broker, (0, None)), (fact.at_ms, fact.detail))
    # A scraped broker that is silent is down, even if the controller still reports it as alive.
    last_seen = {broker: at_ms for broker, (at_ms, _) in newest.items()}
    last_seen |= {broker: max(times) for broker, times in heard.items()}
    recent_ms = end_ms - SILENT_INTERVALS * interval_ms
    alive = {
        broker: newest.get(broker, (0, None))[1]
        for broker, at_ms in sorted(last_seen.items())
        if at_ms >= recent_ms
    }
    return alive, {broker: tuple(sorted(times)) for broker, times in heard.items()}


def _rows_by_table(facts: DataFrame, view: HistoryView) -> dict[str, list[Row]]:
    """Returns the rows of all partitions, from one pass over the history."""

    def look(key: tuple[str, int], frame: pd.DataFrame) -> pd.DataFrame:
        told = _facts(frame)
        rows = [(table, json.dumps(row)) for table, row in partition_rows(key[0], int(key[1]), told, view)]
        return pd.DataFrame(rows, columns=["table_name", "row_json"])

    found: dict[str, list[Row]] = {name: [] for name in PARTITION_TABLES}
    chosen = facts.where(f.col("metric").isin(*metrics.OF_PARTITIONS))
    grouped = chosen.groupBy("topic", "partition")
    for row in grouped.applyInPandas(look, "table_name string, row_json string").collect():
        found[row.table_name].append(json.loads(row.row_json))
    for rows in found.values():
        rows.sort(key=lambda row: (row["topic"], row["partition"]))
    return found


def _facts(frame: pd.DataFrame) -> Iterator[Fact]:
    brokers = [None if pd.isna(broker) else int(broker) for broker in frame["broker"]]
    for metric, broker, at_ms, value in zip(
        frame["metric"], brokers, frame["at_ms"], frame["value"], strict=True
    ):
        yield Fact(metric, broker, None, None, None, None, int(at_ms), float(value))


def partition_rows(
    topic: str, partition: int, facts: Iterable[Fact], view: HistoryView
) -> Iterator[tuple[str, Row]]:
    """Yields (table, row) for one partition. Times are in columns `*_ms`."""
    told = _told(facts)
    place = {"topic": topic, "partition": partition}
    load = _load_row(told, view)
    for row in _episode_rows(told, load["holders"] if load else (), view):
        yield "isr_episodes", {**place, **row}
    if load:
        yield "partition_loads", {**place, **load}


def _told(facts: Iterable[Fact]) -> Told:
    raw: Told = defaultdict(lambda: defaultdict(list))
    for fact in facts:
        raw[fact.metric][fact.broker].append((fact.at_ms, fact.value))
    sorted_points: Told = defaultdict(dict)
    for metric, by_teller in raw.items():
        sorted_points[metric] = {teller: newest_by_time(points) for teller, points in by_teller.items()}
    return sorted_points


def _sightings(told: Told) -> Iterator[Sighting]:
    for teller, points in told[metrics.IN_SYNC].items():
        replicas = dict(told[metrics.REPLICAS].get(teller, ()))
        leaders = dict(told[metrics.LEADER].get(teller, ()))
        under_min = dict(told[metrics.UNDER_MIN_ISR].get(teller, ()))
        for at_ms, in_sync in points:
            if at_ms not in replicas:
                continue  # the scrape was cut off, and one value is useless without the other
            leader = leaders.get(at_ms, teller)
            yield Sighting(
                at_ms,
                teller,
                int(replicas[at_ms]),
                int(in_sync),
                None if leader is None else int(leader),
                bool(under_min.get(at_ms, 0)),
            )


def _episode_rows(told: Told, holders: Sequence[int], view: HistoryView) -> Iterator[Row]:
    for episode in episodes_of(agreed(list(_sightings(told)), view.interval_ms), view.interval_ms):
        row = dataclasses.asdict(episode)
        under_min_ms, unseen_ms = row.pop("under_min_ms"), row.pop("unseen_ms")
        yield {
            **row,
            "seconds": episode.seconds,
            "is_open": episode.ended_ms is None,
            "under_min_isr_s": under_min_ms / 1000,
            "unseen_s": unseen_ms / 1000,
            "silent_brokers": silent_in(episode, holders, view.heard, view.interval_ms),
        }


def _load_row(told: Told, view: HistoryView) -> Row | None:
    sizes = {broker: points for broker, points in told[metrics.LOG_SIZE].items() if broker is not None}
    starts, ends, counts = (
        newest_by_time(point for points in told[metric].values() for point in points)
        for metric in (metrics.START_OFFSET, metrics.END_OFFSET, metrics.REPLICAS)
    )
    if not (sizes or ends):
        return None
    leader, preferred = _last_told(told[metrics.LEADER]), _last_told(told[metrics.IS_PREFERRED])
    holders = holders_of(
        sizes,
        int(counts[-1][1]) if counts else len(sizes),
        None if leader is None else int(leader),
        leads_as_preferred=bool(preferred),
        history_end_ms=view.end_ms,
        interval_ms=view.interval_ms,
    )
    stored = max((points[-1][1] for broker, points in sizes.items() if broker in holders), default=0.0)
    records = max(0.0, ends[-1][1] - starts[-1][1]) if ends and starts else 0.0
    per_s = max(0.0, slope_per_s(latest(after_last_fall(ends), view.trend_window_ms)) or 0.0)
    return {
        "leader": None if leader is None else int(leader),
        "replicas": int(counts[-1][1]) if counts else len(holders),
        "holders": list(holders),
        "bytes": stored,
        "records": records,
        "records_per_s": per_s,
        # The size of a record is estimated by the mean of the existing ones. For a compacted topic this is a
        # guess.
        "bytes_per_s": per_s * stored / records if records else 0.0,
        "leads_as_preferred": None if preferred is None else bool(preferred),
    }


def _last_told(by_teller: Mapping[Any, list[Point]]) -> float | None:  # see Told
    """Returns the point of the teller that reported last."""
    newest = max((points[-1] for points in by_teller.values() if points), default=None)
    return None if newest is None else newest[1]


def _frame_of(spark: SparkSession, rows: Iterable[Row], columns: str) -> DataFrame:
    """Returns rows as a table. Column `began_ms` becomes the timestamp `began_at`."""
    order = [column.split()[0] for column in columns.split(", ")]
    frame = spark.createDataFrame([tuple(row[name] for name in order) for row in rows], columns)
    return frame.select(
        *(
            f.timestamp_millis(name).alias(f"{name.removesuffix('_ms')}_at") if name.endswith("_ms") else name
            for name in order
        )
    )
