"""What waits in a quarantine topic: each origin once, those put back already left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tidelog.client.admin import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_COMMITTED, list_offsets
from tidelog.client.cluster import Cluster
from tidelog.client.fetch_loop import FetchLoop
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.quarantine.headers import Origin, Quarantined, quarantined_of, replayed_origin
from tidelog.records.record import Record

MAX_WAITING: Final = 5_000_000
"""Origins are kept in memory while they are sorted out, a few hundred bytes each."""
_WAIT_MS: Final = 500
_PARTITION_MAX_BYTES: Final = 8 << 20

Place = tuple[int, int]
"""Partition and offset in the quarantine topic."""
OnRecords = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of the quarantined records are meant; nothing given means all."""

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
    """Of one origin topic and reason: how many wait, and when the first and last of them were written."""

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
    """`ends`: up to where the topic was read. `waiting`: the first copy of each origin that was chosen."""

    starts: dict[int, int]
    ends: dict[int, int]
    waiting: dict[Origin, Place] = field(default_factory=dict)
    reasons: dict[tuple[str, str], ReasonCount] = field(default_factory=dict)
    repeated: int = 0
    replayed: int = 0
    strange: int = 0
    """Records that no archive put there."""

    @property
    def record_count(self) -> int:
        return sum(self.ends[index] - self.starts[index] for index in self.ends)


def survey_quarantine(
    cluster: Cluster, topic: str, choice: Choice, on_records: OnRecords = lambda _count: None
) -> QuarantineSurvey:
    """Reads all there is now. Raises PipelineError, KafkaError, ClientError."""
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
    """Nothing read yet: only where the topic begins and ends now."""
    described = cluster.topic(topic)
    starts = list_offsets(cluster, described, EARLIEST_TIMESTAMP)
    ends = list_offsets(cluster, described, LATEST_TIMESTAMP, isolation_level=READ_COMMITTED)
    return QuarantineSurvey(
        {index: at.offset for index, at in starts.items()}, {index: at.offset for index, at in ends.items()}
    )


def records_of(
    cluster: Cluster, topic: str, found: QuarantineSurvey, on_records: OnRecords
) -> Iterator[tuple[Place, Record]]:
    """From the survey's starts to its ends, of transactions the committed ones."""
    positions = {index: start for index, start in found.starts.items() if start < found.ends[index]}
    loop = FetchLoop(
        cluster,
        cluster.topic(topic),
        positions,
        isolation_level=READ_COMMITTED,
        partition_max_bytes=_PARTITION_MAX_BYTES,
    )
    while loop.positions:
        before = sum(loop.positions.values())
        for fetched in loop.poll(_WAIT_MS):
            for record in fetched.records:
                if record.offset < found.ends[fetched.partition]:
                    yield (fetched.partition, record.offset), record
        on_records(sum(loop.positions.values()) - before)
        for index in [i for i, position in loop.positions.items() if position >= found.ends[i]]:
            del loop.positions[index]


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
