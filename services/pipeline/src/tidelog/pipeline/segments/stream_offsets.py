"""How far a stream over segments goes next. Pure; offsets have the Kafka connector's JSON form, {topic:
{partition: offset}}, so that either source's checkpoints read the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.layout import OffsetsMissingError, PartitionLog

Place: TypeAlias = tuple[str, int]
Offsets: TypeAlias = dict[Place, int]
OffsetsJson: TypeAlias = dict[str, dict[str, int]]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
GONE_REASON: Final = "retention or DeleteRecords removed them"


@dataclass(frozen=True, slots=True)
class LogRange:
    """Offsets [start, end) of one log, to be read by one or more tasks."""

    log: PartitionLog
    start: int
    end: int

    def trimmed(self) -> LogRange:
        """With no more of the log than the range needs: it is sent to a task."""
        log = replace(
            self.log,
            segments=self.log.segments_of(self.start, self.end),
            aborted=self.log.aborted_in(self.start, self.end),
        )
        return replace(self, log=log)


def to_json(offsets: Mapping[Place, int]) -> OffsetsJson:
    found: OffsetsJson = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }


def parse_offsets(text: str, option: str) -> Offsets:
    """Raises PipelineError that names the option."""
    try:
        return from_json(json.loads(text))
    except (ValueError, AttributeError, TypeError) as error:
        raise PipelineError(
            f'{option} is neither {EARLIEST} nor {LATEST} nor JSON like {{"topic": {{"0": 23}}}}:'
            f" {text[:80]!r}"
        ) from error


def initial_offsets(logs: Iterable[PartitionLog], starting: str) -> Offsets:
    """`starting`: earliest, latest, or offsets of the partitions to be read, no others (-2 earliest, -1
    latest). Raises PipelineError for one that isn't there.
    """
    by_place = {(log.topic, log.partition): log for log in logs}
    if starting in (EARLIEST, LATEST):
        sentinel = EARLIEST_OFFSET if starting == EARLIEST else LATEST_OFFSET
        return {place: _resolved(log, sentinel) for place, log in by_place.items()}
    found: Offsets = {}
    for place, offset in parse_offsets(starting, "startingOffsets").items():
        if place not in by_place:
            raise PipelineError(f"startingOffsets names {place[0]}-{place[1]}, which isn't in the segments")
        found[place] = _resolved(by_place[place], offset)
    return found


def _resolved(log: PartitionLog, offset: int) -> int:
    if offset == EARLIEST_OFFSET:
        return log.start_offset
    return log.end_offset if offset == LATEST_OFFSET else offset


def next_offsets(
    logs: Iterable[PartitionLog],
    start: Mapping[Place, int],
    *,
    max_offsets: int | None = None,
    until: Mapping[Place, int] | None = None,
    takes_new: bool = True,
    stops_at_loss: bool = True,
) -> Offsets:
    """Where the next batch ends: what may be read now, not beyond `until`, and with `max_offsets` a share of
    it for each partition, as the Kafka connector does it. Partitions that are new begin at their start if
    the stream `takes_new` ones.

    Raises OffsetsMissingError if the logs begin beyond `start` now, PipelineError if a partition is gone.
    """
    by_place = {(log.topic, log.partition): log for log in logs}
    gone = [place for place in start if place not in by_place]
    if gone:
        topic, partition = gone[0]
        raise PipelineError(
            f"{topic}-{partition} was read up to offset {start[gone[0]]} and isn't in the segments any more:"
            f" was the topic deleted? Name another path, or begin anew with another checkpoint"
        )
    begins, ends = {}, {}
    for place, log in by_place.items():
        if place not in start and not takes_new:
            continue
        begin = start.get(place, log.start_offset)
        end = log.end_offset if until is None else min(log.end_offset, until.get(place, log.end_offset))
        if begin < log.start_offset and stops_at_loss:
            raise OffsetsMissingError(*place, begin, log.start_offset, GONE_REASON)
        begins[place], ends[place] = begin, max(begin, end)
    return _limited(begins, ends, max_offsets)


def _limited(begins: Offsets, ends: Offsets, max_offsets: int | None) -> Offsets:
    total = sum(ends[place] - begins[place] for place in ends)
    if max_offsets is None or total <= max_offsets:
        return ends
    # At least one offset a partition that has any: else a small one would wait for ever.
    return {
        place: begins[place]
        + min(
            ends[place] - begins[place],
            max(1, (ends[place] - begins[place]) * max_offsets // total),
        )
        for place in ends
    }


def ranges_between(
    logs: Iterable[PartitionLog],
    start: Mapping[Place, int],
    end: Mapping[Place, int],
    *,
    stops_at_loss: bool = True,
) -> list[LogRange]:
    """What lies between the offsets of two batches, empty ranges left out. A partition that `start` doesn't
    know is new: from its beginning.

    Raises OffsetsMissingError if a log has lost some of it, PipelineError if it doesn't reach `end`.
    """
    by_place = {(log.topic, log.partition): log for log in logs}
    found = []
    for place, stop in sorted(end.items()):
        log = by_place.get(place)
        begin = start.get(place, log.start_offset if log else 0)
        if begin >= stop:
            continue
        if log is None:
            raise OffsetsMissingError(*place, begin, stop, "the partition isn't in the segments any more")
        if begin < log.start_offset and stops_at_loss:
            raise OffsetsMissingError(*place, begin, min(log.start_offset, stop), GONE_REASON)
        if stop > log.end_offset:
            raise OffsetsMissingError(
                *place, max(begin, log.end_offset), stop, f"the log in {log.directory} ends before them now"
            )
        begin = max(begin, log.start_offset)
        if begin < stop:
            found.append(LogRange(log, begin, stop))
    return found
