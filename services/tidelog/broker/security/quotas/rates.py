"""Rates over a sliding window, and the time for which a client above its limit must wait.

The rules are those of Kafka's `Rate`, `SampledStat` and `QuotaUtils`. Pure: the caller passes the time.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tidelog.kernel.instants import MonotonicMs

MS_PER_S: Final = 1000
MAX_THROTTLE_MS: Final = 2**31 - 1
"""The longest throttle time that a response can state, in ms. The time until a client is within a tiny limit
may be no finite number.
"""


class WindowedRate:
    """The rate of a quantity over the last `sample_count` samples of `sample_ms` each.

    Until `sample_count - 1` samples have passed, the rate is that over as many samples, so that the first
    requests of a client do not count as a high rate.
    """

    __slots__ = ("_min_window_ms", "_sample_count", "_sample_ms", "_samples", "_total")

    def __init__(self, sample_count: int, sample_ms: int) -> None:
        self._sample_count = sample_count
        self._sample_ms = sample_ms
        self._min_window_ms = max(sample_count - 1, 1) * sample_ms
        self._samples: deque[tuple[MonotonicMs, float]] = deque()  # the start of each sample, and its sum
        self._total = 0.0

    def record(self, value: float, now_ms: MonotonicMs) -> None:
        """Adds a value, which may be negative in order to take back an earlier one."""
        self._expire(now_ms)
        samples = self._samples
        if samples and now_ms - samples[-1][0] < self._sample_ms:
            started_ms, total = samples[-1]
            samples[-1] = (started_ms, total + value)
        else:
            samples.append((now_ms, value))
        self._total += value

    def per_s(self, now_ms: MonotonicMs) -> float:
        """Returns the rate per second."""
        self._expire(now_ms)
        return self._total * MS_PER_S / self._window_ms(now_ms)

    def seen_per_s(self, now_ms: MonotonicMs) -> float:
        """Returns the rate per second, approximately, and changes nothing. Any thread may call it."""
        samples, age_ms = tuple(self._samples), self._sample_count * self._sample_ms
        recent = [(started_ms, total) for started_ms, total in samples if now_ms - started_ms < age_ms]
        if not recent:
            return 0.0
        window_ms = max(now_ms - recent[0][0], self._min_window_ms)
        return sum(total for _, total in recent) * MS_PER_S / window_ms

    def throttle_ms(self, limit_per_s: float, now_ms: MonotonicMs) -> int:
        """Returns the time after which the rate is within the limit if nothing is recorded, 0 if it is now.
        It is at most MAX_THROTTLE_MS.

        This is `QuotaUtils.throttleTime`.
        """
        rate = self.per_s(now_ms)
        if rate <= limit_per_s:
            return 0
        return round(min((rate - limit_per_s) / limit_per_s * self._window_ms(now_ms), MAX_THROTTLE_MS))

    def is_idle(self, now_ms: MonotonicMs) -> bool:
        """Returns whether nothing was recorded within the window."""
        self._expire(now_ms)
        return not self._samples

    def _window_ms(self, now_ms: MonotonicMs) -> int:
        elapsed_ms = now_ms - self._samples[0][0] if self._samples else 0
        return max(elapsed_ms, self._min_window_ms)

    def _expire(self, now_ms: MonotonicMs) -> None:
        samples, age_ms = self._samples, self._sample_count * self._sample_ms
        while samples and now_ms - samples[0][0] >= age_ms:
            self._total -= samples.popleft()[1]
        if not samples:
            self._total = 0.0  # without the rounding errors of the sums


class MutationBucket:
    """Kafka's `TokenBucket` (KIP-599): a client may change topics while tokens are left, and the changes of
    one request may exceed them. A full bucket has the tokens of all samples.
    """

    __slots__ = ("_burst_s", "_is_new", "_tokens", "_updated_ms")

    def __init__(self, sample_count: int, sample_ms: int) -> None:
        self._burst_s = sample_count * sample_ms / MS_PER_S
        self._tokens = 0.0
        self._updated_ms = MonotonicMs(0)
        self._is_new = True

    def record(self, mutations: int, limit_per_s: float, now_ms: MonotonicMs) -> None:
        """Takes tokens for changes of that many partitions."""
        self._refill(limit_per_s, now_ms)
        self._tokens -= mutations

    def throttle_ms(self, limit_per_s: float, now_ms: MonotonicMs) -> int:
        """Returns the time after which tokens are left, 0 if there are some now. It is at most
        MAX_THROTTLE_MS.
        """
        self._refill(limit_per_s, now_ms)
        if self._tokens >= 0:
            return 0
        return round(min(-self._tokens * MS_PER_S / limit_per_s, MAX_THROTTLE_MS))

    def is_idle(self, limit_per_s: float, now_ms: MonotonicMs) -> bool:
        """Returns whether the bucket is full, so that nothing is lost if it is forgotten."""
        self._refill(limit_per_s, now_ms)
        return self._tokens >= limit_per_s * self._burst_s

    def _refill(self, limit_per_s: float, now_ms: MonotonicMs) -> None:
        full = limit_per_s * self._burst_s
        if self._is_new:
            self._is_new = False
            self._tokens = full
        else:
            self._tokens = min(self._tokens + (now_ms - self._updated_ms) * limit_per_s / MS_PER_S, full)
        self._updated_ms = now_ms
