"""Plans which bytes of which segments the tasks read, and reads these slices: the batches of a chunk are
chosen by their headers and decoded into columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from tidelog.log_format.batches import header_problem
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.log_files import (
    Longs,
    OffsetsMissingError,
    PartitionLog,
    SegmentFile,
    offset_entries,
    position_below,
    time_entries,
)
from tidelog.pipeline.segments.storage import Storage, is_local
from tidelog.records.aborted import AbortedBatches, AbortedTransaction
from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    BatchHeader,
    crc_matches,
    may_reach,
    parse_header,
)
from tidelog.records.columns.arrow import ColumnarDecoder
from tidelog.records.columns.rows import ALL_ROWS, RowBounds

DEFAULT_SPLIT_BYTES: Final = 128 * 1024 * 1024
_US_PER_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Slice:
    """Batches of one segment with offsets [start_offset, end_offset). A batch begins at `start_position`. An
    `end_position` of None means the end of the file.

    `size_bytes` is the segment's size in the listing. The newest segment of a log may grow or end within a
    batch, but its last slice holds everything before `end_offset`.
    """

    topic: str
    partition: int
    log_path: str
    start_position: int
    end_position: int | None
    start_offset: int
    end_offset: int
    size_bytes: int
    is_newest: bool
    is_last: bool = True
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def length_bytes(self) -> int:
        end = self.size_bytes if self.end_position is None else self.end_position
        return max(0, end - self.start_position)

    @property
    def is_whole(self) -> bool:
        """Returns True if the slice stays valid when the segment is rewritten with other positions."""
        return self.start_position == 0 and self.end_position is None


@dataclass(frozen=True, slots=True)
class SegmentPlanner:
    """Plans one partition's slices of about `split_bytes`."""

    storage: Storage
    split_bytes: int = DEFAULT_SPLIT_BYTES

    def slices(self, log: PartitionLog, bounds: RowBounds) -> Iterator[Slice]:
        """Yields slices in rising order. According to the indexes, none is empty."""
        bounds = bounds.within(log.start_offset, log.end_offset)
        start, end = bounds.start_offset, bounds.end_offset
        if start >= end:
            return
        for segment in log.segments_of(start, end):
            segment_start, segment_end = max(start, segment.base_offset), end
            if segment.next_base_offset is not None:
                segment_end = min(end, segment.next_base_offset)
            if bounds.first_timestamp_us is not None:
                segment_start = max(segment_start, self._first_offset(segment, bounds.first_timestamp_us))
            if segment_start >= segment_end or not (segment.size_bytes or segment.next_base_offset is None):
                continue
            yield from self._split(log, segment, segment_start, segment_end)

    def _first_offset(self, segment: SegmentFile, first_timestamp_us: int) -> int:
        """Returns an offset before which all batches are older."""
        if segment.time_index_path is None:
            return segment.base_offset
        data = self._read_index(segment.time_index_path)
        timestamps, offsets = time_entries(data, segment.base_offset)
        # An entry means that no batch up to its offset has a later timestamp. An entry of 0 can come from a
        # header without a right time.
        older = int((timestamps * _US_PER_MS < first_timestamp_us).sum())
        return int(offsets[older - 1]) + 1 if older and timestamps[older - 1] > 0 else segment.base_offset

    def _read_index(self, path: str) -> bytes:
        try:
            return self.storage.read(path)
        except FileNotFoundError:
            return b""  # an index only saves reading

    def _split(self, log: PartitionLog, segment: SegmentFile, start: int, end: int) -> Iterator[Slice]:
        whole = Slice(
            topic=log.topic,
            partition=log.partition,
            log_path=segment.log_path,
            start_position=0,
            end_position=None,
            start_offset=start,
            end_offset=end,
            size_bytes=segment.size_bytes,
            is_newest=segment.next_base_offset is None,
            aborted=log.aborted_in(start, end),
        )
        covers_all = start == segment.base_offset and end == segment.next_base_offset
        if segment.index_path is None or (covers_all and segment.size_bytes <= self.split_bytes):
            yield whole
            return
        data = self._read_index(segment.index_path)
        entries = offset_entries(data, segment.base_offset, segment.size_bytes)
        first = position_below(entries, start)
        last = _position_behind(entries, end)
        cuts = _cuts(entries[1], first, segment.size_bytes if last is None else last, self.split_bytes)
        for begin, finish in zip([first, *cuts], [*cuts, last], strict=True):
            yield replace(whole, start_position=begin, end_position=finish, is_last=finish == last)


def _position_behind(entries: tuple[Longs, Longs], end_offset: int) -> int | None:
    """Returns a position after which no batch begins before `end_offset`, or None if the index does not show
    one.
    """
    offsets, positions = entries
    # The batch of the first entry at or above the end may still contain offsets below it, but the next
    # entry's batch cannot.
    slot = int(offsets.searchsorted(end_offset, side="left")) + 1
    return int(positions[slot]) if slot < len(positions) else None


def _cuts(positions: Longs, start: int, end: int, split_bytes: int) -> list[int]:
    """Returns positions of batches that divide [start, end) into pieces of about `split_bytes`."""
    pieces = max(1, round((end - start) / split_bytes))
    found: list[int] = []
    for piece in range(1, pieces):
        slot = int(positions.searchsorted(start + piece * (end - start) // pieces))
        if slot < len(positions) and (found or [start])[-1] < positions[slot] < end:
            found.append(int(positions[slot]))
    return found


def tasks(slices: Iterable[Slice], split_bytes: int) -> list[tuple[Slice, ...]]:
    """Assigns each slice to a task. Many small slices of the same partition share one."""
    found: list[tuple[Slice, ...]] = []
    chosen: list[Slice] = []
    for part in slices:
        if chosen and (
            _place(part) != _place(chosen[0]) or _length(chosen) + part.length_bytes > split_bytes
        ):
            found.append(tuple(chosen))
            chosen = []
        chosen.append(part)
    if chosen:
        found.append(tuple(chosen))
    return found


def _place(part: Slice) -> tuple[str, int]:
    return part.topic, part.partition


def _length(parts: Sequence[Slice]) -> int:
    return sum(part.length_bytes for part in parts)


LOCAL_CHUNK_BYTES: Final = 4 * 1024 * 1024
REMOTE_CHUNK_BYTES: Final = 16 * 1024 * 1024


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
            problem = header_problem(header, self._next_offset)
            if problem is not None:
                if self._may_be_torn:  # a writer is writing here, or was when it died
                    self._is_done = True
                    return chosen, 0
                raise self._damaged(start + at, header.base_offset, problem)
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
