"""What an archive is: from where, to where, how."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from tidelog.model.topics import TopicPartition
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.formats.value_format import RAW, ValueFormat, ValueKind
from tidelog.pipeline.maintenance.schedule import MaintenanceSchedule

DELTA: Final = "delta"
PARQUET: Final = "parquet"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
STOP: Final = "stop"
GO_ON: Final = "go_on"
DEFAULT_TARGET_FILE_BYTES: Final = 128 * 1024 * 1024
DEFAULT_MAX_OFFSETS_PER_TRIGGER: Final = 5_000_000
"""A batch is kept on the executors' disks while it is hashed and written."""
DEFAULT_CLUSTER_TIMEOUT_S: Final = 60.0

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class ArchiveSpec:
    """`topics` or `pattern`, a regular expression of whole names as Java has them."""

    name: str
    """Stands in each commit; a table belongs to one archive."""
    bootstrap: str
    table: str
    checkpoint: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    table_format: Literal["delta", "parquet"] = DELTA
    value_format: ValueFormat = RAW
    event_date_field: str | None = None
    """A field of decoded values; None: the record's timestamp."""
    group: str | None = None
    """Gets the progress; None: the archive's name."""
    quarantine_topic: str | None = None
    interval_ms: int | None = None
    """Batches that often, until it is stopped; None: all there is now, then the end."""
    max_offsets_per_trigger: int = DEFAULT_MAX_OFFSETS_PER_TRIGGER
    on_data_loss: Literal["stop", "go_on"] = STOP
    starting: str | Mapping[TopicPartition, int] = EARLIEST
    """Of the first run: earliest, latest, or exact offsets; partitions not named start at the earliest."""
    isolation_level: str = "read_committed"
    target_file_bytes: int = DEFAULT_TARGET_FILE_BYTES
    maintenance: MaintenanceSchedule | None = None
    """Between two batches; None: never."""
    client_settings: Mapping[str, str] = field(default_factory=dict)
    """Of the Kafka clients inside Spark, with Kafka's names."""
    cluster_timeout_s: float = DEFAULT_CLUSTER_TIMEOUT_S
    """How long brokers may be away before the job gives up."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise PipelineError(
                f"'{self.name}' is no name for an archive: letters, digits, '.', '_' and '-', up to 100"
            )
        if bool(self.topics) == bool(self.pattern):
            raise PipelineError("name the topics to archive, or a pattern of their names, not both")
        if self.event_date_field and self.value_format.kind is ValueKind.RAW:
            raise PipelineError("raw values have no fields: the event date is the record's timestamp")
        if self.quarantine_topic and self.matches(self.quarantine_topic):
            raise PipelineError(
                f"'{self.quarantine_topic}' is one of the topics to archive, so it can't be the quarantine: "
                "its records would come back for ever"
            )
        if self.max_offsets_per_trigger < 1:
            raise PipelineError("a batch needs at least one record")

    @property
    def consumer_group(self) -> str:
        return self.group or self.name

    def matches(self, topic: str) -> bool:
        """Is the topic one of the archive's? (Java's patterns are close enough to Python's for names.)"""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics
