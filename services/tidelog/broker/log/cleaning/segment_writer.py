"""Writes a cleaned segment and its indexes as `.cleaned` files, which are durable before they are used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tidelog.broker.log.cleaning.batch_filter import KeptBatch
from tidelog.broker.log.cleaning.cleaning_job import CleanedSegment, SourceSegment
from tidelog.log_format.directory import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
)
from tidelog.log_format.entries import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    AbortedTransaction,
    encode_aborted_transactions,
)
from tidelog.records.batch import NO_TIMESTAMP


class CleanedSegmentWriter:
    """The writer of one group of source segments. Methods raise OSError."""

    def __init__(self, directory: str, sources: Sequence[SourceSegment], index_interval_bytes: int) -> None:
        self._directory = directory
        self._sources = sources
        self._base_offset = sources[0].base_offset
        self._interval_bytes = index_interval_bytes
        self._fd = os.open(
            self._path(LOG_SUFFIX), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644
        )
        self._size_bytes = 0
        self._unindexed_bytes = 0
        self._max_timestamp = NO_TIMESTAMP
        self._offset_of_max = self._base_offset
        self._first_timestamp = NO_TIMESTAMP
        self._last_indexed_timestamp = NO_TIMESTAMP
        self._offset_index = bytearray()
        self._time_index = bytearray()

    def _path(self, suffix: str) -> str:
        return f"{self._directory}/{file_name(self._base_offset, suffix)}{CLEANED_SUFFIX}"

    def append(self, output: Sequence[bytes | memoryview], kept: Sequence[KeptBatch]) -> None:
        data = output[0] if len(output) == 1 else b"".join(output)
        if not data:
            return
        written = os.write(self._fd, data)
        if written != len(data):
            raise OSError(f"{self._path(LOG_SUFFIX)}: {written} of {len(data)} bytes written")
        if not self._size_bytes:
            self._first_timestamp = kept[0][2]
        position, unindexed, interval = self._size_bytes, self._unindexed_bytes, self._interval_bytes
        for size, last_offset, timestamp in kept:
            if timestamp > self._max_timestamp:
                self._max_timestamp, self._offset_of_max = timestamp, last_offset
            if unindexed > interval:
                self._offset_index += OFFSET_ENTRY.pack(last_offset - self._base_offset, position)
                self._note_time()
                unindexed = 0
            unindexed += size
            position += size
        self._size_bytes, self._unindexed_bytes = position, unindexed

    def _note_time(self) -> None:
        if self._max_timestamp > self._last_indexed_timestamp:
            self._time_index += TIME_ENTRY.pack(self._max_timestamp, self._offset_of_max - self._base_offset)
            self._last_indexed_timestamp = self._max_timestamp

    def finish(self, aborted: Sequence[AbortedTransaction]) -> CleanedSegment:
        """Completes the files and makes them durable.

        It writes the transaction index even if it is empty, because the swap removes the old index by
        replacing it.
        """
        self._note_time()
        status = os.stat(f"{self._directory}/{file_name(self._sources[-1].base_offset, LOG_SUFFIX)}")
        # The modification time is that of the newest source: retention uses it if the batches have no
        # timestamps.
        os.utime(self._fd, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.fsync(self._fd)
        os.close(self._fd)
        self._fd = -1
        _write(self._path(OFFSET_INDEX_SUFFIX), self._offset_index)
        _write(self._path(TIME_INDEX_SUFFIX), self._time_index)
        _write(self._path(TRANSACTION_INDEX_SUFFIX), encode_aborted_transactions(aborted))
        return CleanedSegment(
            tuple(source.base_offset for source in self._sources),
            self._base_offset,
            self._sources[-1].next_offset,
            self._size_bytes,
            self._max_timestamp,
            self._offset_of_max,
            self._first_timestamp,
            len(self._offset_index) // OFFSET_ENTRY.size,
            len(self._time_index) // TIME_ENTRY.size,
        )

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _write(path: str, content: bytes | bytearray) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        if os.write(fd, content) != len(content):
            raise OSError(f"{path} cannot be written completely")
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_cleaned_files(directory: str) -> None:
    """Removes the files of a worker that was stopped. Raises OSError."""
    for name in os.listdir(directory):
        if name.endswith(CLEANED_SUFFIX):
            Path(directory, name).unlink(missing_ok=True)
