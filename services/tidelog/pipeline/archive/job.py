"""Runs the archive job, from the checks before the first batch to the summary after the last."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from pyspark.errors import PySparkException

from tidelog.client.errors import ClientError
from tidelog.client.leader_epochs import OffsetRange
from tidelog.model.errors import KafkaError
from tidelog.model.json_object import JsonObject
from tidelog.pipeline.archive.batch import BatchArchiver, OffsetsMissingError, check_ranges
from tidelog.pipeline.archive.binding import (
    NONE_YET,
    RunPlan,
    TableState,
    changed_topics,
    deleted_error,
    plan_run,
    recreated_error,
    write_binding,
)
from tidelog.pipeline.archive.checkpoint import checkpoint_state, planned_ranges
from tidelog.pipeline.archive.connector import connector_options
from tidelog.pipeline.archive.planned_batches import TopicBatches, run_batches
from tidelog.pipeline.archive.prepared import first_schema
from tidelog.pipeline.archive.query import run_query
from tidelog.pipeline.archive.sink import Sink, sink_of
from tidelog.pipeline.archive.source_offsets import MissingRange, starting_json
from tidelog.pipeline.archive.spec import ArchiveSpec
from tidelog.pipeline.archive.survey import Survey, asked, survey, topic_ids
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.ledger.entry import CommitEntry
from tidelog.pipeline.progress import diverged, next_offsets
from tidelog.pipeline.session import is_remote
from tidelog.pipeline.stored_files import StoredDirectory, absolute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


@dataclass(slots=True)
class ArchiveSummary:
    """The result of one run."""

    archive: str
    table: str
    batches: int = 0
    rows: int = 0
    quarantined: int = 0
    given_up: int = 0
    """The number of offsets lost to retention."""
    seconds: float = 0.0

    def as_dict(self) -> JsonObject:
        return asdict(self)

    def add(self, entry: CommitEntry) -> None:
        self.batches += 1
        for each in entry.ranges:
            self.rows += each.stored
            self.quarantined += each.quarantined
            self.given_up += each.end - each.start if each.skipped else 0


def run_archive(
    spark: SparkSession,
    spec: ArchiveSpec,
    *,
    on_start: Callable[[int], None] | None = None,
    on_commit: Callable[[CommitEntry], None] | None = None,
    stops: Callable[[], bool] = lambda: False,
) -> ArchiveSummary:
    """Archives everything that exists when it begins or, with an interval, continues until `stops` returns
    True.

    `on_start` receives the number of waiting offsets. Raises PipelineError, KafkaError, ClientError.
    """
    began_s = time.monotonic()
    summary = ArchiveSummary(spec.name, absolute(spec.table))
    now = survey(spec)
    sink = sink_of(spark, spec)
    checkpoint = StoredDirectory(spec.checkpoint)
    state = checkpoint_state(checkpoint)
    table = _table_state(sink)
    plan = plan_run(spec, state, table)
    _check_topics(plan.binding.topics, now.topic_ids)
    for name in spec.topics:
        if name not in now.topic_ids:
            raise PipelineError(
                f"topic '{name}' does not exist; 'tidelog topic list' shows the existing ones"
            )
    _check_positions(spec, table.ledger, now)
    if not table.exists:
        sink.create(first_schema(spec))
    plan = replace(plan, binding=replace(plan.binding, topics={**plan.binding.topics, **now.topic_ids}))
    write_binding(checkpoint, plan.binding)
    if on_start is not None:
        on_start(_waiting(table, now))

    maintains = _maintenance(spark, spec)

    def committed(entry: CommitEntry) -> None:
        summary.add(entry)
        if on_commit is not None:
            on_commit(entry)
        maintains()

    archiver = BatchArchiver(spark, spec, sink, plan.binding, table.ledger, committed)
    if table.ledger:
        archiver.commit_progress(table.ledger)
    try:
        if is_remote(spark):
            starting = plan.starting if plan.starting is not None else spec.starting
            run_batches(TopicBatches(spark, spec), spec, archiver, starting, stops)
        else:
            run_query(_start(spark, spec, plan, now, archiver), archiver, stops)
    except PySparkException as error:
        _explain(error, spec, archiver, plan, checkpoint)
    if archiver.progress_failure is not None:
        raise archiver.progress_failure
    summary.seconds = time.monotonic() - began_s
    return summary


def _maintenance(spark: SparkSession, spec: ArchiveSpec) -> Callable[[], None]:
    """Returns the function to call between two batches."""
    if spec.maintenance is None:
        return lambda: None
    from tidelog.pipeline.maintenance.run import ScheduledMaintenance

    scheduled = ScheduledMaintenance(spec.table, spec.checkpoint, spec.maintenance, time.time())

    def run() -> None:
        scheduled.run_if_due(spark, time.time())

    return run


def _table_state(sink: Sink) -> TableState:
    owner = sink.owner()
    if owner is None:
        return TableState(exists=False)
    return TableState(True, owner.archive, owner.values, tuple(sink.ledger()))


def _start(
    spark: SparkSession, spec: ArchiveSpec, plan: RunPlan, now: Survey, archiver: BatchArchiver
) -> StreamingQuery:
    query = _records(spark, spec, plan, now).writeStream.foreachBatch(archiver).queryName(spec.name)
    query = query.option("checkpointLocation", absolute(spec.checkpoint))
    if spec.interval_ms is None:
        query = query.trigger(availableNow=True)
    else:
        query = query.trigger(processingTime=f"{spec.interval_ms} milliseconds")
    return query.start()


def _records(spark: SparkSession, spec: ArchiveSpec, plan: RunPlan, now: Survey) -> DataFrame:
    starting = plan.starting if plan.starting is not None else spec.starting
    if not isinstance(starting, str):
        for place in starting.keys() - now.log_starts.keys():
            raise PipelineError(f"offsets to start from are given for {place}, which does not exist")
        starting = starting_json(starting, now.log_starts)
    reader = (
        spark.readStream.format("kafka")
        .options(**connector_options(spec))
        .option("startingOffsets", starting)
        .option("maxOffsetsPerTrigger", spec.max_offsets_per_trigger)
    )
    if spec.pattern is not None:
        return reader.option("subscribePattern", spec.pattern).load()
    return reader.option("subscribe", ",".join(spec.topics)).load()


def _explain(
    error: PySparkException,
    spec: ArchiveSpec,
    archiver: BatchArchiver,
    plan: RunPlan,
    checkpoint: StoredDirectory,
) -> NoReturn:
    """Replaces Spark's stack trace by the cause, which the topics and offsets show."""
    if isinstance(archiver.failure, PipelineError | KafkaError | ClientError):
        raise archiver.failure from error
    found = topic_ids(spec)
    known = {**plan.binding.topics, **archiver.topics}
    _check_topics(known, found)
    state = checkpoint_state(checkpoint)
    if state.planned != NONE_YET:
        check_ranges(spec, planned_ranges(checkpoint, state.planned), survey(spec))
    reason = str(error).split("=== Streaming Query ===", maxsplit=1)[0].strip()
    raise PipelineError(f"the archive stopped: {reason}; start it again to continue where it was") from error


def _check_topics(known: Mapping[str, str], now: Mapping[str, str]) -> None:
    for name, (was, is_now) in changed_topics(known, now).items():
        raise recreated_error(name, was, is_now)
    for name in known:
        if name not in now:
            raise deleted_error(name)


def _check_positions(spec: ArchiveSpec, ledger: Sequence[CommitEntry], now: Survey) -> None:
    """Checks that the log still has the next offset and is the log that was archived."""
    offsets = next_offsets(ledger)
    check_ranges(
        spec,
        {
            place: OffsetRange(each.offset, max(each.offset, now.log_starts.get(place, 0)))
            for place, each in offsets.items()
        },
        now,
    )
    for place, end in asked(spec, lambda cluster: diverged(cluster, offsets)).items():
        raise OffsetsMissingError(
            f"{place} was archived up to {offsets[place].offset}, but the leader epoch that wrote the last "
            f"record ({offsets[place].leader_epoch}) ends at {end} in the log: the log was truncated and "
            "rewritten; 'tidelog pipeline verify' shows the differences; begin a new archive",
            [MissingRange(place, end, offsets[place].offset)],
        )


def _waiting(table: TableState, now: Survey) -> int:
    """Returns the number of offsets between the archive's position and the end that readers see."""
    offsets = next_offsets(table.ledger)
    begins = {place: each.offset for place, each in offsets.items()}
    return sum(
        max(0, end - begins.get(place, now.log_starts[place])) for place, end in now.readable_ends.items()
    )
