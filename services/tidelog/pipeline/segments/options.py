"""The options of `spark.read.format("tidelog")` and `spark.readStream`, and the offsets that a stream reads
next.

Offsets have the Kafka connector's JSON form, {topic: {partition: offset}}, so that the checkpoints of both
sources are compatible. The module does no I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar

from tidelog.model.protocol_values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.log_files import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    OffsetsMissingError,
    PartitionLog,
)
from tidelog.pipeline.segments.slices import DEFAULT_SPLIT_BYTES
from tidelog.records.columns.arrow import COLUMNS

STORAGE_PREFIX: Final = "storage."

_NAMED_OFFSETS: Final = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}


@dataclass(frozen=True)
class OffsetsOption:
    """Offsets in the Kafka connector's form: `earliest`, `latest` or JSON {"topic": {"0": 23, "1": -2}},
    where -2 means the earliest and -1 the latest offset. A partition without an entry gets `otherwise`.
    """

    otherwise: int
    by_partition: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def of(self, topic: str, partition: int, earliest: int, latest: int) -> int:
        offset = self.by_partition.get((topic, partition), self.otherwise)
        return {EARLIEST_TIMESTAMP: earliest, LATEST_TIMESTAMP: latest}.get(offset, offset)


@dataclass(frozen=True)
class SegmentOptions:
    """`roots` are data directories, copies or exports. If `topics` is None, all topics that match
    `topic_pattern` are read, or all but internal ones. If `fail_on_data_loss` is False, deleted starting
    offsets are skipped.
    """

    roots: tuple[str, ...]
    topics: tuple[str, ...] | None = None
    topic_pattern: str | None = None
    columns: tuple[str, ...] = tuple(COLUMNS)
    isolation_level: str = READ_COMMITTED
    starting_offsets: OffsetsOption = OffsetsOption(EARLIEST_TIMESTAMP)
    ending_offsets: OffsetsOption = OffsetsOption(LATEST_TIMESTAMP)
    fail_on_data_loss: bool = True
    check_crcs: bool = True
    split_bytes: int = DEFAULT_SPLIT_BYTES
    max_offsets_per_trigger: int | None = None
    storage_settings: Mapping[str, str] = field(default_factory=dict)

    def wants(self, topic: str) -> bool:
        """Returns True if the options include the topic, when `topics` is None."""
        return self.topic_pattern is None or re.fullmatch(self.topic_pattern, topic) is not None


def parse_options(given: Mapping[str, str]) -> SegmentOptions:
    """Parses options. Their names are case-insensitive. Raises PipelineError."""
    options = {name.lower(): value for name, value in given.items()}
    topics, pattern = options.get("subscribe"), options.get("subscribepattern")
    if topics is not None and pattern is not None:
        raise PipelineError("subscribe and subscribePattern exclude each other: give only one of them")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise PipelineError(f"subscribePattern {pattern!r} is not a valid pattern: {error}") from error
    isolation_level = options.get("isolationlevel", READ_COMMITTED).lower()
    if isolation_level not in (READ_COMMITTED, READ_UNCOMMITTED):
        raise PipelineError(
            f"isolationLevel must be {READ_COMMITTED} or {READ_UNCOMMITTED}, not {isolation_level!r}"
        )
    return SegmentOptions(
        roots=_roots(options),
        topics=None if topics is None else _names(topics, "subscribe"),
        topic_pattern=pattern,
        columns=_columns(options.get("columns")),
        isolation_level=isolation_level,
        starting_offsets=_offsets(
            options.get("startingoffsets", "earliest"), "startingOffsets", EARLIEST_TIMESTAMP
        ),
        ending_offsets=_offsets(options.get("endingoffsets", "latest"), "endingOffsets", LATEST_TIMESTAMP),
        fail_on_data_loss=_flag(options.get("failondataloss", "true"), "failOnDataLoss"),
        check_crcs=_flag(options.get("checkcrcs", "true"), "checkCrcs"),
        split_bytes=_positive(options.get("splitbytes", str(DEFAULT_SPLIT_BYTES)), "splitBytes"),
        max_offsets_per_trigger=(
            _positive(options["maxoffsetspertrigger"], "maxOffsetsPerTrigger", "offsets")
            if "maxoffsetspertrigger" in options
            else None
        ),
        storage_settings={
            name[len(STORAGE_PREFIX) :]: value
            for name, value in options.items()
            if name.startswith(STORAGE_PREFIX)
        },
    )


def _roots(options: Mapping[str, str]) -> tuple[str, ...]:
    if "paths" in options:  # from load([...])
        return tuple(json.loads(options["paths"]))
    if not options.get("path"):
        raise PipelineError("no segments are named: give data directories with load(PATH[,PATH...])")
    return _names(options["path"], "path")


def _names(text: str, option: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise PipelineError(f"option {option} is empty")
    return names


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return tuple(COLUMNS)
    by_lower_case = {name.lower(): name for name in COLUMNS}
    names = _names(text, "columns")
    unknown = [name for name in names if name.lower() not in by_lower_case]
    if unknown:
        raise PipelineError(f"there is no column {unknown[0]!r}; the columns are {', '.join(COLUMNS)}")
    return tuple(dict.fromkeys(by_lower_case[name.lower()] for name in names))


def _offsets(text: str, option: str, otherwise: int) -> OffsetsOption:
    if text.lower() in _NAMED_OFFSETS:
        return OffsetsOption(_NAMED_OFFSETS[text.lower()])
    try:
        by_partition = {
            (topic, int(partition)): offset
            for topic, partitions in json.loads(text).items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError) as error:
        raise PipelineError(
            f'{option} must be earliest, latest or JSON like {{"topic": {{"0": 23}}}}, not {text!r}'
        ) from error
    for (topic, partition), offset in by_partition.items():
        if type(offset) is not int or offset < EARLIEST_TIMESTAMP:
            raise PipelineError(f"{option}: {offset!r} is not a valid offset of {topic}-{partition}")
    return OffsetsOption(otherwise, by_partition)


def _flag(text: str, option: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise PipelineError(f"{option} must be true or false, not {text!r}")
    return text.lower() == "true"


def _positive(text: str, option: str, unit: str = "bytes") -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise PipelineError(f"{option} must be a number of {unit}, not {text!r}")
    return int(text)


P = TypeVar("P")


def offset_shares(waiting: Mapping[P, int], limit: int | None) -> dict[P, int]:
    """Returns each partition's share of `limit` offsets, in proportion to its waiting offsets. A limit of
    None means all.

    As in Spark's Kafka connector, each partition with waiting records gets at least one offset, so that a
    small partition cannot starve. The sum of the shares may therefore exceed `limit`.
    """
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return dict(waiting)
    return {place: min(count, max(1, count * limit // total)) for place, count in waiting.items()}


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
