"""Computes the lag of groups for both isolation levels. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.model.topics import TopicPartition

if TYPE_CHECKING:
    from tidelog.client.cluster import Topic


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
        """The records that a reader of read_uncommitted has not read. It is negative if the committed offset
        is beyond the end of the log, as in Kafka's tools.
        """
        if self.high_watermark is None or self.committed is None:
            return None
        return self.high_watermark - self.committed

    @property
    def stable_lag(self) -> int | None:
        """The records that a reader of read_committed has not read and could read now, or `lag` if that is
        negative.
        """
        if self.last_stable_offset is None or self.committed is None:
            return None
        if self.lag is not None and self.lag < 0:
            return self.lag
        return max(0, self.last_stable_offset - self.committed)

    @property
    def depends_on_isolation(self) -> bool:
        return self.lag != self.stable_lag


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


def uncommitted_count(
    topics: Mapping[str, Topic],
    committed: Collection[TopicPartition],
    owned: Collection[TopicPartition] = (),
) -> int:
    """Returns the number of partitions without a committed offset in the topics of a group: those of `topics`
    in which it has committed an offset, or has a partition that a member owns. Their records are in no lag.
    """
    names = {place.topic for place in (*committed, *owned)}
    return sum(
        TopicPartition(name, partition.index) not in committed
        for name in names & topics.keys()
        for partition in topics[name].partitions
    )


def beyond_end_count(lags: Iterable[int | None]) -> int:
    """Returns the number of partitions whose committed offset is beyond the end of the log."""
    return sum(lag is not None and lag < 0 for lag in lags)


def total_of(lags: Iterable[int | None]) -> int | None:
    """Returns the number of unread records in the partitions whose lag is known, None if none is known."""
    known = [max(0, lag) for lag in lags if lag is not None]
    return sum(known) if known else None
