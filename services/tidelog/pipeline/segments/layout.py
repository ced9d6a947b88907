"""The readable part of a partition's log, as values that the driver plans and sends to the tasks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tidelog.pipeline.errors import PipelineError
from tidelog.records.batch import BatchHeader

READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"
UNKNOWN_HIGH_WATERMARK: Final = -1
"""The high watermark of a log that has data but is in no checkpoint. visible_logs never returns such a log.
"""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """`log_path` and the other paths are URIs or local paths, which a Storage opens.

    `next_base_offset` is None for the newest segment. `size_bytes` and `modified_ms` come from the listing.
    The newest segment may grow later, and any other segment with another size was compacted later. An index
    path is None if there is no such file. The indexes of the newest segment may end early, or in zeros.
    """

    base_offset: int
    next_base_offset: int | None
    log_path: str
    size_bytes: int
    index_path: str | None
    time_index_path: str | None
    modified_ms: int = 0
    transaction_index_path: str | None = None


@dataclass(frozen=True, slots=True)
class AbortedRange:
    """Transactional batches of this producer with a base offset in the range, including both ends, are
    aborted. `last_offset` is the marker's offset.
    """

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """The readable part of one replica's log: from `start_offset` to before `end_offset`.

    `topic_id` has Kafka's text form, or is None if the directory does not contain it. `high_watermark` is the
    checkpointed one, or the log's end if the files end before it. `last_stable_offset` is the first offset of
    the oldest open transaction, and at most the high watermark. `leader_epochs` holds (epoch, start offset)
    in ascending order. `aborted` is empty unless `isolation_level` is read_committed.
    """

    topic: str
    topic_id: str | None
    partition: int
    directory: str
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    segments: tuple[SegmentFile, ...]
    aborted: tuple[AbortedRange, ...] = ()
    isolation_level: str = READ_COMMITTED
    is_compacted: bool = field(default=False, compare=False)

    @property
    def start_offset(self) -> int:
        return self.log_start_offset

    @property
    def end_offset(self) -> int:
        """Returns the exclusive end: the last stable offset, or the high watermark for read_uncommitted."""
        return self.last_stable_offset if self.isolation_level == READ_COMMITTED else self.high_watermark

    def segments_of(self, start: int, end: int) -> tuple[SegmentFile, ...]:
        """Returns the segments that may contain an offset of [start, end)."""
        return tuple(
            segment
            for segment in self.segments
            if segment.base_offset < end
            and (segment.next_base_offset is None or segment.next_base_offset > start)
        )

    def aborted_in(self, start: int, end: int) -> tuple[AbortedRange, ...]:
        return tuple(
            aborted for aborted in self.aborted if aborted.first_offset < end and aborted.last_offset >= start
        )

    def epochs_of(self, start: int, end: int) -> list[list[int]]:
        """Returns [epoch, its first offset in the range] for each leader epoch of [start, end), for a
        ledger.
        """
        found: list[list[int]] = []
        starts = [*(begin for _, begin in self.leader_epochs[1:]), None]
        for (epoch, begin), next_begin in zip(self.leader_epochs, starts, strict=True):
            if begin < end and (next_begin is None or next_begin > start) and start < end:
                found.append([epoch, max(begin, start)])
        return found


class OffsetsMissingError(PipelineError):
    """Offsets [start, end) of a partition are no longer in any file."""

    def __init__(self, topic: str, partition: int, start: int, end: int, reason: str) -> None:
        super().__init__(f"{topic}-{partition}: offsets {start} to {end - 1} cannot be read: {reason}")
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.topic, self.partition, self.start, self.end, self.reason)


def by_name(logs: Iterable[PartitionLog]) -> dict[tuple[str, int], PartitionLog]:
    return {(log.topic, log.partition): log for log in logs}


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
