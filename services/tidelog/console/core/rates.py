"""The rates at which topics receive records, from two readings of their end offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.model.instants import MonotonicMs
from tidelog.model.topics import TopicPartition


class EndOffsets(NamedTuple):
    """The end offsets of partitions at one time."""

    at_ms: MonotonicMs
    ends: Mapping[TopicPartition, int]


def records_per_second(before: EndOffsets | None, now: EndOffsets) -> dict[str, float]:
    """Returns the rate of each topic, from the partitions that both readings know.

    A partition whose end went back belongs to a topic that was created again, and counts as 0.
    """
    if before is None or now.at_ms <= before.at_ms:
        return {}
    grown: dict[str, int] = {}
    for partition, end in now.ends.items():
        if partition in before.ends:
            more = max(0, end - before.ends[partition])
            grown[partition.topic] = grown.get(partition.topic, 0) + more
    seconds = (now.at_ms - before.at_ms) / 1000
    return {topic: count / seconds for topic, count in grown.items()}
