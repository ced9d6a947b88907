"""A limit for the work of many tasks in one turn of the event loop.

Sliced work (`slices.py`) is one piece of work that pauses. Here, each piece is short, but thousands of tasks
may become ready in the same turn. They pass a budget first, which lets as many through in each turn as it
can pay for.
"""

from __future__ import annotations

import asyncio
from collections import deque


class TurnBudget:
    """At most `units` of work in one turn, where the last piece may exceed that."""

    def __init__(self, units: int) -> None:
        self._units = units
        self._left = units
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._is_renewed_soon = False

    async def take(self, units: int = 1) -> None:
        """Returns when a piece of work may begin in this turn. Those who wait begin in order."""
        if not self._is_renewed_soon:
            self._is_renewed_soon = True
            asyncio.get_running_loop().call_soon(self._renew)
        if self._left > 0 and not self._waiting:
            self._left -= units
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, units))
        await turn

    def _renew(self) -> None:
        """Begins the next turn with those who wait."""
        self._left = self._units
        while self._waiting and self._left > 0:
            turn, units = self._waiting.popleft()
            if not turn.done():  # it was cancelled
                self._left -= units
                turn.set_result(None)
        self._is_renewed_soon = self._left < self._units
        if self._is_renewed_soon:
            asyncio.get_running_loop().call_soon(self._renew)
