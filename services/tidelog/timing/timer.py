"""Timers that run callbacks: the timing wheel behind one wake-up of the event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol, TypeAlias

from tidelog.model.instants import MonotonicMs
from tidelog.timing.timing_wheel import TimerEntry, TimingWheel

Callback: TypeAlias = Callable[[], None]

_MS_PER_S = 1000
_START_MS = MonotonicMs(0)


class Timer(Protocol):
    """Runs callbacks at deadlines; the event loop's in production, virtual time in tests and in the
    simulator.
    """

    def monotonic_ms(self) -> MonotonicMs:
        """The monotonic clock, in milliseconds, that deadlines are on."""

    def add(self, callback: Callback, deadline_ms: MonotonicMs) -> TimerEntry[Callback]:
        """Run `callback` once at `deadline_ms` or soon after; never from within this call."""


class LoopTimer:
    """A timing wheel driven by one `call_at` for its next bucket: with no timers pending, the loop isn't
    woken at all.

    A callback that raises is reported to the loop's exception handler; the others run.
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
        """The loop's clock, rounded down to a millisecond."""
        return MonotonicMs(int(self._loop.time() * _MS_PER_S))

    def add(self, callback: Callback, deadline_ms: MonotonicMs) -> TimerEntry[Callback]:
        """Run `callback` when the loop's clock has reached `deadline_ms`."""
        wheel = self._wheel
        wheel.skip_idle(self.monotonic_ms())
        entry = wheel.add(callback, deadline_ms)
        if deadline_ms < self._wake_up_ms:
            self._schedule()
        return entry

    def add_after(self, callback: Callback, delay_ms: float) -> TimerEntry[Callback]:
        """Run `callback` once `delay_ms` has passed in full (rounded up to the next millisecond of the
        clock).
        """
        return self.add(callback, MonotonicMs(math.ceil(self._loop.time() * _MS_PER_S + delay_ms)))

    def close(self) -> None:
        """No callback runs any more."""
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
        # The loop may call up to its clock's resolution early: what it was woken for counts as due.
        now_ms = max(self.monotonic_ms(), MonotonicMs(int(self._wake_up_ms)))
        for callback in self._wheel.advance(now_ms):
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - reported; one timer must not stop the others
                self._loop.call_exception_handler(
                    {"message": "a timer's callback failed", "exception": error}
                )
        if self._wake_up_ms != -math.inf:
            self._schedule()


class VirtualTimer:
    """Timers on a clock that only `advance` moves; for tests and the simulator."""

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
        """Where `advance` has to go for anything to happen."""
        return self._wheel.next_expiry_ms()

    def advance(self, now_ms: MonotonicMs) -> int:
        """Move to `now_ms`, running what is due, also what those callbacks add; the number of callbacks
        run.
        """
        count = 0
        self._now_ms = max(self._now_ms, now_ms)
        while callbacks := self._wheel.advance(self._now_ms):
            count += len(callbacks)
            for callback in callbacks:
                callback()
        return count
