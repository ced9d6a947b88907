"""Reads records of a topic's partitions, beginning at given offsets, without a group."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.client.admin import READ_COMMITTED, READ_UNCOMMITTED
from tidelog.client.answers import error_of, raise_on_error
from tidelog.client.cluster import RETRY_BACKOFF_S, Cluster, Topic
from tidelog.client.connection import BrokerConnection, PendingAnswer
from tidelog.client.core.fetched_records import iterate_visible
from tidelog.client.errors import ClientError, ConnectionLostError, CorruptFetchError, UnreachableError
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.fetch_session import FINAL_EPOCH, NO_SESSION
from tidelog.model.topics import ZERO_TOPIC_ID
from tidelog.records.record import Record, iterate_records
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

DEFAULT_MAX_WAIT_MS: Final = 500
DEFAULT_MAX_BYTES: Final = 52_428_800
DEFAULT_PARTITION_MAX_BYTES: Final = 1_048_576
MAX_DECODED_BYTES: Final = 64 * 1024 * 1024
"""The estimated memory of a partition's records after which a poll returns them; the next one continues."""
_RECORD_BYTES: Final = 250  # of Python's objects for a record, without the contents of key and value
_HEADER_BYTES: Final = 150
_FETCH_SINCE: Final = 4  # magic 2 and isolation levels
_LAST_BY_NAME: Final = 12
_CONSUMER: Final = -1


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """The records of one partition in one response, in the order of offsets, beginning at the position."""

    partition: int
    records: list[Record]
    size_bytes: int
    high_watermark: int


class FetchLoop:
    """A reader. `positions` holds the next offset of each partition, and `poll` advances it.

    It is not thread-safe.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: Topic,
        positions: Mapping[int, int],
        *,
        isolation_level: int = READ_UNCOMMITTED,
        partition_max_bytes: int = DEFAULT_PARTITION_MAX_BYTES,
        max_headers: int | None = None,
    ) -> None:
        """`max_headers` is the number of headers of a record that the caller wants, None for all."""
        self._cluster = cluster
        self.topic = topic
        self.positions = dict(positions)
        self._isolation_level = isolation_level
        self._partition_max_bytes = partition_max_bytes
        self._max_headers = max_headers
        self._failing_since_s: float | None = None

    def poll(self, max_wait_ms: int = DEFAULT_MAX_WAIT_MS) -> list[FetchedRecords]:
        """Returns new records, and waits up to `max_wait_ms` for a leader that has none.

        The next poll retries temporary failures (a leader has moved, a broker restarts), until they have
        lasted for the cluster's timeout. Raises KafkaError (OFFSET_OUT_OF_RANGE, ...), ClientError.
        """
        fetched: list[FetchedRecords] = []
        try:
            pending = [
                self._send(leader, indexes, max_wait_ms) for leader, indexes in self._by_leader().items()
            ]
            for connection, asked in pending:
                answer = connection.receive(asked, FetchResponse)
                raise_on_error(answer.error_code, f"topic '{self.topic.name}'")
                for topic in answer.responses:
                    fetched += [rows for data in topic.partitions if (rows := self._take(data))]
        except (ConnectionLostError, UnreachableError, KafkaError) as error:
            self._tolerate(error)
            return fetched
        self._failing_since_s = None
        return fetched

    def _tolerate(self, error: ClientError | KafkaError) -> None:
        """Raises `error` if it is permanent or has lasted too long. Otherwise looks up the leaders again."""
        if isinstance(error, KafkaError) and not error.is_retriable:
            raise error
        now_s = time.monotonic()
        self._failing_since_s = self._failing_since_s or now_s
        if now_s - self._failing_since_s > self._cluster.timeout_s:
            raise error
        self._cluster.close()  # responses may be outstanding, so open new connections
        time.sleep(RETRY_BACKOFF_S)
        try:
            self.topic = self._cluster.topic(self.topic.name)
        except (ConnectionLostError, UnreachableError):
            return  # the next poll retries

    def _by_leader(self) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for partition in self.topic.partitions:
            if partition.index in self.positions:
                groups.setdefault(partition.leader, []).append(partition.index)
        return groups

    def _send(
        self, leader: int, indexes: list[int], max_wait_ms: int
    ) -> tuple[BrokerConnection, PendingAnswer]:
        rows = [
            FetchPartition(
                index, fetch_offset=self.positions[index], partition_max_bytes=self._partition_max_bytes
            )
            for index in indexes
        ]
        request = FetchRequest(
            replica_id=_CONSUMER,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=DEFAULT_MAX_BYTES,
            isolation_level=self._isolation_level,
            session_id=NO_SESSION,
            session_epoch=FINAL_EPOCH,
            topics=[FetchTopic(self.topic.name, self.topic.topic_id, rows)],
        )
        has_id = self.topic.topic_id != ZERO_TOPIC_ID
        connection = self._cluster.broker(leader)
        asked = connection.send(
            request, at_least=_FETCH_SINCE, at_most=None if has_id else _LAST_BY_NAME, wait_ms=max_wait_ms
        )
        return connection, asked

    def _take(self, data: PartitionData) -> FetchedRecords | None:
        """Returns the new records of a partition, or None if there are none. Raises KafkaError."""
        index = data.partition_index
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"topic '{self.topic.name}' partition {index} has no offset {self.positions[index]}",
            )
        if data.error_code:
            raise error_of(data.error_code, f"topic '{self.topic.name}' partition {index}")
        if not data.records:
            return None
        raw = memoryview(data.records)  # type: ignore[arg-type]  # decoded answers hold views
        position = self.positions[index]
        try:
            records, following = self._read(raw, position, _aborted_of(data, self._isolation_level))
        except ValueError as error:
            raise CorruptFetchError(
                f"topic '{self.topic.name}' partition {index} near offset {position}: {error}"
            ) from error
        if following == position:
            return None
        self.positions[index] = following
        return FetchedRecords(index, records, len(raw), data.high_watermark)

    def _read(
        self, raw: memoryview, position: int, aborted: list[tuple[int, int]]
    ) -> tuple[list[Record], int]:
        """Returns the records from `position` on and the next offset, without markers and aborted records.

        Returns early, perhaps in the middle of a batch, if the records need much memory.
        """
        records: list[Record] = []
        decoded_bytes = 0
        following = position
        for start, header, is_visible in iterate_visible(raw, aborted):
            following = max(following, header.last_offset + 1)
            if not is_visible:
                continue
            for record in iterate_records(raw, start, max_headers=self._max_headers):
                if record.offset >= position:
                    records.append(record)
                    decoded_bytes += _memory_of(record)
                    if decoded_bytes >= MAX_DECODED_BYTES:
                        return records, record.offset + 1
        return records, following


def _memory_of(record: Record) -> int:
    _, _, key, value, headers, _ = record
    size_bytes = _RECORD_BYTES + len(key or b"") + len(value or b"")
    if headers:
        size_bytes += sum(_HEADER_BYTES + len(name) + len(content or b"") for name, content in headers)
    return size_bytes


def _aborted_of(data: PartitionData, isolation_level: int) -> list[tuple[int, int]]:
    """Returns (first offset, producer id) of aborted transactions, the earliest last."""
    if isolation_level != READ_COMMITTED:
        return []
    rows = data.aborted_transactions or ()
    return sorted(((row.first_offset, row.producer_id) for row in rows), reverse=True)
