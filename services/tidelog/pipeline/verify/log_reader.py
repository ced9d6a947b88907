"""The interface of a log for a verification, be it of brokers or of segment files: extents, leader epochs,
records and batches.

From the batches and epochs, the module finds the offsets at which the log has no record for a consumer, with
the reasons, and whether the log was truncated and rewritten after it was archived. It does no I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tidelog.pipeline.verify.verdict import ABORT, COMPACTION, MARKER
from tidelog.records.batch import BatchHeader
from tidelog.records.record import records_of, scan_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Epochs = Sequence[tuple[int, int]]
"""(epoch, its first offset) in ascending order."""


class Divergence(NamedTuple):
    """Offsets [start, end) had one leader epoch when they were archived and have another one now."""

    start: int
    end: int
    archived_epoch: int
    log_epoch: int


def divergences(archived: Epochs, start: int, end: int, log: Epochs) -> list[Divergence]:
    """Returns the divergences within [start, end). Offsets whose epoch one of the sides does not know are not
    compared.
    """
    cuts = sorted({start, end, *(at for _, at in [*archived, *log] if start < at < end)})
    found: list[Divergence] = []
    for piece_start, piece_end in pairwise(cuts):
        was, now = epoch_at(archived, piece_start), epoch_at(log, piece_start)
        if was is None or now is None or was == now:
            continue
        if found and found[-1].end == piece_start and found[-1][2:] == (was, now):
            found[-1] = found[-1]._replace(end=piece_end)
        else:
            found.append(Divergence(piece_start, piece_end, was, now))
    return found


def epoch_at(epochs: Epochs, offset: int) -> int | None:
    """Returns the epoch at an offset, or None before the first."""
    return next((epoch for epoch, start in reversed(epochs) if start <= offset), None)


class SeenBatch(NamedTuple):
    """`read` returns the whole batch. It is called only for batches from which compaction removed records."""

    header: BatchHeader
    is_aborted: bool
    read: Callable[[], bytes | memoryview]


class Hole(NamedTuple):
    """Offsets [start, end) without a record."""

    start: int
    end: int
    kind: str


def holes_of(batches: Iterable[SeenBatch], start: int, end: int) -> Iterator[Hole]:
    """Yields the holes in [start, end) in order. `batches` rise and reach `end`, or the end of the log."""
    following = start
    for batch in batches:
        header = batch.header
        if header.last_offset < following:
            continue
        if header.base_offset >= end:
            break
        if header.base_offset > following:
            yield Hole(following, header.base_offset, COMPACTION)
        first, after = max(header.base_offset, following), min(header.last_offset + 1, end)
        if header.is_control or batch.is_aborted:
            yield Hole(first, after, MARKER if header.is_control else ABORT)
        elif header.record_count != header.last_offset_delta + 1:
            yield from _thinned(batch, first, after)
        following = after
    if following < end:
        yield Hole(following, end, COMPACTION)


def count_kinds(holes: Iterable[Hole]) -> Counter[str]:
    """Returns the number of offsets of each kind."""
    counts: Counter[str] = Counter()
    for hole in holes:
        counts[hole.kind] += hole.end - hole.start
    return counts


def kinds_at(holes: Iterable[Hole], offsets: Collection[int]) -> dict[int, str]:
    """Returns the kinds of those offsets that are in a hole."""
    wanted = sorted(offsets)
    found: dict[int, str] = {}
    at = 0
    for hole in holes:
        while at < len(wanted) and wanted[at] < hole.start:
            at += 1
        while at < len(wanted) and wanted[at] < hole.end:
            found[wanted[at]] = hole.kind
            at += 1
    return found


def _thinned(batch: SeenBatch, start: int, end: int) -> Iterator[Hole]:
    raw = batch.read()
    header = batch.header
    body = records_of(raw, header, 0)
    following = start
    for span in scan_records(body, header.record_count):
        offset = header.base_offset + span.offset_delta
        if following < offset:
            yield Hole(following, min(offset, end), COMPACTION)
        following = max(following, offset + 1)
        if following >= end:
            return
    yield Hole(following, end, COMPACTION)


Partition = tuple[str, int]
Span = tuple[int, int]
"""Offsets from the first to before the second."""


@dataclass(frozen=True, slots=True)
class LogExtent:
    """Consumers of committed records can read the offsets [start, end) of a partition. `topic_id` is None if
    it is unknown, and may have any text form. Only a compacted log may lack offsets within the range.
    """

    start: int
    end: int
    topic_id: str | None
    is_compacted: bool


class BatchOpener(Protocol):
    """Opens batches. It can be pickled and sent to Spark's tasks."""

    def batches(self, topic: str, partition: int, start: int, end: int) -> Iterator[SeenBatch]:
        """Yields batches in order, from the one that contains `start` up to `end` or slightly further."""


class LogReader(Protocol):
    @property
    def place(self) -> str:
        """A name for users, for example "the brokers at 127.0.0.1:9092"."""

    def extents(self, topics: Collection[str]) -> dict[Partition, LogExtent]:
        """Returns the extents of the partitions that exist."""

    def epochs(self, spans: Mapping[Partition, Span]) -> dict[Partition, Epochs]:
        """Returns the leader epochs that wrote those offsets."""

    def records(self, spark: SparkSession, spans: Mapping[Partition, Span]) -> DataFrame:
        """Returns the committed records of those offsets, and possibly others, with the Kafka connector's
        columns.
        """

    def opener(self) -> BatchOpener: ...
