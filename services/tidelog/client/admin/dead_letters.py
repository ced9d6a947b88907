"""Reads dead letter topics of share groups (KIP-1191), and sends dead letters back to their source topics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.client.admin.groups import CommittedOffset, commit_offsets, committed_offsets
from tidelog.client.admin.offsets import list_offsets
from tidelog.client.admin.topics import ConfigResource, describe_configs
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.errors import ClientError, UnknownTopicError, raise_on_error
from tidelog.client.threads.producer import Producer
from tidelog.client.threads.topic_reader import batch_producer_of, plain_record, reading, sound_records
from tidelog.model import dead_letters
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ConfigResourceType
from tidelog.model.topics import TopicPartition
from tidelog.records.record import Record
from tidelog.records.record_writer import Header
from tidelog.wire.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

TOPIC_SETTING: Final = "errors.deadletterqueue.topic.name"
REDRIVE_GROUP_PREFIX: Final = "tidelog-redrive."
"""Before the name of a share group: the consumer group whose offsets say how far its redrive came."""
MAX_BATCH_RECORDS: Final = 500
MAX_BATCH_BYTES: Final = 512 * 1024
"""The size of the keys and values of the records that a redrive sends to a partition at a time, which the
first record may exceed. It is below the default of max.message.bytes.
"""
MAX_EMPTY_POLLS: Final = 20
"""The polls without a record after which a partition counts as read: compaction may have removed its last
records. It is about 10 s.
"""
MAX_REASON_CHARS: Final = 80
"""The most characters of a reason that are shown."""
MAX_SUMMARIES: Final = 1_000
"""The most groups and reasons of one topic that are counted apart. The reasons above it count as `other`."""
_LIST_TYPES_SINCE: Final = 1


class MissingRecordError(ClientError):
    """A dead letter has no copy of its record, and the record is not in its topic any more."""


class DeadLetter(NamedTuple):
    """A record of a dead letter topic. `source` and `source_offset` say where its record was."""

    record: Record
    group: str
    source: TopicPartition
    source_offset: int
    delivery_count: int | None
    reason: str

    @property
    def has_copy(self) -> bool:
        """Whether the dead letter has content of its record. Without, it only states where the record is."""
        return self.record.key is not None or self.record.value is not None


def parse(record: Record) -> DeadLetter | None:
    """Returns a record as a dead letter, None if it does not have the headers of one."""
    own = dict(record.headers)  # the last header of a name counts
    try:
        source = TopicPartition(_text(own, dead_letters.TOPIC), int(_text(own, dead_letters.PARTITION)))
        offset, group = int(_text(own, dead_letters.OFFSET)), _text(own, dead_letters.GROUP)
        count = own.get(dead_letters.DELIVERY_COUNT)
        delivery_count = None if count is None else int(count)
    except (KeyError, ValueError):
        return None
    if source.partition < 0 or offset < 0:
        return None
    reason = (own.get(dead_letters.MESSAGE) or b"").decode(errors="replace")
    return DeadLetter(record, group, source, offset, delivery_count, reason)


def _text(headers: Mapping[str, bytes | None], name: str) -> str:
    """Raises KeyError if there is no such header, ValueError if it is not UTF-8."""
    value = headers[name]
    if value is None:
        raise KeyError(name)
    return value.decode()


def without_own_headers(headers: Sequence[Header]) -> tuple[Header, ...]:
    """Returns the headers of the record itself. Of each header of dead letters, only the last one goes: a
    dead letter of a dead letter becomes a dead letter again.
    """
    left = set(dead_letters.HEADERS)
    kept: list[Header] = []
    for header in reversed(headers):
        if header[0] in left:
            left.remove(header[0])
        else:
            kept.append(header)
    return tuple(reversed(kept))


def dead_letter_topics(cluster: Cluster) -> dict[str, str]:
    """Returns the dead letter topic of each share group that has one. Raises KafkaError, ClientError."""
    request = ListConfigResourcesRequest([int(ConfigResourceType.GROUP)])
    answer = cluster.any_broker().call(request, ListConfigResourcesResponse, at_least=_LIST_TYPES_SINCE)
    raise_on_error(answer.error_code, "groups with settings")
    found: dict[str, str] = {}
    for resource in answer.config_resources:
        topic = dead_letter_topic(cluster, resource.resource_name)
        if topic:
            found[resource.resource_name] = topic
    return dict(sorted(found.items()))


def dead_letter_topic(cluster: Cluster, group: str) -> str | None:
    """Returns the dead letter topic of a share group, None if it has none. Raises KafkaError, ClientError."""
    entries = describe_configs(cluster, ConfigResource(ConfigResourceType.GROUP, group), [TOPIC_SETTING])
    return next((entry.value or None for entry in entries), None)


@dataclass(slots=True)
class Summary:
    """The dead letters of one group with one reason in one topic. `oldest_ms` is the timestamp of the oldest
    one that was not sent back, None if all were.
    """

    group: str
    topic: str
    reason: str
    records: int = 0
    redriven: int = 0
    oldest_ms: int | None = None


def summarize(cluster: Cluster, topic_name: str) -> list[Summary]:
    """Reads a whole dead letter topic. Raises KafkaError, ClientError."""
    topic = cluster.topic(topic_name)
    found: dict[tuple[str, str], Summary] = {}
    progress: dict[str, dict[TopicPartition, int]] = {}
    for partition, record in _records(cluster, topic, _bounds(cluster, topic)):
        letter = parse(record)
        group, reason = ("", "not a dead letter") if letter is None else (letter.group, letter.reason)
        reason = reason[:MAX_REASON_CHARS]
        if (group, reason) not in found and len(found) >= MAX_SUMMARIES:
            group, reason = "", "other"
        summary = found.setdefault((group, reason), Summary(group, topic_name, reason))
        summary.records += 1
        if group not in progress:
            progress[group] = committed_offsets(cluster, REDRIVE_GROUP_PREFIX + group) if group else {}
        if record.offset < progress[group].get(TopicPartition(topic_name, partition), 0):
            summary.redriven += 1
        else:
            oldest_ms = summary.oldest_ms
            summary.oldest_ms = record.timestamp if oldest_ms is None else min(oldest_ms, record.timestamp)
    return sorted(found.values(), key=lambda summary: (summary.group, summary.reason))


def _bounds(cluster: Cluster, topic: Topic) -> dict[int, tuple[int, int]]:
    """Returns the first and the next offset of each partition."""
    first = list_offsets(cluster, topic, EARLIEST_TIMESTAMP)
    following = list_offsets(cluster, topic, LATEST_TIMESTAMP)
    return {index: (first[index].offset, following[index].offset) for index in first}


def _records(
    cluster: Cluster, topic: Topic, bounds: Mapping[int, tuple[int, int]]
) -> Iterator[tuple[int, Record]]:
    """Yields the records of each partition from the first to before the second offset, in order."""
    for partition, (first, end) in sorted(bounds.items()):
        if first >= end:
            continue
        with reading(cluster, topic.name, {partition: first}) as reader:
            empty_polls = 0
            while reader.positions().get(partition, first) < end and empty_polls < MAX_EMPTY_POLLS:
                batch = reader.poll()
                if not reader.is_failing:
                    empty_polls = 0 if batch is not None else empty_polls + 1
                for record in () if batch is None else sound_records(batch):
                    if record.offset < end:
                        yield partition, plain_record(record)


class Redrive:
    """Sends the dead letters of one group back to where their records were, in the order of the dead letter
    topic.

    After each batch it commits how far it came, in the consumer group REDRIVE_GROUP_PREFIX + group. A redrive
    that is interrupted between the two sends the batch again, so a record is sent back at least once. Dead
    letters that arrive meanwhile are left to the next redrive.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topic_name: str,
        *,
        limit: int | None = None,
        is_dry: bool = False,
        skips_missing: bool = False,
    ) -> None:
        """`limit` is the most records to send. With `is_dry`, nothing is sent and nothing is committed. With
        `skips_missing`, dead letters without a copy whose records are gone are left out.
        """
        self._cluster = cluster
        self._group = group
        self._topic = cluster.topic(topic_name)
        self._left = limit
        self._is_dry = is_dry
        self._skips_missing = skips_missing
        self._producer: Producer[bytes, bytes] | None = None
        self._partition_counts: dict[str, int] = {}
        self.sent: dict[TopicPartition, int] = {}
        """The number of records by partition of their source topics."""
        self.missing: list[DeadLetter] = []
        """The dead letters that were left out."""

    def run(self, now_ms: int) -> None:
        """Sends the dead letters with the timestamp `now_ms`. Raises KafkaError, ClientError and
        MissingRecordError; what was sent before is committed.
        """
        with contextlib.ExitStack() as stack:
            if not self._is_dry:
                producer = batch_producer_of(self._cluster, batch_bytes=2 * MAX_BATCH_BYTES)
                self._producer = stack.enter_context(producer)
            self._run(now_ms)

    def _run(self, now_ms: int) -> None:
        committed = committed_offsets(self._cluster, REDRIVE_GROUP_PREFIX + self._group)
        for partition, (first, end) in sorted(_bounds(self._cluster, self._topic).items()):
            begin = max(first, committed.get(TopicPartition(self._topic.name, partition), 0))
            if begin < end and self._left != 0:
                self._redrive(partition, begin, end, now_ms)

    def _redrive(self, partition: int, begin: int, end: int, now_ms: int) -> None:
        batch: list[DeadLetter] = []
        size_bytes, seen = 0, begin
        for _, record in _records(self._cluster, self._topic, {partition: (begin, end)}):
            seen = record.offset + 1
            letter = parse(record)
            if letter is None or letter.group != self._group:
                continue
            size = len(record.key or b"") + len(record.value or b"")
            if batch and (len(batch) >= MAX_BATCH_RECORDS or size_bytes + size > MAX_BATCH_BYTES):
                self._send(batch, now_ms)
                self._commit(partition, batch[-1].record.offset + 1)
                batch, size_bytes = [], 0
            batch.append(letter)
            size_bytes += size
            if self._left is not None:
                self._left -= 1
                if not self._left:
                    break
        self._send(batch, now_ms)
        if seen > begin:
            self._commit(partition, seen)

    def _commit(self, partition: int, offset: int) -> None:
        if not self._is_dry:
            place = TopicPartition(self._topic.name, partition)
            commit_offsets(
                self._cluster, REDRIVE_GROUP_PREFIX + self._group, {place: CommittedOffset(offset)}
            )

    def _send(self, letters: Iterable[DeadLetter], now_ms: int) -> None:
        """Sends dead letters in their order for each partition."""
        batches: dict[TopicPartition, list[Record]] = {}
        sizes: dict[TopicPartition, int] = {}
        for letter in letters:
            original = self._original(letter)
            if original is None:
                self.missing.append(letter)
                continue
            size = len(original.key or b"") + len(original.value or b"")
            batch = batches.setdefault(letter.source, [])
            if batch and sizes[letter.source] + size > MAX_BATCH_BYTES:
                self._send_to(letter.source, batch, now_ms)
                batch = batches[letter.source] = []
                sizes[letter.source] = 0
            batch.append(original)
            sizes[letter.source] = sizes.get(letter.source, 0) + size
        for source, batch in batches.items():
            self._send_to(source, batch, now_ms)

    def _send_to(self, source: TopicPartition, batch: list[Record], now_ms: int) -> None:
        if self._producer is not None:
            count = self._partition_counts.get(source.topic)
            if count is None:
                count = len(self._cluster.topic(source.topic).partitions)
                self._partition_counts[source.topic] = count
            if source.partition >= count:
                raise UnknownTopicError(f"topic '{source.topic}' has no partition {source.partition}")
            self._producer.send_batch(
                source.topic,
                [record.value for record in batch],
                keys=[record.key for record in batch],
                headers=[record.headers for record in batch],
                partition=source.partition,
                timestamp=now_ms,
            ).result()
        self.sent[source] = self.sent.get(source, 0) + len(batch)

    def _original(self, letter: DeadLetter) -> Record | None:
        """Returns the record of a dead letter: its copy, or else what its topic has. Returns None if it is
        gone and is left out. Raises MissingRecordError.
        """
        if letter.has_copy:
            return letter.record._replace(headers=without_own_headers(letter.record.headers))
        found = self._at_source(letter)
        if found is None and not self._skips_missing:
            topic, partition = letter.source
            raise MissingRecordError(
                f"the dead letter at offset {letter.record.offset} has no copy of its record, and topic "
                f"'{topic}' partition {partition} has no offset {letter.source_offset} any more"
            )
        return found

    def _at_source(self, letter: DeadLetter) -> Record | None:
        partition, offset = letter.source.partition, letter.source_offset
        try:
            topic = self._cluster.topic(letter.source.topic)
            bounds = _bounds(self._cluster, topic).get(partition)
        except KafkaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return None
            raise
        if bounds is None or not bounds[0] <= offset < bounds[1]:
            return None
        for _, record in _records(self._cluster, topic, {partition: (offset, bounds[1])}):
            return record if record.offset == offset else None
        return None
