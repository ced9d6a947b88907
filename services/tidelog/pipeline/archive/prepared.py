"""A batch between log and table: its records are counted and hashed, and its rows have their final form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql import types as t

from tidelog.client.leader_epochs import EpochStart, OffsetRange
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.archive.rows import has_calendar_time, raw_rows, with_event_date
from tidelog.pipeline.archive.spec import ArchiveSpec
from tidelog.pipeline.archive.survey import asked
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.formats.decoder import Decoder
from tidelog.pipeline.formats.decoding import ERROR_REASON
from tidelog.pipeline.formats.value_format import ValueKind
from tidelog.pipeline.ledger.entry import RangeEntry
from tidelog.pipeline.ledger.hashes import EMPTY_SET_HASH
from tidelog.pipeline.ledger.summary import SetSummary, summarise_records, summarise_rows
from tidelog.pipeline.parquet_commits import EVENT_DATE
from tidelog.pipeline.quarantine.topic import ensure_quarantine_topic
from tidelog.pipeline.quarantine.writer import send_to_quarantine
from tidelog.pipeline.table_columns import RAW_VALUE

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
