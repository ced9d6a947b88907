"""When a consumer requests metadata: after errors with pauses that grow, and when they are old."""

from __future__ import annotations

from tidelog.client.core.retry_backoff import RetryBackoff


class MetadataSchedule:
    """One request is under way at a time. Times are milliseconds of a monotonic clock."""

    def __init__(self, backoff: RetryBackoff, max_age_ms: int) -> None:
        self.is_needed: bool = False
        self._backoff = backoff
        self._max_age_ms = max_age_ms
        self._is_requested = False
        self._attempts = 0
        self._not_before_ms = 0
        self._expires_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        """Returns whether to send a request now, which then counts as sent."""
        if self._expires_ms is not None and now_ms >= self._expires_ms:
            self._expires_ms = None
            self.is_needed = True
        if not self.is_needed or self._is_requested or now_ms < self._not_before_ms:
            return False
        self._is_requested = True
        return True

    def next_wake_ms(self) -> int | None:
        """Returns the next time at which `is_due` may return True, if no event comes before."""
        times = [] if self._expires_ms is None else [self._expires_ms]
        if self.is_needed and not self._is_requested:
            times.append(self._not_before_ms)
        return min(times, default=None)

    def received(self, is_incomplete: bool, now_ms: int) -> None:
        """A response arrived. If it lacks something, another request follows."""
        self._is_requested = False
        self._expires_ms = now_ms + self._max_age_ms
        if is_incomplete:
            self._retry(now_ms)
        else:
            self.is_needed = False
            self._attempts = 0
            self._not_before_ms = now_ms + self._backoff.delay_ms(1)

    def failed(self, now_ms: int) -> None:
        """No broker answered."""
        self._is_requested = False
        self._retry(now_ms)

    def _retry(self, now_ms: int) -> None:
        self.is_needed = True
        self._attempts += 1
        self._not_before_ms = now_ms + self._backoff.delay_ms(self._attempts)
