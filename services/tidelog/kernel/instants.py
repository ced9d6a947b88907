"""Points in time, one type for each clock.

The two clocks have nothing in common: the wall clock can jump, and the monotonic clock has an arbitrary
origin. Both types are integers at run time, so they cost nothing. mypy refuses one where the other is
expected.
"""

from __future__ import annotations

from typing import Final, NewType

WallMs = NewType("WallMs", int)
"""Milliseconds since 1970-01-01 UTC on the wall clock: record timestamps and retention."""

MonotonicMs = NewType("MonotonicMs", int)
"""Milliseconds on a clock that never goes back and has an arbitrary origin: deadlines and intervals."""

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS


def is_over(since_ms: WallMs | int, duration_ms: int, now_ms: WallMs) -> bool:
    """Returns whether a period of the wall clock is over. It also is if the clock was set back before its
    beginning, so that the period cannot become hours longer.
    """
    return not 0 <= now_ms - since_ms < duration_ms
