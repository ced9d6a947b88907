"""One batch of an archive: read once, counted and hashed, written with its ledger entry, then committed to
the group.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from tidelog.client.admin import READ_COMMITTED, READ_UNCOMMITTED
from tidelog.client.errors import ClientError
from tidelog.client.leader_epochs import EpochStart
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.archive.binding import (
    Binding,
    changed_topics,
    deleted_error,
    recreated_error,
    write_binding,
)
from tidelog.pipeline.archive.checkpoint import planned_ranges
from tidelog.pipeline.archive.prepared import PreparedBatch, prepare, quarantine
from tidelog.pipeline.archive.sink import OtherRunError, Sink
from tidelog.pipeline.archive.source_offsets import MissingRange, Ranges, cut_back, missing_ranges, without
from tidelog.pipeline.archive.spec import GO_ON, ArchiveSpec
from tidelog.pipeline.archive.survey import Survey, asked, survey
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.formats.decoder import Decoder
from tidelog.pipeline.ledger.entry import CommitEntry, RangeEntry
from tidelog.pipeline.ledger.hashes import EMPTY_SET_HASH
from tidelog.pipeline.progress import commit_progress, leader_epochs
from tidelog.pipeline.stored_files import StoredDirectory
from tidelog.pipeline.task_errors import spark_errors
from tidelog.pipeline.verify.broker_log import BrokerBatches
from tidelog.pipeline.verify.opened_records import is_time_overflow, opened_records

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
