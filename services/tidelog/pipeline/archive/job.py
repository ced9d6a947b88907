"""Runs the archive job, from the checks before the first batch to the summary after the last.

With Spark Connect, the function of foreachBatch would run in a process of the server, without the connection
to the cluster, the decoder and the progress, which are in this process. `run_batches` therefore plans batches
as Spark does, records them in the form of Spark's checkpoint before they are read, and calls the same
function. A checkpoint can change hands: each of the two ways continues where the other ended.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from pyspark.errors import PySparkException

from tidelog.client.admin.logs import OffsetRange
from tidelog.client.errors import ClientError
from tidelog.model.errors import KafkaError
from tidelog.model.text import JsonObject
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.archive.batch import BatchArchiver, OffsetsMissingError, check_ranges, first_schema
from tidelog.pipeline.archive.checkpoint import (
    COMMITS,
    FIRST_OFFSETS,
    NONE_YET,
    OFFSETS,
    RunPlan,
    TableState,
    changed_topics,
    checkpoint_state,
    deleted_error,
    plan_run,
    planned_ranges,
    recreated_error,
    write_binding,
)
from tidelog.pipeline.archive.sink import Sink, sink_of
from tidelog.pipeline.archive.spec import (
    LATEST,
    ArchiveSpec,
    MissingRange,
    Offsets,
    Ranges,
    connector_options,
    parse_offsets,
    starting_json,
)
from tidelog.pipeline.archive.survey import Survey, asked, diverged, next_offsets, survey, topic_ids
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.options import offset_shares
from tidelog.pipeline.session import is_remote
from tidelog.pipeline.tables.ledger import CommitEntry
from tidelog.pipeline.tables.stored_files import StoredDirectory, absolute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


_LOOK_S: Final = 0.5
_PY4J_LOG: Final = logging.getLogger("py4j")


def run_query(query: StreamingQuery, archiver: BatchArchiver, stops: Callable[[], bool]) -> None:
    """Runs the query. When `stops` returns True, the current batch is interrupted, and the next run repeats
    it. Raises StreamingQueryException.
    """
    level = _PY4J_LOG.level
    try:
        while not query.awaitTermination(_LOOK_S):
            if stops():
                archiver.is_broken_off = True
                _PY4J_LOG.setLevel(logging.CRITICAL)  # Spark raises it for every error of a batch
                return
    finally:
        query.stop()
        _PY4J_LOG.setLevel(level)


VERSION: Final = "v1"
QUERY_ID: Final = "metadata"
_NO_WATERMARK: Final = 0


class BatchSource(Protocol):
    """The source from which batches are planned."""

    def look(self) -> Survey: ...

    def next_ends(self, begin: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Offsets:
        """Returns the ends of a batch that starts at `begin`. No end exceeds `ends`."""

    def records(self, ranges: Ranges) -> DataFrame:
        """Returns exactly these records, with the Kafka connector's columns."""


def run_batches(
    source: BatchSource,
    spec: ArchiveSpec,
    archive: Callable[[DataFrame, int], None],
    starting: str | Mapping[TopicPartition, int],
    stops: Callable[[], bool],
) -> None:
    """Archives everything that exists when it begins or, with an interval, continues until `stops` returns
    True.
    """
    checkpoint = StoredDirectory(spec.checkpoint)
    state = checkpoint_state(checkpoint)
    now = source.look()
    if checkpoint.read(QUERY_ID) is None:
        # Without this file, Spark would reject the checkpoint later.
        checkpoint.write(QUERY_ID, json.dumps({"id": str(uuid.uuid4())}, separators=(",", ":")))
    if state.planned == NONE_YET and checkpoint.read(FIRST_OFFSETS) is None:
        checkpoint.write(FIRST_OFFSETS, f"\x00{VERSION}\n{offsets_json(first_offsets(starting, now))}")
    elif state.planned > state.done:
        _run(source, archive, checkpoint, state.planned)
    batch = state.planned + 1
    last_ends = now.readable_ends
    while not stops():
        began_s = time.monotonic()
        begin = _position(checkpoint, batch - 1)
        ends = source.next_ends(begin, last_ends)
        if ends != begin:
            checkpoint.write(f"{OFFSETS}/{batch}", f"{VERSION}\n{_plan_json()}\n{offsets_json(ends)}")
            _run(source, archive, checkpoint, batch)
            batch += 1
        elif spec.interval_ms is None:
            return
        if spec.interval_ms is not None:
            _rest(began_s + spec.interval_ms / 1000, stops)
            last_ends = source.look().readable_ends


@dataclass(frozen=True, slots=True)
class TopicBatches:
    """Batches of the live topics, read by the connector's batch reader."""

    spark: SparkSession
    spec: ArchiveSpec

    def look(self) -> Survey:
        return survey(self.spec)

    def next_ends(self, begin: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Offsets:
        return next_ends(begin, ends, self.spec.max_offsets_per_trigger)

    def records(self, ranges: Ranges) -> DataFrame:
        starts = {place: wanted.start for place, wanted in ranges.items()}
        ends = {place: wanted.end for place, wanted in ranges.items()}
        return (
            self.spark.read.format("kafka")
            .options(**connector_options(self.spec))
            .option("assign", json.dumps(_assigned(ranges)))
            .option("startingOffsets", offsets_json(starts))
            .option("endingOffsets", offsets_json(ends))
            .load()
        )


def first_offsets(starting: str | Mapping[TopicPartition, int], now: Survey) -> Offsets:
    """Returns where the first batch begins. A partition without a given offset begins at its log start
    offset.
    """
    if isinstance(starting, str):
        return dict(now.readable_ends if starting == LATEST else now.log_starts)
    return {place: starting.get(place, start) for place, start in now.log_starts.items()} | dict(starting)


def next_ends(begin: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: int) -> Offsets:
    """Returns the ends of the next batch: each partition's share of its waiting offsets, `limit` offsets in
    total.

    A new partition begins at 0. A partition whose end moved back keeps its position.
    """
    waiting = {place: max(0, end - begin.get(place, 0)) for place, end in ends.items()}
    found = dict(begin)
    for place, share in offset_shares(waiting, limit).items():
        if share:
            found[place] = begin.get(place, 0) + share
    return found


def offsets_json(offsets: Mapping[TopicPartition, int]) -> str:
    """Returns the offsets in the connector's form."""
    topics: dict[str, dict[str, int]] = {}
    for place, offset in sorted(offsets.items()):
        topics.setdefault(place.topic, {})[str(place.partition)] = offset
    return json.dumps(topics, separators=(",", ":"))


def _plan_json() -> str:
    """Returns the line that precedes the offsets in Spark's file."""
    now_ms = time.time_ns() // 1_000_000
    return json.dumps({"batchWatermarkMs": _NO_WATERMARK, "batchTimestampMs": now_ms, "conf": {}})


def _position(checkpoint: StoredDirectory, batch: int) -> Offsets:
    """Returns where the batch ended."""
    name = FIRST_OFFSETS if batch == NONE_YET else f"{OFFSETS}/{batch}"
    text = checkpoint.read(name)
    if text is None:
        raise PipelineError(f"{checkpoint.path}/{name} is missing: start from a new checkpoint")
    return parse_offsets(text)


def _run(
    source: BatchSource,
    archive: Callable[[DataFrame, int], None],
    checkpoint: StoredDirectory,
    batch: int,
) -> None:
    archive(source.records(planned_ranges(checkpoint, batch)), batch)
    checkpoint.write(f"{COMMITS}/{batch}", f'{VERSION}\n{{"nextBatchWatermarkMs":{_NO_WATERMARK}}}')


def _assigned(ranges: Ranges) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for place in ranges:
        topics.setdefault(place.topic, []).append(place.partition)
    return topics


def _rest(until_s: float, stops: Callable[[], bool]) -> None:
    while not stops() and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, _LOOK_S))


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
    from tidelog.pipeline.tables.maintenance import ScheduledMaintenance

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
