"""Where in a segment a batch begins: the index gives a place at or before it, a short walk over batch headers
the exact one.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.broker.log.batch_scan import locate
from tidelog.broker.log.segment import Segment


class BatchPlace(NamedTuple):
    """`index_slot` is the index entry the search began at: the next search starts from it."""

    segment: Segment
    position: int
    index_slot: int


class Cut(NamedTuple):
    """The end of a stretch of whole batches; `next_offset` follows the last of them."""

    position: int
    next_offset: int
    index_slot: int


def batch_with(segment: Segment, offset: int) -> BatchPlace | None:
    """The first batch whose last offset is `offset` or more (compaction leaves holes); None if all are below
    it.
    """
    slot, start = segment.offset_index.position_for(offset)
    for position, _, last_offset, _ in locate(segment.open_file(), start, segment.size_bytes):
        if last_offset >= offset:
            return BatchPlace(segment, position, slot)
    return None


def end_before_offset(segment: Segment, upper_offset: int) -> int:
    """The position at which the batches end that are wholly below `upper_offset`."""
    _, start = segment.offset_index.position_for(upper_offset)
    for position, _, last_offset, _ in locate(segment.open_file(), start, segment.size_bytes):
        if last_offset >= upper_offset:
            return position
    return segment.size_bytes


def cut_at(place: BatchPlace, limit: int, end: int, *, at_least_one_batch: bool) -> Cut | None:
    """As many whole batches from `place` on as end at or before position `limit`; one at least, if asked.
    `end` > `limit`.

    None if not even the first fits.
    """
    segment, begin, hint = place
    slot, start = segment.offset_index.place_at_or_below(limit, hint)
    next_offset = -1
    for position, base_offset, last_offset, size in locate(segment.open_file(), max(start, begin), end):
        if position + size > limit:
            if position > begin:
                return Cut(position, next_offset if next_offset >= 0 else base_offset, slot)
            return Cut(position + size, last_offset + 1, slot) if at_least_one_batch else None
        next_offset = last_offset + 1
    return Cut(end, next_offset, slot)
