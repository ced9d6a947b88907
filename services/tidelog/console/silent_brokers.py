"""The brokers that did not answer lately."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tidelog.model.instants import MonotonicMs

SILENT_MS: Final = 15_000
"""The time in which a broker that did not answer is not asked again."""


class SilentBrokers:
    """The brokers that the pages of a user leave out for a while. All pages of a user wait in one thread, so
    that a frozen broker would otherwise delay each of them by its timeout.
    """

    def __init__(self, monotonic: Callable[[], MonotonicMs]) -> None:
        self._monotonic = monotonic
        self._until_ms: dict[int, MonotonicMs] = {}

    @contextmanager
    def asking(self) -> Iterator[set[int]]:
        """Yields a set of the brokers not to ask. Those that the caller adds are left out for SILENT_MS."""
        now_ms = self._monotonic()
        self._until_ms = {each: until for each, until in self._until_ms.items() if now_ms < until}
        silent = set(self._until_ms)
        try:
            yield silent
        finally:
            until_ms = MonotonicMs(self._monotonic() + SILENT_MS)
            for each in silent - self._until_ms.keys():
                self._until_ms[each] = until_ms
