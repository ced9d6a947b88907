"""How fast throttled replicas may be copied: bytes a second of a broker, one bucket a direction (KIP-73).

Pure: time comes in. Which replicas are throttled is a topic's setting
(`leader.replication.throttled.replicas`, `follower.replication.throttled.replicas`), the rate a broker's
(`leader.replication.throttled.rate`, `follower.replication.throttled.rate`). A leader leaves throttled
partitions out of a follower's fetch answer while its bucket is empty; a follower leaves them out of its
fetches.

Kafka measures the rate over samples of a second; a bucket has the same mean and no windows to keep.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

UNLIMITED: Final = 2**63 - 1
"""The default of both rates: nothing is throttled."""
BURST_MS: Final = 1_000
"""What was not used within this time is lost: a second's worth at most is copied at once."""
_ALL: Final = "*"


class ReplicationThrottle:
    """A token bucket of bytes. It may run into debt, as an answer's size is known only once it is there."""

    __slots__ = ("_bytes_left", "_rate", "_updated_ms", "is_limited")

    def __init__(self, bytes_per_s: int = UNLIMITED, *, now_ms: int = 0) -> None:
        self._rate = UNLIMITED
        self._bytes_left = 0.0
        self._updated_ms = now_ms
        self.is_limited = False
        """False: nothing need be asked or told."""
        self.set_rate(bytes_per_s, now_ms)

    def set_rate(self, bytes_per_s: int, now_ms: int) -> None:
        """0 stops throttled replicas altogether. Debt and savings are kept, within the new burst."""
        if bytes_per_s == self._rate:
            return
        if self.is_limited:
            self._refill(now_ms)
        else:
            self._bytes_left = self._burst_of(bytes_per_s)
        self._rate = bytes_per_s
        self._updated_ms = now_ms
        self._bytes_left = min(self._bytes_left, self._burst_of(bytes_per_s))
        self.is_limited = bytes_per_s != UNLIMITED

    def spend(self, size_bytes: int, now_ms: int) -> None:
        """`size_bytes` of throttled replicas were copied."""
        if self.is_limited:
            self._refill(now_ms)
            self._bytes_left -= size_bytes

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether throttled replicas have to wait."""
        return self.wait_ms(now_ms) > 0

    def wait_ms(self, now_ms: int) -> int:
        """Until throttled replicas may go on; 0 if they may now. At most BURST_MS: ask again then, as the
        rate may have changed.
        """
        if not self.is_limited:
            return 0
        self._refill(now_ms)
        if self._bytes_left > 0:
            return 0
        if not self._rate:
            return BURST_MS
        return max(1, min(BURST_MS, math.ceil((1 - self._bytes_left) * 1000 / self._rate)))

    def _refill(self, now_ms: int) -> None:
        elapsed_ms = max(0, now_ms - self._updated_ms)
        self._updated_ms = now_ms
        self._bytes_left = min(self._bytes_left + self._rate * elapsed_ms / 1000, self._burst_of(self._rate))

    @staticmethod
    def _burst_of(bytes_per_s: int) -> float:
        return bytes_per_s * BURST_MS / 1000


def is_throttled(throttled_replicas: Iterable[str], partition: int, broker_id: int) -> bool:
    """Whether a topic's setting names this replica: `*` means all, else entries `partition:broker`."""
    wanted = f"{partition}:{broker_id}"
    return any(entry in (_ALL, wanted) for entry in throttled_replicas)
