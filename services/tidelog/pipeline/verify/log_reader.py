"""The interface of a log for verification, for brokers and for segment files."""

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
    """Consumers of committed records can read the offsets [start, end) of a partition. `topic_id` is None if
    it is unknown, and may have any text form. Only a compacted log may lack offsets within the range.
    """

    start: int
    end: int
    topic_id: str | None
    is_compacted: bool


class BatchOpener(Protocol):
    """Opens batches. It can be pickled and sent to Spark's tasks."""

    def batches(self, topic: str, partition: int, start: int, end: int) -> Iterator[SeenBatch]:
        """Yields batches in order, from the one that contains `start` up to `end` or slightly further."""


class LogReader(Protocol):
    @property
    def place(self) -> str:
        """A name for users, for example "the brokers at 127.0.0.1:9092"."""

    def extents(self, topics: Collection[str]) -> dict[Partition, LogExtent]:
        """Returns the extents of the partitions that exist."""

    def epochs(self, spans: Mapping[Partition, Span]) -> dict[Partition, Epochs]:
        """Returns the leader epochs that wrote those offsets."""

    def records(self, spark: SparkSession, spans: Mapping[Partition, Span]) -> DataFrame:
        """Returns the committed records of those offsets, and possibly others, with the Kafka connector's
        columns.
        """

    def opener(self) -> BatchOpener: ...
