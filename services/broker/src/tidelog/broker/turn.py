"""The end of a turn of the event loop: when every socket that was readable has been read.

Answers leave then, not as they are made. A write wakes its client, which on a busy machine takes the
processor at once; so all requests that are here are served before anyone is woken. With 16 clients of one
message each that was a fifth more requests a second.

So do the wake-ups of followers: one answer brings them all that was appended in the turn, and leaves with the
other answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Flushable(Protocol):
    def flush(self) -> None: ...


class Turn:
    """What is to be done and then flushed at the end of the current turn, in order; each is flushed once
    however often it asks.
    """

    __slots__ = ("_calls", "_is_scheduled", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_scheduled = False
        self._calls: list[Callable[[], None]] = []
        self._waiting: dict[Flushable, None] = {}

    def flush_at_end(self, flushable: Flushable) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._end)
        self._waiting[flushable] = None

    def call_at_end(self, call: Callable[[], None]) -> None:
        """Before anything is flushed, also what such a call asks for in turn. What raises is reported to the
        loop's exception handler.
        """
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._end)
        self._calls.append(call)

    def _end(self) -> None:
        while self._calls:
            calls, self._calls = self._calls, []
            for call in calls:
                self._run(call)
        self._is_scheduled = False
        waiting, self._waiting = self._waiting, {}
        for flushable in waiting:
            self._run(flushable.flush)

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - a bug of one; the others' answers have to leave
            self._loop.call_exception_handler(
                {"message": "a call at the end of a turn failed", "exception": error}
            )
