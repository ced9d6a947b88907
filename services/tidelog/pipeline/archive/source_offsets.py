"""Offsets of a batch as the checkpoint records them, and the part of them that the log no longer has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from tidelog.client.leader_epochs import OffsetRange
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.errors import PipelineError

Offsets: TypeAlias = dict[TopicPartition, int]
Ranges: TypeAlias = dict[TopicPartition, OffsetRange]

EARLIEST_OFFSET: Final = -2
"""The first offset in the form of the connector's startingOffsets."""


@dataclass(frozen=True, slots=True)
class MissingRange:
    """The requested offsets [start, end), which the log no longer has."""

    place: TopicPartition
    start: int
    end: int

    def __str__(self) -> str:
        count = self.end - self.start
        return f"{self.place}: {count} offset{'s' if count > 1 else ''}, {self.start} to {self.end - 1}"


def parse_offsets(text: str) -> Offsets:
    """Parses a file in offsets/ or sources/0/ of a checkpoint. The source's offsets are on its last line."""
    lines = text.strip("\x00").strip().splitlines()
    try:
        topics = json.loads(lines[-1])
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in topics.items()
            for partition, offset in partitions.items()
        }
    except (IndexError, ValueError, AttributeError, TypeError) as error:
        raise PipelineError(f"the checkpoint's offsets cannot be parsed: {text[-200:]!r}") from error


def ranges_between(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Ranges:
    """Returns the ranges that a batch reads. A new partition begins at 0. Empty ranges are left out."""
    found = {place: OffsetRange(start.get(place, 0), offset) for place, offset in end.items()}
    return {place: wanted for place, wanted in sorted(found.items()) if wanted.start != wanted.end}


def missing_ranges(ranges: Ranges, log_starts: Mapping[TopicPartition, int]) -> list[MissingRange]:
    """Returns the ranges that the log lost at its start."""
    return [
        MissingRange(place, wanted.start, min(log_starts[place], wanted.end))
        for place, wanted in ranges.items()
        if place in log_starts and wanted.start < min(log_starts[place], wanted.end)
    ]


def cut_back(ranges: Ranges, log_ends: Mapping[TopicPartition, int]) -> list[MissingRange]:
    """Returns the ranges that the log lost at its end, whether they were archived already or not."""
    return [
        MissingRange(place, log_ends[place], max(wanted))
        for place, wanted in ranges.items()
        if place in log_ends and log_ends[place] < max(wanted)
    ]


def without(ranges: Ranges, missing: Iterable[MissingRange]) -> Ranges:
    """Returns the ranges that remain to be read."""
    begins = {each.place: each.end for each in missing}
    left = {
        place: OffsetRange(begins.get(place, wanted.start), wanted.end) for place, wanted in ranges.items()
    }
    return {place: wanted for place, wanted in left.items() if wanted.start < wanted.end}


def starting_json(offsets: Mapping[TopicPartition, int], partitions: Iterable[TopicPartition]) -> str:
    """Returns the connector's startingOffsets, which must name every partition."""
    topics: dict[str, dict[str, int]] = {}
    for place in sorted({*partitions, *offsets}):
        topics.setdefault(place.topic, {})[str(place.partition)] = offsets.get(place, EARLIEST_OFFSET)
    return json.dumps(topics)
