"""Reads the batches of a log in tasks of Spark, by tidelog's own code: why do offsets have no record, and
what are the records?

Spark's Kafka connector cannot represent a timestamp that overflows when it is counted in microseconds, as
nanoseconds in the field of milliseconds do, and one such record stops each query that reads it.
`opened_records` replaces such a time by the nearest possible one, as the reader of segment files does. It is
slower than the connector, so it is used only after such an error.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tidelog.pipeline.segments.source import spark_schema
from tidelog.pipeline.verify.log_reader import BatchOpener, Partition, Span, count_kinds, holes_of, kinds_at
from tidelog.pipeline.verify.pieces import Group
from tidelog.records.columns.arrow import COLUMNS, ColumnarDecoder
from tidelog.records.columns.rows import RowBounds

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession


_MAX_TASKS: Final = 256
_ANSWER: Final = "answer string"

_Ask = tuple[int, str, int, int, int, list[int]]
"""Group, topic, partition, start, end, and the requested offsets. Without offsets, the answer counts all of
them.
"""


def hole_counts(spark: SparkSession, opener: BatchOpener, groups: Sequence[Group]) -> dict[int, Counter[str]]:
    """Returns, for each group, how many offsets that the log reaches hold no record, by kind."""
    asks: list[_Ask] = [(g.index, g.topic, g.partition, g.log_start, g.log_end, []) for g in groups]
    return {index: Counter(counts) for index, counts in _answers(spark, opener, asks)}


def hole_kinds(
    spark: SparkSession, opener: BatchOpener, offsets: Mapping[Group, Sequence[int]]
) -> dict[int, dict[int, str]]:
    """Returns, for each group, the reasons of those of its `offsets` that hold no record."""
    asks: list[_Ask] = [
        (g.index, g.topic, g.partition, min(wanted), max(wanted) + 1, list(wanted))
        for g, wanted in offsets.items()
    ]
    return {
        index: {int(offset): kind for offset, kind in found.items()}
        for index, found in _answers(spark, opener, asks)
    }


def _answers(
    spark: SparkSession, opener: BatchOpener, asks: Sequence[_Ask]
) -> Iterator[tuple[int, dict[str, Any]]]:  # parsed JSON
    if not asks:
        return
    frame = spark.createDataFrame([(json.dumps(ask),) for ask in asks], "ask string")
    frame = frame.repartition(min(len(asks), _MAX_TASKS))
    for row in frame.mapInPandas(_asker(opener), _ANSWER).collect():
        index, found = json.loads(row["answer"])
        yield index, found


def _asker(opener: BatchOpener) -> Callable[[Iterable[pd.DataFrame]], Iterator[pd.DataFrame]]:
    def run(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        import pandas as pd

        for frame in frames:
            yield pd.DataFrame(
                {"answer": [json.dumps(answer_of(opener, json.loads(a))) for a in frame["ask"]]}
            )

    return run


def answer_of(opener: BatchOpener, ask: Sequence[Any]) -> tuple[int, dict[Any, Any]]:
    """Returns the answer of one task to one question. `ask` is parsed JSON, and the answer becomes JSON."""
    index, topic, partition, start, end, offsets = ask
    holes = holes_of(opener.batches(topic, partition, start, end), start, end)
    return index, kinds_at(holes, offsets) if offsets else dict(count_kinds(holes))


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
