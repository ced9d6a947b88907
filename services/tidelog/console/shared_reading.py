"""Readings that all viewers of a page share: at most one in an interval, and none if nobody looks."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from tidelog.client.errors import ClientError
from tidelog.console.core.permissions import is_denial, is_not_found
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.model.errors import KafkaError

MAX_SUBJECTS: Final = 512
"""The most readings that are kept. The one that was looked at longest ago is forgotten first."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """A value with the time of its reading. After a failure, it is the last value, or None, and the error.
    The value is None after an error that says that it no longer exists or may not be seen.
    """

    value: T | None
    read_at_ms: WallMs | None
    error: ClientError | KafkaError | None


class _Subject:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.reading: Reading[Any] = Reading(None, None, None)
        self.due_ms: MonotonicMs | None = None


class SharedReadings:
    """The latest readings, by subject."""

    def __init__(
        self,
        interval_ms: int,
        run: Callable[[Callable[[], Any]], Awaitable[Any]],
        wall: Callable[[], WallMs],
        monotonic: Callable[[], MonotonicMs],
        *,
        max_subjects: int = MAX_SUBJECTS,
    ) -> None:
        """`run` runs a blocking call elsewhere and returns its result."""
        self._max_subjects = max_subjects
        self.interval_ms = interval_ms
        self._run = run
        self._wall = wall
        self._monotonic = monotonic
        self._subjects: OrderedDict[Hashable, _Subject] = OrderedDict()

    def __len__(self) -> int:
        return len(self._subjects)

    async def get(self, subject: Hashable, read: Callable[[], T]) -> Reading[T]:
        """Returns the reading of a subject, and reads it first if the last one is older than the interval.

        Viewers that ask at the same time wait for the same reading. Errors are kept for an interval, too, so
        that a broker that is in trouble is not asked more often than one that is well.
        """
        entry = self._subjects.setdefault(subject, _Subject())
        self._subjects.move_to_end(subject)
        if len(self._subjects) > self._max_subjects:
            self._subjects.popitem(last=False)
        async with entry.lock:
            if entry.due_ms is None or self._monotonic() >= entry.due_ms:
                entry.due_ms = MonotonicMs(self._monotonic() + self.interval_ms)
                before = entry.reading
                try:
                    entry.reading = Reading(await self._run(read), self._wall(), None)
                except (ClientError, KafkaError) as error:
                    if is_denial(error) or is_not_found(error):
                        before = Reading(None, None, None)
                    entry.reading = Reading(before.value, before.read_at_ms, error)
            return entry.reading
