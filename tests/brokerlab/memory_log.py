"""A log of real record batches in memory, with the interface of a log for verification, and the table and the
ledger that an archive of it would have. Tests plant faults in all three.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark import cloudpickle
from pyspark.sql import functions as fn

from tidelog.pipeline.tables.hashes import log_record_hash, row_hash, set_hash
from tidelog.pipeline.tables.ledger import CommitEntry, RangeEntry
from tidelog.pipeline.verify.log_reader import Epochs, LogExtent, Partition, SeenBatch, Span
from tidelog.records.batch import EndTransactionMarker, parse_header
from tidelog.records.builder import build_batch, build_end_transaction_batch
from tidelog.records.record import Record, iterate_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG_SCHEMA: Final = (
    "key binary, value binary, headers array<struct<key string, value binary>>, topic string, partition int, "
    "offset bigint, timestamp timestamp, timestampType int"
)
TOPIC_ID: Final = "6f1f5c3e-8d0a-4f52-9d7e-2f0c4f8f3a11"
START_MS: Final = 1_767_312_000_000
COMMITTED, ABORTED = 7, 8
EPOCHS: Final = ((0, 0), (1, 7))
ARCHIVE: Final = "by-hand"
BATCHES: Final[Sequence[Span]] = ((0, 5), (5, 10), (10, 14))


# Spark's Python workers do not have this directory on their path.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@dataclass(frozen=True)
class MemoryPartition:
    """Batches, each with a flag that says whether it belongs to an aborted transaction."""

    batches: tuple[tuple[bytes, bool], ...]
    start: int
    end: int
    epochs: tuple[tuple[int, int], ...] = EPOCHS
    is_compacted: bool = False
    topic_id: str = TOPIC_ID

    def rows(self, topic: str, partition: int) -> Iterator[tuple[Any, ...]]:
        for raw, is_aborted in self.batches:
            if is_aborted or parse_header(raw).is_control:
                continue
            for record in iterate_records(raw):
                if self.start <= record.offset < self.end:
                    at = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=record.timestamp)
                    yield (
                        record.key,
                        record.value,
                        list(record.headers),
                        topic,
                        partition,
                        record.offset,
                        at,
                        0,
                    )


def record(offset: int, value: bytes = b"") -> Record:
    key = b"k%d" % (offset % 3)
    return Record(offset, START_MS + offset, key, value or b"value %d" % offset, (("n", b"%d" % offset),))


def batch(
    offsets: Sequence[int], *, base: int | None = None, value: bytes = b"", producer: int = -1
) -> bytes:
    """Returns a batch with those offsets. A batch with a producer is transactional."""
    records = [record(offset, value) for offset in offsets]
    made = build_batch(
        records, base_offset=base, producer_id=producer, producer_epoch=0, is_transactional=producer >= 0
    )
    return bytes(made)


def marker(offset: int, producer: int) -> bytes:
    made = build_end_transaction_batch(
        EndTransactionMarker(producer == COMMITTED, 0),
        base_offset=offset,
        timestamp_ms=START_MS + offset,
        producer_id=producer,
        producer_epoch=0,
    )
    return bytes(made)


def example_partition() -> MemoryPartition:
    """Offsets 0 to 13: 0-3 are plain, 4-5 are committed by marker 6, 7-8 are aborted by marker 9, 10-13 are
    plain.
    """
    batches = (
        (batch(range(4)), False),
        (batch(range(4, 6), producer=COMMITTED), False),
        (marker(6, COMMITTED), False),
        (batch(range(7, 9), producer=ABORTED), True),
        (marker(9, ABORTED), False),
        (batch(range(10, 14)), False),
    )
    return MemoryPartition(batches, 0, 14)


def without(partition: MemoryPartition, *offsets: int) -> MemoryPartition:
    """Removes records as compaction does: a batch keeps its end, or disappears."""
    kept: list[tuple[bytes, bool]] = []
    for raw, is_aborted in partition.batches:
        header = parse_header(raw)
        records = list(iterate_records(raw))
        left = [each for each in records if each.offset not in offsets]
        if len(left) == len(records):
            kept.append((raw, is_aborted))
        elif left:
            assert left[-1].offset == header.last_offset, (
                "the builder cannot make a batch that ends in a hole"
            )
            kept.append((bytes(build_batch(left, base_offset=header.base_offset)), is_aborted))
    return replace(partition, batches=tuple(kept))


@dataclass
class MemoryLog:
    partitions: dict[Partition, MemoryPartition] = field(default_factory=dict)
    place: str = "the batches in memory"

    def extents(self, topics: Collection[str]) -> dict[Partition, LogExtent]:
        return {
            key: LogExtent(each.start, each.end, each.topic_id, each.is_compacted)
            for key, each in self.partitions.items()
            if key[0] in topics
        }

    def epochs(self, spans: Mapping[Partition, Span]) -> dict[Partition, Epochs]:
        return {key: self.partitions[key].epochs for key in spans}

    def records(self, spark: SparkSession, spans: Mapping[Partition, Span]) -> DataFrame:
        rows = [row for key in spans for row in self.partitions[key].rows(*key)]
        return spark.createDataFrame(rows, LOG_SCHEMA)

    def opener(self) -> MemoryBatches:
        return MemoryBatches(dict(self.partitions))


@dataclass
class MemoryBatches:
    partitions: dict[Partition, MemoryPartition]

    def batches(self, topic: str, partition: int, start: int, end: int) -> Iterator[SeenBatch]:
        for raw, is_aborted in self.partitions[topic, partition].batches:
            yield SeenBatch(parse_header(raw), is_aborted, lambda raw=raw: raw)  # type: ignore[misc]


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
