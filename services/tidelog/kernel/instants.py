"""Points in time, one type for each clock, and the pauses between attempts.

The two clocks have nothing in common: the wall clock can jump, and the monotonic clock has an arbitrary
origin. Both types are integers at run time, so they cost nothing. mypy refuses one where the other is
expected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple, NewType

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


JITTER: Final = 0.2
"""The part by which a pause with jitter is shorter or longer."""


class Backoff(NamedTuple):
    """The pauses after failures in a row: `first_ms` after the first one, `multiplier` times as long after
    each further one, and at most `most_ms`. With a `first_ms` of 0 there are no pauses.

    `jitter` returns a random number between 0 and 1, so that many clients do not come back at the same time.
    """

    first_ms: int
    most_ms: int
    multiplier: float = 2.0
    jitter: Callable[[], float] | None = None

    def delay_ms(self, failures: int) -> int:
        """Returns the pause after the failure with this number, which counts from 1."""
        if self.first_ms <= 0:
            return 0
        try:
            delay_ms = math.ceil(min(self.first_ms * self.multiplier ** max(failures - 1, 0), self.most_ms))
        except OverflowError:
            delay_ms = self.most_ms
        return delay_ms if self.jitter is None else int(delay_ms * (1 - JITTER + 2 * JITTER * self.jitter()))
