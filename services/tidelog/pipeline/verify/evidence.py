"""Asks the log's batches, in tasks of Spark, why offsets have no record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidelog.pipeline.verify.groups import Group
from tidelog.pipeline.verify.holes import count_kinds, holes_of, kinds_at
from tidelog.pipeline.verify.log_reader import BatchOpener

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

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
