"""The lag of groups, and the time until retention deletes records that they have not read, or until logs
have filled a disk. No I/O.

Lag depends on the isolation level of the reader: `high watermark - committed` for read_uncommitted, and
`last stable offset - committed` for read_committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from tidelog.kernel.instants import DAY_MS, HOUR_MS, WallMs
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


class LogEnds(NamedTuple):
    """The ends of many partitions, for readers of read_uncommitted and of read_committed."""

    high_watermarks: Mapping[TopicPartition, int]
    last_stable_offsets: Mapping[TopicPartition, int]

    def lag_of(self, place: TopicPartition, committed: int | None) -> PartitionLag:
        """Returns the lag of a partition.

        The two ends come from two requests, between which the log may have grown. A last stable offset above
        the high watermark counts as the high watermark, so it is no difference of the isolation levels.
        """
        end, stable = self.high_watermarks.get(place), self.last_stable_offsets.get(place)
        if end is not None and stable is not None:
            stable = min(end, stable)
        return PartitionLag(committed, end, stable)


def beyond_end_count(lags: Iterable[int | None]) -> int:
    """Returns the number of partitions whose committed offset is beyond the end of the log."""
    return sum(lag is not None and lag < 0 for lag in lags)


def total_of(lags: Iterable[int | None]) -> int | None:
    """Returns the number of unread records in the partitions whose lag is known, None if none is known."""
    known = [max(0, lag) for lag in lags if lag is not None]
    return sum(known) if known else None


NO_LIMIT: Final = -1
_TIME: Final = "retention.ms"
RETENTION: Final = ("cleanup.policy", "retention.bytes", _TIME)
"""The settings that decide how long a topic keeps records."""
LEAST_OBSERVED_MS: Final = 1_000
"""The least time between two observations from which a speed is computed."""


class Observation(NamedTuple):
    """A group in a partition at one time. `record_ms` is the timestamp of the next record that the group
    reads, None if it was not read. `size_bytes` is the size of the leader's log, None if it is not known.
    """

    at_ms: WallMs
    committed: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    record_ms: int | None
    size_bytes: int | None

    @property
    def lag_uncommitted(self) -> int:
        """The lag, which is negative if the committed offset is beyond the end of the log."""
        return self.high_watermark - max(self.committed, self.log_start_offset)

    @property
    def lag_committed(self) -> int:
        unread = max(0, self.last_stable_offset - max(self.committed, self.log_start_offset))
        return min(self.lag_uncommitted, unread)

    @property
    def lost_records(self) -> int:
        """The offsets that retention deleted before the group read them."""
        return max(0, self.log_start_offset - self.committed)

    @property
    def lag_ms(self) -> int | None:
        """The age of the next record that the group reads: 0 if it has read all, None if it is not known."""
        if self.lag_uncommitted <= 0:
            return 0
        return None if self.record_ms is None else max(0, self.at_ms - self.record_ms)


class Retention(NamedTuple):
    """The retention of a topic. -1 means no limit. `is_deleting` is whether cleanup.policy has `delete`."""

    retention_ms: int
    retention_bytes: int
    is_deleting: bool = True

    @classmethod
    def of(cls, values: Mapping[str, str | None]) -> Retention:
        """Returns the retention that the settings RETENTION of a topic describe. An empty policy keeps all
        data.
        """
        policy, size_bytes, time_ms = (values.get(name) for name in RETENTION)
        is_deleting = policy is None or "delete" in policy
        return cls(int(time_ms or NO_LIMIT), int(size_bytes or NO_LIMIT), is_deleting)


class Outlook(Enum):
    NONE = "no loss in sight"
    SOON = "loss"
    LOST = "lost"
    UNKNOWN = "not known"


class Forecast(NamedTuple):
    """The outlook of a group in a partition. `in_ms` is the time until the loss, at the earliest.

    Retention deletes whole segments and never the active one, so the loss may come later.
    """

    outlook: Outlook
    in_ms: int | None
    reason: str


def forecast(now: Observation, before: Observation | None, retention: Retention) -> Forecast:
    """Returns when retention reaches the records that the group has not read.

    The speeds of the group and of its producers are those since `before`. Without it, the group is taken to
    stand still, and producers too.
    """
    if now.lost_records:
        return Forecast(
            Outlook.LOST, 0, f"retention deleted {now.lost_records:,} offsets that the group had not read"
        )
    if now.lag_uncommitted < 0:
        return Forecast(Outlook.NONE, None, "the committed offset is beyond the end of the log")
    if not now.lag_uncommitted:
        return Forecast(Outlook.NONE, None, "the group has read all records")
    if not retention.is_deleting:
        return Forecast(Outlook.NONE, None, "the topic keeps the last record of each key")
    if before is not None and now.at_ms - before.at_ms < LEAST_OBSERVED_MS:
        before = None
    found = [
        each
        for each in (_by_time(now, before, retention), _by_size(now, before, retention))
        if each is not None
    ]
    losses = [each for each in found if each.in_ms is not None]
    if losses:
        return min(losses, key=lambda each: each.in_ms or 0)
    unknown = [each for each in found if each.outlook is Outlook.UNKNOWN]
    if unknown:
        return unknown[0]
    return found[0] if found else Forecast(Outlook.NONE, None, "the topic has no limit of time or size")


def urgency(loss: Forecast, now: Observation) -> str:
    """Returns `bad` for a loss within an hour, `warn` for one within a day, or nothing. A loss by time is not
    near while three quarters, or half, of the retention time are not over. Otherwise, each reader of a topic
    with a short retention time would seem to lose records.
    """
    if loss.in_ms is None:
        return ""
    age_ms = loss.in_ms * 4 if loss.reason != _TIME else now.lag_ms or 0
    if loss.in_ms < HOUR_MS and loss.in_ms * 3 <= age_ms:
        return "bad"
    return "warn" if loss.in_ms < DAY_MS and loss.in_ms <= age_ms else ""


def _by_time(now: Observation, before: Observation | None, retention: Retention) -> Forecast | None:
    """Returns the forecast from retention.ms, None if the topic has no such limit.

    The lag in time grows by a second in a second, minus the seconds of records that the group reads in it.
    """
    if retention.retention_ms == NO_LIMIT:
        return None
    if now.record_ms is None:
        return Forecast(Outlook.UNKNOWN, None, "the next record of the group was not read")
    left_ms = max(0, retention.retention_ms - (now.at_ms - now.record_ms))
    growth = 1.0
    if before is not None and before.record_ms is not None:
        growth -= (now.record_ms - before.record_ms) / (now.at_ms - before.at_ms)
    if growth <= 0 and left_ms > 0:
        return Forecast(Outlook.NONE, None, "the group reads faster than records grow old")
    return Forecast(Outlook.SOON, int(left_ms / growth) if left_ms else 0, _TIME)


def _by_size(now: Observation, before: Observation | None, retention: Retention) -> Forecast | None:
    """Returns the forecast from retention.bytes, None if the topic has no such limit.

    The bytes that the group has not read are estimated from the log's size, with records of equal size.
    """
    if retention.retention_bytes == NO_LIMIT:
        return None
    offsets = now.high_watermark - now.log_start_offset
    if now.size_bytes is None or offsets <= 0:
        return Forecast(Outlook.UNKNOWN, None, "the size of the partition is not known")
    record_bytes = now.size_bytes / offsets
    left_bytes = retention.retention_bytes - now.lag_uncommitted * record_bytes
    if left_bytes <= 0:
        return Forecast(Outlook.SOON, 0, "retention.bytes")
    growth = 0.0 if before is None else (now.lag_uncommitted - before.lag_uncommitted) * record_bytes
    if before is None or growth <= 0:
        return Forecast(Outlook.NONE, None, "the lag does not grow towards retention.bytes")
    return Forecast(Outlook.SOON, int(left_bytes * (now.at_ms - before.at_ms) / growth), "retention.bytes")


AGEING: Final = 0.8
"""The part of the retention after which a record that a group has not read counts as endangered."""
LEAST_RECENT_MS: Final = 60_000
"""The least time over which a rate of growth is measured."""


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """The offsets of a partition, and how long it keeps records.

    `recent_offset` is the first record of the last hour, which was written `recent_ms` ago; it is the log end
    if there was none. `ageing_offset` is the first record that is younger than AGEING of the retention.
    """

    log_start_offset: int
    log_end_offset: int
    recent_offset: int
    recent_ms: int
    ageing_offset: int
    last_stable_offset: int
    retention: Retention


def growth_of(offsets: LogOffsets, size_bytes: int) -> tuple[float, float]:
    """Returns (bytes per millisecond, bytes that the log can still grow), both 0 if it does not grow.

    Retention limits the size. A log that is only compacted counts as one that does not grow, because its size
    depends on its keys.
    """
    rate = _recent_rate(offsets, size_bytes)
    if not offsets.retention.is_deleting or rate <= 0:
        return 0.0, 0.0
    limits = [float("inf")]
    if offsets.retention.retention_ms >= 0:
        limits.append(rate * offsets.retention.retention_ms)
    if offsets.retention.retention_bytes >= 0:
        limits.append(offsets.retention.retention_bytes)
    room = max(0.0, min(limits) - size_bytes)
    return (rate, room) if room else (0.0, 0.0)


def _recent_rate(offsets: LogOffsets, size_bytes: int) -> float:
    """Returns the bytes per millisecond of the last hour, 0 if they are unknown.

    Each record of the hour counts with the average size of the log's records.
    """
    records = offsets.log_end_offset - offsets.log_start_offset
    recent = offsets.log_end_offset - max(offsets.recent_offset, offsets.log_start_offset)
    if records <= 0 or offsets.recent_ms < LEAST_RECENT_MS:
        return 0.0
    return recent * size_bytes / records / offsets.recent_ms


def full_in_ms(usable_bytes: int, growths: Iterable[tuple[float, float]]) -> float | None:
    """Returns when logs that grow at a rate until their room ends use up `usable_bytes`, or None."""
    ends = sorted((room / rate, rate) for rate, room in growths if rate > 0)
    rate = sum(each for _, each in ends)
    left, at_ms = float(usable_bytes), 0.0
    for end_ms, ended in ends:
        if rate > 0 and left <= rate * (end_ms - at_ms):
            return at_ms + left / rate
        left -= rate * (end_ms - at_ms)
        rate, at_ms = rate - ended, end_ms
    return None


def left_to_read_ms(log: LogOffsets, position: int, size_bytes: int) -> int | None:
    """Returns the time within which the record at `position` may be deleted, None if it is in no danger."""
    if not log.retention.is_deleting or position >= log.log_end_offset:
        return None
    if log.retention.retention_ms > 0 and position < log.ageing_offset:
        return int(log.retention.retention_ms * (1 - AGEING))
    records = log.log_end_offset - log.log_start_offset
    behind = size_bytes * (log.log_end_offset - position) / records
    if log.retention.retention_bytes > 0 and behind >= AGEING * log.retention.retention_bytes:
        rate = _recent_rate(log, size_bytes)
        if rate > 0:
            return int(max(0.0, log.retention.retention_bytes - behind) / rate)
    return None
