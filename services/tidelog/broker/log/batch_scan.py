"""Walking a segment's batches by their headers, straight from the file.

`locate` reads what a fetch needs (where batches begin and end, by offset), `scan_headers` all fields, with
the CRC if asked.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Final

from tidelog.broker.log.errors import TornLogError
from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    CURRENT_MAGIC,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    crc_matches,
    parse_header,
)

LOCATE_CHUNK_BYTES: Final = 4096 + BATCH_HEADER_BYTES  # what lies between two index entries, usually
HEADER_CHUNK_BYTES: Final = 16 * 1024
CRC_CHUNK_BYTES: Final = 1024 * 1024

_PLACE = struct.Struct(">qi11xi")  # base offset, batch length, ..., last offset delta
_MIN_BATCH_LENGTH = BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES


def locate(fd: int, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(position, base offset, last offset, size in bytes) of each batch from `position` up to `end`.

    Raises TornLogError if there is no batch at a place where one should begin, OSError if the file can't
    be read.
    """
    chunk, chunk_start = b"", 0
    while position < end:
        at = position - chunk_start
        if at + BATCH_HEADER_BYTES > len(chunk):
            chunk, chunk_start, at = (
                os.pread(fd, min(LOCATE_CHUNK_BYTES, end - position), position),
                position,
                0,
            )
            if len(chunk) < BATCH_HEADER_BYTES:
                raise _less_than_a_header(position, len(chunk))
        base_offset, length, last_offset_delta = _PLACE.unpack_from(chunk, at)
        if length < _MIN_BATCH_LENGTH:
            raise TornLogError(position, f"batch length {length}")
        yield position, base_offset, base_offset + last_offset_delta, length + LOG_OVERHEAD_BYTES
        position += length + LOG_OVERHEAD_BYTES


def scan_headers(
    fd: int, position: int, end: int, *, min_offset: int = 0, checks_crc: bool = False
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, bytes) of each batch from `position` up to `end`; the bytes are the whole batch if
    CRCs are checked, else at least its header, and are valid until the next step.

    Raises TornLogError at the first place that holds no sound batch: cut off, of another magic than 2, of
    a base offset below what came before (or below `min_offset`), with a wrong CRC.
    """
    chunk_bytes = CRC_CHUNK_BYTES if checks_crc else HEADER_CHUNK_BYTES
    chunk, chunk_start, next_offset = memoryview(b""), 0, min_offset
    while position < end:
        at = position - chunk_start
        if at + BATCH_HEADER_BYTES > len(chunk):
            chunk, chunk_start, at = (
                memoryview(os.pread(fd, min(chunk_bytes, end - position), position)),
                position,
                0,
            )
            if len(chunk) < BATCH_HEADER_BYTES:
                raise _less_than_a_header(position, len(chunk))
        header = parse_header(chunk, at)
        size = header.size_bytes
        problem = _header_problem(header, next_offset, end - position)
        if problem:
            is_cut_off = header.magic == CURRENT_MAGIC and size > end - position
            raise TornLogError(position, problem, is_cut_off=is_cut_off)
        if checks_crc:
            if at + size > len(chunk):
                chunk, chunk_start, at = (
                    memoryview(os.pread(fd, max(chunk_bytes, size), position)),
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


def _header_problem(header: BatchHeader, next_offset: int, bytes_left: int) -> str | None:
    if header.batch_length < _MIN_BATCH_LENGTH:
        return f"batch length {header.batch_length}"
    if header.magic != CURRENT_MAGIC:
        return f"magic {header.magic} instead of {CURRENT_MAGIC}"
    if header.size_bytes > bytes_left:
        return f"a batch of {header.size_bytes} bytes, {bytes_left} are left"
    if header.base_offset < next_offset or header.last_offset_delta < 0:
        return f"base offset {header.base_offset} (to {header.last_offset}) after offset {next_offset - 1}"
    return None
