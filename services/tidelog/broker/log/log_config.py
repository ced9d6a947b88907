"""The topic settings that affect a partition's log, and the segments that retention removes by them.

The settings have Kafka's names (with `_` for `.`) and the defaults of Kafka 4.3. No I/O. Source: Kafka's
`UnifiedLog.deleteOldSegments`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from tidelog.broker.log.segment import Segment
from tidelog.kernel.instants import WallMs

INT64_MAX = 2**63 - 1
NO_LIMIT = -1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of one log: sizes in bytes, times in milliseconds.

    When a setting changes, the log gets a new object.
    """

    segment_bytes: int = 1_073_741_824
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10_485_760
    index_interval_bytes: int = 4096
    retention_ms: int = 604_800_000  # -1: no limit
    retention_bytes: int = NO_LIMIT
    file_delete_delay_ms: int = 60_000
    flush_ms: int = INT64_MAX
    cleanup_policy: frozenset[str] = frozenset({"delete"})

    @property
    def is_delete_policy(self) -> bool:
        return "delete" in self.cleanup_policy


def segments_to_delete(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    log_size_bytes: int,
    log_start_offset: int,
    high_watermark: int,
    now_ms: WallMs,
) -> int:
    """Returns the number of segments to delete, counted from the oldest.

    An empty active segment is not deleted. If all segments are to be deleted, the log must roll first. The
    rules apply in Kafka's order: log start offset, `retention.bytes`, `retention.ms`. Each rule continues
    where the one before it stopped.
    """
    deletable = _count_while(
        segments,
        0,
        lambda at: segments[at].next_offset <= high_watermark and not _is_empty_active(segments, at),
    )
    count = _count_while(
        segments[:deletable],
        0,
        lambda at: at + 1 < len(segments) and segments[at + 1].base_offset <= log_start_offset,
    )
    if not config.is_delete_policy:
        return count
    if config.retention_bytes >= 0:
        surplus_bytes = log_size_bytes - config.retention_bytes - sum(s.size_bytes for s in segments[:count])
        while count < deletable and surplus_bytes >= segments[count].size_bytes:
            surplus_bytes -= segments[count].size_bytes
            count += 1
    if config.retention_ms >= 0:
        count = _count_while(
            segments[:deletable],
            count,
            lambda at: now_ms - segments[at].largest_timestamp > config.retention_ms,
        )
    return count


def segments_with_unread_times(
    segments: Sequence[Segment], config: LogConfig, now_ms: WallMs
) -> list[Segment]:
    """Returns the oldest segments that are over `retention.ms` by their time index, but not by their last
    append, and whose batch headers nobody has read since the start. Only the headers tell whether each batch
    has a time (`Segment.read_unknown_times`); `segments_to_delete` keeps the segments until then.
    """
    if not config.is_delete_policy or config.retention_ms < 0:
        return []
    youngest_ms = now_ms - config.retention_ms
    over = takewhile(lambda segment: 0 <= segment.max_timestamp < youngest_ms, segments)
    return [s for s in over if s.has_unknown_times is None and s.last_append_ms >= youngest_ms]


def _count_while(segments: Sequence[Segment], start: int, holds: Callable[[int], bool]) -> int:
    while start < len(segments) and holds(start):
        start += 1
    return start


def _is_empty_active(segments: Sequence[Segment], at: int) -> bool:
    return at == len(segments) - 1 and not segments[at].size_bytes
