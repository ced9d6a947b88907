"""Reads a segment from front to end in chunks of whole batches."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

from tidelog.broker.log.cleaning.cleaning_job import SourceSegment
from tidelog.log_format.batches import TornLogError
from tidelog.log_format.directory import LOG_SUFFIX, file_name
from tidelog.records.batch import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES

_LENGTH_AND_MAGIC: Final = struct.Struct(">8xi4xb")


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
