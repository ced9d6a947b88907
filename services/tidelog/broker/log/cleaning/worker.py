"""The worker process: reads jobs from its standard input, one per line, and answers on its standard output.

A job cleans one log: the worker builds the map of its dirty keys, and writes the segments that replace the
old ones. It is a separate program (`python -m`), so it does not share the broker's memory. It ends when its
standard input ends, that is, when the broker stops it or dies. Source: Kafka's `Cleaner.doClean`,
`groupSegmentsBySize`.
"""

from __future__ import annotations

import gc
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tidelog.broker.log.cleaning.batch_filter import BatchFilter, TransactionProgress
from tidelog.broker.log.cleaning.cleaning_job import (
    CleanedSegment,
    CleaningAnswer,
    CleaningDone,
    CleaningFailed,
    CleaningJob,
    SourceSegment,
    encode_answer,
)
from tidelog.broker.log.cleaning.offset_map import build_offset_map
from tidelog.broker.log.cleaning.segment_files import CleanedSegmentWriter, SegmentReader, indexed_aborts
from tidelog.records.aborted import AbortedBatches

MAX_OFFSETS_A_SEGMENT: Final = 2**31 - 1
NICENESS: Final = 5
"""The worker runs at a lower priority than the brokers, because compaction can wait and a produce cannot."""


class Throttle:
    """Limits the number of bytes that a job reads and writes per second."""

    def __init__(self, max_bytes_per_second: float) -> None:
        self._rate = max_bytes_per_second
        self._free_at = time.monotonic()

    def __call__(self, size: int) -> None:
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + size / self._rate
        if self._free_at - now > 0.01:
            time.sleep(self._free_at - now)


def main() -> None:
    os.nice(NICENESS)
    gc.disable()  # a job creates millions of keys and tuples, but no reference cycles
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_take_jobs, args=(jobs,), daemon=True).start()
    while True:
        _work(jobs.get())


def _take_jobs(jobs: queue.SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        jobs.put(line)
    os._exit(0)  # the broker is gone or has stopped the worker: end the other thread, too


def _work(line: bytes) -> None:
    job = CleaningJob.decode(line)
    try:
        for answer in clean(job, Throttle(job.max_bytes_per_second)):
            _tell(answer)
    except OSError as error:
        _tell(CleaningFailed(str(error), is_damage=False))
    except (ValueError, IndexError) as error:
        _tell(CleaningFailed(str(error), is_damage=True))


def _tell(answer: CleaningAnswer) -> None:
    sys.stdout.buffer.write(encode_answer(answer))
    sys.stdout.buffer.flush()


def clean(
    job: CleaningJob, throttle: Callable[[int], None] = lambda _: None
) -> Iterator[CleanedSegment | CleaningDone]:
    """Yields each cleaned segment when it is on disk, and the totals at the end.

    `throttle` is called with the number of bytes read and written. Raises OSError, and ValueError for a
    damaged log.
    """
    aborted = AbortedBatches([*indexed_aborts(job.directory, job.segments), *job.later_aborted])
    offset_map = build_offset_map(job, aborted, throttle)
    clean_offset = offset_map.latest_offset + 1
    progress = TransactionProgress(aborted)
    filter_ = BatchFilter(job, offset_map, progress)
    bytes_read = bytes_kept = 0
    reached = [segment for segment in job.segments if segment.base_offset < clean_offset]
    for group in group_segments(
        reached, job.segment_bytes, job.segment_index_bytes, job.first_uncleanable_offset
    ):
        progress.kept_aborted = []
        cleaned = _clean_group(job, group, filter_, progress, throttle)
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
    throttle: Callable[[int], None],
) -> CleanedSegment:
    writer = CleanedSegmentWriter(job.directory, group, job.index_interval_bytes)
    try:
        for segment in group:
            with SegmentReader(job.directory, segment, job.io_buffer_bytes) as reader:
                for chunk in reader:
                    reader.consumed(filter_.take(chunk))
                    writer.append(filter_.output, filter_.kept)
                    throttle(len(chunk) + sum(map(len, filter_.output)))
        return writer.finish(progress.kept_aborted)
    finally:
        writer.close()


if __name__ == "__main__":
    main()
