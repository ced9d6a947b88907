"""The end of a turn of the event loop: when every socket that was readable has been read.

Answers leave then, not as they are made. A write wakes its client, which on a busy machine takes the
processor at once; so all requests that are here are served before anyone is woken. With 16 clients of one
message each that was a fifth more requests a second.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Flushable(Protocol):
    def flush(self) -> None: ...


class Turn:
    """What is to be flushed at the end of the current turn, in order; each is flushed once however often it
    asks.
    """

    __slots__ = ("_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Flushable, None] = {}

    def flush_at_end(self, flushable: Flushable) -> None:
        if not self._waiting:
            self._loop.call_soon(self._end)
        self._waiting[flushable] = None

    def _end(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for flushable in waiting:
            flushable.flush()
