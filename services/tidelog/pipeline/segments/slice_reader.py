"""Reads a slice of a segment: chunks of the file, whose batches are chosen by header and decoded in
columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.aborted_batches import AbortedBatches
from tidelog.pipeline.segments.layout import OffsetsMissingError
from tidelog.pipeline.segments.slices import Slice
from tidelog.pipeline.segments.storage import Storage, is_local
from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    CURRENT_MAGIC,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    crc_matches,
    may_reach,
    parse_header,
)
from tidelog.records.columns.arrow import ColumnarDecoder
from tidelog.records.columns.rows import ALL_ROWS, RowBounds

LOCAL_CHUNK_BYTES: Final = 4 * 1024 * 1024
REMOTE_CHUNK_BYTES: Final = 16 * 1024 * 1024
_MIN_BATCH_LENGTH: Final = BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES
_US_PER_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class SliceReader:
    """A `chunk_bytes` of None selects the size that suits the storage. Raises PipelineError that names file,
    position and offset.
    """

    storage: Storage
    columns: tuple[str, ...]
    bounds: RowBounds = ALL_ROWS
    check_crcs: bool = True
    chunk_bytes: int | None = None

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Yields rows in the order of offsets."""
        try:
            file = self.storage.open(part.log_path)
        except FileNotFoundError as error:
            raise OffsetsMissingError(
                part.topic,
                part.partition,
                part.start_offset,
                part.end_offset,
                f"{part.log_path} was deleted during the read; read again",
            ) from error
        with file:
            yield from _SliceWalk(self, part, file).batches()


class _SliceWalk:
    """One pass over the bytes of a slice."""

    def __init__(self, reader: SliceReader, part: Slice, file: pa.NativeFile) -> None:
        size = file.size()
        is_another = size < part.size_bytes or (size > part.size_bytes and not part.is_newest)
        if is_another and not part.is_whole:  # offsets stay valid, positions do not
            raise PipelineError(f"{part.log_path} was rewritten during the read; read again")
        self._check_crcs = reader.check_crcs
        self._part = part
        self._file = file
        self._end = size if part.end_position is None else min(size, part.end_position)
        self._chunk_bytes = reader.chunk_bytes or (
            LOCAL_CHUNK_BYTES if is_local(part.log_path) else REMOTE_CHUNK_BYTES
        )
        self._bounds = reader.bounds.within(part.start_offset, part.end_offset)
        self._decoder = ColumnarDecoder(part.topic, part.partition, reader.columns)
        self._aborted = AbortedBatches(part.aborted)
        self._position = part.start_position
        self._next_offset = 0
        self._is_done = False
        self._is_beyond = False  # a batch at or after the end was seen
        self._may_be_torn = part.is_newest and part.is_last

    def batches(self) -> Iterator[pa.RecordBatch]:
        cut_off_bytes = 0
        while not self._is_done and self._end - self._position >= max(cut_off_bytes, BATCH_HEADER_BYTES):
            start = self._position
            asked_bytes = min(max(self._chunk_bytes, cut_off_bytes), self._end - start)
            chunk = self._file.read_at(asked_bytes, start)
            chosen, cut_off_bytes = self._choose(chunk)
            try:
                yield from self._decoder.decode(chunk, chosen, self._bounds)
            except ValueError as error:
                raise self._damaged(start, self._next_offset, str(error)) from error
            if self._position == start and len(chunk) < asked_bytes:
                break  # the file became shorter
        self._check_end()

    def _choose(self, chunk: bytes) -> tuple[list[tuple[int, BatchHeader]], int]:
        """Returns the batches of the chunk to decode, and the length of the batch that the chunk cuts off (0
        if unknown). Sets `_position` to the first batch that was not processed.
        """
        chosen: list[tuple[int, BatchHeader]] = []
        start, at = self._position, 0
        while len(chunk) - at >= BATCH_HEADER_BYTES:
            header = parse_header(chunk, at)
            if not self._is_sound(header):
                if self._may_be_torn:  # a writer is writing here, or was when it died
                    self._is_done = True
                    return chosen, 0
                raise self._damaged(start + at, header.base_offset, _fault(header, self._next_offset))
            if header.base_offset >= self._bounds.end_offset:
                self._is_done = self._is_beyond = True
                return chosen, 0
            if header.size_bytes > len(chunk) - at:
                return chosen, header.size_bytes
            if self._counts(header):
                if self._check_crcs and not crc_matches(header, chunk, at):
                    raise self._damaged(start + at, header.base_offset, "its checksum differs")
                chosen.append((at, header))
            at += header.size_bytes
            self._position = start + at
            self._next_offset = header.last_offset + 1
        return chosen, 0

    def _is_sound(self, header: BatchHeader) -> bool:
        return (
            header.batch_length >= _MIN_BATCH_LENGTH
            and header.magic == CURRENT_MAGIC
            and header.base_offset >= self._next_offset
            and header.last_offset_delta >= 0
        )

    def _counts(self, header: BatchHeader) -> bool:
        first_us = self._bounds.first_timestamp_us
        return (
            header.last_offset >= self._bounds.start_offset
            and not header.is_control
            and header not in self._aborted
            and (first_us is None or may_reach(header, first_us // _US_PER_MS))
        )

    def _check_end(self) -> None:
        """Checks that a closed segment ends with a whole batch, and that the newest segment does not end
        before the visible end.
        """
        part = self._part
        if self._may_be_torn:
            if self._next_offset < part.end_offset and not self._is_beyond:
                first = max(self._next_offset, part.start_offset)
                raise OffsetsMissingError(
                    part.topic, part.partition, first, part.end_offset, f"{part.log_path} ends before them"
                )
        elif not self._is_done and self._position < self._end:
            raise self._damaged(self._position, self._next_offset, "the end of the file cuts it off")

    def _damaged(self, position: int, offset: int, reason: str) -> PipelineError:
        part = self._part
        return PipelineError(
            f"{part.topic}-{part.partition}: {part.log_path} is damaged at position {position}, offset "
            f"{offset}: {reason}; read another replica's directory, or read again after `tidelog` has "
            "recovered it"
        )


def _fault(header: BatchHeader, next_offset: int) -> str:
    if header.batch_length < _MIN_BATCH_LENGTH:
        return f"a batch of {header.batch_length} bytes"
    if header.magic != CURRENT_MAGIC:
        return f"a batch of format {header.magic}, but only {CURRENT_MAGIC} is supported"
    return f"a batch at offset {header.base_offset} where {next_offset} or more is expected"
