"""The requests that wait for a partition to change, and the changes that complete them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import monotonic
from typing import Final, Protocol

import structlog

from tidelog.broker.cluster.current_settings import CurrentSettings
from tidelog.broker.cluster.metadata_view import is_rack_aware
from tidelog.broker.replication.leader.follower_fetch_sessions import FollowerFetchSessions
from tidelog.broker.requests.purgatory import DelayedOperation, Purgatory
from tidelog.broker.requests.request import DelayedRequest
from tidelog.kernel.slices import SLICE_MS
from tidelog.kernel.timer import Timer
from tidelog.model.fair_budget import FairBudget
from tidelog.model.topics import TopicPartition

MAX_WATCHED_PARTITIONS: Final = 500_000
"""The most partitions that all waiting Fetch and ShareFetch requests watch together, where each request with
several counts its own. Each of them takes about 500 bytes. Clients share them fairly.
"""

_log = structlog.get_logger(__name__)


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
        self.produce: Purgatory[TopicPartition] = Purgatory("Produce", timer, _operation_failed)
        self.fetch: Purgatory[Hashable] = Purgatory(
            "Fetch",
            timer,
            _operation_failed,
            FairBudget(MAX_WATCHED_PARTITIONS),
        )
        """Consumers wait under partitions, and members of share groups under share partitions."""
        self.partition_shared: Callable[[TopicPartition], None] | None = None
        """Completes what waits for the share partitions of a partition, once there are share groups."""
        self.delete_records: Purgatory[TopicPartition] = Purgatory("DeleteRecords", timer, _operation_failed)
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
        self.fetch.check_and_complete(topic_partition)
        if self.partition_shared is not None:
            self.partition_shared(topic_partition)
        self.produce.check_and_complete(topic_partition)
        sessions = self._follower_fetch_sessions
        if topic_partition in sessions.fetched:
            is_urgent = is_rack_aware(self._settings.broker.replica_selector_class)
            sessions.high_watermark_advanced(topic_partition, is_urgent=is_urgent)
        observer = self._observers.get(topic_partition)
        if observer is not None:
            observer.high_watermark_advanced()

    def complete_fetch_soon(self, operation: DelayedRequest) -> None:
        """Completes a fetch whose answer takes milliseconds, after the fetches for which this was called
        before. They take several turns of the event loop, so that many of them do not hold it together.
        """
        is_first = not self._long_fetches
        self._long_fetches[operation] = None
        if is_first:
            operation.context.connection.loop.call_soon(self._complete_long_fetches)

    def _complete_long_fetches(self) -> None:
        """Completes fetches for one slice, and the others in the next turns of the event loop."""
        until = monotonic() + SLICE_MS / 1000
        while self._long_fetches:
            operation = next(iter(self._long_fetches))
            del self._long_fetches[operation]
            self.fetch.complete(operation)  # does nothing if it is over
            if monotonic() >= until and self._long_fetches:
                operation.context.connection.loop.call_soon(self._complete_long_fetches)
                return

    def log_end_advanced(self, topic_partition: TopicPartition) -> None:
        """Completes followers' fetches: the leader appended records."""
        self._follower_fetch_sessions.log_end_advanced(topic_partition)

    def log_start_advanced(self, topic_partition: TopicPartition) -> None:
        """Completes followers' fetches: the leader's log begins at a later offset."""
        self._follower_fetch_sessions.log_end_advanced(topic_partition)

    def low_watermark_advanced(self, topic_partition: TopicPartition) -> None:
        """Completes DeleteRecords requests that wait for all replicas."""
        self.delete_records.check_and_complete(topic_partition)

    def leadership_changed(self, topic_partition: TopicPartition) -> None:
        """Checks for each request that waits for this partition whether it can still be answered. The
        partition may have another leader or leader epoch, or this broker no longer hosts it.
        """
        observer = self._observers.get(topic_partition)
        if observer is not None:
            observer.leadership_changed()
        self.high_watermark_advanced(topic_partition)
        self.delete_records.check_and_complete(topic_partition)
        if topic_partition in self._follower_fetch_sessions.fetched:
            self._follower_fetch_sessions.log_end_advanced(topic_partition)

    def answer_all(self) -> None:
        """Answers every waiting request with the data that is available, because the broker stops."""
        for purgatory in (self.fetch, self.produce, self.delete_records):
            purgatory.expire_all()
        self._follower_fetch_sessions.end_all()


def _operation_failed(operation: DelayedOperation, error: Exception) -> None:
    """Closes the connection. The request gets no response, so no later request may get one either."""
    _log.error("a waiting request failed", operation=type(operation).__name__, exc_info=error)
    if isinstance(operation, DelayedRequest):
        operation.context.connection.close()
