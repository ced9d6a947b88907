"""Computes how far a stream over segments reads next. Offsets have the Kafka connector's JSON form, {topic:
{partition: offset}}, so that the checkpoints of both sources are compatible. The module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.offset_shares import offset_shares
from tidelog.pipeline.segments.layout import OffsetsMissingError, PartitionLog
from tidelog.pipeline.segments.options import OffsetsOption

Place: TypeAlias = tuple[str, int]
Offsets: TypeAlias = dict[Place, int]
OffsetsJson: TypeAlias = dict[str, dict[str, int]]

GONE_REASON: Final = "retention or DeleteRecords removed them"


class LogRange(NamedTuple):
    """Offsets [start, end) of one log."""

    log: PartitionLog
    start: int
    end: int


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


def initial_offsets(logs: Iterable[PartitionLog], starting: OffsetsOption) -> Offsets:
    """Returns where a stream begins. If `starting` names partitions, only these are read. Raises
    PipelineError if one does not exist.
    """
    by_place = {(log.topic, log.partition): log for log in logs}
    for topic, partition in starting.by_partition:
        if (topic, partition) not in by_place:
            raise PipelineError(f"startingOffsets names {topic}-{partition}, which is not in the segments")
    return {
        place: starting.of(*place, log.start_offset, log.end_offset)
        for place, log in by_place.items()
        if not starting.by_partition or place in starting.by_partition
    }


def ends_now(logs: Iterable[PartitionLog], ending: OffsetsOption) -> Offsets:
    """Returns the readable end of each partition, at most `ending`."""
    return {
        (log.topic, log.partition): min(
            log.end_offset, ending.of(log.topic, log.partition, log.start_offset, log.end_offset)
        )
        for log in logs
    }


def next_offsets(
    logs: Iterable[PartitionLog],
    start: Mapping[Place, int],
    until: Mapping[Place, int],
    *,
    max_offsets: int | None = None,
    stops_at_loss: bool = True,
) -> Offsets:
    """Returns where the next batch ends: at `until`, or with `max_offsets` after each partition's share, as
    in the Kafka connector. New partitions in `until` begin at their start.

    Raises OffsetsMissingError if a log now begins beyond `start`, and PipelineError if a partition has
    disappeared.
    """
    by_place = {(log.topic, log.partition): log for log in logs}
    gone = [place for place in start if place not in by_place]
    if gone:
        topic, partition = gone[0]
        raise PipelineError(
            f"{topic}-{partition} was read up to offset {start[gone[0]]} but is no longer in the segments:"
            f" was the topic deleted? Name another path, or start again with another checkpoint"
        )
    begins, ends = {}, {}
    for place, log in by_place.items():
        if place not in start and place not in until:
            continue
        begin = start.get(place, log.start_offset)
        end = min(log.end_offset, until.get(place, begin))
        if begin < log.start_offset and stops_at_loss:
            raise OffsetsMissingError(*place, begin, log.start_offset, GONE_REASON)
        begins[place], ends[place] = begin, max(begin, end)
    shares = offset_shares({place: ends[place] - begins[place] for place in ends}, max_offsets)
    return {place: begins[place] + share for place, share in shares.items()}


def ranges_between(
    logs: Iterable[PartitionLog],
    start: Mapping[Place, int],
    end: Mapping[Place, int],
    *,
    stops_at_loss: bool = True,
) -> list[LogRange]:
    """Returns the non-empty ranges between the offsets of two batches. A partition that is not in `start` is
    new and is read from its beginning.

    Raises OffsetsMissingError if a log has lost a part of the range, and PipelineError if it does not reach
    `end`.
    """
    by_place = {(log.topic, log.partition): log for log in logs}
    found = []
    for place, stop in sorted(end.items()):
        log = by_place.get(place)
        begin = start.get(place, log.start_offset if log else 0)
        if begin >= stop:
            continue
        if log is None:
            raise OffsetsMissingError(*place, begin, stop, "the partition is no longer in the segments")
        if begin < log.start_offset and stops_at_loss:
            raise OffsetsMissingError(*place, begin, min(log.start_offset, stop), GONE_REASON)
        if stop > log.end_offset:
            raise OffsetsMissingError(
                *place, max(begin, log.end_offset), stop, f"the log in {log.directory} now ends before them"
            )
        begin = max(begin, log.start_offset)
        if begin < stop:
            found.append(LogRange(log, begin, stop))
    return found
