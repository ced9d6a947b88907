"""The rate limit of throttled replicas: bytes per second of a broker, with one bucket per direction (KIP-73).

A topic's settings name its throttled replicas (`leader.replication.throttled.replicas`,
`follower.replication.throttled.replicas`). A broker's settings give the rates
(`leader.replication.throttled.rate`, `follower.replication.throttled.rate`). While its bucket is empty, a
leader omits throttled partitions from its responses to followers, and a follower omits them from its fetches.

Kafka measures the rate over samples of a second. A token bucket has the same mean and needs no samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tidelog.kernel.instants import MonotonicMs

if TYPE_CHECKING:
    from tidelog.broker.hosting.replica import Replica
    from tidelog.kernel.timer import Timer
    from tidelog.settings.broker_settings import BrokerSettings

UNLIMITED: Final = 2**63 - 1
"""The default of both rates, which throttles nothing."""
BURST_MS: Final = 1_000
"""Tokens that are not used within this time are lost, so a burst has at most the bytes of one second."""
_ALL: Final = "*"
_START_MS: Final = MonotonicMs(0)


class ReplicationThrottle:
    """A token bucket of bytes. Its level can be negative, because a response is counted afterwards."""

    __slots__ = ("_bytes_left", "_rate", "_updated_ms", "is_limited")

    def __init__(self, bytes_per_s: int = UNLIMITED, *, now_ms: MonotonicMs = _START_MS) -> None:
        self._rate = UNLIMITED
        self._bytes_left = 0.0
        self._updated_ms = now_ms
        self.is_limited = False
        """Whether there is a limit. If not, callers need not use the other methods."""
        self.set_rate(bytes_per_s, now_ms)

    def set_rate(self, bytes_per_s: int, now_ms: MonotonicMs) -> None:
        """Changes the rate; 0 stops throttled replicas. Limits debt and saved tokens to the new burst."""
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

    def spend(self, size_bytes: int, now_ms: MonotonicMs) -> None:
        """Takes tokens for `size_bytes` of throttled replicas that were copied."""
        if self.is_limited:
            self._refill(now_ms)
            self._bytes_left -= size_bytes

    def is_exceeded(self, now_ms: MonotonicMs) -> bool:
        """Returns whether throttled replicas must wait."""
        return self.wait_ms(now_ms) > 0

    def wait_ms(self, now_ms: MonotonicMs) -> int:
        """Returns how long throttled replicas must wait, 0 if they need not. Returns at most BURST_MS: the
        caller then asks again, because the rate may have changed.
        """
        if not self.is_limited:
            return 0
        self._refill(now_ms)
        if self._bytes_left > 0:
            return 0
        if not self._rate:
            return BURST_MS
        return max(1, min(BURST_MS, math.ceil((1 - self._bytes_left) * 1000 / self._rate)))

    def _refill(self, now_ms: MonotonicMs) -> None:
        elapsed_ms = max(0, now_ms - self._updated_ms)
        self._updated_ms = now_ms
        self._bytes_left = min(self._bytes_left + self._rate * elapsed_ms / 1000, self._burst_of(self._rate))

    @staticmethod
    def _burst_of(bytes_per_s: int) -> float:
        return bytes_per_s * BURST_MS / 1000


class LeaderThrottle:
    """Limits the throttled replicas that this broker, as their leader, sends to followers."""

    def __init__(self, settings: BrokerSettings, timer: Timer) -> None:
        self._broker_id = settings.node_id
        self._timer = timer
        self._bucket = ReplicationThrottle(
            settings.leader_replication_throttled_rate, now_ms=timer.monotonic_ms()
        )

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Takes the new rate of `leader.replication.throttled.rate`."""
        self._bucket.set_rate(settings.leader_replication_throttled_rate, self._timer.monotonic_ms())

    def must_wait(self, replica: Replica, follower_id: int) -> bool:
        """Returns whether no records of this partition may be sent to the follower now. A follower in the
        ISR never waits.
        """
        return (
            self._bucket.is_limited
            and follower_id not in replica.core.in_sync_replicas
            and self._is_listed(replica)
            and self._bucket.is_exceeded(self._timer.monotonic_ms())
        )

    def sent(self, replica: Replica, size_bytes: int) -> None:
        """Counts bytes of this partition that go to a follower."""
        if self._bucket.is_limited and self._is_listed(replica):
            self._bucket.spend(size_bytes, self._timer.monotonic_ms())

    def _is_listed(self, replica: Replica) -> bool:
        listed = replica.settings.leader_replication_throttled_replicas
        return is_throttled(listed, replica.topic_partition.partition, self._broker_id)


def is_throttled(throttled_replicas: Iterable[str], partition: int, broker_id: int) -> bool:
    """Returns whether a topic's setting names this replica. `*` names all replicas; other entries are
    `partition:broker`.
    """
    wanted = f"{partition}:{broker_id}"
    return any(entry in (_ALL, wanted) for entry in throttled_replicas)
