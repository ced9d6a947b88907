"""Delayed operations: requests that wait for a condition or for their timeout.

A produce with acks=all waits for the high watermark, a fetch waits for `fetch.min.bytes`. Each operation is
watched under keys, usually partitions. Code that changes the state behind a key calls
`check_and_complete(key)`. An operation completes exactly once: by its condition, by its deadline, or because
it is cancelled with its connection.

The semantics are those of Kafka's `DelayedOperationPurgatory` (org.apache.kafka.server.purgatory), on one
event loop. There are no locks. A completed operation leaves all its watch lists at once, so no stale entries
have to be purged (`fetch.purgatory.purge.interval.requests` has no effect), and the operations that wait
bound the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, TypeAlias, TypeVar

from tidelog.kernel.instants import MonotonicMs
from tidelog.kernel.timer import Callback, Timer, TimerEntry
from tidelog.model.fair_budget import FairBudget, Holding

Key = TypeVar("Key", bound=Hashable)
MAX_UNWATCHED_MS: Final = 500
"""The longest time for which an operation waits that is not watched under its keys: Kafka's default of
`fetch.max.wait.ms`.
"""


class DelayedOperation:
    """An operation that waits. Subclasses override `try_complete`, `on_complete` and, if necessary,
    `on_expire`. Subclasses may declare `__slots__`.
    """

    __slots__ = ("_deadline_ms", "_holding", "_keys", "_timer_entry", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        """True once the operation is completed, expired or cancelled."""
        self._keys: tuple[Hashable, ...] = ()
        self._timer_entry: TimerEntry[Callback] | None = None
        self._deadline_ms = MonotonicMs(0)
        self._holding: Holding | None = None  # while it is watched under several keys

    def owner(self) -> Hashable:
        """Returns the key of the client in the purgatory's budget."""
        return None

    def try_complete(self) -> bool:
        """Returns whether the condition holds. It is called often and must have no side effects."""
        raise NotImplementedError

    def key_changed(self, key: Hashable) -> bool:
        """Returns whether the condition holds after a change of what `key` names. It is called in place of
        `try_complete` if the operation waits under several keys, so that an operation can look only at what
        is behind this one. Otherwise changes of all its keys take a time that is quadratic in their number.
        """
        return self.try_complete()

    def on_complete(self) -> None:
        """Answers the request from the current state. It is called exactly once, unless the operation is
        cancelled.
        """
        raise NotImplementedError

    def on_expire(self) -> None:
        """Is called just before `on_complete` if the deadline passes first."""


FailureHandler: TypeAlias = Callable[[DelayedOperation, Exception], None]


class Purgatory(Generic[Key]):
    """The operations that wait, by key.

    `on_failure(operation, error)` is called if an operation's own code raises. That operation is over. The
    other operations and the caller, which may serve another connection, continue.

    Each pair of an operation and a key takes memory, which `budget` bounds. An operation with one key does
    not count. An operation without room in the budget is not watched, and completes after MAX_UNWATCHED_MS at
    the latest. If it completed at once, its client would ask again at once.
    """

    __slots__ = (
        "_delayed",
        "_on_failure",
        "_timer",
        "_watched",
        "budget",
        "expired_total",
        "name",
        "watched_count",
    )

    def __init__(
        self,
        name: str,
        timer: Timer,
        on_failure: FailureHandler,
        budget: FairBudget | None = None,
    ) -> None:
        self.name = name
        self._timer = timer
        self._on_failure = on_failure
        self.budget = budget
        self._watched: dict[Hashable, dict[DelayedOperation, None]] = {}
        self._delayed: dict[DelayedOperation, None] = {}
        self.watched_count = 0
        """The number of watched (key, operation) pairs, Kafka's PurgatorySize."""
        self.expired_total = 0

    def __len__(self) -> int:
        """Returns the number of operations that wait. An operation with several keys counts once."""
        return len(self._delayed)

    @property
    def key_count(self) -> int:
        """The number of keys under which operations wait."""
        return len(self._watched)

    def watch(self, operation: DelayedOperation, keys: Iterable[Key], deadline_ms: MonotonicMs) -> bool:
        """Completes the operation if its condition holds or its deadline, on the timer's clock, has passed.
        Otherwise parks it, under `keys` if there is room. Returns whether the operation is over.
        """
        if operation.is_done or self._try(operation, None):
            return True
        if deadline_ms <= self._timer.monotonic_ms():
            self._expire(operation)
            return True
        watched = self._watched
        unique_keys = tuple(dict.fromkeys(keys))
        operation._deadline_ms = deadline_ms
        if self.budget is not None and len(unique_keys) > 1:
            holding = operation._holding = Holding(lambda: self._unwatch_soon(operation))
            now_ms = self._timer.monotonic_ms()
            if not self.budget.resize(holding, operation.owner(), len(unique_keys), now_ms / 1000):
                unique_keys = ()
                deadline_ms = min(deadline_ms, MonotonicMs(now_ms + MAX_UNWATCHED_MS))
        self.watched_count += len(unique_keys)
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

    def check_and_complete(self, key: Key, may_others: Callable[[], bool] | None = None) -> int:
        """Completes the operations under `key` whose condition holds. Returns their number.

        `may_others` is asked before each operation. If it returns False, the remaining operations go on
        waiting, for example because a completed operation has taken all records for which they wait.
        """
        operations = self._watched.get(key)
        if operations is None:
            return 0
        completed = 0
        # This is a copy because completing an operation may watch or complete others under the same key.
        for operation in tuple(operations):
            if may_others is not None and not may_others():
                break
            completed += not operation.is_done and self._try(operation, key)
        return completed

    def complete(self, operation: DelayedOperation) -> bool:
        """Completes the operation regardless of its condition. Returns False if it was already over."""
        if operation.is_done:
            return False
        self._finish(operation)
        self._run(operation, operation.on_complete)
        return True

    def cancel(self, operation: DelayedOperation) -> bool:
        """Ends the operation without an answer, because its connection is closed. Returns False if it was
        already over.
        """
        if operation.is_done:
            return False
        self._finish(operation)
        return True

    def expire_all(self) -> int:
        """Expires every operation, for a shutdown. Returns their number."""
        waiting = tuple(self._delayed)
        for operation in waiting:
            self._expire(operation)
        return len(waiting)

    def _try(self, operation: DelayedOperation, key: Hashable) -> bool:
        """Completes the operation if its condition holds. `key` is ignored unless it waits under several."""
        try:
            if not (operation.key_changed(key) if len(operation._keys) > 1 else operation.try_complete()):
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
            return  # it completed at once and was never parked
        operation._timer_entry.cancel()
        operation._timer_entry = None
        del self._delayed[operation]
        self._unwatch(operation)

    def _unwatch_soon(self, operation: DelayedOperation) -> None:
        """Lets an operation that lost its room wait for its timer only."""
        if operation.is_done or operation._timer_entry is None:
            return
        self._unwatch(operation)
        latest_ms = MonotonicMs(self._timer.monotonic_ms() + MAX_UNWATCHED_MS)
        if latest_ms < operation._deadline_ms:
            operation._timer_entry.cancel()
            operation._timer_entry = self._timer.add(lambda: self._expire(operation), latest_ms)

    def _unwatch(self, operation: DelayedOperation) -> None:
        if operation._holding is not None and self.budget is not None:
            self.budget.forget(operation._holding, self._timer.monotonic_ms() / 1000)
            operation._holding = None
        watched = self._watched
        for key in operation._keys:
            operations = watched[key]
            del operations[operation]
            if not operations:
                del watched[key]
        self.watched_count -= len(operation._keys)
        operation._keys = ()
