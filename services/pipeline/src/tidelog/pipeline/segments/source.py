"""`spark.read.format("tidelog").load(DIRECTORY)`: topics from segment files, no broker asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType
from tidelog.pipeline.segments.layout import OffsetsMissingError, PartitionLog
from tidelog.pipeline.segments.options import SegmentOptions, parse_options
from tidelog.pipeline.segments.pushdown import Wanted
from tidelog.pipeline.segments.schema import checked_columns, spark_schema
from tidelog.pipeline.segments.slice_reader import SliceReader
from tidelog.pipeline.segments.slices import SegmentPlanner, Slice, tasks
from tidelog.pipeline.segments.storage import Storage
from tidelog.pipeline.segments.visible import visible_logs


class SegmentDataSource(DataSource):
    """See options.SegmentOptions for what `.option` takes."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        return spark_schema(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return SegmentBatchReader(parse_options(self.options), checked_columns(schema))

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802
        from tidelog.pipeline.segments.stream import SegmentStreamReader

        return SegmentStreamReader(parse_options(self.options), checked_columns(schema))


@dataclass
class SegmentPartition(InputPartition):
    """Empty where there is nothing to read: Spark asks for one at least."""

    slices: tuple[Slice, ...] = ()


class SegmentBatchReader(DataSourceReader):
    """One task per segment; a large one is split, small ones share."""

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
    """By partition and offset."""
    storage = Storage(options.storage_settings)
    logs = visible_logs(storage, options.roots, options.topics, options.isolation_level)
    planner = SegmentPlanner(storage, options.split_bytes)
    for log in logs:
        if not options.wants(log.topic) or not wanted.has(log.topic, log.partition):
            continue
        yield from planner.slices(log, wanted.bounds.within(*offsets_asked_for(options, log)))


def offsets_asked_for(options: SegmentOptions, log: PartitionLog) -> tuple[int, int]:
    """Raises OffsetsMissingError for what is deleted, or not to be seen yet."""
    earliest, latest = log.start_offset, log.end_offset
    start = options.starting_offsets.of(log.topic, log.partition, earliest, latest)
    end = options.ending_offsets.of(log.topic, log.partition, earliest, latest)
    if options.fail_on_data_loss and start < min(earliest, end):
        raise OffsetsMissingError(
            log.topic,
            log.partition,
            start,
            min(earliest, end),
            f"the log starts at {earliest}; with failOnDataLoss=false they are passed over",
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
