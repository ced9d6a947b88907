"""Limits how often logins may fail, so that nobody can try many passwords.

Each limit is a bucket: a failed login adds one to it, and it loses one in each interval. A full bucket
refuses logins.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from tidelog.kernel.instants import MonotonicMs

Source = tuple[str, str]
"""The address from which a login comes, and the name of the user."""

MAX_OF_A_SOURCE: Final = 5
INTERVAL_OF_A_SOURCE_MS: Final = 30_000
MAX_OF_ALL: Final = 60
INTERVAL_OF_ALL_MS: Final = 1_000
MAX_SOURCES: Final = 1_024
"""The most sources that are remembered. The one that failed longest ago is forgotten first."""


@dataclass(slots=True)
class _Bucket:
    size: int
    interval_ms: int
    level: float = 0.0
    at_ms: int = 0

    def wait_ms(self, now_ms: MonotonicMs) -> int:
        """Returns the time until the bucket takes one more, 0 if it does now."""
        self.level = max(0.0, self.level - (now_ms - self.at_ms) / self.interval_ms)
        self.at_ms = now_ms
        return max(0, round((self.level + 1 - self.size) * self.interval_ms))


class FailedLogins:
    """The failed logins of each source and of all together."""

    def __init__(self) -> None:
        self._all = _Bucket(MAX_OF_ALL, INTERVAL_OF_ALL_MS)
        self._sources: OrderedDict[Source, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sources)

    def begin(self, source: Source, now_ms: MonotonicMs) -> int:
        """Returns 0 if a login may be tried, or the time to wait in milliseconds. A login that may be tried
        counts as failed until `did_not_fail`, so that logins at the same time are limited, too.
        """
        bucket = self._sources.get(source)
        if bucket is None:
            bucket = _Bucket(MAX_OF_A_SOURCE, INTERVAL_OF_A_SOURCE_MS)
        wait_ms = max(self._all.wait_ms(now_ms), bucket.wait_ms(now_ms))
        if wait_ms:
            return wait_ms
        self._all.level += 1
        bucket.level += 1
        self._sources[source] = bucket
        self._sources.move_to_end(source)
        if len(self._sources) > MAX_SOURCES:
            self._sources.popitem(last=False)
        return 0

    def did_not_fail(self, source: Source) -> None:
        """Takes one login back: it succeeded, or the cluster did not answer."""
        self._all.level = max(0.0, self._all.level - 1)
        bucket = self._sources.get(source)
        if bucket is not None:
            bucket.level = max(0.0, bucket.level - 1)
            if not bucket.level:
                del self._sources[source]
