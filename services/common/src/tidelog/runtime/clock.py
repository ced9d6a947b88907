"""Where time comes from: an argument for the cores, this for the shells around them."""

from __future__ import annotations

import time
from typing import Protocol

_NS_PER_MS = 1_000_000


class Clock(Protocol):
    """Two clocks in milliseconds; neither is ever read inside a pure core."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970: record timestamps and retention."""

    def monotonic_ms(self) -> int:
        """Never goes back, arbitrary origin: deadlines and intervals."""


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // _NS_PER_MS

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // _NS_PER_MS


class ManualClock:
    """A clock that stands still until a test or the simulator moves it; wall and monotonic can be skewed
    apart.
    """

    __slots__ = ("_monotonic_ms", "_wall_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000, monotonic_ms: int = 0) -> None:
        self._wall_ms = now_ms
        self._monotonic_ms = monotonic_ms

    def now_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, elapsed_ms: int) -> None:
        """Both clocks go on by `elapsed_ms`, which can't be negative."""
        if elapsed_ms < 0:
            raise ValueError(f"time can't go back by {-elapsed_ms} ms; set_wall skews the wall clock")
        self._wall_ms += elapsed_ms
        self._monotonic_ms += elapsed_ms

    def set_wall(self, now_ms: int) -> None:
        """The wall clock alone jumps, as after an NTP step."""
        self._wall_ms = now_ms
