"""An archive that begins with segment files and continues with the live topic at the very next offset.

The first part reads only files. At its end it asks the brokers where their logs start, because the brokers
deliver what they still have. If retention has passed the end of the segments, the first part reads the
segments again, as far as they have grown. Both parts write to one table. The table's ledger says where the
second part begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as fn

from tidelog.client.admin.logs import EpochStart
from tidelog.model.topics import TopicPartition, parse_topic_id
from tidelog.pipeline.archive.batch import BatchArchiver, first_schema
from tidelog.pipeline.archive.checkpoint import (
    FIRST_OFFSETS,
    RunPlan,
    TableState,
    checkpoint_state,
    plan_run,
    write_binding,
)
from tidelog.pipeline.archive.job import ArchiveSummary, offsets_json, run_archive, run_batches, run_query
from tidelog.pipeline.archive.sink import Sink, sink_of
from tidelog.pipeline.archive.spec import STOP, ArchiveSpec, Offsets, Ranges, parse_offsets
from tidelog.pipeline.archive.survey import Survey, next_offsets, survey
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments import register
from tidelog.pipeline.segments.log_files import PartitionLog
from tidelog.pipeline.segments.options import STORAGE_PREFIX, to_json
from tidelog.pipeline.segments.options import next_offsets as next_ends
from tidelog.pipeline.segments.storage import Storage
from tidelog.pipeline.segments.visible import visible_logs
from tidelog.pipeline.session import is_remote
from tidelog.pipeline.tables.ledger import CommitEntry
from tidelog.pipeline.tables.stored_files import StoredDirectory, absolute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

CHECKPOINT: Final = "segments"
"""The checkpoint of the first part, below the archive's own."""
_NO_WORKER: Final = "Python worker failed to connect back"
"""The number of retries of a batch. Spark gives the process that plans a Python source ten seconds to start,
and a busy machine exceeds this limit.
"""
_STARTS: Final = 5
_OUR_ERROR: Final = re.compile(r"^\s*tidelog\.pipeline\.[\w.]+Error: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """Data directories of brokers, or copies or exports of them."""

    roots: tuple[str, ...]
    storage_settings: Mapping[str, str] = field(default_factory=dict)

    def logs(self, spec: ArchiveSpec) -> list[PartitionLog]:
        """Returns the logs in the directories. Raises PipelineError."""
        found = visible_logs(
            Storage(self.storage_settings),
            self.roots,
            spec.topics or None,
            spec.isolation_level,
            unknown_is_empty=True,
        )
        return [log for log in found if spec.matches(log.topic)]

    def options(self, spec: ArchiveSpec) -> dict[str, str]:
        """Returns the options of the segment source for this archive."""
        storage = {f"{STORAGE_PREFIX}{name}": value for name, value in self.storage_settings.items()}
        loss = "true" if spec.on_data_loss == STOP else "false"
        return {**storage, "isolationLevel": spec.isolation_level, "failOnDataLoss": loss}


def run_from_segments(
    spark: SparkSession,
    spec: ArchiveSpec,
    files: SegmentFiles,
    *,
    on_start: Callable[[int], None] | None = None,
    on_commit: Callable[[CommitEntry], None] | None = None,
    stops: Callable[[], bool] = lambda: False,
) -> ArchiveSummary:
    """Runs the archive like run_archive. Once it has begun with the live topic, it does not read segments
    again. Raises PipelineError, KafkaError, ClientError.
    """
    backfill = _Backfill(spark, spec, files, on_start, on_commit, stops)
    while not _is_live(spec) and not stops():
        backfill.read_all_there_is()
        if not backfill.is_behind(survey(spec)):
            break
    if stops():
        return backfill.summary
    live = run_archive(spark, spec, on_start=on_start, on_commit=on_commit, stops=stops)
    return _sum(backfill.summary, live)


def _is_live(spec: ArchiveSpec) -> bool:
    return checkpoint_state(StoredDirectory(spec.checkpoint)).binding is not None


def _sum(one: ArchiveSummary, other: ArchiveSummary) -> ArchiveSummary:
    return replace(
        other,
        batches=one.batches + other.batches,
        rows=one.rows + other.rows,
        quarantined=one.quarantined + other.quarantined,
        given_up=one.given_up + other.given_up,
        seconds=one.seconds + other.seconds,
    )


class _Backfill:
    def __init__(
        self,
        spark: SparkSession,
        spec: ArchiveSpec,
        files: SegmentFiles,
        on_start: Callable[[int], None] | None,
        on_commit: Callable[[CommitEntry], None] | None,
        stops: Callable[[], bool],
    ) -> None:
        self._spark = spark
        self._spec = replace(spec, checkpoint=f"{absolute(spec.checkpoint)}/{CHECKPOINT}", interval_ms=None)
        self._files = files
        self._on_start = on_start
        self._on_commit = on_commit
        self._stops = stops
        self._sink: Sink = sink_of(spark, spec)
        self.summary = ArchiveSummary(spec.name, absolute(spec.table))

    def read_all_there_is(self) -> None:
        """Archives what is visible when the call begins."""
        checkpoint = StoredDirectory(self._spec.checkpoint)
        logs = self._files.logs(self._spec)
        table = self._table()
        plan = plan_run(self._spec, checkpoint_state(checkpoint), table)
        if not table.exists:
            self._sink.create(first_schema(self._spec))
        write_binding(checkpoint, plan.binding)
        starting = checkpoint.read(FIRST_OFFSETS)
        if starting is None:
            begins = begin_offsets(logs, plan.starting or {})
            starting = json.dumps(to_json(begins))
            checkpoint.write(FIRST_OFFSETS, starting)
        if self._on_start is not None:
            self._on_start(_waiting(logs, table))
        archiver = _SegmentArchiver(self._files, self._spark, self._spec, self._sink, plan, table, self._note)
        for attempt in range(_STARTS):
            try:
                self._run(archiver, starting)
                return
            except PySparkException as error:
                if isinstance(archiver.failure, PipelineError):
                    raise archiver.failure from error
                if _NO_WORKER not in str(error) or attempt + 1 == _STARTS:
                    raise explained(str(error)) from error

    def _run(self, archiver: BatchArchiver, starting: str) -> None:
        if is_remote(self._spark):
            source = _FileBatches(self._spark, self._spec, self._files)
            run_batches(source, self._spec, archiver, parse_offsets(starting), self._stops)
            return
        run_query(self._start(archiver, starting), archiver, self._stops)

    def is_behind(self, live: Survey) -> bool:
        """Returns True if the brokers have deleted records that are not archived yet and that the segments
        have now.
        """
        positions = {place: each.offset for place, each in next_offsets(self._sink.ledger()).items()}
        return any(
            positions.get(place, 0) < live.log_starts.get(place, 0)
            and log.end_offset > positions.get(place, 0)
            for log in self._files.logs(self._spec)
            for place in [TopicPartition(log.topic, log.partition)]
        )

    def _table(self) -> TableState:
        owner = self._sink.owner()
        if owner is None:
            return TableState(exists=False)
        return TableState(True, owner.archive, owner.values, tuple(self._sink.ledger()))

    def _note(self, entry: CommitEntry) -> None:
        self.summary.add(entry)
        if self._on_commit is not None:
            self._on_commit(entry)

    def _start(self, archiver: BatchArchiver, starting: str) -> StreamingQuery:
        spec = self._spec
        query = self._records(starting).writeStream.foreachBatch(archiver)
        return (
            query.queryName(f"{spec.name} from segments")
            .option("checkpointLocation", spec.checkpoint)
            .trigger(availableNow=True)
            .start()
        )

    def _records(self, starting: str) -> DataFrame:
        register(self._spark)
        reader = (
            self._spark.readStream.format("tidelog")
            .options(**self._files.options(self._spec))
            .option("startingOffsets", starting)
            .option("maxOffsetsPerTrigger", self._spec.max_offsets_per_trigger)
        )
        if self._spec.pattern is not None:
            reader = reader.option("subscribePattern", self._spec.pattern)
        else:
            reader = reader.option("subscribe", ",".join(self._spec.topics))
        return reader.load(",".join(self._files.roots))


@dataclass(frozen=True, slots=True)
class _FileBatches:
    """The batches for sessions of Spark Connect, planned as the stream would plan them."""

    spark: SparkSession
    spec: ArchiveSpec
    files: SegmentFiles

    def look(self) -> Survey:
        return survey_of(self.files.logs(self.spec))

    def next_ends(self, begin: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Offsets:
        found = next_ends(
            self.files.logs(self.spec),
            {(place.topic, place.partition): offset for place, offset in begin.items()},
            {(place.topic, place.partition): offset for place, offset in ends.items()},
            max_offsets=self.spec.max_offsets_per_trigger,
            stops_at_loss=self.spec.on_data_loss == STOP,
        )
        reached = {TopicPartition(*place): end for place, end in found.items()}
        return dict(begin) | {place: end for place, end in reached.items() if end > begin.get(place, 0)}

    def records(self, ranges: Ranges) -> DataFrame:
        register(self.spark)
        reader = (
            self.spark.read.format("tidelog")
            .options(**self.files.options(self.spec))
            .option("subscribe", ",".join({place.topic for place in ranges}))
            .option(
                "startingOffsets", offsets_json({place: wanted.start for place, wanted in ranges.items()})
            )
            .option("endingOffsets", offsets_json({place: wanted.end for place, wanted in ranges.items()}))
        )
        # The source would read partitions that are not named completely. It takes the first of these filters.
        may_be_named = fn.col("partition").isin(sorted({place.partition for place in ranges}))
        is_named = fn.concat_ws("-", "topic", "partition").isin([str(place) for place in ranges])
        return reader.load(",".join(self.files.roots)).where(may_be_named & is_named)


class _SegmentArchiver(BatchArchiver):
    """Offsets, topic ids and leader epochs come from the files. The group gets the offsets at the "
    "handover."""

    def __init__(
        self,
        files: SegmentFiles,
        spark: SparkSession,
        spec: ArchiveSpec,
        sink: Sink,
        plan: RunPlan,
        table: TableState,
        on_commit: Callable[[CommitEntry], None],
    ) -> None:
        super().__init__(spark, spec, sink, plan.binding, table.ledger, on_commit)
        self._files = files

    def commit_progress(self, entries: Sequence[CommitEntry]) -> None:
        """Does nothing. The group gets the offsets at the handover."""

    def _look(self) -> Survey:
        return survey_of(self._files.logs(self._spec))

    def _epochs(self, ranges: Ranges) -> dict[TopicPartition, tuple[EpochStart, ...]]:
        logs = {TopicPartition(log.topic, log.partition): log for log in self._files.logs(self._spec)}
        return {
            place: tuple(EpochStart(*entry) for entry in logs[place].epochs_of(wanted.start, wanted.end))
            for place, wanted in ranges.items()
            if place in logs
        }


def survey_of(logs: Sequence[PartitionLog]) -> Survey:
    """Returns, from files, what the brokers would answer."""
    return Survey(
        {log.topic: str(parse_topic_id(log.topic_id)) for log in logs if log.topic_id is not None},
        {TopicPartition(log.topic, log.partition): log.log_start_offset for log in logs},
        {TopicPartition(log.topic, log.partition): log.high_watermark for log in logs},
        {TopicPartition(log.topic, log.partition): log.end_offset for log in logs},
    )


def begin_offsets(
    logs: Sequence[PartitionLog], archived: Mapping[TopicPartition, int]
) -> dict[tuple[str, int], int]:
    """Returns where the table ends, else where the log starts."""
    return {
        (log.topic, log.partition): archived.get(
            TopicPartition(log.topic, log.partition), log.log_start_offset
        )
        for log in logs
    }


def explained(text: str) -> PipelineError:
    """Returns the sentence of a source's error, which Spark passes on as a stack trace."""
    found = _OUR_ERROR.search(text)
    reason = found[1] if found else text.split("=== Streaming Query ===", maxsplit=1)[0].strip()
    return PipelineError(f"the archive stopped: {reason}; start it again to continue where it was")


def _waiting(logs: Sequence[PartitionLog], table: TableState) -> int:
    done = {place: each.offset for place, each in next_offsets(table.ledger).items()}
    return sum(
        max(0, log.end_offset - done.get(TopicPartition(log.topic, log.partition), log.log_start_offset))
        for log in logs
    )
