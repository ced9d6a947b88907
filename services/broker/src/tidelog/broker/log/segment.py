"""One segment: a `.log` file of batches with its indexes, and what is known of it without reading."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tidelog.broker.log.offset_index import OffsetIndex
from tidelog.broker.log.open_segments import OpenSegments
from tidelog.broker.log.partition_directory import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TRANSACTION_INDEX_SUFFIX,
    PartitionDirectory,
    sync_file,
)
from tidelog.broker.log.time_index import TimeIndex
from tidelog.broker.log.transaction_index import TransactionIndex
from tidelog.records.batch import NO_TIMESTAMP

NOT_OPEN: Final = -1
MAX_RELATIVE_OFFSET: Final = 2**31 - 1


class Segment:
    """Changed by `PartitionLog` alone. Files are opened when first needed. Raises OSError where the disk
    refuses.

    `next_offset` is where the following batch goes; `max_timestamp` the greatest of all batches (-1: none)
    and `offset_of_max_timestamp` the last offset of the batch that has it; `first_timestamp` the first
    batch's greatest (-1: unknown). `references` counts the file ranges being sent; the file stays open as
    long.
    """

    __slots__ = (
        "base_offset",
        "bytes_since_index_entry",
        "created_ms",
        "directory",
        "fd",
        "first_timestamp",
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
        created_ms: int,
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
        self.created_ms = created_ms
        self.last_append_ms = created_ms  # kept only where batches have no timestamps
        self.bytes_since_index_entry = 0
        self.references = 0
        self.recently_used = False
        self.is_deleted = False
        self.is_renamed = False
        self.is_moving = False  # cleaned and on disk, its files are just getting their names

    def __repr__(self) -> str:
        return f"Segment({self.path}, {self.size_bytes} bytes)"

    @property
    def path(self) -> str:
        return self.directory.file(self.base_offset, LOG_SUFFIX)

    # -- files

    def create_files(self) -> None:
        """A new, empty segment; whatever has its names is emptied."""
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self.open_segments.opened(self)
        self.offset_index.create()
        self.time_index.create()
        self.transaction_index.reset()

    def open_file(self) -> int:
        """The file descriptor, opened if need be; it may be closed again at the next call for another
        segment, unless referred to.
        """
        self.recently_used = True
        if self.fd == NOT_OPEN:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            self.open_segments.opened(self)
        return self.fd

    def close_files(self) -> None:
        self.open_segments.forget(self)
        self.close_descriptors()

    def close_descriptors(self) -> None:
        with self.directory.lock:  # so that each is closed once, whoever comes first
            self.offset_index.close()
            self.time_index.close()
            self.transaction_index.close()
            fd, self.fd = self.fd, NOT_OPEN
            if fd != NOT_OPEN:
                os.close(fd)

    def move_to(self, open_segments: OpenSegments) -> None:
        """Be counted, and closed when too many are open, there from now on."""
        self.open_segments.forget(self)
        self.open_segments = open_segments
        if self.fd != NOT_OPEN:
            open_segments.opened(self)

    def release(self) -> None:
        self.references -= 1
        if self.is_deleted and not self.references:
            self.close_files()

    def forget(self) -> None:
        """The log no longer has this segment: its file is closed as soon as nobody sends from it."""
        self.is_deleted = True
        if not self.references:
            self.close_files()

    @contextmanager
    def own_descriptor(self) -> Iterator[int]:
        """For reading in another thread than the loop's."""
        with self.directory.lock:
            fd = NOT_OPEN if self.fd == NOT_OPEN else os.dup(self.fd)
        if fd == NOT_OPEN:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)

    # -- changes

    def note_timestamp(self, timestamp: int, last_offset: int) -> None:
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.offset_of_max_timestamp = last_offset

    def add_index_entries(self, last_offset: int, position: int) -> None:
        self.offset_index.append(last_offset, position)
        self.time_index.append_if_later(self.max_timestamp, self.offset_of_max_timestamp)

    def finish(self) -> bool:
        """No more batches come: the greatest timestamp ends the time index, and both indexes are on file."""
        has_new_entry = self.time_index.append_if_later(self.max_timestamp, self.offset_of_max_timestamp)
        self.spill_indexes()
        return has_new_entry

    def spill_indexes(self) -> None:
        self.offset_index.spill()
        self.time_index.spill()
        self.transaction_index.spill()

    def sync(self) -> None:
        """fsync of log and indexes, from any thread. A file deleted meanwhile needs none."""
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
        """Give the files Kafka's suffix for what is to be removed, so that their names are free."""
        if self.is_renamed:
            return
        self.is_renamed = True
        for suffix in SEGMENT_SUFFIXES:
            path = self.directory.file(self.base_offset, suffix)
            with suppress(FileNotFoundError):
                os.rename(path, path + DELETED_SUFFIX)

    def remove_files(self) -> None:
        for suffix in SEGMENT_SUFFIXES:
            path = self.directory.file(self.base_offset, suffix)
            with suppress(FileNotFoundError):
                os.unlink(path + DELETED_SUFFIX if self.is_renamed else path)
