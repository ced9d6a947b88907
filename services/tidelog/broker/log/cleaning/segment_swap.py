"""Replaces segments by their cleaned segment while the log is in use.

The event loop only exchanges the objects; a thread opens the files before and renames them afterwards. Until
its files have their final names, the new segment keeps them open, so no reader opens them by name. Ranges
that are being sent keep the old files open.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tidelog.broker.log.cleaning.cleaning_job import CleanedSegment
from tidelog.broker.log.cleaning.swap_files import announce_swap, call_swap_off, finish_swap, remove_snapshots
from tidelog.broker.log.directory_files import LogStorageError
from tidelog.broker.log.partition_log import PartitionLog
from tidelog.broker.log.segment import Segment
from tidelog.kernel.instants import WallMs
from tidelog.log_format.directory import SWAP_SUFFIX


class SegmentSwap:
    """One replacement: call `announce`, `install` and `finish` in this order.

    `install` belongs to the event loop; any thread may call the others. Meanwhile, nothing else may truncate
    or close the log.
    """

    def __init__(self, storage: PartitionLog, sources: Sequence[Segment], cleaned: CleanedSegment) -> None:
        self._storage = storage
        self._sources = sources
        self._cleaned = cleaned
        self._segment = self._new_segment()

    def _new_segment(self) -> Segment:
        log, cleaned = self._storage.log, self._cleaned
        segment = Segment(
            log.directory,
            cleaned.base_offset,
            log.open_segments,
            size_bytes=cleaned.size_bytes,
            created_ms=self._sources[-1].created_ms,
        )
        segment.next_offset = cleaned.next_offset
        segment.max_timestamp = cleaned.max_timestamp
        segment.offset_of_max_timestamp = cleaned.offset_of_max_timestamp
        segment.first_timestamp = cleaned.first_timestamp
        segment.last_append_ms = self._sources[-1].last_append_ms
        if all(source.has_unknown_times is False for source in self._sources):
            segment.has_unknown_times = False
        segment.has_wrong_times = any(source.has_wrong_times for source in self._sources)
        segment.is_moving = True
        return segment

    def announce(self) -> None:
        """Opens the files of the new segment. Raises LogStorageError; then the log is unchanged."""
        directory, cleaned, segment = self._storage.log.directory, self._cleaned, self._segment
        try:
            # Before the swap is announced, because from then on the next start can carry it out.
            self._storage.log.checkpoint.remove(source.base_offset for source in self._sources[1:])
            announce_swap(directory, cleaned.base_offset)
            index, times = segment.offset_index, segment.time_index
            index.opened_at(index.path + SWAP_SUFFIX, cleaned.offset_index_entries)
            times.opened_at(times.path + SWAP_SUFFIX, cleaned.time_index_entries)
            times.load_last()
            aborted = segment.transaction_index
            aborted.opened_with(Path(aborted.path + SWAP_SUFFIX).read_bytes())
            segment.fd = os.open(segment.path + SWAP_SUFFIX, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            self.call_off()
            raise LogStorageError(f"{segment.path} cannot be swapped in: {error}") from error

    def install(self) -> bool:
        """Puts the new segment into the log. Returns False if the log no longer has the old segments.

        In that case the caller calls `call_off`.
        """
        segment, log = self._segment, self._storage.log
        segment.references += 1  # keeps its file open
        if not log.replace_segments(self._sources, segment):
            segment.references -= 1
            return False
        log.open_segments.opened(segment)
        self._storage.is_swapping = True
        return True

    def call_off(self) -> None:
        """Removes the files of the new segment. Raises OSError."""
        log = self._storage.log
        self._segment.close_descriptors()
        call_swap_off(log.directory, self._cleaned.base_offset)
        log.checkpoint.add(source.base_offset for source in self._sources if source in log.segments)

    def finish(self) -> None:
        """Gives the files their final names and renames the old ones.

        Raises LogStorageError; the log stays usable, and the next start renames the remaining files.
        """
        directory = self._storage.log.directory
        try:
            for segment in self._sources:
                segment.rename_deleted()
            finish_swap(directory, self._cleaned.base_offset)
            remove_snapshots(directory, [segment.base_offset for segment in self._sources[1:]])
        except OSError as error:
            raise LogStorageError(f"{self._segment.path} cannot be swapped in: {error}") from error

    def finished(self, now_ms: WallMs) -> None:
        """Ends the replacement after `finish`; belongs to the event loop."""
        self._segment.is_moving = False
        self._storage.is_swapping = False
        self._storage.segments_replaced(self._sources, now_ms)
        self._segment.release()
