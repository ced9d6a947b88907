"""The log as its segment files contain it, without a broker."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.layout import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    AbortedBatches,
    PartitionLog,
    SegmentFile,
    by_name,
)
from tidelog.pipeline.segments.log_files import (
    LOCAL_CHUNK_BYTES,
    REMOTE_CHUNK_BYTES,
    offset_entries,
    position_below,
    scan_batches,
)
from tidelog.pipeline.segments.storage import Storage, is_local
from tidelog.pipeline.segments.visible import visible_logs
from tidelog.pipeline.verify.epochs import Epochs
from tidelog.pipeline.verify.holes import SeenBatch
from tidelog.pipeline.verify.log_reader import LogExtent, Partition, Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class SegmentLog:
    """`roots` are data directories, or copies or exports of them."""

    roots: tuple[str, ...]
    storage: Storage = field(default_factory=Storage)
    is_committed: bool = True
    """Set to False if the archive read with read_uncommitted."""
    _logs: dict[Partition, PartitionLog] = field(default_factory=dict, init=False)

    @property
    def place(self) -> str:
        return f"the segments in {', '.join(self.roots)}"

    def extents(self, topics: Collection[str]) -> dict[Partition, LogExtent]:
        found = by_name(visible_logs(self.storage, self.roots, topics, self._isolation_level))
        self._logs |= found
        return {
            place: LogExtent(log.start_offset, log.end_offset, log.topic_id, log.is_compacted)
            for place, log in found.items()
        }

    @property
    def _isolation_level(self) -> str:
        return READ_COMMITTED if self.is_committed else READ_UNCOMMITTED

    def epochs(self, spans: Mapping[Partition, Span]) -> dict[Partition, Epochs]:
        return {
            place: [(epoch, begin) for epoch, begin in self._logs[place].epochs_of(start, end)]
            for place, (start, end) in spans.items()
        }

    def records(self, spark: SparkSession, spans: Mapping[Partition, Span]) -> DataFrame:
        from tidelog.pipeline.segments import register

        register(spark)
        topics = {topic for topic, _ in spans}
        starting: dict[str, dict[str, int]] = {topic: {} for topic in topics}
        ending: dict[str, dict[str, int]] = {topic: {} for topic in topics}
        for (topic, partition), log in self._logs.items():
            if topic in topics:
                nothing = (log.end_offset, log.end_offset)
                start, end = spans.get((topic, partition), nothing)
                starting[topic][str(partition)], ending[topic][str(partition)] = start, end
        reader = (
            spark.read.format("tidelog")
            .option("subscribe", ",".join(sorted(topics)))
            .option("isolationLevel", self._isolation_level)
            .option("startingOffsets", json.dumps(starting))
            .option("endingOffsets", json.dumps(ending))
            # Retention continues during the read. Missing records are detected by comparing what remains.
            .option("failOnDataLoss", "false")
        )
        for name, value in self.storage.settings.items():
            reader = reader.option(f"storage.{name}", value)
        return reader.load(list(self.roots))

    def opener(self) -> SegmentBatches:
        return SegmentBatches(self.storage, dict(self._logs))


@dataclass(frozen=True, slots=True)
class SegmentBatches:
    storage: Storage
    logs: Mapping[Partition, PartitionLog]

    def batches(self, topic: str, partition: int, start: int, end: int) -> Iterator[SeenBatch]:
        log = self.logs[topic, partition]
        aborted = AbortedBatches(log.aborted)
        for segment in log.segments_of(start, end):
            try:
                yield from self._of_segment(segment, start, end, aborted)
            except FileNotFoundError as error:
                raise PipelineError(f"{segment.log_path} has been deleted: verify again") from error

    def _of_segment(
        self, segment: SegmentFile, start: int, end: int, aborted: AbortedBatches
    ) -> Iterator[SeenBatch]:
        chunk_bytes = LOCAL_CHUNK_BYTES if is_local(segment.log_path) else REMOTE_CHUNK_BYTES
        with self.storage.open(segment.log_path) as file:
            size = file.size()
            position = self._position(segment, start, size)
            for batch in scan_batches(
                file, position, size, min_offset=segment.base_offset, chunk_bytes=chunk_bytes
            ):
                header = batch.header
                if header.base_offset >= end:
                    return
                yield SeenBatch(
                    header,
                    header in aborted,
                    lambda at=batch.position, size=header.size_bytes: file.read_at(size, at),  # type: ignore[misc]
                )

    def _position(self, segment: SegmentFile, offset: int, size_bytes: int) -> int:
        if offset <= segment.base_offset or segment.index_path is None:
            return 0
        try:
            index = self.storage.read(segment.index_path)
        except FileNotFoundError:
            return 0
        return position_below(offset_entries(index, segment.base_offset, size_bytes), offset)
