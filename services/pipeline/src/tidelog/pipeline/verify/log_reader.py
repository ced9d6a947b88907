"""What a verification asks of a log, be it the brokers' or segment files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidelog.pipeline.verify.epochs import Epochs
from tidelog.pipeline.verify.holes import SeenBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Partition = tuple[str, int]
Span = tuple[int, int]
"""Offsets from the first to before the second."""


@dataclass(frozen=True, slots=True)
class LogExtent:
    """Offsets [start, end) of a partition can be read by consumers of committed records. `topic_id` None if
    unknown; in any text form. Only a compacted log may lack offsets of its own.
    """

    start: int
    end: int
    topic_id: str | None
    is_compacted: bool


class BatchOpener(Protocol):
    """Pickles to Spark's tasks."""

    def batches(self, topic: str, partition: int, start: int, end: int) -> Iterator[SeenBatch]:
        """In order, from the one that holds `start` up to `end`, or a bit further."""


class LogReader(Protocol):
    @property
    def place(self) -> str:
        """For people, e.g. "the brokers at 127.0.0.1:9092"."""

    def extents(self, topics: Collection[str]) -> dict[Partition, LogExtent]:
        """Of the partitions that exist."""

    def epochs(self, spans: Mapping[Partition, Span]) -> dict[Partition, Epochs]:
        """The leader epochs that wrote those offsets."""

    def records(self, spark: SparkSession, spans: Mapping[Partition, Span]) -> DataFrame:
        """Committed records of those offsets and maybe others, with the Kafka connector's columns."""

    def opener(self) -> BatchOpener: ...
