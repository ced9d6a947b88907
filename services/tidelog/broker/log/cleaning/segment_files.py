"""The files of a cleaning: segments that are read in chunks of whole batches, their transaction indexes, and
a cleaned segment. It is written with its indexes as `.cleaned` files, which are durable before they are used.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tidelog.broker.log.cleaning.cleaning_job import CleanedSegment, SourceSegment
from tidelog.log_format.batches import TornLogError
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
    decode_aborted_transactions,
    encode_aborted_transactions,
)
from tidelog.records.aborted import AbortedTransaction
from tidelog.records.batch import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES, NO_TIMESTAMP

_LENGTH_AND_MAGIC: Final = struct.Struct(">8xi4xb")


def indexed_aborts(directory: str, segments: Iterable[SourceSegment]) -> list[AbortedTransaction]:
    """Returns the aborted transactions whose markers are in the segments. Raises OSError,
    CorruptFileError.
    """
    found: list[AbortedTransaction] = []
    for segment in segments:
        with suppress(FileNotFoundError):
            content = Path(directory, file_name(segment.base_offset, TRANSACTION_INDEX_SUFFIX)).read_bytes()
            found += decode_aborted_transactions(content, segment.base_offset)
    return found


class SegmentReader:
    """Iterates over the chunks of a segment; each begins where the whole batches of the last one ended.

    The caller passes the size of the whole batches in each chunk to `consumed`. A batch that is larger than
    the buffer is read into a larger one.
    """

    def __init__(self, directory: str, segment: SourceSegment, buffer_bytes: int) -> None:
        self.path = f"{directory}/{file_name(segment.base_offset, LOG_SUFFIX)}"
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self._size_bytes = segment.size_bytes
        self._buffer_bytes = max(buffer_bytes, 4 * BATCH_HEADER_BYTES)
        self._position = 0
        self._consumed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def consumed(self, size: int) -> None:
        self._consumed = size

    def __iter__(self) -> Iterator[bytes]:
        """Raises OSError, and TornLogError for bytes that are not a batch."""
        wanted = self._buffer_bytes
        while self._position < self._size_bytes:
            chunk = os.pread(self._fd, min(wanted, self._size_bytes - self._position), self._position)
            self._consumed = 0
            yield chunk
            self._position += self._consumed
            wanted = self._buffer_bytes if self._consumed else self._larger(chunk)

    def _larger(self, chunk: bytes) -> int:
        """Returns the size of the first batch of a chunk that was too small for it."""
        left = self._size_bytes - self._position
        if len(chunk) < BATCH_HEADER_BYTES:
            raise TornLogError(
                self._position, f"{self.path}: {len(chunk)} bytes are left, less than a batch header"
            )
        length, magic = _LENGTH_AND_MAGIC.unpack_from(chunk)
        size = int(length) + LOG_OVERHEAD_BYTES
        if magic != 2 or size < BATCH_HEADER_BYTES or size > left or size <= len(chunk):
            raise TornLogError(
                self._position, f"{self.path}: a batch of {size} bytes, magic {magic}; {left} bytes are left"
            )
        return size


KeptBatch = tuple[int, int, int]
"""A kept batch for the indexes: size in the output, last offset, max timestamp."""


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
