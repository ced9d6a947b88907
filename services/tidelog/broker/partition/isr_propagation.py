"""When the ISR changes that this broker's leaders made are published to the controller (SPEC C5).

Pure: the time comes in. The rules are those of Kafka's `ReplicaManager.maybePropagateIsrChanges`: changes
are collected; they are published once things have been quiet for a while, or, where they never are, at
least once in a longer while. So a storm of changes makes few notifications.
"""

from __future__ import annotations

from typing import Final

from tidelog.model.topics import TopicPartition

PROPAGATION_CHECK_INTERVAL_MS: Final = 2_500
"""How often `take` is to be called."""
QUIET_MS: Final = 5_000
"""Published once the last change is longer ago than this, ..."""
MAX_PROPAGATION_INTERVAL_MS: Final = 60_000
"""... or the last publication is longer ago than this."""


class IsrPropagation:
    """The set of changed partitions and the times that matter."""

    __slots__ = ("_changed", "_last_change_ms", "_last_publication_ms", "_taken")

    def __init__(self, now_ms: int) -> None:
        self._changed: dict[TopicPartition, None] = {}
        self._taken: tuple[TopicPartition, ...] = ()
        self._last_change_ms = now_ms
        self._last_publication_ms = now_ms

    def __len__(self) -> int:
        """How many partitions wait to be published."""
        return len(self._changed)

    def isr_changed(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """The metadata store took a new ISR of this partition."""
        self._changed[topic_partition] = None
        self._last_change_ms = now_ms

    def take(self, now_ms: int) -> tuple[TopicPartition, ...]:
        """What is to be published now; empty if it isn't time, or an earlier batch isn't settled.

        Every batch taken is settled by `published` or `not_published`.
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

    def published(self, now_ms: int) -> None:
        """What was taken stands in the store; what changed meanwhile comes with the next batch."""
        self._taken = ()
        self._last_publication_ms = now_ms

    def not_published(self) -> None:
        """The store did not take it, or nobody knows: it is due again at the next check."""
        self._changed = dict.fromkeys((*self._taken, *self._changed))
        self._taken = ()
