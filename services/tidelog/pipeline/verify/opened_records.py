"""The records of a log, read by tidelog's own code on Spark's executors.

Spark's Kafka connector cannot represent a timestamp that overflows when it is counted in microseconds, as
nanoseconds in the field of milliseconds do, and one such record stops each query that reads it. This reader
replaces such a time by the nearest possible one, as the reader of segment files does. It is slower than the
connector, so it is used only after such an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tidelog.pipeline.segments.source import spark_schema
from tidelog.pipeline.verify.log_reader import BatchOpener, Partition, Span
from tidelog.records.columns.arrow import COLUMNS, ColumnarDecoder
from tidelog.records.columns.rows import RowBounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OFFSETS_A_PIECE: Final = 50_000
_MOST_TASKS: Final = 200
_OVERFLOW: Final = "java.lang.ArithmeticException: long overflow"


def is_time_overflow(error: Exception) -> bool:
    """Returns whether the Kafka connector failed because of an impossible timestamp."""
    return _OVERFLOW in str(error)


def opened_records(spark: SparkSession, opener: BatchOpener, spans: Mapping[Partition, Span]) -> DataFrame:
    """Returns the committed records of those offsets with the Kafka connector's columns."""
    pieces = [
        (topic, partition, begin, min(end, begin + _OFFSETS_A_PIECE))
        for (topic, partition), (start, end) in sorted(spans.items())
        for begin in range(start, end, _OFFSETS_A_PIECE)
    ]
    frame = spark.createDataFrame(pieces, "topic string, partition int, start bigint, end bigint")
    tasks = frame.repartition(max(1, min(len(pieces), _MOST_TASKS)))
    return tasks.mapInArrow(_reader(opener), spark_schema(COLUMNS))


def _reader(opener: BatchOpener) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            for row in piece.to_pylist():
                yield from _records(opener, row["topic"], row["partition"], row["start"], row["end"])

    return read


def _records(
    opener: BatchOpener, topic: str, partition: int, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    decoder, bounds = ColumnarDecoder(topic, partition), RowBounds(start, end)
    for batch in opener.batches(topic, partition, start, end):
        header = batch.header
        if not batch.is_aborted and not header.is_control and header.record_count:
            yield from decoder.decode(batch.read(), [(0, header)], bounds)
