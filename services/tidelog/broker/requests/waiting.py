"""The requests that wait: for a partition to change, or for their timeout.

A produce with acks=all waits for the high watermark, a fetch waits for `fetch.min.bytes`. Each of them is a
`Waiter` in a `Purgatory`, under keys that are usually partitions. Code that changes what is behind a key
calls `changed(key)`. `WaitingRequests` has the purgatories of a broker, and the changes of partitions that
concern them. A waiter ends exactly once: by its condition, by its deadline, or because it is cancelled with
its connection.

The semantics are those of Kafka's `DelayedOperationPurgatory` (org.apache.kafka.server.purgatory), on one
event loop. There are no locks. A waiter that ends leaves all its watch lists at once, so no stale entries
have to be purged (`fetch.purgatory.purge.interval.requests` has no effect), and the waiters bound the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from time import monotonic
from typing import Final, Protocol

import structlog

from tidelog.broker.cluster.view import CurrentSettings, is_rack_aware
from tidelog.broker.replication.follower_fetch_sessions import FollowerFetchSessions
from tidelog.broker.requests.request import RequestContext
from tidelog.kernel.instants import MonotonicMs
from tidelog.kernel.slices import SLICE_MS
from tidelog.kernel.timer import Callback, Timer, TimerEntry
from tidelog.model.fair_budget import FairBudget, Holding
from tidelog.model.topics import TopicPartition

MAX_WATCHED_PARTITIONS: Final = 500_000
"""The most partitions that all waiting Fetch and ShareFetch requests watch together, where each request with
several counts its own. Each of them takes about 500 bytes. Clients share them fairly.
"""
MAX_UNWATCHED_MS: Final = 500
"""The longest time for which a waiter waits that is not watched under its keys: Kafka's default of
`fetch.max.wait.ms`.
"""


_log = structlog.get_logger(__name__)


class Waiter:
    """Waits for changes of what its keys name. Subclasses override `on_change`, `on_complete` and, if
    necessary, `on_expire`. They may declare `__slots__`.
    """

    __slots__ = ("_deadline_ms", "_holding", "_keys", "_timer_entry", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        """True once the wait has ended."""
        self._keys: tuple[Hashable, ...] = ()
        self._timer_entry: TimerEntry[Callback] | None = None
        self._deadline_ms = MonotonicMs(0)
        self._holding: Holding | None = None  # while it is watched under several keys

    def owner(self) -> Hashable:
        """Returns the key of the client in the purgatory's budget."""
        return None

    def on_change(self, key: Hashable | None) -> bool:
        """Looks at what `key` names, or at everything if it is None, and returns whether the wait ends now.

        It is called with None when the wait begins, and then after each change of one of its keys. It may
        act: note what has happened to a part of the request, or see to it that the wait ends later. A waiter
        with many keys looks only at the one that changed; otherwise changes of all its keys take a time that
        is quadratic in their number.
        """
        raise NotImplementedError

    def on_complete(self) -> None:
        """Answers the request from the current state. It is called exactly once, unless the waiter is
        cancelled.
        """
        raise NotImplementedError

    def on_expire(self) -> None:
        """Is called just before `on_complete` if the deadline passes first."""


class DelayedRequest(Waiter):
    """A parked request in a purgatory."""

    __slots__ = ("context",)

    def __init__(self, context: RequestContext) -> None:
        super().__init__()
        self.context = context

    def owner(self) -> str:
        return self.context.connection.budget_key


class Purgatory:
    """The waiters that wait, by key.

    `on_failure(waiter, error)` is called if a waiter's own code raises. That waiter is over. The
    other waiters and the caller, which may serve another connection, continue.

    Each pair of a waiter and a key takes memory, which `budget` bounds. A waiter with one key does
    not count. A waiter without room in the budget is not watched, and completes after MAX_UNWATCHED_MS at
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
        on_failure: Callable[[Waiter, Exception], None],
        budget: FairBudget | None = None,
    ) -> None:
        self.name = name
        self._timer = timer
        self._on_failure = on_failure
        self.budget = budget
        self._watched: dict[Hashable, dict[Waiter, None]] = {}
        self._delayed: dict[Waiter, None] = {}
        self.watched_count = 0
        """The number of watched (key, waiter) pairs, Kafka's PurgatorySize."""
        self.expired_total = 0

    def __len__(self) -> int:
        """Returns the number of waiters that wait. A waiter with several keys counts once."""
        return len(self._delayed)

    @property
    def key_count(self) -> int:
        """The number of keys under which waiters wait."""
        return len(self._watched)

    def watch(self, waiter: Waiter, keys: Iterable[Hashable], deadline_ms: MonotonicMs) -> bool:
        """Completes the waiter if its condition holds or its deadline, on the timer's clock, has passed.
        Otherwise parks it, under `keys` if there is room. Returns whether the waiter is over.
        """
        if waiter.is_done or self._try(waiter, None):
            return True
        if deadline_ms <= self._timer.monotonic_ms():
            self._expire(waiter)
            return True
        watched = self._watched
        unique_keys = tuple(dict.fromkeys(keys))
        waiter._deadline_ms = deadline_ms
        if self.budget is not None and len(unique_keys) > 1:
            holding = waiter._holding = Holding(lambda: self._unwatch_soon(waiter))
            now_ms = self._timer.monotonic_ms()
            if not self.budget.resize(holding, waiter.owner(), len(unique_keys), now_ms / 1000):
                unique_keys = ()
                deadline_ms = min(deadline_ms, MonotonicMs(now_ms + MAX_UNWATCHED_MS))
        self.watched_count += len(unique_keys)
        waiter._keys = unique_keys
        for key in unique_keys:
            waiters = watched.get(key)
            if waiters is None:
                watched[key] = {waiter: None}
            else:
                waiters[waiter] = None
        self._delayed[waiter] = None
        waiter._timer_entry = self._timer.add(lambda: self._expire(waiter), deadline_ms)
        return False

    def changed(self, key: Hashable, may_others: Callable[[], bool] | None = None) -> int:
        """Completes the waiters whose wait ends with a change of what `key` names. Returns their number.

        `may_others` is asked before each waiter. If it returns False, the remaining waiters go on
        waiting, for example because a completed waiter has taken all records for which they wait.
        """
        waiters = self._watched.get(key)
        if waiters is None:
            return 0
        completed = 0
        # This is a copy because completing a waiter may watch or complete others under the same key.
        for waiter in tuple(waiters):
            if may_others is not None and not may_others():
                break
            completed += not waiter.is_done and self._try(waiter, key)
        return completed

    def complete(self, waiter: Waiter) -> bool:
        """Completes the waiter regardless of its condition. Returns False if it was already over."""
        if waiter.is_done:
            return False
        self._finish(waiter)
        self._run(waiter, waiter.on_complete)
        return True

    def cancel(self, waiter: Waiter) -> bool:
        """Ends the waiter without an answer, because its connection is closed. Returns False if it was
        already over.
        """
        if waiter.is_done:
            return False
        self._finish(waiter)
        return True

    def expire_all(self) -> int:
        """Expires every waiter, for a shutdown. Returns their number."""
        waiting = tuple(self._delayed)
        for waiter in waiting:
            self._expire(waiter)
        return len(waiting)

    def _try(self, waiter: Waiter, key: Hashable) -> bool:
        """Completes the waiter if its wait ends now."""
        try:
            if not waiter.on_change(key):
                return False
        except Exception as error:  # noqa: BLE001 - handed on; its failure is not the caller's
            if not waiter.is_done:
                self._finish(waiter)
            self._on_failure(waiter, error)
            return True
        if not waiter.is_done:
            self._finish(waiter)
            self._run(waiter, waiter.on_complete)
        return True

    def _expire(self, waiter: Waiter) -> None:
        if waiter.is_done:
            return
        self._finish(waiter)
        self.expired_total += 1
        if self._run(waiter, waiter.on_expire):
            self._run(waiter, waiter.on_complete)

    def _run(self, waiter: Waiter, step: Callable[[], None]) -> bool:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - handed on; its failure is not the caller's
            self._on_failure(waiter, error)
            return False
        return True

    def _finish(self, waiter: Waiter) -> None:
        waiter.is_done = True
        if waiter._timer_entry is None:
            return  # it completed at once and was never parked
        waiter._timer_entry.cancel()
        waiter._timer_entry = None
        del self._delayed[waiter]
        self._unwatch(waiter)

    def _unwatch_soon(self, waiter: Waiter) -> None:
        """Lets a waiter that lost its room wait for its timer only."""
        if waiter.is_done or waiter._timer_entry is None:
            return
        self._unwatch(waiter)
        latest_ms = MonotonicMs(self._timer.monotonic_ms() + MAX_UNWATCHED_MS)
        if latest_ms < waiter._deadline_ms:
            waiter._timer_entry.cancel()
            waiter._timer_entry = self._timer.add(lambda: self._expire(waiter), latest_ms)

    def _unwatch(self, waiter: Waiter) -> None:
        if waiter._holding is not None and self.budget is not None:
            self.budget.forget(waiter._holding, self._timer.monotonic_ms() / 1000)
            waiter._holding = None
        watched = self._watched
        for key in waiter._keys:
            waiters = watched[key]
            del waiters[waiter]
            if not waiters:
                del watched[key]
        self.watched_count -= len(waiter._keys)
        waiter._keys = ()


class PartitionObserver(Protocol):
    """An object that reacts to changes of one partition. The attachment of a coordinator is one."""

    def high_watermark_advanced(self) -> None: ...

    def leadership_changed(self) -> None:
        """The partition may have another leader or leader epoch, or this broker no longer hosts it."""
        ...


class WaitingRequests:
    """Producers that wait for acks=all, consumers and followers that wait for records, and DeleteRecords
    requests that wait for all replicas.
    """

    def __init__(
        self, settings: CurrentSettings, timer: Timer, follower_fetch_sessions: FollowerFetchSessions
    ) -> None:
        self._settings = settings
        self._follower_fetch_sessions = follower_fetch_sessions
        self._observers: dict[TopicPartition, PartitionObserver] = {}
        self.timer = timer
        self.produce = Purgatory("Produce", timer, _failed)
        self.fetch = Purgatory(
            "Fetch",
            timer,
            _failed,
            FairBudget(MAX_WATCHED_PARTITIONS),
        )
        """Consumers wait under partitions, and members of share groups under share partitions."""
        self.partition_shared: Callable[[TopicPartition], None] | None = None
        """Completes what waits for the share partitions of a partition, once there are share groups."""
        self.delete_records = Purgatory("DeleteRecords", timer, _failed)
        self._long_fetches: dict[DelayedRequest, None] = {}
        """Fetches that are completed soon, oldest first."""

    def observe(self, topic_partition: TopicPartition, observer: PartitionObserver) -> None:
        """Registers the observer of a partition, which replaces an earlier one."""
        self._observers[topic_partition] = observer

    def stop_observing(self, topic_partition: TopicPartition) -> None:
        """Removes the observer of a partition."""
        del self._observers[topic_partition]

    def high_watermark_advanced(self, topic_partition: TopicPartition) -> None:
        """Completes fetches that wait for records and produce requests with acks=all."""
        self.fetch.changed(topic_partition)
        if self.partition_shared is not None:
            self.partition_shared(topic_partition)
        self.produce.changed(topic_partition)
        sessions = self._follower_fetch_sessions
        if topic_partition in sessions.fetched:
            is_urgent = is_rack_aware(self._settings.broker.replica_selector_class)
            sessions.high_watermark_advanced(topic_partition, is_urgent=is_urgent)
        observer = self._observers.get(topic_partition)
        if observer is not None:
            observer.high_watermark_advanced()

    def complete_fetch_soon(self, waiter: DelayedRequest) -> None:
        """Completes a fetch whose answer takes milliseconds, after the fetches for which this was called
        before. They take several turns of the event loop, so that many of them do not hold it together.
        """
        is_first = not self._long_fetches
        self._long_fetches[waiter] = None
        if is_first:
            waiter.context.connection.loop.call_soon(self._complete_long_fetches)

    def _complete_long_fetches(self) -> None:
        """Completes fetches for one slice, and the others in the next turns of the event loop."""
        until = monotonic() + SLICE_MS / 1000
        while self._long_fetches:
            waiter = next(iter(self._long_fetches))
            del self._long_fetches[waiter]
            self.fetch.complete(waiter)  # does nothing if it is over
            if monotonic() >= until and self._long_fetches:
                waiter.context.connection.loop.call_soon(self._complete_long_fetches)
                return

    def log_end_advanced(self, topic_partition: TopicPartition) -> None:
        """Completes followers' fetches: the leader appended records."""
        self._follower_fetch_sessions.log_end_advanced(topic_partition)

    def log_start_advanced(self, topic_partition: TopicPartition) -> None:
        """Completes followers' fetches: the leader's log begins at a later offset."""
        self._follower_fetch_sessions.log_end_advanced(topic_partition)

    def low_watermark_advanced(self, topic_partition: TopicPartition) -> None:
        """Completes DeleteRecords requests that wait for all replicas."""
        self.delete_records.changed(topic_partition)

    def leadership_changed(self, topic_partition: TopicPartition) -> None:
        """Checks for each request that waits for this partition whether it can still be answered. The
        partition may have another leader or leader epoch, or this broker no longer hosts it.
        """
        observer = self._observers.get(topic_partition)
        if observer is not None:
            observer.leadership_changed()
        self.high_watermark_advanced(topic_partition)
        self.delete_records.changed(topic_partition)
        if topic_partition in self._follower_fetch_sessions.fetched:
            self._follower_fetch_sessions.log_end_advanced(topic_partition)

    def answer_all(self) -> None:
        """Answers every waiting request with the data that is available, because the broker stops."""
        for purgatory in (self.fetch, self.produce, self.delete_records):
            purgatory.expire_all()
        self._follower_fetch_sessions.end_all()


def _failed(waiter: Waiter, error: Exception) -> None:
    """Closes the connection. The request gets no response, so no later request may get one either."""
    _log.error("a waiting request failed", operation=type(waiter).__name__, exc_info=error)
    if isinstance(waiter, DelayedRequest):
        waiter.context.connection.close()
