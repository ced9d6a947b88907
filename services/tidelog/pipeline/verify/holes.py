"""Finds the offsets at which the log has no record for a consumer, and the reasons, from its batches. The
module does no I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from tidelog.pipeline.verify.verdict import ABORT, COMPACTION, MARKER
from tidelog.records.batch import BatchHeader
from tidelog.records.record import records_of, scan_records


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
