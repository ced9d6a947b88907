"""Timers that run callbacks. A timing wheel drives them with one wake-up of the event loop at a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol, TypeAlias

from tidelog.model.instants import MonotonicMs
from tidelog.timing.slices import SLICE_MS
from tidelog.timing.timing_wheel import TimerEntry, TimingWheel

Callback: TypeAlias = Callable[[], None]

_MS_PER_S = 1000
_START_MS = MonotonicMs(0)


class Timer(Protocol):
    """Runs callbacks at deadlines: on the event loop's clock in production, in virtual time in tests and in
    the simulator.
    """

    def monotonic_ms(self) -> MonotonicMs:
        """Returns the time on the clock of the deadlines."""

    def add(self, callback: Callback, deadline_ms: MonotonicMs) -> TimerEntry[Callback]:
        """Runs `callback` once at `deadline_ms` or soon after, but never during this call."""


class LoopTimer:
    """A timing wheel that one `call_at` of the event loop drives, at the time of its next bucket. Without
    pending timers, the loop is not woken.

    Callbacks that are due together run in the order of their ticks, those that begin within SLICE_MS in the
    same turn of the loop and the others in the next turns. If a callback raises, the loop's exception handler
    reports the error, and the other callbacks still run.
    """

    __slots__ = ("_handle", "_loop", "_wake_up_ms", "_wheel")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._wheel: TimingWheel[Callback] = TimingWheel(start_ms=MonotonicMs(int(loop.time() * _MS_PER_S)))
        self._handle: asyncio.TimerHandle | None = None
        self._wake_up_ms: float = math.inf

    def __len__(self) -> int:
        return len(self._wheel)

    def monotonic_ms(self) -> MonotonicMs:
        """Returns the loop's clock, rounded down to a millisecond."""
        return MonotonicMs(int(self._loop.time() * _MS_PER_S))

    def add(self, callback: Callback, deadline_ms: MonotonicMs) -> TimerEntry[Callback]:
        """Runs `callback` when the loop's clock has reached `deadline_ms`."""
        wheel = self._wheel
        wheel.skip_idle(self.monotonic_ms())
        entry = wheel.add(callback, deadline_ms)
        if deadline_ms < self._wake_up_ms:
            self._schedule()
        return entry

    def add_after(self, callback: Callback, delay_ms: float) -> TimerEntry[Callback]:
        """Runs `callback` after at least `delay_ms`, rounded up to the next millisecond of the clock."""
        return self.add(callback, MonotonicMs(math.ceil(self._loop.time() * _MS_PER_S + delay_ms)))

    def close(self) -> None:
        """Stops the timer: no more callbacks run."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None
        self._wake_up_ms = -math.inf

    def _schedule(self) -> None:
        next_expiry_ms = self._wheel.next_expiry_ms()
        if self._handle is not None:
            if next_expiry_ms == self._wake_up_ms:
                return
            self._handle.cancel()
            self._handle = None
        if next_expiry_ms is None:
            self._wake_up_ms = math.inf
            return
        self._wake_up_ms = float(next_expiry_ms)
        self._handle = self._loop.call_at(next_expiry_ms / _MS_PER_S, self._wake_up)

    def _wake_up(self) -> None:
        self._handle = None
        # The loop may wake up too early by its clock's resolution. The bucket of this wake-up is due in any
        # case.
        now_ms = max(self.monotonic_ms(), MonotonicMs(int(self._wake_up_ms)))
        until_s = self._loop.time() + SLICE_MS / _MS_PER_S
        for entry in self._wheel.due(now_ms):
            if not entry.cancel():
                continue  # an earlier callback has cancelled it
            try:
                entry.task()
            except Exception as error:  # noqa: BLE001 - reported; one timer must not stop the others
                self._loop.call_exception_handler(
                    {"message": "a timer's callback failed", "exception": error}
                )
            if self._wake_up_ms == -math.inf:
                return
            if self._loop.time() >= until_s:
                break  # the other timers are still due, so the next turn of the loop runs them
        self._schedule()


class VirtualTimer:
    """A timer whose clock only `advance` moves, for tests and the simulator."""

    __slots__ = ("_now_ms", "_wheel")

    def __init__(self, start_ms: MonotonicMs = _START_MS) -> None:
        self._now_ms = start_ms
        self._wheel: TimingWheel[Callback] = TimingWheel(start_ms=start_ms)

    def __len__(self) -> int:
        return len(self._wheel)

    def monotonic_ms(self) -> MonotonicMs:
        return self._now_ms

    def add(self, callback: Callback, deadline_ms: MonotonicMs) -> TimerEntry[Callback]:
        return self._wheel.add(callback, deadline_ms)

    def next_expiry_ms(self) -> MonotonicMs | None:
        """Returns the next time to which `advance` must move for a callback to run, or None."""
        return self._wheel.next_expiry_ms()

    def advance(self, now_ms: MonotonicMs) -> int:
        """Moves the clock to `now_ms` and runs the callbacks that are due, including those that callbacks
        add. Returns their number.
        """
        count = 0
        self._now_ms = max(self._now_ms, now_ms)
        while callbacks := self._wheel.advance(self._now_ms):
            count += len(callbacks)
            for callback in callbacks:
                callback()
        return count
