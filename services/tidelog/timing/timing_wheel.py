"""Hierarchical timing wheel: many timers, most of which are cancelled before they expire.

The lowest wheel has `wheel_size` buckets of `tick_ms` each. What lies beyond it goes to an overflow wheel,
made on demand, whose tick is the whole interval of the one below: with the defaults 1 ms x 20, 20 ms x 20,
400 ms x 20 and so on. When a bucket's start is reached its entries cascade to the wheels below, or expire.
Adding and cancelling are O(1) (O(wheels) for the first search, a handful). The only ordered structure is a
heap of *buckets*, each of which is in it at most once, so whoever drives the wheel sleeps until
`next_expiry_ms` and never ticks in vain.

Structure as in Kafka's `TimingWheel` and `SystemTimer` (org.apache.kafka.server.util.timer). Pure: time is an
argument, milliseconds on whatever clock the owner chose.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

from tidelog.model.instants import MonotonicMs

Task = TypeVar("Task")

DEFAULT_TICK_MS = 1
DEFAULT_WHEEL_SIZE = 20
_NOT_QUEUED = MonotonicMs(-1)
_START_MS = MonotonicMs(0)


class TimerEntry(Generic[Task]):
    """One timer: what to give back when `deadline_ms` is reached."""

    __slots__ = ("_bucket", "_wheels", "deadline_ms", "task")

    def __init__(self, wheels: TimingWheel[Task], task: Task, deadline_ms: MonotonicMs) -> None:
        self.task = task
        self.deadline_ms = deadline_ms
        self._wheels = wheels
        self._bucket: _Bucket[Task] | None = None

    @property
    def is_pending(self) -> bool:
        """False once expired or cancelled."""
        return self._bucket is not None

    def cancel(self) -> bool:
        """Take the timer out; True if it was still pending. Any number of times, at any time."""
        bucket = self._bucket
        if bucket is None:
            return False
        del bucket.entries[self]
        self._bucket = None
        self._wheels._pending_count -= 1
        return True


class _Bucket(Generic[Task]):
    """The timers whose deadlines fall into one tick of one wheel; a dict keeps their order and forgets in
    O(1).
    """

    __slots__ = ("entries", "expiration_ms")

    def __init__(self) -> None:
        self.entries: dict[TimerEntry[Task], None] = {}
        self.expiration_ms = _NOT_QUEUED


class _Wheel(Generic[Task]):
    """One level: `wheel_size` buckets of `tick_ms`, from `current_ms` (a multiple of the tick) on."""

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

    `advance(now_ms)` gives the tasks whose deadline's tick has come, in order of the ticks. A deadline that
    is not after the current tick is due at the next `advance`, whatever time that is.
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
        """How many timers are pending."""
        return self._pending_count

    @property
    def current_ms(self) -> MonotonicMs:
        """Start of the tick that the lowest wheel stands at."""
        return self._wheel.current_ms

    @property
    def wheel_count(self) -> int:
        """How many wheels have been made so far."""
        count, wheel = 1, self._wheel
        while wheel.overflow is not None:
            count, wheel = count + 1, wheel.overflow
        return count

    @property
    def queued_bucket_count(self) -> int:
        """How many buckets wait in the queue: at most `wheel_size` per wheel, however many timers there
        are.
        """
        return len(self._queue)

    def add(self, task: Task, deadline_ms: MonotonicMs) -> TimerEntry[Task]:
        """A pending timer for `task`; cancel it through the entry."""
        entry = TimerEntry(self, task, deadline_ms)
        self._pending_count += 1
        if not self._place(entry):
            self._due.entries[entry] = None
            entry._bucket = self._due
        return entry

    def advance(self, now_ms: MonotonicMs) -> list[Task]:
        """Tasks that are due at `now_ms`, each once; the clock stands at `now_ms` afterwards."""
        expired: list[Task] = []
        self._expire_due(expired)
        queue = self._queue
        while queue and queue[0][0] <= now_ms:
            expiration_ms, _, bucket = heapq.heappop(queue)
            self._wheel.advance(expiration_ms)
            entries, bucket.entries = bucket.entries, {}
            bucket.expiration_ms = _NOT_QUEUED
            for entry in entries:
                if not self._place(entry):
                    entry._bucket = None
                    self._pending_count -= 1
                    expired.append(entry.task)
        # Every bucket that starts at or before now is empty, so the wheels may stand at now itself.
        self._wheel.advance(now_ms)
        return expired

    def skip_idle(self, now_ms: MonotonicMs) -> None:
        """Move the clock on if nothing expires before `now_ms`, so that a timer added after an idle hour
        goes to a low wheel at once rather than cascading down to it.
        """
        if now_ms > self._wheel.current_ms:
            next_expiry_ms = self.next_expiry_ms()
            if next_expiry_ms is None or next_expiry_ms > now_ms:
                self._wheel.advance(now_ms)

    def next_expiry_ms(self) -> MonotonicMs | None:
        """When `advance` must be called next: the start of the first bucket that holds a timer; None if
        none does.
        """
        if self._due.entries:
            return self._wheel.current_ms
        queue = self._queue
        while queue:
            expiration_ms, _, bucket = queue[0]
            if bucket.entries:
                return expiration_ms
            # All its timers were cancelled: nobody needs to wake up for it.
            heapq.heappop(queue)
            bucket.expiration_ms = _NOT_QUEUED
        return None

    def _expire_due(self, expired: list[Task]) -> None:
        if self._due.entries:
            for entry in self._due.entries:
                entry._bucket = None
                expired.append(entry.task)
            self._pending_count -= len(self._due.entries)
            self._due.entries = {}

    def _place(self, entry: TimerEntry[Task]) -> bool:
        """Put the entry into the lowest wheel that reaches its deadline; False if its tick has come
        already.
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
