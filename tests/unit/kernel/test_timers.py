"""Clocks and timers: the wheel on the event loop, and on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tidelog.kernel.clock import ManualClock, SystemClock
from tidelog.kernel.instants import MonotonicMs
from tidelog.kernel.timer import LoopTimer, TimerEntry, VirtualTimer


class StandingLoop:
    """The part of an event loop that LoopTimer uses, on a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.calls: list[tuple[float, Callable[[], None]]] = []
        self.made = 0
        self.errors: list[dict[str, Any]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        self.made += 1
        call = (when_s, callback)
        self.calls.append(call)

        class Handle:
            def cancel(_) -> None:  # noqa: N805
                self.calls.remove(call)

        return Handle()  # type: ignore[return-value]

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def run_until(self, now_s: float) -> None:
        while due := sorted((call for call in self.calls if call[0] <= now_s), key=lambda call: call[0]):
            self.calls.remove(due[0])
            self.now_s = max(self.now_s, due[0][0])
            due[0][1]()
        self.now_s = now_s


def new_timer() -> tuple[StandingLoop, LoopTimer]:
    loop = StandingLoop()
    return loop, LoopTimer(loop)  # type: ignore[arg-type]


def test_without_timers_the_loop_is_never_woken() -> None:
    loop, timer = new_timer()
    assert loop.calls == []
    entry = timer.add_after(lambda: None, 10)
    assert len(loop.calls) == 1
    entry.cancel()
    loop.run_until(loop.now_s + 3600)
    assert loop.calls == []
    assert loop.made == 1


def test_many_timers_share_one_wake_up() -> None:
    loop, timer = new_timer()
    fired: list[int] = []
    for number in range(1000):
        timer.add(lambda number=number: fired.append(number), timer.monotonic_ms() + 500)  # type: ignore[misc]
    assert len(loop.calls) == 1
    loop.run_until(loop.now_s + 1)
    assert fired == list(range(1000))
    assert loop.calls == []
    assert loop.made <= 4  # a cascade through the wheels


@pytest.mark.parametrize("delay_ms", [0, 0.4, 1, 7, 20, 399, 400, 401, 30_000, 86_400_000])
def test_timers_are_never_early_and_at_most_a_tick_late(delay_ms: float) -> None:
    loop, timer = new_timer()
    loop.now_s += 0.000_3
    fired_at_s: list[float] = []
    start_s = loop.now_s
    timer.add_after(lambda: fired_at_s.append(loop.now_s), delay_ms)
    loop.run_until(start_s + delay_ms / 1000 + 0.002)
    assert len(fired_at_s) == 1
    late_ms = (fired_at_s[0] - start_s) * 1000 - delay_ms
    assert -0.001 <= late_ms <= 1.001


def test_an_earlier_timer_moves_the_wake_up_forward() -> None:
    loop, timer = new_timer()
    order: list[str] = []
    timer.add_after(lambda: order.append("late"), 5000)
    timer.add_after(lambda: order.append("soon"), 3)
    assert len(loop.calls) == 1
    loop.run_until(loop.now_s + 0.01)
    assert order == ["soon"]
    loop.run_until(loop.now_s + 6)
    assert order == ["soon", "late"]


def test_a_failing_callback_is_reported_and_the_others_run() -> None:
    loop, timer = new_timer()
    ran: list[int] = []
    timer.add_after(lambda: {}["missing"], 1)
    timer.add_after(lambda: ran.append(1), 1)
    loop.run_until(loop.now_s + 1)
    assert ran == [1]
    assert isinstance(loop.errors[0]["exception"], KeyError)


def test_a_callback_may_add_and_close() -> None:
    loop, timer = new_timer()
    ran: list[int] = []

    def again() -> None:
        ran.append(1)
        if len(ran) < 3:
            timer.add_after(again, 10)
        else:
            timer.add_after(again, 10)
            timer.close()

    timer.add_after(again, 10)
    loop.run_until(loop.now_s + 10)
    assert ran == [1, 1, 1]
    assert loop.calls == []


def test_many_due_callbacks_give_the_loop_turns_in_between() -> None:
    loop, timer = new_timer()
    ran: list[str] = []
    entries: list[TimerEntry[Callable[[], None]]] = []
    due_ms = MonotonicMs(timer.monotonic_ms() + 10)

    def run(number: int) -> None:
        ran.append(str(number))
        loop.now_s += 0.004
        if number == 0:
            entries[1].cancel()

    def another() -> None:
        ran.append("another")
        entries[5].cancel()

    def add(number: int) -> None:
        entries.append(timer.add(lambda: run(number), due_ms))

    for number in range(8):
        add(number)
    loop.call_at(due_ms / 1000, another)
    loop.run_until(loop.now_s + 0.1)
    assert ran == ["0", "2", "3", "another", "4", "6", "7"]
    assert not len(timer)
    assert loop.calls == []


def test_no_callback_runs_after_the_timer_is_closed() -> None:
    loop, timer = new_timer()
    ran: list[int] = []
    timer.add_after(timer.close, 10)
    timer.add_after(lambda: ran.append(1), 10)
    loop.run_until(loop.now_s + 1)
    assert ran == []
    assert loop.calls == []


def test_timers_on_a_real_loop() -> None:
    async def run() -> list[str]:
        loop = asyncio.get_running_loop()
        timer = LoopTimer(loop)
        fired: list[str] = []
        done = asyncio.Event()
        cancelled = timer.add_after(lambda: fired.append("cancelled"), 2)
        timer.add_after(lambda: fired.append("a"), 1)
        timer.add_after(done.set, 25)
        cancelled.cancel()
        await asyncio.wait_for(done.wait(), 30)
        timer.close()
        return fired

    assert asyncio.run(run()) == ["a"]


def test_virtual_time_runs_what_callbacks_add() -> None:
    timer = VirtualTimer(100)
    times: list[int] = []

    def again() -> None:
        times.append(timer.monotonic_ms())
        if len(times) < 3:
            timer.add(again, timer.monotonic_ms())

    timer.add(again, 110)
    assert timer.next_expiry_ms() == 110
    assert timer.advance(109) == 0
    assert timer.advance(111) == 3
    assert times == [111, 111, 111]


def test_clocks() -> None:
    clock = SystemClock()
    assert clock.wall_ms() > 1_700_000_000_000
    assert clock.monotonic_ms() <= clock.monotonic_ms()
    manual = ManualClock(wall_ms=5000, monotonic_ms=7)
    manual.advance(3)
    manual.set_wall(1)
    assert (manual.wall_ms(), manual.monotonic_ms()) == (1, 10)
    with pytest.raises(ValueError, match="go back"):
        manual.advance(-1)
