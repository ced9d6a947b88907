"""Determines how much of a log is dirty, how far it may be cleaned, and whether cleaning is due. No I/O.

Source: Kafka's `LogCleanerManager.cleanableOffsets`, `LogToClean`, `UnifiedLog.nonActiveLogSegmentsFrom`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from tidelog.broker.log.partition_log import PartitionLog
from tidelog.broker.log.segment import Segment
from tidelog.kernel.instants import WallMs
from tidelog.settings.topic_settings import TopicSettings

_BASE_OFFSET = attrgetter("base_offset")


class Dirtiness(NamedTuple):
    """The dirty part of a log, from `first_dirty_offset` up to `first_uncleanable_offset`.

    `is_overdue` says that `max.compaction.lag.ms` has passed.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, min_ratio: float) -> bool:
        return bool(self.dirty_bytes) and (self.is_overdue or self.ratio > min_ratio)


def dirtiness(
    storage: PartitionLog, settings: TopicSettings, last_stable_offset: int, now_ms: WallMs
) -> Dirtiness:
    """Returns the part of a log that may be cleaned; it ends at the base offset of a segment.

    It does not extend beyond the last stable offset, into the active segment, or into a segment with records
    younger than `min.compaction.lag.ms`.
    """
    segments = storage.log.segments
    first_dirty = first_dirty_offset(storage)
    limit = min(last_stable_offset, segments[-1].base_offset)
    closed_dirty = segments[_segment_with(segments, first_dirty) : -1]
    if settings.min_compaction_lag_ms > 0:
        youngest_ms = now_ms - settings.min_compaction_lag_ms
        young = next((s.base_offset for s in closed_dirty if s.largest_timestamp > youngest_ms), limit)
        limit = min(limit, young)
    limit = segments[_segment_with(segments, max(limit, first_dirty))].base_offset
    clean_bytes = sum(s.size_bytes for s in segments if s.base_offset < first_dirty)
    begin = _segment_with(segments, min(first_dirty, limit))
    dirty_bytes = sum(s.size_bytes for s in segments[begin:] if s.base_offset < limit)
    oldest_ms = min((s.first_timestamp for s in closed_dirty if s.first_timestamp > 0), default=now_ms)
    is_overdue = oldest_ms < now_ms - settings.max_compaction_lag_ms
    return Dirtiness(first_dirty, limit, clean_bytes, dirty_bytes, is_overdue)


def first_dirty_offset(storage: PartitionLog) -> int:
    """Returns the end of the last cleaning, or the log start offset if that end is outside of the log."""
    if storage.log.log_start_offset <= storage.clean_offset <= storage.log.log_end_offset:
        return storage.clean_offset
    return storage.log.log_start_offset


def closed_dirty_segments(storage: PartitionLog) -> Sequence[Segment]:
    segments = storage.log.segments
    return segments[_segment_with(segments, first_dirty_offset(storage)) : -1]


def _segment_with(segments: Sequence[Segment], offset: int) -> int:
    return max(0, bisect_right(segments, offset, key=_BASE_OFFSET) - 1)
