"""An event loop in virtual time, and the processes that run on it.

The loop never waits: if no callback is ready, the clock jumps to the next timer. There is no selector, thread
or socket. A context variable, which tasks and timers inherit, names the process of a callback. So a process
can be killed (its callbacks never run again, not even `finally` blocks, as with SIGKILL) or paused (its
callbacks wait and its timers become overdue, as with SIGSTOP).
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from asyncio import events
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Coroutine

MEAN_THREAD_DELAY_S: Final = 0.001
SLOW_THREAD_SHARE: Final = 0.02
"""The probability that work in a thread takes long, as on a disk that stalls."""
SLOW_THREAD_DELAY_S: Final = 0.7
MS_PER_S: Final = 1000
EPOCH_MS: Final = 1_700_000_000_000

MAX_STEPS_AT_ONE_TIME: Final = 100_000
"""More steps without any progress of the clock are a loop that never waits."""

PROCESS: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar("sim_process", default=None)


class SimProcess:
    """One life of a process. `service` is what runs in it. A restart makes another SimProcess."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self.wall_skew_ms = 0
        self.clock_rate = 1.0
        self.service: Any = None
        self.network: Any = None
        self.on_killed: list[Callable[[], None]] = []
        """Called when the process is killed, as its kernel ends its connections."""
        self.tasks: set[asyncio.Task[Any]] = set()
        self.held: list[events.Handle] = []
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return self.name

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.loop.create_task(work, context=self.context.copy())

    def kill(self) -> None:
        """Simulates SIGKILL. The objects of the process are kept until the simulation ends, because
        collecting them would run their `finally` blocks.
        """
        self.is_alive = False
        self.loop.graveyard.append(self)
        for call in self.on_killed:
            call()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        if not self.is_paused:
            return
        self.is_paused = False
        held, self.held = self.held, []
        self.loop.ready.extend(held)


class SimClock:
    """The clocks of a process, skewed by the faults (`tidelog.kernel.clock.Clock`)."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process

    def wall_ms(self) -> int:
        process = self._process
        return EPOCH_MS + int(process.loop.now * MS_PER_S * process.clock_rate) + process.wall_skew_ms

    def monotonic_ms(self) -> int:
        return int(self._process.loop.now * MS_PER_S)


class SimLoop(asyncio.AbstractEventLoop):
    """The part of asyncio's event loop that tasks, futures, locks, queues and timeouts need."""

    def __init__(self, chance: random.Random) -> None:
        self.now = 0.0
        self.steps = 0
        self.ready: deque[events.Handle] = deque()
        self.graveyard: list[object] = []
        self.on_step: Callable[[SimProcess | None], None] = lambda process: None
        self.connect: Callable[[Any, str], Coroutine[Any, Any, None]] | None = None
        """Connects a protocol to the process with this name."""
        self.on_problem: Callable[[dict[str, Any]], None] = lambda context: None
        self._timers: list[tuple[float, int, events.TimerHandle]] = []
        self._timer_count = 0
        self._steps_before = 0
        self._chance = chance
        self._outside = contextvars.Context()

    # -- running

    def run_until(self, is_over: Callable[[], bool]) -> None:
        """Runs until `is_over()` returns True, which is called after each callback, or until nothing is left
        to do.
        """
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            while not is_over():
                if not self.ready and not self._advance():
                    return
                self._run_one(self.ready.popleft())
        finally:
            events._set_running_loop(before)

    def _advance(self) -> bool:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            return False
        if timers[0][0] > self.now:
            self.now = timers[0][0]
            self._steps_before = self.steps
        elif self.steps - self._steps_before > MAX_STEPS_AT_ONE_TIME:
            self.on_problem({"message": f"time stands still for {timers[0][2]}"})
            return False
        while timers and timers[0][0] <= self.now:
            self.ready.append(heapq.heappop(timers)[2])
        return True

    def _run_one(self, handle: events.Handle) -> None:
        if handle.cancelled():
            return
        process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
        if process is not None:
            if not process.is_alive:
                self.graveyard.append(handle)
                return
            if process.is_paused:
                process.held.append(handle)
                return
        self.steps += 1
        handle._run()
        self.on_step(process)

    def forget(self) -> None:
        """Clears the loop, because nothing will run any more."""
        self.ready.clear()
        self._timers.clear()
        self.graveyard.clear()

    # -- the loop's interface

    def time(self) -> float:
        return self.now

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> events.TimerHandle:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            delay /= process.clock_rate  # timers of a fast clock fire early
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> events.TimerHandle:
        handle = events.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def call_outside(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> events.TimerHandle:
        """Schedules a callback of the world itself, which belongs to no process."""
        return self.call_at(self.now + delay_s, callback, *args, context=self._outside)

    def spawn_outside(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.create_task(work, context=contextvars.Context())

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """Leaves a cancelled timer in the heap until its time."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Any = None, **_: Any
    ) -> asyncio.Task[Any]:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        if process is not None:
            process.tasks.add(task)
            task.add_done_callback(process.tasks.discard)
        task.add_done_callback(self._report_crash)
        return task

    def _report_crash(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.on_problem({"message": "a task failed", "exception": task.exception(), "task": task})

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: str, *_: Any, **__: Any
    ) -> Any:
        """Connects to a simulated process. Raises ConnectionError."""
        assert self.connect is not None
        protocol = protocol_factory()
        await self.connect(protocol, host)
        return None, protocol

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Simulates a thread: the work happens at some moment, and its result becomes known at a later
        one.
        """
        future = self.create_future()
        chance = self._chance
        begins_s = chance.expovariate(1 / MEAN_THREAD_DELAY_S)
        if chance.random() < SLOW_THREAD_SHARE:
            begins_s += chance.random() * SLOW_THREAD_DELAY_S
        context = contextvars.copy_context()

        def work() -> None:
            try:
                outcome, error = func(*args), None
            except Exception as raised:  # noqa: BLE001 - as a thread pool does
                outcome, error = None, raised
            self.call_later(
                chance.expovariate(1 / MEAN_THREAD_DELAY_S), done, outcome, error, context=context
            )

        def done(outcome: Any, error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(outcome)
            else:
                future.set_exception(error)

        self.call_later(begins_s, work, context=context)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.on_problem(context)
