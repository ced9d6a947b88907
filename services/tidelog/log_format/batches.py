"""Finds the batches of a segment by their headers.

`locate` returns only the offsets and the sizes of batches, which is all that a fetch needs. `scan_headers`
returns complete headers and can check the CRCs. Both read the segment by a function of their caller.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    CURRENT_MAGIC,
    LOG_OVERHEAD_BYTES,
    MIN_BATCH_LENGTH,
    BatchHeader,
    crc_matches,
    parse_header,
)

# usually enough for the batches between two index entries
LOCATE_CHUNK_BYTES: Final = 4096 + BATCH_HEADER_BYTES
HEADER_CHUNK_BYTES: Final = 16 * 1024
CRC_CHUNK_BYTES: Final = 1024 * 1024

_PLACE = struct.Struct(">qi11xi")  # base offset, batch length, ..., last offset delta

ReadAt: TypeAlias = Callable[[int, int], bytes]
"""Returns a number of bytes from a position, or fewer at the end of the file."""


class TornLogError(ValueError):
    """A segment has no valid batch at `position`; recovery cuts the segment there.

    If `is_cut_off`, the file ends within the batch, which is normal after the death of the writer. Otherwise
    the segment is damaged.
    """

    def __init__(self, position: int, reason: str, *, is_cut_off: bool = False) -> None:
        super().__init__(f"position {position}: {reason}")
        self.position = position
        self.reason = reason
        self.is_cut_off = is_cut_off


def locate(read_at: ReadAt, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields (position, base offset, last offset, size in bytes) of each batch from `position` to `end`.

    Raises OSError, and TornLogError if no batch begins at a position where one must begin.
    """
    chunk, chunk_start = b"", 0
    while position < end:
        at = position - chunk_start
        if at + BATCH_HEADER_BYTES > len(chunk):
            chunk, chunk_start, at = (
                read_at(min(LOCATE_CHUNK_BYTES, end - position), position),
                position,
                0,
            )
            if len(chunk) < BATCH_HEADER_BYTES:
                raise _less_than_a_header(position, len(chunk))
        base_offset, length, last_offset_delta = _PLACE.unpack_from(chunk, at)
        if length < MIN_BATCH_LENGTH:
            raise TornLogError(position, f"batch length {length}")
        yield position, base_offset, base_offset + last_offset_delta, length + LOG_OVERHEAD_BYTES
        position += length + LOG_OVERHEAD_BYTES


def scan_headers(
    read_at: ReadAt,
    position: int,
    end: int,
    *,
    min_offset: int = 0,
    checks_crc: bool = False,
    chunk_bytes: int = HEADER_CHUNK_BYTES,
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yields (position, header, bytes) of each batch from `position` to `end`.

    If CRCs are checked, the bytes are the complete batch, else they are at least its header. They are valid
    until the next step. Raises OSError, and TornLogError at the first batch that is incomplete, that does not
    have magic 2, whose base offset is below `min_offset` or not above the offsets before it, or whose CRC
    does not match.
    """
    if checks_crc:
        chunk_bytes = max(chunk_bytes, CRC_CHUNK_BYTES)
    chunk, chunk_start, next_offset = memoryview(b""), 0, min_offset
    while position < end:
        at = position - chunk_start
        if at + BATCH_HEADER_BYTES > len(chunk):
            chunk, chunk_start, at = (
                memoryview(read_at(min(chunk_bytes, end - position), position)),
                position,
                0,
            )
            if len(chunk) < BATCH_HEADER_BYTES:
                raise _less_than_a_header(position, len(chunk))
        header = parse_header(chunk, at)
        size = header.size_bytes
        problem = header_problem(header, next_offset, end - position)
        if problem:
            is_cut_off = header.magic == CURRENT_MAGIC and size > end - position
            raise TornLogError(position, problem, is_cut_off=is_cut_off)
        if checks_crc:
            if at + size > len(chunk):
                chunk, chunk_start, at = (
                    memoryview(read_at(max(chunk_bytes, size), position)),
                    position,
                    0,
                )
            if at + size > len(chunk) or not crc_matches(header, chunk, at):
                raise TornLogError(position, "the CRC does not match")
        yield position, header, chunk[at : at + size]
        next_offset = header.last_offset + 1
        position += size


def _less_than_a_header(position: int, left_bytes: int) -> TornLogError:
    return TornLogError(position, f"{left_bytes} bytes are left, less than a batch header", is_cut_off=True)


def header_problem(header: BatchHeader, next_offset: int, bytes_left: int = sys.maxsize) -> str | None:
    """Returns why a batch cannot be the one that follows `next_offset - 1` in a log, None if it can."""
    if header.batch_length < MIN_BATCH_LENGTH:
        return f"batch length {header.batch_length}"
    if header.magic != CURRENT_MAGIC:
        return f"magic {header.magic} instead of {CURRENT_MAGIC}"
    if header.size_bytes > bytes_left:
        return f"a batch of {header.size_bytes} bytes, {bytes_left} are left"
    if header.base_offset < next_offset or header.last_offset_delta < 0:
        return f"base offset {header.base_offset} (to {header.last_offset}) after offset {next_offset - 1}"
    return None
