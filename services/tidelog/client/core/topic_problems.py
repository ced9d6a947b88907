"""Topics and partitions of a consumer that the brokers do not know, or do not show to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.client.core.cluster_view import ClusterView
from tidelog.model.error_meanings import meaning_of
from tidelog.model.topics import TopicPartition

WARNING_AFTER_MS: Final = 10_000
"""A topic that was just created may be unknown to some brokers, and commands report a missing one earlier."""
WARNING_EACH_MS: Final = 300_000


class TopicProblems:
    """The problems that metadata show. Times are milliseconds of a monotonic clock."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        """The reason of each problem, by the topic or partition that has it."""
        self._warn_at_ms: dict[str, int] = {}

    def look(
        self, view: ClusterView, topics: Iterable[str], places: Iterable[TopicPartition], now_ms: int
    ) -> dict[str, str]:
        """Takes new metadata. Returns the problems of which the log should warn now."""
        self.reasons = {
            f"topic '{name}'": meaning_of(view.errors[name])
            for name in dict.fromkeys(topics)
            if name in view.errors
        }
        for place in places:
            topic = view.topics.get(place.topic)
            if topic is not None and place.partition >= len(topic.partitions):
                self.reasons[f"partition {place}"] = f"the topic has {len(topic.partitions)} partitions"
        self._warn_at_ms = {
            subject: self._warn_at_ms.get(subject, now_ms + WARNING_AFTER_MS) for subject in self.reasons
        }
        due = {subject: why for subject, why in self.reasons.items() if self._warn_at_ms[subject] <= now_ms}
        self._warn_at_ms |= dict.fromkeys(due, now_ms + WARNING_EACH_MS)
        return due
