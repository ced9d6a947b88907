"""The clock of a cluster under test, and an event loop that follows it."""

from __future__ import annotations

import asyncio

from tidelog.kernel.clock import SystemClock
from tidelog.kernel.instants import MonotonicMs, WallMs

_MS_PER_S = 1000


class MovableClock:
    """The machine's clocks, moved forward by `offset_ms`."""

    __slots__ = ("_system", "offset_ms")

    def __init__(self) -> None:
        self._system = SystemClock()
        self.offset_ms: int = 0

    def wall_ms(self) -> WallMs:
        return WallMs(self._system.wall_ms() + self.offset_ms)

    def monotonic_ms(self) -> MonotonicMs:
        return MonotonicMs(self._system.monotonic_ms() + self.offset_ms)


class MovableLoop(asyncio.SelectorEventLoop):
    """An event loop on a movable clock: a move runs all timers that have become due.

    It is asyncio's own loop, because uvloop's clock cannot be moved.
    """

    def __init__(self, clock: MovableClock) -> None:
        super().__init__()
        self._movable_clock = clock

    def time(self) -> float:
        return super().time() + self._movable_clock.offset_ms / _MS_PER_S
