"""Work on the event loop that lets other clients have their turns.

One piece of long work runs in slices, and other clients wait for no more than one slice. Most work ends
within its first slice and costs little. A `TurnBudget` is for thousands of short pieces that may become ready
in the same turn: it lets as many through in each turn as it can pay for. A `TaskSet` has tasks that nobody
awaits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final
from weakref import WeakKeyDictionary

from tidelog.kernel.steps import Steps, T

SLICE_MS: Final = 10
"""The longest time for which sliced work holds the event loop at once."""
TURNS_OF_OTHERS: Final = 8
"""The turns of the event loop between two slices. The usual request takes up to five turns, with those of the
coordinator of its group, and meets one slice or two instead of one in each of its turns.
"""

STEPS_BETWEEN_READINGS: Final = 16
"""The number of steps between two readings of the clock. Shorter work always ends in one slice."""

Seconds = Callable[[], float]
"""A monotonic clock."""

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
"""The lock of each loop whose holder may run slices. Only one long work runs at a time, so that many clients
with large requests do not hold the loop for one slice each.
"""


class _Unfinished:
    """The result of a slice after which the work is not done."""


_UNFINISHED: Final = _Unfinished()


def in_slices(steps: Steps[T], seconds: Seconds = monotonic) -> T | Coroutine[object, None, T]:
    """Runs the first slice at once. Returns the result, or a coroutine that does the rest."""
    result = _slice(steps, seconds)
    return finish(steps, seconds) if isinstance(result, _Unfinished) else result


async def finish(steps: Steps[T], seconds: Seconds = monotonic) -> T:
    """Runs all the work, with turns of the event loop before each slice."""
    loop = asyncio.get_running_loop()
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = asyncio.Lock()
    async with turn:
        while True:
            for _ in range(TURNS_OF_OTHERS):
                await asyncio.sleep(0)
            result = _slice(steps, seconds)
            if not isinstance(result, _Unfinished):
                return result


async def run_in_slices(steps: Steps[T], seconds: Seconds = monotonic) -> T:
    """Runs all the work, the first slice at once."""
    result = _slice(steps, seconds)
    return await finish(steps, seconds) if isinstance(result, _Unfinished) else result


def _slice(steps: Steps[T], seconds: Seconds) -> T | _Unfinished:
    until = seconds() + SLICE_MS / 1000
    try:
        while True:
            for _ in range(STEPS_BETWEEN_READINGS):
                next(steps)
            if seconds() >= until:
                return _UNFINISHED
    except StopIteration as ended:
        result: T = ended.value
        return result


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


class TaskSet(set[asyncio.Task[T]]):
    """Keeps tasks that nobody awaits, each of them until it ends. The event loop has only weak references to
    its tasks, so they could be collected as garbage.
    """

    def start(
        self,
        work: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> asyncio.Task[T]:
        """Begins a task on `loop`, which is the running loop by default, and keeps it."""
        return self.keep((loop or asyncio.get_running_loop()).create_task(work, name=name))

    def keep(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        """Keeps a task until it ends, and returns it."""
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    def cancel(self) -> None:
        """Cancels all tasks. They end later."""
        for task in tuple(self):
            task.cancel()
