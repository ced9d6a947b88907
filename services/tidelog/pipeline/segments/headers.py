"""Reads the headers of a segment's batches from any storage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    CURRENT_MAGIC,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    parse_header,
)

LOCAL_CHUNK_BYTES: Final = 32 * 1024
REMOTE_CHUNK_BYTES: Final = 4 * 1024 * 1024
_MIN_BATCH_LENGTH: Final = BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES


class PlacedBatch(NamedTuple):
    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        return self.position + self.header.size_bytes


def scan_batches(
    file: pa.NativeFile, position: int, end: int, *, min_offset: int, chunk_bytes: int = LOCAL_CHUNK_BYTES
) -> Iterator[PlacedBatch]:
    """Yields the whole batches between two positions. It ends silently at the first invalid batch, because a
    writer is writing there, or was when it died.
    """
    chunk, chunk_start, next_offset = memoryview(b""), 0, min_offset
    while position + BATCH_HEADER_BYTES <= end:
        at = position - chunk_start
        if at + BATCH_HEADER_BYTES > len(chunk):
            chunk = memoryview(file.read_at(min(chunk_bytes, end - position), position))
            chunk_start, at = position, 0
            if len(chunk) < BATCH_HEADER_BYTES:
                return
        header = parse_header(chunk, at)
        batch = PlacedBatch(position, header)
        if (
            header.batch_length < _MIN_BATCH_LENGTH
            or header.magic != CURRENT_MAGIC
            or batch.end > end
            or header.base_offset < next_offset
            or header.last_offset_delta < 0
        ):
            return
        yield batch
        next_offset, position = header.last_offset + 1, batch.end
