"""Timers that run callbacks, and the hierarchical timing wheel that drives them.

Most of the many timers are cancelled before they expire. The lowest wheel has `wheel_size` buckets of
`tick_ms` each. Later deadlines go to an overflow wheel, which is made when it is needed. Its tick is the
whole interval of the wheel below: with the defaults 1 ms x 20, 20 ms x 20, 400 ms x 20 and so on. When the
start of a bucket is reached, its entries cascade to the wheels below or expire. Adding and cancelling a timer
take O(1). The only ordered structure is a heap of *buckets*. Each bucket is in it at most once, so the owner
of the wheel sleeps until `next_expiry_ms` and never wakes up at a tick without timers.

The structure is that of Kafka's `TimingWheel` and `SystemTimer` (org.apache.kafka.server.util.timer). The
wheel reads no clock: time is an argument.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable
from typing import Generic, Protocol, TypeAlias, TypeVar

from tidelog.kernel.instants import MonotonicMs
from tidelog.kernel.slices import SLICE_MS

Callback: TypeAlias = Callable[[], None]
Task = TypeVar("Task")

DEFAULT_TICK_MS = 1
DEFAULT_WHEEL_SIZE = 20
_MS_PER_S = 1000
_START_MS = MonotonicMs(0)
_NOT_QUEUED = MonotonicMs(-1)


class Timer(Protocol):
    """Runs callbacks at deadlines: on the event loop's clock in production, in virtual time in tests and in
    the simulator.
    """

    def monotonic_ms(self) -> MonotonicMs:
        """Returns the time on the clock of the deadlines."""

    def add(self, callback: Callback, deadline_ms: MonotonicMs) -> TimerEntry[Callback]:
        """Runs `callback` once at `deadline_ms` or soon after, but never during this call."""

    def add_after(self, callback: Callback, delay_ms: float) -> TimerEntry[Callback]:
        """Runs `callback` once after at least `delay_ms`, rounded up to the next millisecond of the clock."""


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

    def add_after(self, callback: Callback, delay_ms: float) -> TimerEntry[Callback]:
        return self._wheel.add(callback, MonotonicMs(self._now_ms + math.ceil(delay_ms)))

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


class TimerEntry(Generic[Task]):
    """One timer, with the task that the wheel returns when `deadline_ms` is reached."""

    __slots__ = ("_bucket", "_wheels", "deadline_ms", "task")

    def __init__(self, wheels: TimingWheel[Task], task: Task, deadline_ms: MonotonicMs) -> None:
        self.task = task
        self.deadline_ms = deadline_ms
        self._wheels = wheels
        self._bucket: _Bucket[Task] | None = None

    @property
    def is_pending(self) -> bool:
        """False once the timer has expired or is cancelled."""
        return self._bucket is not None

    def cancel(self) -> bool:
        """Removes the timer. Returns whether it was still pending. It may be called repeatedly."""
        bucket = self._bucket
        if bucket is None:
            return False
        del bucket.entries[self]
        self._bucket = None
        self._wheels._pending_count -= 1
        return True


class _Bucket(Generic[Task]):
    """The timers whose deadlines are in one tick of one wheel. A dict keeps their order and removes one in
    O(1).
    """

    __slots__ = ("entries", "expiration_ms")

    def __init__(self) -> None:
        self.entries: dict[TimerEntry[Task], None] = {}
        self.expiration_ms = _NOT_QUEUED


class _Wheel(Generic[Task]):
    """One level: `wheel_size` buckets of `tick_ms`, the first of which starts at `current_ms`, a multiple of
    the tick.
    """

    __slots__ = ("buckets", "current_ms", "interval_ms", "overflow", "tick_ms")

    def __init__(self, tick_ms: int, wheel_size: int, start_ms: MonotonicMs) -> None:
        self.tick_ms = tick_ms
        self.interval_ms = tick_ms * wheel_size
        self.current_ms = MonotonicMs(start_ms - start_ms % tick_ms)
        self.buckets: tuple[_Bucket[Task], ...] = tuple(_Bucket() for _ in range(wheel_size))
        self.overflow: _Wheel[Task] | None = None

    def advance(self, now_ms: MonotonicMs) -> None:
        wheel: _Wheel[Task] | None = self
        while wheel is not None and now_ms >= wheel.current_ms + wheel.tick_ms:
            wheel.current_ms = MonotonicMs(now_ms - now_ms % wheel.tick_ms)
            wheel = wheel.overflow


class TimingWheel(Generic[Task]):
    """The stack of wheels and the queue of their buckets.

    `advance(now_ms)` returns the tasks whose deadline's tick has come, in the order of the ticks. A deadline
    in the current tick or before it is due at the next `advance`.
    """

    __slots__ = ("_due", "_pending_count", "_queue", "_queued_count", "_wheel", "_wheel_size")

    def __init__(
        self,
        tick_ms: int = DEFAULT_TICK_MS,
        wheel_size: int = DEFAULT_WHEEL_SIZE,
        start_ms: MonotonicMs = _START_MS,
    ) -> None:
        if tick_ms < 1 or wheel_size < 2:
            raise ValueError(
                f"tick of {tick_ms} ms and {wheel_size} buckets: need at least 1 ms and 2 buckets"
            )
        self._wheel: _Wheel[Task] = _Wheel(tick_ms, wheel_size, start_ms)
        self._wheel_size = wheel_size
        self._due: _Bucket[Task] = _Bucket()
        self._queue: list[tuple[MonotonicMs, int, _Bucket[Task]]] = []
        self._queued_count = 0
        self._pending_count = 0

    def __len__(self) -> int:
        """Returns the number of pending timers."""
        return self._pending_count

    @property
    def current_ms(self) -> MonotonicMs:
        """The start of the lowest wheel's current tick."""
        return self._wheel.current_ms

    @property
    def wheel_count(self) -> int:
        """The number of wheels that have been made."""
        count, wheel = 1, self._wheel
        while wheel.overflow is not None:
            count, wheel = count + 1, wheel.overflow
        return count

    @property
    def queued_bucket_count(self) -> int:
        """The number of buckets in the queue: at most `wheel_size` for each wheel, regardless of the number
        of timers.
        """
        return len(self._queue)

    def add(self, task: Task, deadline_ms: MonotonicMs) -> TimerEntry[Task]:
        """Adds a timer for `task`. The returned entry can cancel it."""
        entry = TimerEntry(self, task, deadline_ms)
        self._pending_count += 1
        if not self._place(entry):
            self._due.entries[entry] = None
            entry._bucket = self._due
        return entry

    def advance(self, now_ms: MonotonicMs) -> list[Task]:
        """Moves the clock to `now_ms` and returns the tasks that are due, each once."""
        return [entry.task for entry in self.due(now_ms) if entry.cancel()]

    def due(self, now_ms: MonotonicMs) -> list[TimerEntry[Task]]:
        """Moves the clock to `now_ms` and returns the timers that are due. They are pending until the caller
        cancels them, which it does with each timer whose task it runs.
        """
        due = self._due
        queue = self._queue
        while queue and queue[0][0] <= now_ms:
            expiration_ms, _, bucket = heapq.heappop(queue)
            self._wheel.advance(expiration_ms)
            entries, bucket.entries = bucket.entries, {}
            bucket.expiration_ms = _NOT_QUEUED
            for entry in entries:
                if not self._place(entry):
                    due.entries[entry] = None
                    entry._bucket = due
        # Every bucket that starts at or before `now_ms` is empty, so the wheels may move to `now_ms` itself.
        self._wheel.advance(now_ms)
        return list(due.entries)

    def skip_idle(self, now_ms: MonotonicMs) -> None:
        """Moves the clock forward if nothing expires before `now_ms`. A timer that is added after a long idle
        time then goes to a low wheel at once and need not cascade down to it.
        """
        if now_ms > self._wheel.current_ms:
            next_expiry_ms = self.next_expiry_ms()
            if next_expiry_ms is None or next_expiry_ms > now_ms:
                self._wheel.advance(now_ms)

    def next_expiry_ms(self) -> MonotonicMs | None:
        """Returns the time at which `advance` must be called next: the start of the first bucket with a
        timer, or None.
        """
        if self._due.entries:
            return self._wheel.current_ms
        queue = self._queue
        while queue:
            expiration_ms, _, bucket = queue[0]
            if bucket.entries:
                return expiration_ms
            # All timers of the bucket were cancelled.
            heapq.heappop(queue)
            bucket.expiration_ms = _NOT_QUEUED
        return None

    def _place(self, entry: TimerEntry[Task]) -> bool:
        """Puts the entry into the lowest wheel that reaches its deadline. Returns False if the deadline's
        tick has already come.
        """
        deadline_ms = entry.deadline_ms
        wheel = self._wheel
        if deadline_ms < wheel.current_ms + wheel.tick_ms:
            return False
        while deadline_ms >= wheel.current_ms + wheel.interval_ms:
            if wheel.overflow is None:
                wheel.overflow = _Wheel(wheel.interval_ms, self._wheel_size, wheel.current_ms)
            wheel = wheel.overflow
        tick = deadline_ms // wheel.tick_ms
        bucket = wheel.buckets[tick % self._wheel_size]
        bucket.entries[entry] = None
        entry._bucket = bucket
        expiration_ms = MonotonicMs(tick * wheel.tick_ms)
        if bucket.expiration_ms != expiration_ms:
            bucket.expiration_ms = expiration_ms
            self._queued_count += 1
            heapq.heappush(self._queue, (expiration_ms, self._queued_count, bucket))
        return True
