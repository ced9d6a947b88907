"""The brokers that did not answer lately."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from tidelog.client.errors import NoAnswerError, UnreachableError
from tidelog.kernel.instants import MonotonicMs

SILENT_MS: Final = 15_000
"""The time in which a broker that did not answer is not asked again."""
MAX_ASKED: Final = 2
"""The most brokers that are asked in turn for one answer, because each of them can take the whole timeout."""

T = TypeVar("T")


class SilentBrokers:
    """The brokers that the pages of a user leave out for a while. All pages of a user wait in one thread, so
    that a frozen broker would otherwise delay each of them by its timeout. Searches wait in other threads.
    """

    def __init__(self, monotonic: Callable[[], MonotonicMs]) -> None:
        self._monotonic = monotonic
        self._until_ms: dict[int, MonotonicMs] = {}
        self._lock = threading.Lock()

    @contextmanager
    def asking(self) -> Iterator[set[int]]:
        """Yields a set of the brokers not to ask. Those that the caller adds are left out for SILENT_MS."""
        with self._lock:
            now_ms = self._monotonic()
            self._until_ms = {each: until for each, until in self._until_ms.items() if now_ms < until}
            before = frozenset(self._until_ms)
        silent = set(before)
        try:
            yield silent
        finally:
            with self._lock:
                until_ms = MonotonicMs(self._monotonic() + SILENT_MS)
                self._until_ms.update(dict.fromkeys(silent - before, until_ms))


def ask_one(broker_ids: Collection[int], silent: set[int], ask: Callable[[int], T]) -> tuple[int, T]:
    """Returns the first of these brokers that answers, and its answer. Brokers in `silent` are not asked, and
    those that do not answer join them.

    Raises what `ask` raises, and NoAnswerError if no broker may be asked.
    """
    asked = [each for each in broker_ids if each not in silent][:MAX_ASKED]
    for number, broker_id in enumerate(asked, 1):
        try:
            return broker_id, ask(broker_id)
        except (NoAnswerError, UnreachableError):
            silent.add(broker_id)
            if number == len(asked):
                raise
    brokers = ", ".join(map(str, broker_ids))
    raise NoAnswerError(
        f"no answer from {'broker' if len(broker_ids) == 1 else 'the brokers'} {brokers} lately"
    )
