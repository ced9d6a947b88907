"""The clocks that shells read. Cores never read a clock; they receive the time as an argument."""

from __future__ import annotations

import time
from typing import Final, Protocol

import structlog

from tidelog.kernel.instants import MonotonicMs, WallMs

SLEW_DIVISOR: Final = 10
"""The clock runs at most a tenth faster or slower than the monotonic clock: 6 hours take 60 hours."""
JUMP_MS: Final = 60_000
"""A difference from the wall clock that is reported."""
REPORT_INTERVAL_MS: Final = 3_600_000
FIRST_CREDIBLE_MS: Final = WallMs(1_577_836_800_000)
"""2020-01-01. A machine that starts without a clock is before it, and its first correction is adopted."""
_NS_PER_MS = 1_000_000
_MANUAL_WALL_MS = WallMs(1_700_000_000_000)
_MANUAL_MONOTONIC_MS = MonotonicMs(0)

_log = structlog.get_logger(__name__)


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


class SteadyClock:
    """Follows another clock's time of day gradually after a step, for decisions that cannot be undone.

    A step of the wall clock by hours must not delete records or abort transactions. Timestamps of records
    and the expiry of credentials follow the wall clock itself. A new object agrees with the other clock.
    Only one thread may use an object.
    """

    __slots__ = ("_clock", "_offset_ms", "_reported_ms", "_slewed_until_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slewed_until_ms = clock.monotonic_ms()
        self._offset_ms = clock.wall_ms() - self._slewed_until_ms
        self._reported_ms: int | None = None

    def monotonic_ms(self) -> MonotonicMs:
        return self._clock.monotonic_ms()

    def wall_ms(self) -> WallMs:
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
        ahead_ms = wall_ms - now_ms - self._offset_ms
        if not ahead_ms:
            self._slewed_until_ms = now_ms
        elif now_ms + self._offset_ms < FIRST_CREDIBLE_MS:
            self._offset_ms += ahead_ms
        else:
            self._slew(ahead_ms, now_ms)
        return WallMs(now_ms + self._offset_ms)

    def earlier_ms(self) -> WallMs:
        """Returns the earlier of this time of day and the wall clock's, for the age of records. A record is
        old only if both clocks say so: after the wall clock was corrected backwards, new records have
        timestamps of the corrected time.
        """
        return min(self.wall_ms(), self._clock.wall_ms())

    def _slew(self, ahead_ms: int, now_ms: MonotonicMs) -> None:
        limit_ms = (now_ms - self._slewed_until_ms) // SLEW_DIVISOR
        self._slewed_until_ms = MonotonicMs(self._slewed_until_ms + limit_ms * SLEW_DIVISOR)
        self._offset_ms += max(-limit_ms, min(limit_ms, ahead_ms))
        is_reported = self._reported_ms is not None and now_ms - self._reported_ms < REPORT_INTERVAL_MS
        if abs(ahead_ms) >= JUMP_MS and not is_reported:
            self._reported_ms = now_ms
            _log.warning(
                "the wall clock jumped; retention, compaction and coordinators follow it gradually. Restart "
                "this process if they should follow at once",
                ahead_s=ahead_ms // 1000,
            )
