"""The time before a retry. It doubles with each attempt and varies by a fifth (KIP-580)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

JITTER: Final = 0.2
_MOST_DOUBLINGS: Final = 30


class RetryBackoff:
    def __init__(self, first_ms: int, most_ms: int, jitter: Callable[[], float]) -> None:
        """`jitter()` returns a random number between 0 and 1."""
        self._first_ms = first_ms
        self._most_ms = most_ms
        self._jitter = jitter

    def delay_ms(self, attempts: int) -> int:
        """Returns the delay after `attempts` failed attempts, of which the first is 1."""
        delay_ms = self._first_ms * 2 ** min(max(attempts - 1, 0), _MOST_DOUBLINGS)
        delay_ms = min(delay_ms, max(self._most_ms, self._first_ms))
        return int(delay_ms * (1 - JITTER + 2 * JITTER * self._jitter()))
