"""The options of `spark.read.format("tidelog")` and `spark.readStream`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.layout import READ_COMMITTED, READ_UNCOMMITTED
from tidelog.pipeline.segments.slices import DEFAULT_SPLIT_BYTES
from tidelog.records.columns.arrow import COLUMNS

EARLIEST: Final = -2
LATEST: Final = -1
STORAGE_PREFIX: Final = "storage."

_NAMED_OFFSETS: Final = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True)
class OffsetsOption:
    """Offsets in the Kafka connector's form: `earliest`, `latest` or JSON {"topic": {"0": 23, "1": -2}},
    where -2 means the earliest and -1 the latest offset. A partition without an entry gets `otherwise`.
    """

    otherwise: int
    by_partition: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def of(self, topic: str, partition: int, earliest: int, latest: int) -> int:
        offset = self.by_partition.get((topic, partition), self.otherwise)
        return {EARLIEST: earliest, LATEST: latest}.get(offset, offset)


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
    starting_offsets: OffsetsOption = OffsetsOption(EARLIEST)
    ending_offsets: OffsetsOption = OffsetsOption(LATEST)
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
        starting_offsets=_offsets(options.get("startingoffsets", "earliest"), "startingOffsets", EARLIEST),
        ending_offsets=_offsets(options.get("endingoffsets", "latest"), "endingOffsets", LATEST),
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
        if type(offset) is not int or offset < EARLIEST:
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
