"""When a client's shell wakes its core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from tidelog.client.shell.tasks import CoreTasks


class Timer:
    def __init__(self, when_s: float, call: Callable[[], None]) -> None:
        self.when_s, self.call = when_s, call
        self.is_cancelled = False

    def when(self) -> float:
        return self.when_s

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """An event loop whose clock the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when_s, call))
        return self.timers[-1]

    def pending(self) -> list[float]:
        return [timer.when_s for timer in self.timers if not timer.is_cancelled]

    def run_until(self, now_s: float) -> None:
        self.now_s = now_s
        due = [timer for timer in self.timers if not timer.is_cancelled and timer.when_s <= now_s]
        self.timers = [timer for timer in self.timers if timer not in due]
        for timer in due:
            timer.call()


def tasks_of(wake: Callable[[], None]) -> tuple[CoreTasks, Loop]:
    loop = Loop()
    tasks = CoreTasks("client", wake)
    tasks.loop = cast("Any", loop)
    return tasks, loop


def test_only_an_earlier_time_needs_another_timer() -> None:
    tasks, loop = tasks_of(lambda: None)
    tasks.wake_in(5_000)
    tasks.wake_in(6_000)
    tasks.wake_in(None)
    assert len(loop.timers) == 1 and loop.pending() == [105.0]
    tasks.wake_in(1_000)
    assert loop.pending() == [101.0]


def test_a_core_that_is_woken_too_early_is_woken_again() -> None:
    woken: list[float] = []
    due_s = 106.0

    def wake() -> None:
        woken.append(loop.now_s)
        if loop.now_s < due_s:
            tasks.wake_in(int((due_s - loop.now_s) * 1000))

    tasks, loop = tasks_of(wake)
    tasks.wake_in(5_000)
    tasks.wake_in(6_000)
    loop.run_until(105.0)
    loop.run_until(106.0)
    assert woken == [105.0, 106.0] and not loop.pending()


def test_nothing_is_woken_after_the_end() -> None:
    tasks, loop = tasks_of(lambda: None)
    tasks.wake_in(5_000)
    asyncio.run(tasks.stop())
    tasks.wake_in(1_000)
    assert not loop.pending()
