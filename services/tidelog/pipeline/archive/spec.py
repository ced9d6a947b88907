"""The definition of an archive: its source, its table and its options; the offsets of a batch, as the
checkpoint records them, and the part of them that the log no longer has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from tidelog.client.admin.logs import OffsetRange
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.formats.value_format import RAW, ValueFormat, ValueKind
from tidelog.pipeline.tables.maintenance import MaintenanceSchedule

DELTA: Final = "delta"
PARQUET: Final = "parquet"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
STOP: Final = "stop"
GO_ON: Final = "go_on"
DEFAULT_TARGET_FILE_BYTES: Final = 128 * 1024 * 1024
DEFAULT_MAX_OFFSETS_PER_TRIGGER: Final = 5_000_000
"""The storage level of a batch, which is kept on the executors' disks while it is hashed and written."""
DEFAULT_CLUSTER_TIMEOUT_S: Final = 60.0

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class ArchiveSpec:
    """Either `topics` is set or `pattern`, a regular expression of whole names in Java's syntax."""

    name: str
    """The archive's name, which is in each commit. A table belongs to one archive."""
    bootstrap: str
    table: str
    checkpoint: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    table_format: Literal["delta", "parquet"] = DELTA
    value_format: ValueFormat = RAW
    event_date_field: str | None = None
    """The field of decoded values with the event date, or None for the record's timestamp."""
    group: str | None = None
    """The consumer group that gets the progress, or None for the archive's name."""
    quarantine_topic: str | None = None
    interval_ms: int | None = None
    """The interval between batches of an archive that runs until it is stopped. None archives all that
    exists, then ends.
    """
    max_offsets_per_trigger: int = DEFAULT_MAX_OFFSETS_PER_TRIGGER
    on_data_loss: Literal["stop", "go_on"] = STOP
    starting: str | Mapping[TopicPartition, int] = EARLIEST
    """Where the first run starts: earliest, latest, or exact offsets. Partitions without an offset start at
    the earliest.
    """
    isolation_level: str = "read_committed"
    target_file_bytes: int = DEFAULT_TARGET_FILE_BYTES
    maintenance: MaintenanceSchedule | None = None
    """The interval of maintenance between two batches, or None for never."""
    client_settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark's Kafka clients, with Kafka's names."""
    cluster_timeout_s: float = DEFAULT_CLUSTER_TIMEOUT_S
    """The time that the job waits for brokers before it gives up."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise PipelineError(
                f"'{self.name}' is not a valid archive name: use letters, digits, '.', '_' and '-', up to "
                "100 characters"
            )
        if bool(self.topics) == bool(self.pattern):
            raise PipelineError("name the topics to archive, or a pattern of their names, not both")
        if self.event_date_field and self.value_format.kind is ValueKind.RAW:
            raise PipelineError("raw values have no fields, so the event date must be the record's timestamp")
        if self.quarantine_topic and self.matches(self.quarantine_topic):
            raise PipelineError(
                f"'{self.quarantine_topic}' is one of the topics to archive, so it cannot be the quarantine: "
                "its records would be archived again and again"
            )
        if self.max_offsets_per_trigger < 1:
            raise PipelineError("a batch needs at least one record")

    @property
    def consumer_group(self) -> str:
        return self.group or self.name

    def matches(self, topic: str) -> bool:
        """Returns True if the archive includes the topic. Java's patterns are close enough to Python's for
        names.
        """
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics


def connector_options(spec: ArchiveSpec) -> Mapping[str, str]:
    """Returns all options except the topics and offsets."""
    return {
        "kafka.bootstrap.servers": spec.bootstrap,
        "kafka.isolation.level": spec.isolation_level,
        "includeHeaders": "true",
        "failOnDataLoss": "true" if spec.on_data_loss == STOP else "false",
        **{f"kafka.{name}": value for name, value in spec.client_settings.items()},
    }


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
