"""Measures the delay of an event loop's callbacks and the CPU time of its thread.

To measure the wait of every request would slow down all of them. Instead, the loop schedules a callback a few
times per second and measures how late the callback runs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Final

from tidelog.metrics.telemetry import Durations

TICK_MS: Final = 100
WINDOW_MS: Final = 60_000
MIN_SHARE_INTERVAL_S: Final = 0.5
"""The share of busy time means nothing over a shorter time. Until then, the previous value is returned."""


class LoopWatch:
    """The measurements of one event loop. It is created on the loop's thread; any thread may read the
    figures.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lag = Durations()
        self._loop = loop
        self._clock_id = time.pthread_getcpuclockid(threading.get_ident())
        self._newest_max_s = self._older_max_s = 0.0
        self._turned_at_s = loop.time()
        self._seen = (time.monotonic(), self.busy_seconds)
        self._idle_share = 1.0
        self._due_s = loop.time() + TICK_MS / 1000
        self._handle = loop.call_at(self._due_s, self._tick)

    def close(self) -> None:
        self._handle.cancel()

    def _tick(self) -> None:
        now_s = self._loop.time()
        lag_s = max(0.0, now_s - self._due_s)
        self.lag.took(lag_s)
        if now_s - self._turned_at_s >= WINDOW_MS / 1000:
            self._older_max_s, self._newest_max_s = self._newest_max_s, 0.0
            self._turned_at_s = now_s
        self._newest_max_s = max(self._newest_max_s, lag_s)
        self._due_s = now_s + TICK_MS / 1000
        self._handle = self._loop.call_at(self._due_s, self._tick)

    @property
    def max_lag_s(self) -> float:
        """Returns the greatest delay of the last one to two minutes."""
        return max(self._newest_max_s, self._older_max_s)

    @property
    def busy_seconds(self) -> float:
        """Returns the CPU time of the loop's thread."""
        return time.clock_gettime(self._clock_id)

    def idle_share(self) -> float:
        """Returns the share of the time since the last call in which the loop's thread used no CPU."""
        now_s, busy_s = time.monotonic(), self.busy_seconds
        before_s, busy_before_s = self._seen
        if now_s - before_s >= MIN_SHARE_INTERVAL_S:
            self._idle_share = min(1.0, max(0.0, 1 - (busy_s - busy_before_s) / (now_s - before_s)))
            self._seen = now_s, busy_s
        return self._idle_share
