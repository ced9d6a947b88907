"""The records that wait in a quarantine topic: each origin once, without those that were put back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tidelog.client.admin import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_COMMITTED, list_offsets
from tidelog.client.cluster import Cluster
from tidelog.client.threads.topic_reader import plain_record, reading, sound_records
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.quarantine.headers import Origin, Quarantined, quarantined_of, replayed_origin
from tidelog.records.record import Record

MAX_WAITING: Final = 5_000_000
"""The maximum number of waiting records. Each origin takes a few hundred bytes of memory during a survey."""
_PARTITION_MAX_BYTES: Final = 8 << 20

Place = tuple[int, int]
"""Partition and offset in the quarantine topic."""
OnRecords = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Choice:
    """Conditions that select quarantined records. Without a condition, all records are selected."""

    reason: re.Pattern[str] | None = None
    topic: str | None = None
    archive: str | None = None

    def takes(self, quarantined: Quarantined) -> bool:
        return (
            (self.reason is None or self.reason.search(quarantined.reason) is not None)
            and self.topic in (None, quarantined.origin.topic)
            and self.archive in (None, quarantined.archive)
        )


@dataclass(slots=True)
class ReasonCount:
    """The number of waiting records of one origin topic and reason, with the times of the first and the
    last.
    """

    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    example: Origin | None = None

    def add(self, quarantined: Quarantined) -> None:
        at = quarantined.timestamp
        self.first_ms = at if not self.count else min(self.first_ms, at)
        self.last_ms = max(self.last_ms, at)
        self.count += 1
        self.example = self.example or quarantined.origin


@dataclass(slots=True)
class QuarantineSurvey:
    """`ends` are the offsets up to which the topic was read. `waiting` holds the first copy of each selected
    origin.
    """

    starts: dict[int, int]
    ends: dict[int, int]
    waiting: dict[Origin, Place] = field(default_factory=dict)
    reasons: dict[tuple[str, str], ReasonCount] = field(default_factory=dict)
    repeated: int = 0
    replayed: int = 0
    strange: int = 0
    """The number of records that no archive wrote."""

    @property
    def record_count(self) -> int:
        return sum(self.ends[index] - self.starts[index] for index in self.ends)


def survey_quarantine(
    cluster: Cluster, topic: str, choice: Choice, on_records: OnRecords = lambda _count: None
) -> QuarantineSurvey:
    """Reads all records that exist now. Raises PipelineError, KafkaError, ClientError."""
    found = open_survey(cluster, topic)
    first: dict[Origin, tuple[Place, Quarantined]] = {}
    put_back: set[Origin] = set()
    for place, record in records_of(cluster, topic, found, on_records):
        note = replayed_origin(record)
        if note is not None:
            put_back.add(note)
            continue
        quarantined = quarantined_of(record)
        if quarantined is None:
            found.strange += 1
        elif quarantined.origin in first:
            found.repeated += 1
        else:
            first[quarantined.origin] = place, _without_value(quarantined)
        if len(first) > MAX_WAITING:
            raise PipelineError(
                f"more than {MAX_WAITING} records wait in {topic}: archive that topic, and look at the table"
            )
    for origin, (place, quarantined) in first.items():
        if origin in put_back:
            found.replayed += 1
        elif choice.takes(quarantined):
            found.waiting[origin] = place
            found.reasons.setdefault((origin.topic, quarantined.reason), ReasonCount()).add(quarantined)
    return found


def open_survey(cluster: Cluster, topic: str) -> QuarantineSurvey:
    """Returns a survey that knows only the current start and end of the topic."""
    described = cluster.topic(topic)
    starts = list_offsets(cluster, described, EARLIEST_TIMESTAMP)
    ends = list_offsets(cluster, described, LATEST_TIMESTAMP, isolation_level=READ_COMMITTED)
    return QuarantineSurvey(
        {index: at.offset for index, at in starts.items()}, {index: at.offset for index, at in ends.items()}
    )


def records_of(
    cluster: Cluster, topic: str, found: QuarantineSurvey, on_records: OnRecords
) -> Iterator[tuple[Place, Record]]:
    """Yields the committed records between the survey's starts and ends."""
    positions = {index: start for index, start in found.starts.items() if start < found.ends[index]}
    if not positions:
        return
    settings = {"isolation.level": "read_committed", "max.partition.fetch.bytes": _PARTITION_MAX_BYTES}
    with reading(cluster, topic, positions, settings) as reader:
        while positions:
            batch = reader.poll()
            for record in () if batch is None else sound_records(batch):
                if record.offset < found.ends[record.partition]:
                    yield (record.partition, record.offset), plain_record(record)
            known = reader.positions()
            following = {index: known.get(index, position) for index, position in positions.items()}
            on_records(sum(following.values()) - sum(positions.values()))
            for index in [index for index, position in following.items() if position >= found.ends[index]]:
                reader.finish(index)
                del following[index]
            positions = following


def _without_value(quarantined: Quarantined) -> Quarantined:
    return Quarantined(
        quarantined.origin,
        quarantined.timestamp,
        quarantined.reason,
        quarantined.archive,
        None,
        None,
        (),
        quarantined.left_out_bytes,
    )
