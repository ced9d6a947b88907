"""Puts quarantined records back into the topics they came from, each once.

One transaction puts some records back and notes this in the quarantine topic. A replay that is killed at any
point and started again therefore puts no record back twice. A second replay of the same topic fences the
first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelog.client.cluster import Cluster, Topic
from tidelog.client.configs import describe_topics_setting
from tidelog.client.errors import ClientError
from tidelog.client.partitioner import partition_for_key
from tidelog.client.transactional_writer import TransactionalWriter
from tidelog.model.errors import KafkaError
from tidelog.pipeline.quarantine.headers import Origin, Quarantined, note_of, quarantined_of
from tidelog.pipeline.quarantine.survey import (
    Choice,
    OnRecords,
    Place,
    QuarantineSurvey,
    records_of,
    survey_quarantine,
)
from tidelog.records.record import Record

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
