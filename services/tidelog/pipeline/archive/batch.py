"""One batch of an archive: read once, counted and hashed, written with its ledger entry, then committed to
the group.

A batch between log and table is a `PreparedBatch`: its rows have their final form.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql import types as t

from tidelog.client.admin.logs import EpochStart, OffsetRange
from tidelog.client.errors import ClientError
from tidelog.model.errors import KafkaError
from tidelog.model.protocol_values import READ_COMMITTED, READ_UNCOMMITTED
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.archive.checkpoint import (
    Binding,
    changed_topics,
    deleted_error,
    planned_ranges,
    recreated_error,
    write_binding,
)
from tidelog.pipeline.archive.sink import OtherRunError, Sink
from tidelog.pipeline.archive.spec import (
    GO_ON,
    ArchiveSpec,
    MissingRange,
    Ranges,
    cut_back,
    missing_ranges,
    without,
)
from tidelog.pipeline.archive.survey import Survey, asked, commit_progress, leader_epochs, survey
from tidelog.pipeline.errors import PipelineError, spark_errors
from tidelog.pipeline.formats.decoder import ERROR_REASON, Decoder
from tidelog.pipeline.formats.value_format import ValueKind
from tidelog.pipeline.quarantine.writer import ensure_quarantine_topic, send_to_quarantine
from tidelog.pipeline.tables.archive_table import EVENT_DATE
from tidelog.pipeline.tables.hashes import (
    EMPTY_SET_HASH,
    RAW_VALUE,
    SetSummary,
    summarise_records,
    summarise_rows,
    with_raw_values,
)
from tidelog.pipeline.tables.ledger import CommitEntry, RangeEntry
from tidelog.pipeline.tables.stored_files import StoredDirectory
from tidelog.pipeline.verify.evidence import is_time_overflow, opened_records
from tidelog.pipeline.verify.logs import BrokerBatches

FIRST_MS: Final = -62_135_596_800_000  # 0001-01-01
LAST_MS: Final = 253_402_300_799_999  # 9999-12-31


def raw_rows(records: DataFrame) -> DataFrame:
    return with_event_date(with_raw_values(records), None)


def with_event_date(rows: DataFrame, field: str | None) -> DataFrame:
    """Adds the event date from a field of the values, or from the record's timestamp. Raises PipelineError if
    the field cannot be a date.
    """
    if field is None:
        return rows.withColumn(EVENT_DATE, fn.to_date("kafka_timestamp"))
    types = {each.name: each.dataType for each in rows.schema.fields}
    if field not in types:
        return rows.withColumn(EVENT_DATE, fn.to_date("kafka_timestamp"))
    kind, column = types[field], fn.col(f"`{field}`")
    least, greatest = fn.lit("0001-01-01").cast("date"), fn.lit("9999-12-31").cast("date")
    if isinstance(kind, t.DateType | t.TimestampType | t.TimestampNTZType):
        date = fn.to_date(column)
    elif isinstance(kind, t.StringType):
        date = fn.expr(f"try_cast(substring(`{field}`, 1, 10) AS date)")
    elif isinstance(kind, t.LongType | t.IntegerType):
        millis = column.cast("bigint")
        date = fn.when(
            millis.between(FIRST_MS, LAST_MS),  # other numbers could overflow
            fn.to_date(fn.timestamp_millis(millis)),
        )
    else:
        raise PipelineError(
            f"field '{field}' is {kind.simpleString()}, which is not an event date; use a date, a "
            "timestamp, text "
            "that begins with YYYY-MM-DD, or milliseconds since 1970"
        )
    date = fn.when(date.between(least, greatest), date)
    return rows.withColumn(EVENT_DATE, fn.coalesce(date, fn.to_date("kafka_timestamp")))


def has_calendar_time() -> Column:
    """Returns whether a record, with the connector's columns, has a time in the years 1 to 9999.

    Other readers than Spark fail at later dates in a table's partitions and statistics.
    """
    first, last = (fn.timestamp_millis(fn.lit(time_ms)) for time_ms in (FIRST_MS, LAST_MS))
    return fn.col("timestamp").between(first, last)


Summaries: TypeAlias = dict[tuple[str, int], SetSummary]

_NO_CALENDAR_TIME: Final = "the time of the record is not in the years 1 to 9999"
_KAFKA_FIELDS: Final = (
    t.StructField("kafka_topic", t.StringType()),
    t.StructField("kafka_partition", t.IntegerType()),
    t.StructField("kafka_offset", t.LongType()),
    t.StructField("kafka_timestamp", t.TimestampType()),
    t.StructField("kafka_timestamp_type", t.IntegerType()),
    t.StructField("kafka_key", t.BinaryType()),
    t.StructField(
        "kafka_headers",
        t.ArrayType(
            t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """`bad` has the connector's columns and error_reason."""

    rows: DataFrame
    columns: tuple[str, ...]
    seen: Summaries
    stored: Summaries
    bad: DataFrame
    bad_count: int
    release: Callable[[], None] = lambda: None
    """Releases the cached data of the batch."""

    def range_entry(
        self, place: TopicPartition, wanted: OffsetRange, topic_id: str, epochs: Sequence[EpochStart]
    ) -> RangeEntry:
        seen, stored = self.seen.get(place), self.stored.get(place)
        if seen and (seen.first < wanted.start or seen.last >= wanted.end):
            raise PipelineError(
                f"{place}: Spark read offsets {seen.first} to {seen.last}, but {tuple(wanted)} was requested"
            )
        count = seen.count if seen else 0
        return RangeEntry(
            topic=place.topic,
            topic_id=topic_id,
            partition=place.partition,
            start=wanted.start,
            end=wanted.end,
            first=seen.first if seen else None,
            last=seen.last if seen else None,
            count=count,
            quarantined=count - (stored.count if stored else 0),
            log_hash=seen.hash if seen else EMPTY_SET_HASH,
            row_hash=stored.hash if stored else EMPTY_SET_HASH,
            leader_epochs=tuple((each.epoch, each.start_offset) for each in epochs),
        )


def first_schema(spec: ArchiveSpec) -> t.StructType:
    """Returns the schema of a table that is created before its first batch. The columns of values come with
    the batches.
    """
    schema = t.StructType(list(_KAFKA_FIELDS))
    if spec.value_format.kind is ValueKind.RAW:
        schema = schema.add(RAW_VALUE, t.BinaryType())
    return schema.add(EVENT_DATE, t.DateType())


def prepare(records: DataFrame, spec: ArchiveSpec, decoder: Decoder, known: t.StructType) -> PreparedBatch:
    """Prepares a batch. `known` holds the table's columns so far."""
    seen = summarise_records(records)
    timed = records.where(has_calendar_time())
    untimed = records.where(~has_calendar_time()).withColumn(ERROR_REASON, fn.lit(_NO_CALENDAR_TIME))
    if spec.value_format.kind is ValueKind.RAW:
        rows = raw_rows(timed)
        columns = tuple(sorted(rows.columns))
        stored = summarise_rows(rows, columns)
        return PreparedBatch(rows, columns, seen, stored, untimed, _count(seen) - _count(stored))
    decoded = decoder.decode(timed, known)
    untimed_count = _count(seen) - decoded.good_count - decoded.bad_count
    bad = decoded.bad.unionByName(untimed) if untimed_count else decoded.bad
    rows = with_event_date(decoded.good, spec.event_date_field)
    columns = tuple(sorted(rows.columns))
    stored = summarise_rows(rows, columns)
    bad_count = decoded.bad_count + untimed_count
    return PreparedBatch(rows, columns, seen, stored, bad, bad_count, decoded.close)


def _count(summaries: Summaries) -> int:
    return sum(each.count for each in summaries.values())


def quarantine(prepared: PreparedBatch, spec: ArchiveSpec) -> None:
    """Sends bad records to the quarantine topic before the commit. A repeated batch sends them again, so none
    is lost.
    """
    if not prepared.bad_count:
        return
    if spec.quarantine_topic is None:
        example = prepared.bad.select("topic", "partition", "offset", ERROR_REASON).first()
        assert example is not None
        raise PipelineError(
            f"{prepared.bad_count} records cannot be read, for example {example[0]}-{example[1]} "
            f"offset {example[2]}: {example[3]}; name a topic for such records (--quarantine)"
        )
    topic = spec.quarantine_topic
    send_to_quarantine(
        prepared.bad,
        bootstrap=spec.bootstrap,
        topic=topic,
        max_message_bytes=asked(spec, lambda cluster: ensure_quarantine_topic(cluster, topic)),
        archive=spec.name,
        client_settings=spec.client_settings,
    )


LOST_TO_RETENTION: Final = "lost to retention"
_READ_AGAIN: Final = 5
"""The number of times a batch is read again after retention deleted some of its records."""


class OffsetsMissingError(PipelineError):
    """The log no longer contains records that the batch must archive."""

    def __init__(self, message: str, missing: list[MissingRange]) -> None:
        super().__init__(message)
        self.missing = missing


class BrokenOffError(Exception):
    """A batch ended early because the archive was told to stop.

    Spark recognizes this short text, by a pattern, as its own interruption. The Java stack trace of the real
    error makes that pattern overflow the stack.
    """

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling a batch to stop: "
            "java.lang.InterruptedException"
        )


class BatchArchiver:
    """The function that foreachBatch calls. Raises PipelineError, KafkaError, ClientError."""

    def __init__(
        self,
        spark: SparkSession,
        spec: ArchiveSpec,
        sink: Sink,
        binding: Binding,
        ledger: Sequence[CommitEntry],
        on_commit: Callable[[CommitEntry], None],
    ) -> None:
        self._spark = spark
        self._spec = spec
        self._decoder = Decoder(spark, spec.value_format)
        self._sink = sink
        self._binding = binding
        self._checkpoint = StoredDirectory(spec.checkpoint)
        self._on_commit = on_commit
        self._done = {entry.batch_id: entry for entry in ledger[-2:]}
        self._last_batch = max((entry.batch_id for entry in ledger), default=-1)
        self.is_broken_off = False
        """True if the current batch must fail without a message."""
        self.failure: Exception | None = None
        self.progress_failure: ClientError | KafkaError | None = None

    def __call__(self, records: DataFrame, batch: int) -> None:
        try:
            self._archive(records, batch)
        except Exception as error:
            self.failure = error  # Spark would pass the error on as text
            if self.is_broken_off:
                raise BrokenOffError from None
            raise

    @property
    def topics(self) -> Mapping[str, str]:
        """Names and ids of the topics seen so far."""
        return self._binding.topics

    def commit_progress(self, entries: Sequence[CommitEntry]) -> None:
        """Commits the progress to the group. If the group cannot be reached, the next batch commits it,
        because the table does not wait for the group.
        """
        try:
            asked(self._spec, lambda cluster: commit_progress(cluster, self._spec.consumer_group, entries))
        except (ClientError, KafkaError) as error:
            self.progress_failure = error
        else:
            self.progress_failure = None

    def _archive(self, records: DataFrame, batch: int) -> None:
        ranges = planned_ranges(self._checkpoint, batch)
        batch_id = self._binding.first_batch + batch
        if batch_id <= self._last_batch:
            entry = self._done_before(batch_id, ranges)
        else:
            entry = self._append(records, batch_id, ranges)
            self._last_batch = batch_id
        self.commit_progress([entry])
        self._on_commit(entry)

    def _done_before(self, batch_id: int, ranges: Ranges) -> CommitEntry:
        """Returns True if an earlier process ended between the table's commit and the checkpoint's."""
        entry = self._done.get(batch_id)
        if entry is None or spans(entry) != {place: tuple(wanted) for place, wanted in ranges.items()}:
            raise OtherRunError(
                f"batch {batch_id} of archive '{self._spec.name}' is in the table with other offsets, so "
                "another run wrote to it; start from a new checkpoint, it continues where the table's "
                "ledger ends"
            )
        return entry

    def _append(self, records: DataFrame, batch_id: int, ranges: Ranges) -> CommitEntry:
        for _ in range(_READ_AGAIN):
            before = self._survey()
            missing = self._missing(ranges, before)
            left = without(ranges, missing)
            records.persist(StorageLevel.MEMORY_AND_DISK)
            prepared: PreparedBatch | None = None
            try:
                try:
                    prepared = prepare(records, self._spec, self._decoder, self._sink.schema())
                except spark_errors() as error:
                    if not is_time_overflow(error):
                        raise
                    records.unpersist()
                    records = self._opened_records(left).persist(StorageLevel.MEMORY_AND_DISK)
                    prepared = prepare(records, self._spec, self._decoder, self._sink.schema())
                after = self._survey()
                if self._spec.on_data_loss == GO_ON and not has_all_of(records, self._missing(left, after)):
                    continue  # retention deleted records during the read
                entry = self._entry(batch_id, ranges, missing, prepared, after)
                quarantine(prepared, self._spec)
                self._sink.append(prepared.rows, entry)
                return entry
            finally:
                if prepared is not None:
                    prepared.release()
                records.unpersist()
        raise PipelineError(
            "retention deletes records faster than they can be read: give the topic more time"
        )

    def _opened_records(self, ranges: Ranges) -> DataFrame:
        spec = self._spec
        isolation_level = READ_COMMITTED if spec.isolation_level == "read_committed" else READ_UNCOMMITTED
        opener = BrokerBatches(spec.bootstrap, isolation_level, spec.client_settings)
        spans = {(place.topic, place.partition): (each.start, each.end) for place, each in ranges.items()}
        return opened_records(self._spark, opener, spans)

    def _survey(self) -> Survey:
        """Binds new topics. Raises an error for a topic that is not the same as before."""
        now = self._look()
        for name, (was, is_now) in changed_topics(self._binding.topics, now.topic_ids).items():
            raise recreated_error(name, was, is_now)
        for name in self._binding.topics:
            if name not in now.topic_ids:
                raise deleted_error(name)
        if now.topic_ids.keys() - self._binding.topics.keys():
            self._binding = replace(self._binding, topics=now.topic_ids)
            write_binding(self._checkpoint, self._binding)
        return now

    def _look(self) -> Survey:
        return survey(self._spec)

    def _epochs(self, ranges: Ranges) -> dict[TopicPartition, tuple[EpochStart, ...]]:
        return asked(self._spec, lambda cluster: leader_epochs(cluster, ranges))

    def _missing(self, ranges: Ranges, now: Survey) -> list[MissingRange]:
        """Raises OffsetsMissingError unless the archive may continue without the records."""
        return check_ranges(self._spec, ranges, now)

    def _entry(
        self,
        batch_id: int,
        ranges: Ranges,
        missing: list[MissingRange],
        prepared: PreparedBatch,
        now: Survey,
    ) -> CommitEntry:
        left = without(ranges, missing)
        epochs = self._epochs(left)
        given_up = [
            RangeEntry(
                topic=each.place.topic,
                topic_id=now.topic_ids[each.place.topic],
                partition=each.place.partition,
                start=each.start,
                end=each.end,
                first=None,
                last=None,
                count=0,
                quarantined=0,
                log_hash=EMPTY_SET_HASH,
                row_hash=EMPTY_SET_HASH,
                skipped=LOST_TO_RETENTION,
            )
            for each in missing
        ]
        taken = [
            prepared.range_entry(place, wanted, now.topic_ids[place.topic], epochs.get(place, ()))
            for place, wanted in left.items()
        ]
        return CommitEntry(self._spec.name, batch_id, prepared.columns, (*given_up, *taken))


def check_ranges(spec: ArchiveSpec, ranges: Ranges, now: Survey) -> list[MissingRange]:
    """Returns what retention deleted, if the spec allows the archive to continue. Raises OffsetsMissingError
    otherwise.
    """
    cut = cut_back(ranges, now.log_ends)
    if cut:
        raise OffsetsMissingError(
            f"{cut[0]} are beyond the end of the log: the log was truncated (by an unclean election?), and "
            "the "
            "table's copy of it may differ; run 'tidelog pipeline verify', and begin a new archive",
            cut,
        )
    missing = missing_ranges(ranges, now.log_starts)
    if missing and spec.on_data_loss != GO_ON:
        raise OffsetsMissingError(
            f"deleted by retention before they were archived: {'; '.join(map(str, missing))}. "
            "To continue without them, start with --on-data-loss go-on; the ledger will record the loss",
            missing,
        )
    return missing


def has_all_of(records: DataFrame, ranges: list[MissingRange]) -> bool:
    """Returns True if there is a record at each of these offsets."""
    if not ranges:
        return True
    of_any = functools.reduce(
        operator.or_,
        (
            (fn.col("topic") == each.place.topic)
            & (fn.col("partition") == each.place.partition)
            & fn.col("offset").between(each.start, each.end - 1)
            for each in ranges
        ),
    )
    count: int = records.where(of_any).count()
    return count == sum(each.end - each.start for each in ranges)


def spans(entry: CommitEntry) -> dict[TopicPartition, tuple[int, int]]:
    """Returns each partition's whole range of the batch."""
    found: dict[TopicPartition, tuple[int, int]] = {}
    for each in entry.ranges:
        place = TopicPartition(each.topic, each.partition)
        start, end = found.get(place, (each.start, each.end))
        found[place] = (min(start, each.start), max(end, each.end))
    return found
