"""The clocks that shells read. Cores never read a clock; they receive the time as an argument."""

from __future__ import annotations

import time
from typing import Protocol

from tidelog.model.instants import MonotonicMs, WallMs

_NS_PER_MS = 1_000_000
_MANUAL_WALL_MS = WallMs(1_700_000_000_000)
_MANUAL_MONOTONIC_MS = MonotonicMs(0)


class Clock(Protocol):
    """A process's two clocks."""

    def wall_ms(self) -> WallMs:
        """Returns the time of day, for record timestamps and retention."""

    def monotonic_ms(self) -> MonotonicMs:
        """Returns the time for deadlines and intervals."""


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def wall_ms(self) -> WallMs:
        return WallMs(time.time_ns() // _NS_PER_MS)

    def monotonic_ms(self) -> MonotonicMs:
        return MonotonicMs(time.monotonic_ns() // _NS_PER_MS)


class ManualClock:
    """A clock that only a test or the simulator moves. Its wall clock can be skewed."""

    __slots__ = ("_monotonic_ms", "_wall_ms")

    def __init__(
        self, wall_ms: WallMs = _MANUAL_WALL_MS, monotonic_ms: MonotonicMs = _MANUAL_MONOTONIC_MS
    ) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms

    def wall_ms(self) -> WallMs:
        return self._wall_ms

    def monotonic_ms(self) -> MonotonicMs:
        return self._monotonic_ms

    def advance(self, elapsed_ms: int) -> None:
        """Moves both clocks forward by `elapsed_ms`. Raises ValueError if `elapsed_ms` is negative."""
        if elapsed_ms < 0:
            raise ValueError(f"time can't go back by {-elapsed_ms} ms; set_wall skews the wall clock")
        self._wall_ms = WallMs(self._wall_ms + elapsed_ms)
        self._monotonic_ms = MonotonicMs(self._monotonic_ms + elapsed_ms)

    def set_wall(self, wall_ms: WallMs) -> None:
        """Moves only the wall clock, as an NTP step does."""
        self._wall_ms = wall_ms
