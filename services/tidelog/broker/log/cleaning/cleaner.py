"""Cleans one log: builds the map of its dirty keys, and writes the segments that replace the old ones.

Source: Kafka's `Cleaner.doClean`, `groupSegmentsBySize`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tidelog.broker.log.cleaning.aborted_transactions import AbortedTransactions, TransactionProgress
from tidelog.broker.log.cleaning.batch_filter import BatchFilter
from tidelog.broker.log.cleaning.cleaning_job import (
    CleanedSegment,
    CleaningDone,
    CleaningJob,
    SourceSegment,
)
from tidelog.broker.log.cleaning.offset_map import build_offset_map
from tidelog.broker.log.cleaning.segment_reader import SegmentReader
from tidelog.broker.log.cleaning.segment_writer import CleanedSegmentWriter

MAX_OFFSETS_A_SEGMENT: Final = 2**31 - 1


def clean(
    job: CleaningJob, throttle: Callable[[int], None] = lambda _: None
) -> Iterator[CleanedSegment | CleaningDone]:
    """Yields each cleaned segment when it is on disk, and the totals at the end.

    `throttle` is called with the number of bytes read and written. Raises OSError, and ValueError for a
    damaged log.
    """
    bases = [segment.base_offset for segment in job.segments]
    aborted = AbortedTransactions(job.directory, bases, job.later_aborted)
    offset_map = build_offset_map(job, aborted, throttle)
    clean_offset = offset_map.latest_offset + 1
    progress = TransactionProgress()
    filter_ = BatchFilter(job, offset_map, progress)
    bytes_read = bytes_kept = 0
    reached = [segment for segment in job.segments if segment.base_offset < clean_offset]
    for group in group_segments(
        reached, job.segment_bytes, job.segment_index_bytes, job.first_uncleanable_offset
    ):
        progress.kept_aborted = []
        cleaned = _clean_group(job, group, filter_, progress, aborted, throttle)
        bytes_read += sum(segment.size_bytes for segment in group)
        bytes_kept += cleaned.size_bytes
        yield cleaned
    yield CleaningDone(
        clean_offset,
        bytes_read,
        bytes_kept,
        filter_.records_read,
        filter_.records_kept,
        len(offset_map.entries),
    )


def group_segments(
    segments: Sequence[SourceSegment], segment_bytes: int, index_bytes: int, first_uncleanable_offset: int
) -> list[list[SourceSegment]]:
    """Groups adjacent segments that fit into one segment by their present sizes."""
    groups: list[list[SourceSegment]] = []
    sizes = (0, 0, 0)
    for number, segment in enumerate(segments):
        follows = segments[number + 1].base_offset if number + 1 < len(segments) else first_uncleanable_offset
        added = (
            sizes[0] + segment.size_bytes,
            sizes[1] + segment.offset_index_bytes,
            sizes[2] + segment.time_index_bytes,
        )
        if (
            groups
            and added[0] <= segment_bytes
            and added[1] <= index_bytes
            and added[2] <= index_bytes
            and (not segment.size_bytes or follows - 1 - groups[-1][0].base_offset <= MAX_OFFSETS_A_SEGMENT)
        ):
            groups[-1].append(segment)
            sizes = added
        else:
            groups.append([segment])
            sizes = (segment.size_bytes, segment.offset_index_bytes, segment.time_index_bytes)
    return groups


def _clean_group(
    job: CleaningJob,
    group: Sequence[SourceSegment],
    filter_: BatchFilter,
    progress: TransactionProgress,
    aborted: AbortedTransactions,
    throttle: Callable[[int], None],
) -> CleanedSegment:
    writer = CleanedSegmentWriter(job.directory, group, job.index_interval_bytes)
    try:
        for segment in group:
            progress.expect(aborted.between(segment.base_offset, segment.next_offset))
            with SegmentReader(job.directory, segment, job.io_buffer_bytes) as reader:
                for chunk in reader:
                    reader.consumed(filter_.take(chunk))
                    writer.append(filter_.output, filter_.kept)
                    throttle(len(chunk) + sum(map(len, filter_.output)))
        return writer.finish(progress.kept_aborted)
    finally:
        writer.close()
