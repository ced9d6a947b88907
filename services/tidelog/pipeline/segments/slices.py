"""Plans which bytes of which segments the tasks read, from logs, bounds and indexes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidelog.pipeline.segments.indexes import Longs, offset_entries, position_below, time_entries
from tidelog.pipeline.segments.layout import AbortedRange, PartitionLog, SegmentFile
from tidelog.pipeline.segments.storage import Storage
from tidelog.records.columns.rows import RowBounds

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
    aborted: tuple[AbortedRange, ...] = ()

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
