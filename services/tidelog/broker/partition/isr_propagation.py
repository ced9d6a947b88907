"""Decides when the ISR changes of this broker's leaders are published to the controller.

The rules are those of Kafka's `ReplicaManager.maybePropagateIsrChanges`: changes are collected and published
after a quiet period, or at the latest after a longer interval. So many changes make few notifications.
"""

from __future__ import annotations

from typing import Final

from tidelog.kernel.instants import MonotonicMs
from tidelog.model.topics import TopicPartition

PROPAGATION_CHECK_INTERVAL_MS: Final = 2_500
"""The interval at which `take` is called."""
QUIET_MS: Final = 5_000
"""Changes are published if the last change is older than this, ..."""
MAX_PROPAGATION_INTERVAL_MS: Final = 60_000
"""... or if the last publication is older than this."""


class IsrPropagation:
    """The changed partitions that are not published yet, and the times of the last change and publication."""

    __slots__ = ("_changed", "_last_change_ms", "_last_publication_ms", "_taken")

    def __init__(self, now_ms: MonotonicMs) -> None:
        self._changed: dict[TopicPartition, None] = {}
        self._taken: tuple[TopicPartition, ...] = ()
        self._last_change_ms = now_ms
        self._last_publication_ms = now_ms

    def __len__(self) -> int:
        """The number of partitions that wait to be published."""
        return len(self._changed)

    def isr_changed(self, topic_partition: TopicPartition, now_ms: MonotonicMs) -> None:
        """Records that the metadata store has accepted a new ISR of this partition."""
        self._changed[topic_partition] = None
        self._last_change_ms = now_ms

    def take(self, now_ms: MonotonicMs) -> tuple[TopicPartition, ...]:
        """Returns the partitions to publish now; none if it is too early or an earlier batch is not settled.

        The caller settles each batch with `published` or `not_published`.
        """
        if self._taken or not self._changed:
            return ()
        is_quiet = now_ms - self._last_change_ms > QUIET_MS
        is_overdue = now_ms - self._last_publication_ms > MAX_PROPAGATION_INTERVAL_MS
        if not (is_quiet or is_overdue):
            return ()
        self._taken = tuple(self._changed)
        self._changed.clear()
        return self._taken

    def published(self, now_ms: MonotonicMs) -> None:
        """Records that the store has the batch. Partitions that changed meanwhile are in the next batch."""
        self._taken = ()
        self._last_publication_ms = now_ms

    def not_published(self) -> None:
        """Records that the store refused the batch or that the outcome is unknown. The next check returns it
        again.
        """
        self._changed = dict.fromkeys((*self._taken, *self._changed))
        self._taken = ()
