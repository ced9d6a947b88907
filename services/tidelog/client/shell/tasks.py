"""The tasks that carry out a core's effects, in the process in which they were made."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn

from tidelog.client.errors import ClosedError
from tidelog.kernel.slices import TaskSet

logger: Final = logging.getLogger("tidelog.client")
CALLED_IN_CALLBACK: Final = (
    "a rebalance callback can't call poll, unsubscribe or close of its consumer, because they wait for the "
    "callback: call them after it has ended"
)


def now_ms() -> int:
    """Returns the monotonic clock in milliseconds."""
    return time.monotonic_ns() // 1_000_000


class CoreTasks:
    """Runs the requests that a core asks for, and wakes the core in time.

    `loop` is None before `start`. Nothing is woken after `stop`.
    """

    def __init__(self, subject: str, wake: Callable[[], None]) -> None:
        """`subject` names the client in the log."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._subject = subject
        self._wake = wake
        self._is_stopped = False
        self._tasks: TaskSet[None] = TaskSet()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Takes the running event loop."""
        self.loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        """Cancels the timer and all tasks, and waits for their end."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._tasks.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a request as a task. Its failure is logged, because nobody awaits it."""
        assert self.loop is not None
        self._tasks.start(work, loop=self.loop).add_done_callback(self._ended)

    def wake_in(self, wait_ms: int | None) -> None:
        """Wakes the core in `wait_ms` milliseconds, or not at all.

        It replaces a later time, and leaves an earlier one: a core that is woken too early only says when to
        wake it again. Most times move on with each poll, and another timer for each costs more than that.
        """
        if wait_ms is None or self.loop is None or self._is_stopped:
            return
        due_s = self.loop.time() + wait_ms / 1000
        if self._timer is not None:
            if self._timer.when() <= due_s:
                return
            self._timer.cancel()
        self._timer = self.loop.call_at(due_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self._wake()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            logger.error("a request of the %s failed", self._subject, exc_info=task.exception())


class HomeProcess:
    """The process that made a client."""

    def __init__(self, subject: str) -> None:
        """`subject` names the client in errors."""
        self._subject: Final = subject
        self._pid: Final = os.getpid()

    def __reduce__(self) -> NoReturn:
        """Raises TypeError, for all clients that have one."""
        raise TypeError(
            f"the {self._subject} belongs to process {self._pid} and cannot be pickled: make another one "
            "in the other process"
        )

    @property
    def is_current(self) -> bool:
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raises ClosedError in a forked child."""
        if not self.is_current:
            raise self.error()

    def error(self) -> ClosedError:
        return ClosedError(
            f"the {self._subject} belongs to process {self._pid} and cannot be used in its forked child "
            f"{os.getpid()}: make another one in the child"
        )
