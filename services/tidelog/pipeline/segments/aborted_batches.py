"""Finds the aborted batches of a log by producer and base offset."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from tidelog.pipeline.segments.layout import AbortedRange
from tidelog.records.batch import BatchHeader


class AbortedBatches:
    """Ranges of aborted batches. Ranges of one producer do not overlap. Markers are not included, because
    they are not records.
    """

    def __init__(self, ranges: Iterable[AbortedRange]) -> None:
        self._ranges: dict[int, list[AbortedRange]] = {}
        for one in sorted(ranges, key=lambda one: one.first_offset):
            self._ranges.setdefault(one.producer_id, []).append(one)

    def __contains__(self, header: BatchHeader) -> bool:
        if not header.is_transactional or header.is_control:
            return False
        ranges = self._ranges.get(header.producer_id, [])
        at = bisect_right(ranges, header.base_offset, key=lambda one: one.first_offset) - 1
        return at >= 0 and header.base_offset <= ranges[at].last_offset
