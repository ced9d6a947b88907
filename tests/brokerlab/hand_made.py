"""Builds tables and ledgers as archives would, from a log in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from brokerlab.memory_log import MemoryLog
from tidelog.pipeline.tables.hashes import log_record_hash, row_hash, set_hash
from tidelog.pipeline.tables.ledger import CommitEntry, RangeEntry
from tidelog.pipeline.verify.log_reader import Partition, Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ARCHIVE: Final = "by-hand"
BATCHES: Final[Sequence[Span]] = ((0, 5), (5, 10), (10, 14))


def raw_rows(records: DataFrame) -> DataFrame:
    """Returns the rows of a table of raw values."""
    return records.select(
        fn.col("topic").alias("kafka_topic"),
        fn.col("partition").alias("kafka_partition"),
        fn.col("offset").alias("kafka_offset"),
        fn.col("timestamp").alias("kafka_timestamp"),
        fn.col("timestampType").alias("kafka_timestamp_type"),
        fn.col("key").alias("kafka_key"),
        fn.col("headers").alias("kafka_headers"),
        fn.col("value").alias("kafka_value"),
        fn.to_date("timestamp").alias("event_date"),
    )


def decoded_rows(records: DataFrame) -> DataFrame:
    """Returns the rows of a table of decoded values."""
    text = fn.col("kafka_value").cast("string")
    return (
        raw_rows(records)
        .select(fn.expr("*"), text.alias("text"), fn.length(text).alias("length"))
        .drop("kafka_value")
    )


def ledger_by_hand(
    records: DataFrame,
    rows: DataFrame,
    log: MemoryLog,
    *,
    spans: Sequence[Span] = BATCHES,
    quarantined: Mapping[tuple[Partition, int], int] | None = None,
) -> list[CommitEntry]:
    """Returns a ledger with one batch, over all partitions, for each of `spans`. `quarantined` maps a range's
    start to a count.
    """
    columns = tuple(sorted(rows.columns))
    seen = _hashes(records.select("topic", "partition", "offset", log_record_hash()))
    place = ("kafka_topic", "kafka_partition", "kafka_offset")
    stored = _hashes(rows.select(*place, row_hash(rows.schema, columns)))
    entries: list[CommitEntry] = []
    for number, (start, end) in enumerate(spans):
        ranges: list[RangeEntry] = []
        for key, partition in sorted(log.partitions.items()):
            found = {at: each for at, each in seen.get(key, {}).items() if start <= at < end}
            kept = [each for at, each in stored.get(key, {}).items() if start <= at < end]
            ranges.append(
                RangeEntry(
                    topic=key[0],
                    topic_id=partition.topic_id,
                    partition=key[1],
                    start=start,
                    end=end,
                    first=min(found, default=None),
                    last=max(found, default=None),
                    count=len(found),
                    quarantined=(quarantined or {}).get((key, start), 0),
                    log_hash=set_hash(0, sum(found.values())),
                    row_hash=set_hash(0, sum(kept)),
                    leader_epochs=epochs_within(partition.epochs, start, end),
                )
            )
        entries.append(CommitEntry(ARCHIVE, number, columns, tuple(ranges)))
    return entries


def _hashes(frame: DataFrame) -> dict[Partition, dict[int, int]]:
    found: dict[Partition, dict[int, int]] = {}
    for topic, partition, offset, one in frame.collect():
        found.setdefault((topic, partition), {})[offset] = one
    return found


def epochs_within(epochs: Sequence[tuple[int, int]], start: int, end: int) -> tuple[tuple[int, int], ...]:
    before = [each for each in epochs if each[1] <= start][-1:]
    within = [each for each in epochs if start < each[1] < end]
    return tuple((epoch, max(at, start)) for epoch, at in [*before, *within])


def frame_of(spark: SparkSession, log: MemoryLog) -> DataFrame:
    """Returns all committed records."""
    return log.records(spark, dict.fromkeys(log.partitions, (0, 0)))
