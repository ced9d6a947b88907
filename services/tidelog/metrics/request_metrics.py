"""What is counted about requests: how many, how long they took, how much was answered.

On the hot path these are plain integers in slotted objects; quantiles and histogram buckets are worked out
when somebody scrapes them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

# Durations are counted in buckets of a quarter octave of microseconds: at most a quarter wide, an eighth off.
_SUB_BUCKET_BITS = 2
_BUCKET_COUNT = 64 << _SUB_BUCKET_BITS
_US_PER_S = 1_000_000


def _upper_bound_us(index: int) -> int:
    """The first microsecond behind bucket `index`."""
    bits, part = index >> _SUB_BUCKET_BITS, index & 3
    if bits == 0:
        return 1
    return ((5 + part << bits) + 7) >> 3


_UPPER_BOUNDS_US = tuple(_upper_bound_us(index) for index in range(_BUCKET_COUNT))


class Durations:
    """How often something was done and how long it took."""

    __slots__ = ("_buckets", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self._buckets = [0] * _BUCKET_COUNT

    def took(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        us = int(seconds * 1_000_000)
        bits = us.bit_length()
        self._buckets[bits << 2 | (us << 3 >> bits & 3)] += 1

    def bucket_counts(self) -> tuple[int, ...]:
        return tuple(self._buckets)


class RequestMetrics(Durations):
    """The requests of one version of one API; `waits` of those that had to wait for others before they could
    be answered.
    """

    __slots__ = ("response_bytes", "version", "waits")

    def __init__(self, version: int) -> None:
        super().__init__()
        self.version = version
        self.response_bytes = 0
        self.waits = Durations()

    def observe(self, seconds: float, response_bytes: int) -> None:
        """One request, `seconds` from its arrival to its answer; called for every request there is."""
        self.count += 1
        self.seconds += seconds
        self.response_bytes += response_bytes
        us = int(seconds * 1_000_000)
        bits = us.bit_length()
        self._buckets[bits << 2 | (us << 3 >> bits & 3)] += 1


class LatencyWindow:
    """Quantiles over the last one to two minutes of durations that are counted elsewhere, ever growing.

    Kafka weighs its durations towards the last five minutes; here the window turns over when it is looked
    at and a minute has passed, which needs nothing on the hot path.
    """

    __slots__ = ("_newer", "_older", "_turned_at_ms")

    TURN_MS = 60_000

    def __init__(self) -> None:
        self._older: Sequence[int] = (0,) * _BUCKET_COUNT
        self._newer: Sequence[int] = self._older
        self._turned_at_ms: int | None = None

    def recent(self, counts: Sequence[int], now_ms: int) -> list[int]:
        """What of `counts`, the totals by bucket so far, lies in the window; `now_ms` is monotonic."""
        if self._turned_at_ms is None:
            self._turned_at_ms = now_ms
        elif now_ms - self._turned_at_ms >= self.TURN_MS:
            self._older, self._newer = self._newer, tuple(counts)
            self._turned_at_ms = now_ms
        return [now - before for now, before in zip(counts, self._older, strict=True)]


def add_up(columns: Iterable[Sequence[int]]) -> list[int]:
    """Bucket counts of several versions as one."""
    return [sum(column) for column in zip(*columns, strict=True)]


def quantile_ms(counts: Sequence[int], quantile: float) -> float:
    """The duration that a share of `quantile` doesn't exceed, in milliseconds; 0 if nothing was counted."""
    total = sum(counts)
    if total == 0:
        return 0.0
    rank = quantile * total
    seen = 0
    for index, count in enumerate(counts):
        seen += count
        if count and seen >= rank:
            upper_us = _UPPER_BOUNDS_US[index]
            lower_us = _UPPER_BOUNDS_US[index - 1] if index else 0
            return (lower_us + upper_us) / 2 / 1000
    raise AssertionError("a rank above the total")


def cumulative_counts(counts: Sequence[int], bounds_s: Sequence[float]) -> list[int]:
    """How many durations were at most each of `bounds_s`, to a bucket's width: a Prometheus histogram."""
    cumulative = [0]
    for count in counts:
        cumulative.append(cumulative[-1] + count)
    return [cumulative[bisect_right(_UPPER_BOUNDS_US, round(bound * _US_PER_S))] for bound in bounds_s]
