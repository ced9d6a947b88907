"""`spark.readStream.format("tidelog")` reads from the oldest segment on, then follows the checkpointed high
watermark. Offsets have the Kafka connector's form, so that a job can continue from the live topic at exactly
the offset where this source ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidelog.model.json_object import JsonObject
from tidelog.pipeline.segments.batch import SegmentPartition, read_slices
from tidelog.pipeline.segments.layout import PartitionLog
from tidelog.pipeline.segments.options import SegmentOptions
from tidelog.pipeline.segments.pushdown import Wanted
from tidelog.pipeline.segments.slices import SegmentPlanner, tasks
from tidelog.pipeline.segments.storage import Storage
from tidelog.pipeline.segments.stream_offsets import (
    Offsets,
    ends_now,
    from_json,
    initial_offsets,
    next_offsets,
    ranges_between,
    to_json,
)
from tidelog.pipeline.segments.visible import visible_logs
from tidelog.records.columns.rows import RowBounds


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
