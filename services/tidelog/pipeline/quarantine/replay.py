"""Finds the records that wait in a quarantine topic, each origin once, and puts them back into the topics
they came from, each once. Headers beside its own describe a quarantined record.

One transaction puts some records back and notes this in the quarantine topic. A replay that is killed at any
point and started again therefore puts no record back twice. A second replay of the same topic fences the
first.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog.client.admin.offsets import list_offsets
from tidelog.client.admin.topics import describe_topics_setting
from tidelog.client.admin.transactions import TransactionalWriter
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.errors import ClientError
from tidelog.client.partitioners import partition_for_key
from tidelog.client.threads.topic_reader import plain_record, reading, sound_records
from tidelog.model.errors import KafkaError
from tidelog.model.protocol_values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_COMMITTED
from tidelog.pipeline.errors import PipelineError
from tidelog.records.record import Record
from tidelog.records.record_writer import Header

PREFIX: Final = "tidelog.error."
REASON: Final = f"{PREFIX}reason"
TOPIC: Final = f"{PREFIX}topic"
PARTITION: Final = f"{PREFIX}partition"
OFFSET: Final = f"{PREFIX}offset"
TIMESTAMP: Final = f"{PREFIX}timestamp"
ARCHIVE: Final = f"{PREFIX}archive"
LEFT_OUT_BYTES: Final = f"{PREFIX}left.out.bytes"
"""The size of a value that is too large for the quarantine topic. The value exists only at its origin."""
REPLAYED: Final = f"{PREFIX}replayed"
"""Marks a record of the quarantine that only notes that the origin in its other headers was put back."""


class Origin(NamedTuple):
    """Where a quarantined record came from. The origin identifies the record, however often it was sent."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offset {self.offset}"


@dataclass(frozen=True, slots=True)
class Quarantined:
    """`headers` are the original's. If `left_out_bytes` is None, the value is present."""

    origin: Origin
    timestamp: int
    reason: str
    archive: str
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    left_out_bytes: int | None = None


def quarantined_of(record: Record) -> Quarantined | None:
    """Parses a record. Returns None if it is not a quarantined record, or if it is the note of a replay."""
    ours = _ours(record.headers)
    origin = _origin_of(ours)
    if origin is None or REPLAYED in ours:
        return None
    return Quarantined(
        origin,
        _number(ours.get(TIMESTAMP), record.timestamp),
        ours.get(REASON, ""),
        ours.get(ARCHIVE, ""),
        record.key,
        record.value,
        own_headers(record.headers),
        _number(ours[LEFT_OUT_BYTES], 0) if LEFT_OUT_BYTES in ours else None,
    )


def replayed_origin(record: Record) -> Origin | None:
    """Returns the origin in the note of a replay, or None for any other record."""
    ours = _ours(record.headers)
    return _origin_of(ours) if REPLAYED in ours else None


def note_of(quarantined: Quarantined, now_ms: int) -> Record:
    """Returns the note that is written to the quarantine in the transaction that puts the record back."""
    origin = quarantined.origin
    headers = (
        (REPLAYED, str(now_ms).encode()),
        (TOPIC, origin.topic.encode()),
        (PARTITION, str(origin.partition).encode()),
        (OFFSET, str(origin.offset).encode()),
    )
    return Record(0, now_ms, quarantined.key, None, headers)


def own_headers(headers: Sequence[Header]) -> tuple[Header, ...]:
    """Returns the headers without those of the quarantine."""
    return tuple(header for header in headers if not header[0].startswith(PREFIX))


def _ours(headers: Sequence[Header]) -> dict[str, str]:
    return {
        name: (value or b"").decode(errors="replace") for name, value in headers if name.startswith(PREFIX)
    }


def _origin_of(ours: dict[str, str]) -> Origin | None:
    partition, offset = _number(ours.get(PARTITION), -1), _number(ours.get(OFFSET), -1)
    if not ours.get(TOPIC) or partition < 0 or offset < 0:
        return None
    return Origin(ours[TOPIC], partition, offset)


def _number(text: str | None, default: int) -> int:
    try:
        return default if text is None else int(text)
    except ValueError:
        return default


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


REPLAY_ORIGIN: Final = "tidelog.replay.origin"
"""The header on a record that was put back. Readers of the topic that had understood the original recognize
it by this header.
"""
RECORDS_A_TRANSACTION: Final = 500
BYTES_A_TRANSACTION: Final = 16 << 20
_MAX_BYTES: Final = "max.message.bytes"
_KAFKAS_MAX_BYTES: Final = 1_048_588
_RECORD_OVERHEAD_BYTES: Final = 64
_BATCH_OVERHEAD_BYTES: Final = 1024


@dataclass(slots=True)
class ReplaySummary:
    """`left_out` counts records whose value is not in the quarantine. `gone` counts records whose topic no
    longer exists.
    """

    put_back: int = 0
    left_out: list[Origin] = field(default_factory=list)
    gone: dict[str, int] = field(default_factory=dict)


def replay(
    cluster: Cluster,
    topic: str,
    choice: Choice,
    *,
    now_ms: Callable[[], int],
    to: str | None = None,
    limit: int | None = None,
    on_survey: OnRecords = lambda _count: None,
    on_records: OnRecords = lambda _count: None,
) -> ReplaySummary:
    """Puts the records back, into topic `to` if it is given. Raises PipelineError, KafkaError,
    ClientError.
    """
    quarantine = cluster.topic(topic)
    # This precedes the survey, so that no other replay can commit afterwards.
    writer = TransactionalWriter(cluster, quarantine, f"tidelog-quarantine-replay-{topic}")
    found = survey_quarantine(cluster, topic, choice, on_survey)
    targets = _Targets(cluster, quarantine, to)
    summary = ReplaySummary()
    pending: list[tuple[int, Quarantined]] = []
    size_bytes = 0
    for place, quarantined in _chosen(cluster, topic, found, limit, on_records):
        if quarantined.left_out_bytes is not None:
            summary.left_out.append(quarantined.origin)
            continue
        if targets.of(quarantined) is None:
            name = to or quarantined.origin.topic
            summary.gone[name] = summary.gone.get(name, 0) + 1
            continue
        pending.append((place[0], quarantined))
        size_bytes += size_of(put_back_record(quarantined))
        if len(pending) >= RECORDS_A_TRANSACTION or size_bytes >= BYTES_A_TRANSACTION:
            _put_back(writer, targets, pending, now_ms())
            summary.put_back += len(pending)
            pending, size_bytes = [], 0
    if pending:
        _put_back(writer, targets, pending, now_ms())
        summary.put_back += len(pending)
    return summary


def put_back_record(quarantined: Quarantined) -> Record:
    """Returns the record as it was, with a header that names its origin."""
    origin = quarantined.origin
    mark = f"{origin.topic}-{origin.partition}@{origin.offset}".encode()
    headers = tuple(header for header in quarantined.headers if header[0] != REPLAY_ORIGIN)
    return Record(
        0, quarantined.timestamp, quarantined.key, quarantined.value, (*headers, (REPLAY_ORIGIN, mark))
    )


def size_of(record: Record) -> int:
    """Returns the maximum size of the record in a batch."""
    headers = sum(len(name.encode()) + len(value or b"") + 10 for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + _RECORD_OVERHEAD_BYTES


def batches_of(records: Sequence[Record], max_bytes: int) -> list[list[Record]]:
    """Yields batches in order. A batch exceeds `max_bytes` only if a single record does. Offsets count from
    0.
    """
    batches: list[list[Record]] = []
    size_bytes = 0
    for record in records:
        own = size_of(record)
        if not batches or size_bytes + own > max_bytes - _BATCH_OVERHEAD_BYTES:
            batches.append([])
            size_bytes = 0
        batches[-1].append(record._replace(offset=len(batches[-1])))
        size_bytes += own
    return batches


class _Targets:
    """The topics that records are put back into, and their maximum batch sizes."""

    def __init__(self, cluster: Cluster, quarantine: Topic, to: str | None) -> None:
        self._cluster = cluster
        self._to = to
        self._topics: dict[str, Topic | None] = {quarantine.name: quarantine}
        self._max_bytes: dict[str, int] = {}
        self.quarantine = quarantine

    def of(self, quarantined: Quarantined) -> Topic | None:
        """Returns the target of a record, or None if the topic no longer exists."""
        name = self._to or quarantined.origin.topic
        if name not in self._topics:
            self._topics[name] = self._cluster.topics([name]).get(name)
        return self._topics[name]

    def named(self, name: str) -> Topic | None:
        return self._topics[name]

    def partition_of(self, quarantined: Quarantined) -> int:
        """Returns the record's own partition if the topic is its own, so that records of a key stay in
        order.
        """
        topic = self.of(quarantined)
        assert topic is not None
        origin, count = quarantined.origin, len(topic.partitions)
        if topic.name == origin.topic and origin.partition < count:
            return origin.partition
        return (
            origin.partition % count if quarantined.key is None else partition_for_key(quarantined.key, count)
        )

    def max_bytes(self, name: str) -> int:
        if name not in self._max_bytes:
            value = describe_topics_setting(self._cluster, [name], _MAX_BYTES).get(name)
            self._max_bytes[name] = int(value or _KAFKAS_MAX_BYTES)
        return self._max_bytes[name]


def _chosen(
    cluster: Cluster, topic: str, found: QuarantineSurvey, limit: int | None, on_records: OnRecords
) -> Iterator[tuple[Place, Quarantined]]:
    """Returns the first copy of each origin, at most `limit`, in the order of the quarantine's partitions."""
    left = len(found.waiting) if limit is None else limit
    for place, record in records_of(cluster, topic, found, on_records):
        if left <= 0:
            return
        quarantined = quarantined_of(record)
        if quarantined is not None and found.waiting.get(quarantined.origin) == place:
            left -= 1
            yield place, quarantined


def _put_back(
    writer: TransactionalWriter, targets: _Targets, pending: list[tuple[int, Quarantined]], now_ms: int
) -> None:
    """Puts back all the records with their notes, or none."""
    groups: dict[tuple[str, int], list[Record]] = {}
    for quarantine_partition, quarantined in pending:
        topic = targets.of(quarantined)
        assert topic is not None
        own = (topic.name, targets.partition_of(quarantined))
        groups.setdefault(own, []).append(put_back_record(quarantined))
        note = (targets.quarantine.name, quarantine_partition)
        groups.setdefault(note, []).append(note_of(quarantined, now_ms))
    try:
        for (name, partition), records in groups.items():
            for batch in batches_of(records, targets.max_bytes(name)):
                writer.write(partition, batch, targets.named(name))
    except (ClientError, KafkaError):
        with contextlib.suppress(ClientError, KafkaError):  # otherwise the transaction ends by its timeout
            writer.end(commits=False)
        raise
    writer.end(commits=True)
