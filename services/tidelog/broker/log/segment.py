"""One segment: a `.log` file of batches with its indexes, the search in it, and the ranges sent from it.

The order is: `OpenSegments` (bounds the open files), `Segment`, `FileRange` (what a fetch sends), the page
cache, and the search for a batch by offset or position.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

from tidelog.broker.log.directory_files import PartitionDirectory, sync_file
from tidelog.broker.log.segment_indexes import OffsetIndex, TimeIndex, TransactionIndex
from tidelog.kernel.instants import WallMs
from tidelog.log_format.batches import locate, scan_headers
from tidelog.log_format.directory import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TRANSACTION_INDEX_SUFFIX,
)
from tidelog.records.batch import NO_TIMESTAMP, BatchHeader, known_max_timestamp

NOT_OPEN: Final = -1
MAX_RELATIVE_OFFSET: Final = 2**31 - 1
DEFAULT_MAX_OPEN_SEGMENTS: Final = 8192
READ_BYTES: Final = 256 * 1024
"""The size of the reads that bring a range into the page cache."""
_ONE_BYTE: Final = [bytearray(1)]  # the target of a probe, which ignores what it reads
_BASE_OFFSET: Final = attrgetter("base_offset")


class OpenSegments:
    """The segments whose files are open, at most about `max_open`.

    If more are open, the segments that were not used lately are closed (second chance). A segment that a
    file range refers to stays open, so the bound can be exceeded while that many ranges are being sent.

    The event loop uses segments and so opens their files. A log that another thread opens, truncates or
    closes has an instance of its own meanwhile (see `Segment.move_to`).
    """

    __slots__ = ("_lock", "_open", "max_open")

    def __init__(self, max_open: int = DEFAULT_MAX_OPEN_SEGMENTS) -> None:
        self.max_open = max_open
        self._open: dict[Segment, None] = {}  # oldest first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, segment: Segment) -> None:
        """Adds a segment whose file was opened, and closes others if there are too many."""
        with self._lock:
            self._open[segment] = None
            if len(self._open) > self.max_open:
                self._evict(segment)

    def forget(self, segment: Segment) -> None:
        """Removes a segment that was closed or that another instance counts from now on."""
        with self._lock:
            self._open.pop(segment, None)

    def _evict(self, newest: Segment) -> None:
        for segment in list(self._open):
            if len(self._open) <= self.max_open or segment is newest:
                return
            del self._open[segment]
            if segment.recently_used or segment.references:
                segment.recently_used = False
                self._open[segment] = None
            else:
                segment.close_descriptors()


class Segment:
    """A segment's files and the facts about them that need no reading.

    Only the log changes it. Files are opened when they are first needed. Methods raise OSError if the disk
    fails.

    `next_offset` is the offset after the last record. `max_timestamp` is the greatest timestamp of all
    batches (-1: none), and `offset_of_max_timestamp` the last offset of the batch that has it.
    `has_unknown_times` says whether batches have no known time, and is None while only the indexes of the
    segment have been read. `has_wrong_times` says that some of these have records with times.
    `first_timestamp` is the greatest timestamp of the first batch (-1: unknown). `references` counts the
    file ranges that are being sent; the file stays open while there are any.
    """

    __slots__ = (
        "base_offset",
        "bytes_since_index_entry",
        "created_ms",
        "directory",
        "fd",
        "first_timestamp",
        "has_unknown_times",
        "has_wrong_times",
        "is_deleted",
        "is_moving",
        "is_renamed",
        "last_append_ms",
        "max_timestamp",
        "next_offset",
        "offset_index",
        "offset_of_max_timestamp",
        "open_segments",
        "recently_used",
        "references",
        "size_bytes",
        "time_index",
        "transaction_index",
    )

    def __init__(
        self,
        directory: PartitionDirectory,
        base_offset: int,
        open_segments: OpenSegments,
        *,
        size_bytes: int = 0,
        created_ms: WallMs,
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.open_segments = open_segments
        self.fd = NOT_OPEN
        self.size_bytes = size_bytes
        self.next_offset = base_offset
        self.offset_index = OffsetIndex(directory, base_offset)
        self.time_index = TimeIndex(directory, base_offset)
        self.transaction_index = TransactionIndex(directory, base_offset)
        self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max_timestamp = base_offset
        self.first_timestamp = NO_TIMESTAMP
        self.has_unknown_times: bool | None = False if not size_bytes else None
        self.has_wrong_times = False
        self.created_ms = created_ms
        self.last_append_ms = created_ms  # only kept up to date for batches without timestamps
        self.bytes_since_index_entry = 0
        self.references = 0
        self.recently_used = False
        self.is_deleted = False
        self.is_renamed = False
        self.is_moving = False  # a cleaned segment, fsynced, whose files are being renamed

    def __repr__(self) -> str:
        return f"Segment({self.path}, {self.size_bytes} bytes)"

    @property
    def path(self) -> str:
        """The path of the `.log` file."""
        return self.directory.file(self.base_offset, LOG_SUFFIX)

    @property
    def largest_timestamp(self) -> int:
        """The greatest timestamp of the batches. If the time of some may be unknown, they count as written by
        the last append.
        """
        if self.max_timestamp < 0 or self.has_unknown_times is not False:
            return max(self.max_timestamp, self.last_append_ms)
        return self.max_timestamp

    # -- files

    def create_files(self) -> None:
        """Creates the files of a new segment. Empties files that already have these names."""
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self.open_segments.opened(self)
        self.offset_index.create()
        self.time_index.create()
        self.transaction_index.reset()

    def open_file(self) -> int:
        """Returns the file descriptor, and opens the file if necessary.

        The next call for another segment can close it again unless a file range refers to this segment.
        """
        self.recently_used = True
        if self.fd == NOT_OPEN:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            self.open_segments.opened(self)
        return self.fd

    def close_files(self) -> None:
        """Closes the files and stops counting this segment as open."""
        self.open_segments.forget(self)
        self.close_descriptors()

    def close_descriptors(self) -> None:
        """Closes the files. Two threads can call it at the same time."""
        with self.directory.lock:
            self.offset_index.close()
            self.time_index.close()
            self.transaction_index.close()
            fd, self.fd = self.fd, NOT_OPEN
            if fd != NOT_OPEN:
                os.close(fd)

    def move_to(self, open_segments: OpenSegments) -> None:
        """Has `open_segments` count this segment, and close it if too many are open, from now on."""
        self.open_segments.forget(self)
        self.open_segments = open_segments
        if self.fd != NOT_OPEN:
            open_segments.opened(self)

    def release(self) -> None:
        """Ends one reference. Closes the files of a deleted segment when the last reference ends."""
        self.references -= 1
        if self.is_deleted and not self.references:
            self.close_files()

    def forget(self) -> None:
        """Marks the segment as removed from its log. Its file is closed as soon as no range refers to it."""
        self.is_deleted = True
        if not self.references:
            self.close_files()

    @contextmanager
    def own_descriptor(self) -> Iterator[int]:
        """Provides a separate descriptor for reading in a thread other than the event loop's."""
        with self.directory.lock:
            fd = NOT_OPEN if self.fd == NOT_OPEN else os.dup(self.fd)
        if fd == NOT_OPEN:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)

    # -- changes

    def note_times(self, header: BatchHeader) -> None:
        """Takes a batch's greatest timestamp into account."""
        timestamp = known_max_timestamp(header)
        if timestamp < 0:
            self.note_unknown_times(header)
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.offset_of_max_timestamp = header.last_offset

    def note_unknown_times(self, header: BatchHeader) -> None:
        """Takes into account that a batch has no known time."""
        self.has_unknown_times = True
        if header.base_timestamp >= 0:
            self.has_wrong_times = True

    def read_unknown_times(self) -> list[BatchHeader]:
        """Returns the headers of batches without a known time, at most one of each kind (see
        `has_wrong_times`). Any thread may call it. Raises OSError, TornLogError.
        """
        found: dict[bool, BatchHeader] = {}
        size_bytes = self.size_bytes
        with self.own_descriptor() as fd:
            if self.is_deleted:  # the file opened by name may belong to the segment that replaced it
                return []
            for _, header, _ in scan_headers(partial(os.pread, fd), 0, size_bytes):
                if known_max_timestamp(header) < 0:
                    found.setdefault(header.base_timestamp >= 0, header)
        return list(found.values())

    def learn_unknown_times(self, found: Sequence[BatchHeader]) -> None:
        """Takes in what `read_unknown_times` found. Batches may have been appended meanwhile."""
        self.has_unknown_times = self.has_unknown_times is True
        for header in found:
            self.note_unknown_times(header)

    def add_index_entries(self, last_offset: int, position: int) -> None:
        """Adds an entry for the batch at `position` to both indexes."""
        self.offset_index.append(last_offset, position)
        self.time_index.append_if_later(self.max_timestamp, self.offset_of_max_timestamp)

    def finish(self) -> bool:
        """Ends the time index with the greatest timestamp and writes both indexes to their files.

        No batch is appended afterwards. Returns True if the time index got another entry.
        """
        has_new_entry = self.time_index.append_if_later(self.max_timestamp, self.offset_of_max_timestamp)
        self.spill_indexes()
        return has_new_entry

    def spill_indexes(self) -> None:
        """Writes the entries that the index files do not have yet."""
        self.offset_index.spill()
        self.time_index.spill()
        self.transaction_index.spill()

    def sync(self) -> None:
        """Flushes the log and the indexes to disk (fsync). Any thread may call it.

        A segment that was deleted in the meantime needs no flush.
        """
        if self.is_moving:
            return
        try:
            self.spill_indexes()
            for suffix in SEGMENT_SUFFIXES:
                path = self.directory.file(self.base_offset, suffix)
                if suffix != TRANSACTION_INDEX_SUFFIX or os.path.exists(path):
                    sync_file(path)
        except FileNotFoundError:
            if not (self.is_deleted or self.is_moving):
                raise

    def rename_deleted(self) -> None:
        """Adds Kafka's suffix for deleted files to the names, so that new files can have the old names."""
        if self.is_renamed:
            return
        self.is_renamed = True
        for suffix in SEGMENT_SUFFIXES:
            path = self.directory.file(self.base_offset, suffix)
            with suppress(FileNotFoundError):
                os.rename(path, path + DELETED_SUFFIX)

    def remove_files(self) -> None:
        """Unlinks the files."""
        for suffix in SEGMENT_SUFFIXES:
            path = self.directory.file(self.base_offset, suffix)
            with suppress(FileNotFoundError):
                os.unlink(path + DELETED_SUFFIX if self.is_renamed else path)


class FileRange:
    """Whole batches of a segment on their way to a reader: `length` bytes of its file from `position`.

    `sendfile` takes it as it is. The segment's file stays open, even if the segment is deleted, until
    `release` is called.
    """

    __slots__ = ("_is_released", "length", "next_offset", "position", "segment")

    def __init__(self, segment: Segment, position: int, length: int, next_offset: int) -> None:
        segment.references += 1
        self.segment = segment
        self.position = position
        self.length = length
        self.next_offset = next_offset
        self._is_released = False

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"FileRange({self.segment.path}, {self.position}, {self.length})"

    def fileno(self) -> int:
        """Returns the segment's file descriptor."""
        return self.segment.fd

    def read(self) -> bytes:
        """Returns the bytes of the range; fewer only if the file was truncated in the meantime."""
        return os.pread(self.segment.fd, self.length, self.position)

    def release(self) -> None:
        """Ends the reference to the segment. Further calls have no effect."""
        if not self._is_released:
            self._is_released = True
            self.segment.release()


def is_resident(fileno: int, position: int) -> bool:
    """Returns whether the byte at `position` can be read without waiting for the disk. Returns True at the
    end of the file, and if the file system cannot answer.
    """
    try:
        os.preadv(fileno, _ONE_BYTE, position, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:  # EOPNOTSUPP: the file system lacks non-blocking reads (older overlayfs, FUSE)
        return True
    return True


def read_ahead(fileno: int, position: int, length: int) -> None:
    """Reads the range, so that the page cache holds it. Blocks, so it must run in a thread."""
    buffer = bytearray(min(length, READ_BYTES))
    end = position + length
    while position < end:
        read = os.preadv(fileno, [buffer], position)
        if not read:
            return
        position += read


class BatchPlace(NamedTuple):
    """The place of a batch. `index_slot` is the index entry from which the next search can start."""

    segment: Segment
    position: int
    index_slot: int


class RangeEnd(NamedTuple):
    """The end of a range of whole batches. `next_offset` follows the last of them."""

    position: int
    next_offset: int
    index_slot: int


def segment_index(segments: Sequence[Segment], offset: int) -> int:
    """Returns the index of the segment that contains `offset` if it is in the log, at least 0."""
    return max(0, bisect_right(segments, offset, key=_BASE_OFFSET) - 1)


def batch_with(segment: Segment, offset: int) -> BatchPlace | None:
    """Returns the first batch whose last offset is at least `offset`; None if all batches are below it.

    Compaction leaves gaps, so the batch need not contain `offset`. The index gives a position at or before
    the batch; a walk over the batch headers finds the exact position.
    """
    slot, start = segment.offset_index.position_for(offset)
    for position, _, last_offset, _ in locate(
        partial(os.pread, segment.open_file()), start, segment.size_bytes
    ):
        if last_offset >= offset:
            return BatchPlace(segment, position, slot)
    return None


def end_before_offset(segment: Segment, upper_offset: int) -> int:
    """Returns the position after the last batch that is completely below `upper_offset`."""
    _, start = segment.offset_index.position_for(upper_offset)
    for position, _, last_offset, _ in locate(
        partial(os.pread, segment.open_file()), start, segment.size_bytes
    ):
        if last_offset >= upper_offset:
            return position
    return segment.size_bytes


def end_at_limit(place: BatchPlace, limit: int, end: int, *, at_least_one_batch: bool) -> RangeEnd | None:
    """Returns the end of the whole batches from `place` that end at or before position `limit`.

    `end` is greater than `limit`. If not even the first batch fits, the result is the end of that batch
    with `at_least_one_batch`, else None.
    """
    segment, begin, hint = place
    slot, start = segment.offset_index.place_at_or_below(limit, hint)
    next_offset = -1
    for position, base_offset, last_offset, size in locate(
        partial(os.pread, segment.open_file()), max(start, begin), end
    ):
        if position + size > limit:
            if position > begin:
                return RangeEnd(position, next_offset if next_offset >= 0 else base_offset, slot)
            return RangeEnd(position + size, last_offset + 1, slot) if at_least_one_batch else None
        next_offset = last_offset + 1
    return RangeEnd(end, next_offset, slot)
