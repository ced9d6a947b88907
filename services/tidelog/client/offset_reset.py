"""Computes the offsets to which a group is reset, with the rules of kafka-consumer-groups. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tidelog.model.topics import TopicPartition


class ResetMethod(Enum):
    """The methods of kafka-consumer-groups, by the names of its options."""

    TO_EARLIEST = "to-earliest"
    TO_LATEST = "to-latest"
    TO_OFFSET = "to-offset"
    SHIFT_BY = "shift-by"
    TO_DATETIME = "to-datetime"
    BY_DURATION = "by-duration"
    TO_CURRENT = "to-current"
    FROM_FILE = "from-file"


NEEDS_TIME = frozenset({ResetMethod.TO_DATETIME, ResetMethod.BY_DURATION})
"""The methods that need the offset of a time."""


class ResetError(Exception):
    """The method has no result for a partition. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class Reset:
    """A method with its parameter.

    `number` is the offset of TO_OFFSET or the difference of SHIFT_BY, `timestamp_ms` the time of TO_DATETIME
    and BY_DURATION in milliseconds since 1970, and `offsets` the content of FROM_FILE.
    """

    method: ResetMethod
    number: int = 0
    timestamp_ms: int = 0
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownOffsets:
    """The offsets of a partition.

    `latest` is the high watermark, `committed` is None if the group has committed nothing, and `at_time` is
    None if no record is as late as the time.
    """

    earliest: int
    latest: int
    committed: int | None = None
    at_time: int | None = None


@dataclass(frozen=True, slots=True)
class NewOffset:
    """The planned offset. `warning` is one sentence if the offset is not the requested one."""

    offset: int
    warning: str | None = None


def plan_reset(
    reset: Reset, partitions: Mapping[TopicPartition, KnownOffsets]
) -> dict[TopicPartition, NewOffset]:
    """Returns the new offset of each partition.

    Raises ResetError if SHIFT_BY finds no committed offset, or FROM_FILE contains no offset of a partition.
    """
    return {place: _new_offset(reset, place, known) for place, known in partitions.items()}


def _new_offset(reset: Reset, place: TopicPartition, known: KnownOffsets) -> NewOffset:
    match reset.method:
        case ResetMethod.TO_EARLIEST:
            return NewOffset(known.earliest)
        case ResetMethod.TO_LATEST:
            return NewOffset(known.latest)
        case ResetMethod.TO_OFFSET:
            return _in_range(place, reset.number, known)
        case ResetMethod.SHIFT_BY:
            if known.committed is None:
                raise ResetError(f"{place} has no committed offset that could be shifted")
            return _in_range(place, known.committed + reset.number, known)
        case ResetMethod.TO_DATETIME | ResetMethod.BY_DURATION:
            if known.at_time is None:
                return NewOffset(
                    known.latest, f"{place} has no record at or after this time, so it gets the latest offset"
                )
            return NewOffset(known.at_time)
        case ResetMethod.TO_CURRENT:
            return NewOffset(known.latest if known.committed is None else known.committed)
        case ResetMethod.FROM_FILE:
            if place not in reset.offsets:
                raise ResetError(f"the file contains no offset of {place}")
            return _in_range(place, reset.offsets[place], known)


def _in_range(place: TopicPartition, offset: int, known: KnownOffsets) -> NewOffset:
    if offset > known.latest:
        return NewOffset(
            known.latest,
            f"offset {offset} of {place} is higher than the latest one, so it gets offset {known.latest}",
        )
    if offset < known.earliest:
        return NewOffset(
            known.earliest,
            f"offset {offset} of {place} is lower than the earliest one, so it gets offset {known.earliest}",
        )
    return NewOffset(offset)
