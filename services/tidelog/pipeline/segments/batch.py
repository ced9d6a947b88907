"""`spark.read.format("tidelog")` reads the segment files of topics as a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tidelog.pipeline.segments.layout import OffsetsMissingError, PartitionLog
from tidelog.pipeline.segments.options import SegmentOptions
from tidelog.pipeline.segments.pushdown import Wanted
from tidelog.pipeline.segments.slice_reader import SliceReader
from tidelog.pipeline.segments.slices import SegmentPlanner, Slice, tasks
from tidelog.pipeline.segments.storage import Storage
from tidelog.pipeline.segments.visible import visible_logs


@dataclass
class SegmentPartition(InputPartition):
    """The input of a task. It is empty if there is nothing to read, because Spark requires at least one
    partition.
    """

    slices: tuple[Slice, ...] = ()


class SegmentBatchReader(DataSourceReader):
    """Reads with one task for each segment. A large segment is split, and small ones share a task."""

    def __init__(self, options: SegmentOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._wanted = Wanted()

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        self._wanted, left = self._wanted.with_filters(filters)
        yield from left

    def partitions(self) -> list[InputPartition]:
        found = tasks(planned_slices(self._options, self._wanted), self._options.split_bytes)
        return [SegmentPartition(slices) for slices in found] or [SegmentPartition()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_slices(self._options, self._columns, self._wanted, partition.slices)


def planned_slices(options: SegmentOptions, wanted: Wanted) -> Iterator[Slice]:
    """Returns the planned slices by partition and offset."""
    storage = Storage(options.storage_settings)
    logs = visible_logs(storage, options.roots, options.topics, options.isolation_level)
    planner = SegmentPlanner(storage, options.split_bytes)
    for log in logs:
        if not options.wants(log.topic) or not wanted.has(log.topic, log.partition):
            continue
        yield from planner.slices(log, wanted.bounds.within(*offsets_asked_for(options, log)))


def offsets_asked_for(options: SegmentOptions, log: PartitionLog) -> tuple[int, int]:
    """Returns the requested ranges. Raises OffsetsMissingError if offsets are deleted or not visible yet."""
    earliest, latest = log.start_offset, log.end_offset
    start = options.starting_offsets.of(log.topic, log.partition, earliest, latest)
    end = options.ending_offsets.of(log.topic, log.partition, earliest, latest)
    if options.fail_on_data_loss and start < min(earliest, end):
        raise OffsetsMissingError(
            log.topic,
            log.partition,
            start,
            min(earliest, end),
            f"the log starts at {earliest}; with failOnDataLoss=false they are skipped",
        )
    if end > latest:
        first = max(start, latest)
        raise OffsetsMissingError(log.topic, log.partition, first, end, f"the log may be read to {latest}")
    return start, end


def read_slices(
    options: SegmentOptions, columns: tuple[str, ...], wanted: Wanted, slices: tuple[Slice, ...]
) -> Iterator[pa.RecordBatch]:
    reader = SliceReader(Storage(options.storage_settings), columns, wanted.bounds, options.check_crcs)
    for part in slices:
        yield from reader.read(part)
