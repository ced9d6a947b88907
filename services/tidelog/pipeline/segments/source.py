"""Reads topics from segment files, without a broker: `spark.read.format("tidelog").load(DIRECTORY)` as a
batch, and `spark.readStream` from the oldest segment on, following the checkpointed high watermark.

Spark's filters on topic, partition, offset and timestamp are applied before the files are read. A stream's
offsets have the Kafka connector's form, so that a job can continue from the live topic at exactly the offset
where this source ended.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.model.text import JsonObject
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.log_files import OffsetsMissingError, PartitionLog
from tidelog.pipeline.segments.options import (
    Offsets,
    SegmentOptions,
    ends_now,
    from_json,
    initial_offsets,
    next_offsets,
    parse_options,
    ranges_between,
    to_json,
)
from tidelog.pipeline.segments.slices import SegmentPlanner, Slice, SliceReader, tasks
from tidelog.pipeline.segments.storage import Storage
from tidelog.pipeline.segments.visible import visible_logs
from tidelog.records.columns.rows import ALL_ROWS, RowBounds

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NEVER_NULL: Final = ("topic", "partition", "offset", "timestamp", "timestampType")

_COMPARISONS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {  # of two values of one column
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """`places` holds filters on topic and partition, all of which must match."""

    bounds: RowBounds = ALL_ROWS
    places: tuple[Filter, ...] = ()

    def has(self, topic: str, partition: int) -> bool:
        return all(_holds(each, topic if each.attribute == ("topic",) else partition) for each in self.places)

    def with_filters(self, filters: Iterable[Filter]) -> tuple[Wanted, list[Filter]]:
        """Returns the selection, narrowed by the filters that can be applied exactly. Spark checks the
        others.
        """
        wanted, left = self, []
        for each in filters:
            narrowed = wanted._with_filter(each)
            if narrowed is None:
                left.append(each)
            else:
                wanted = narrowed
        return wanted, left

    def _with_filter(self, each: Filter) -> Wanted | None:
        column = each.attribute[0] if len(getattr(each, "attribute", ())) == 1 else None
        if isinstance(each, IsNotNull):
            return self if column in _NEVER_NULL else None
        if column == "topic" or column == "partition":
            kind: type = str if column == "topic" else int
            if type(each) in _COMPARISONS and isinstance(each.value, kind):
                return replace(self, places=(*self.places, each))
            if isinstance(each, In) and all(isinstance(value, kind) for value in each.value):
                return replace(self, places=(*self.places, each))
            return None
        if type(each) not in _COMPARISONS:
            return None
        if column == "offset" and isinstance(each.value, int):
            return replace(self, bounds=_with_offsets(self.bounds, each))
        if column == "timestamp" and isinstance(each.value, datetime) and each.value.tzinfo is not None:
            return replace(self, bounds=_with_times(self.bounds, each))
        return None


def _holds(each: Filter, value: object) -> bool:
    if isinstance(each, In):
        return value in each.value
    return _COMPARISONS[type(each)](value, each.value)


def _with_offsets(bounds: RowBounds, each: Filter) -> RowBounds:
    first, last = _ends(each, each.value)
    if first is not None:
        bounds = replace(bounds, start_offset=max(bounds.start_offset, first))
    if last is not None:
        bounds = replace(bounds, end_offset=min(bounds.end_offset, last + 1))
    return bounds


def _with_times(bounds: RowBounds, each: Filter) -> RowBounds:
    first, last = _ends(each, (each.value - _EPOCH) // _MICROSECOND)
    if first is not None:
        known = bounds.first_timestamp_us
        bounds = replace(bounds, first_timestamp_us=first if known is None else max(known, first))
    if last is not None:
        known = bounds.last_timestamp_us
        bounds = replace(bounds, last_timestamp_us=last if known is None else min(known, last))
    return bounds


def _ends(each: Filter, value: int) -> tuple[int | None, int | None]:
    """Returns the smallest and the largest integer that satisfy the comparison."""
    if isinstance(each, GreaterThan):
        return value + 1, None
    if isinstance(each, GreaterThanOrEqual):
        return value, None
    if isinstance(each, LessThan):
        return None, value - 1
    if isinstance(each, LessThanOrEqual):
        return None, value
    return value, value


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


class SegmentStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Starting offsets that name partitions limit the stream to these partitions. Ending offsets end the
    stream.
    """

    def __init__(self, options: SegmentOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._storage = Storage(options.storage_settings)
        self._target: Offsets | None = None

    # -- Spark's interface, where offsets are JSON objects

    def initialOffset(self) -> JsonObject:  # noqa: N802
        return _json(initial_offsets(self._logs(), self._options.starting_offsets))

    def latestOffset(self, start: JsonObject, limit: ReadLimit) -> JsonObject:  # noqa: N802
        logs = self._logs()
        begins = from_json(start)
        until = ends_now(logs, self._options.ending_offsets)
        if self._options.starting_offsets.by_partition:
            until = {place: end for place, end in until.items() if place in begins}
        if self._target is not None:
            until = {
                place: min(end, self._target[place]) for place, end in until.items() if place in self._target
            }
        return _json(
            next_offsets(
                logs,
                begins,
                until,
                max_offsets=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
                stops_at_loss=self._options.fail_on_data_loss,
            )
        )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = ends_now(self._logs(), self._options.ending_offsets)

    def reportLatestOffset(self) -> JsonObject | None:  # noqa: N802
        return None

    def partitions(self, start: JsonObject, end: JsonObject) -> Sequence[InputPartition]:
        planner = SegmentPlanner(self._storage, self._options.split_bytes)
        ranges = ranges_between(
            self._logs(), from_json(start), from_json(end), stops_at_loss=self._options.fail_on_data_loss
        )
        slices = [
            part for found in ranges for part in planner.slices(found.log, RowBounds(found.start, found.end))
        ]
        return [SegmentPartition(chosen) for chosen in tasks(slices, self._options.split_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SegmentPartition)
        return read_slices(self._options, self._columns, Wanted(), partition.slices)

    def _logs(self) -> list[PartitionLog]:
        options = self._options
        logs = visible_logs(
            self._storage, options.roots, options.topics, options.isolation_level, unknown_is_empty=True
        )
        return [log for log in logs if options.wants(log.topic)]


def _json(offsets: Mapping[tuple[str, int], int]) -> JsonObject:
    return dict(to_json(offsets))


_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


def spark_schema(columns: Iterable[str]) -> StructType:
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def checked_columns(schema: StructType) -> tuple[str, ...]:
    """Returns the column names of a schema that may come from the user. Raises PipelineError."""
    for field in schema.fields:
        if _TYPES.get(field.name) != field.dataType:
            raise PipelineError(
                f"the segment source has no column {field.name} of type "
                f"{field.dataType.simpleString()}: choose from its own columns by .option('columns', "
                "'offset,value')"
            )
    return tuple(schema.fieldNames())


class SegmentDataSource(DataSource):
    """The data source `tidelog`; `options.SegmentOptions` describes its options."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        return spark_schema(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return SegmentBatchReader(parse_options(self.options), checked_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return SegmentStreamReader(parse_options(self.options), checked_columns(schema))
