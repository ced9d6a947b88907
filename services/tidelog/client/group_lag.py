"""Computes the lag of groups for both isolation levels. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidelog.model.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The offsets of a partition. None means unknown.

    `high_watermark` and `last_stable_offset` are the ends for readers of read_uncommitted and read_committed.
    """

    committed: int | None
    high_watermark: int | None
    last_stable_offset: int | None

    @property
    def lag(self) -> int | None:
        """The records that a reader of read_uncommitted has not read."""
        return _difference(self.high_watermark, self.committed)

    @property
    def stable_lag(self) -> int | None:
        """The records that a reader of read_committed has not read and could read now."""
        return _difference(self.last_stable_offset, self.committed)

    @property
    def depends_on_isolation(self) -> bool:
        return self.lag != self.stable_lag


def _difference(end: int | None, committed: int | None) -> int | None:
    return None if end is None or committed is None else max(0, end - committed)


def lag_of(
    place: TopicPartition,
    committed: Mapping[TopicPartition, int],
    high_watermarks: Mapping[TopicPartition, int],
    last_stable_offsets: Mapping[TopicPartition, int],
) -> PartitionLag:
    """Returns the lag of a partition from the offsets of many.

    The two ends come from two requests, between which the log may have grown. A last stable offset above the
    high watermark counts as the high watermark, so it is no difference of the isolation levels.
    """
    end, stable = high_watermarks.get(place), last_stable_offsets.get(place)
    if end is not None and stable is not None:
        stable = min(end, stable)
    return PartitionLag(committed.get(place), end, stable)


def total_of(lags: Iterable[int | None]) -> int | None:
    """Returns the sum of the known lags, None if none is known."""
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None
