"""Delayed operations: requests that wait for something to happen, but not for ever.

An acks=all produce waits for the high watermark, a fetch for `fetch.min.bytes`. Each is watched under keys
(usually partitions); whoever changes what a key stands for calls `check_and_complete(key)`. An operation
completes exactly once: by its condition, by its deadline, or by being cancelled with its connection.

Semantics of Kafka's `DelayedOperationPurgatory` (org.apache.kafka.server.purgatory) on one event loop: no
locks, and a completed operation leaves all its watch lists at once, so there are no stale entries to purge
(`fetch.purgatory.purge.interval.requests` has nothing to do here) and memory is bounded by what is really
waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeAlias, TypeVar

from tidelog.model.instants import MonotonicMs
from tidelog.timing.timer import Callback, Timer
from tidelog.timing.timing_wheel import TimerEntry

Key = TypeVar("Key", bound=Hashable)


class DelayedOperation:
    """Subclass and override `try_complete`, `on_complete` and, where it matters, `on_expire`.

    Subclasses with `__slots__` stay slotted.
    """

    __slots__ = ("_keys", "_timer_entry", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        """True from the moment it is completed, expired or cancelled."""
        self._keys: tuple[Hashable, ...] = ()
        self._timer_entry: TimerEntry[Callback] | None = None

    def try_complete(self) -> bool:
        """Does the condition hold? A check without side effects that others can see; called often."""
        raise NotImplementedError

    def on_complete(self) -> None:
        """Called exactly once, however it ended except by `cancel`: answer the request from the state of
        now.
        """
        raise NotImplementedError

    def on_expire(self) -> None:
        """Called just before `on_complete` if the deadline came first."""


FailureHandler: TypeAlias = Callable[[DelayedOperation, Exception], None]


class Purgatory(Generic[Key]):
    """The operations that wait, by key.

    `on_failure(operation, error)` hears of an operation whose own code raised; that operation is over, the
    others and the caller (who may be another connection's produce) go on.
    """

    __slots__ = ("_delayed", "_on_failure", "_timer", "_watched", "expired_total", "name")

    def __init__(self, name: str, timer: Timer, on_failure: FailureHandler) -> None:
        self.name = name
        self._timer = timer
        self._on_failure = on_failure
        self._watched: dict[Any, dict[DelayedOperation, None]] = {}
        self._delayed: dict[DelayedOperation, None] = {}
        self.expired_total = 0

    def __len__(self) -> int:
        """How many operations wait (each counted once, whatever the number of its keys)."""
        return len(self._delayed)

    @property
    def watched_count(self) -> int:
        """How many (key, operation) pairs are watched; Kafka's PurgatorySize."""
        return sum(map(len, self._watched.values()))

    @property
    def key_count(self) -> int:
        """How many keys have anybody waiting."""
        return len(self._watched)

    def watch(self, operation: DelayedOperation, keys: Iterable[Key], deadline_ms: MonotonicMs) -> bool:
        """Complete the operation now if its condition holds or its deadline (on the timer's clock) has
        passed; otherwise park it under `keys`. True if it is over.
        """
        if operation.is_done or self._try(operation):
            return True
        if deadline_ms <= self._timer.monotonic_ms():
            self._expire(operation)
            return True
        watched = self._watched
        unique_keys = tuple(dict.fromkeys(keys))
        operation._keys = unique_keys
        for key in unique_keys:
            operations = watched.get(key)
            if operations is None:
                watched[key] = {operation: None}
            else:
                operations[operation] = None
        self._delayed[operation] = None
        operation._timer_entry = self._timer.add(lambda: self._expire(operation), deadline_ms)
        return False

    def check_and_complete(self, key: Key) -> int:
        """Something about `key` changed: complete whatever can be; how many were completed."""
        operations = self._watched.get(key)
        if operations is None:
            return 0
        # A copy: completing one may watch or complete others under the same key.
        return sum(1 for operation in tuple(operations) if not operation.is_done and self._try(operation))

    def complete(self, operation: DelayedOperation) -> bool:
        """Complete it now whatever its condition says; False if it was over already."""
        if operation.is_done:
            return False
        self._finish(operation)
        self._run(operation, operation.on_complete)
        return True

    def cancel(self, operation: DelayedOperation) -> bool:
        """Forget it without an answer (its connection is gone); False if it was over already."""
        if operation.is_done:
            return False
        self._finish(operation)
        return True

    def complete_key(self, key: Key) -> int:
        """Complete everything under `key`, its condition or not (the partition moved away); how many."""
        return sum(1 for operation in tuple(self._watched.get(key, ())) if self.complete(operation))

    def expire_all(self) -> int:
        """Expire whatever waits, as at a shutdown; how many there were."""
        waiting = tuple(self._delayed)
        for operation in waiting:
            self._expire(operation)
        return len(waiting)

    def _try(self, operation: DelayedOperation) -> bool:
        try:
            if not operation.try_complete():
                return False
        except Exception as error:  # noqa: BLE001 - handed on; its failure is not the caller's
            if not operation.is_done:
                self._finish(operation)
            self._on_failure(operation, error)
            return True
        if not operation.is_done:
            self._finish(operation)
            self._run(operation, operation.on_complete)
        return True

    def _expire(self, operation: DelayedOperation) -> None:
        if operation.is_done:
            return
        self._finish(operation)
        self.expired_total += 1
        if self._run(operation, operation.on_expire):
            self._run(operation, operation.on_complete)

    def _run(self, operation: DelayedOperation, step: Callable[[], None]) -> bool:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - handed on; its failure is not the caller's
            self._on_failure(operation, error)
            return False
        return True

    def _finish(self, operation: DelayedOperation) -> None:
        operation.is_done = True
        if operation._timer_entry is None:
            return  # it never had to wait
        operation._timer_entry.cancel()
        operation._timer_entry = None
        del self._delayed[operation]
        watched = self._watched
        for key in operation._keys:
            operations = watched[key]
            del operations[operation]
            if not operations:
                del watched[key]
        operation._keys = ()
