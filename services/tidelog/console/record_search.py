"""Searches a topic for records. The calls block; each search has a connection of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tidelog.client.admin import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_COMMITTED, READ_UNCOMMITTED
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.errors import CorruptFetchError, NoAnswerError
from tidelog.client.partition_offsets import offsets_of_topics
from tidelog.client.raw_batches import fetch_batches
from tidelog.console.cluster_reader import existing_topic
from tidelog.console.core.budget import MIB, Budget, Spent
from tidelog.console.core.decoded import Decode
from tidelog.console.core.record_query import RecordQuery
from tidelog.console.core.record_scan import RecordScan, record_order
from tidelog.console.core.record_text import ShownRecord
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.instants import MonotonicMs

FETCH_BYTES: Final = MIB
"""The bytes of a fetch. A broker sends the first batch even if it is larger."""


@dataclass(frozen=True, slots=True)
class RecordsFound:
    """The result of a search. `silent` holds the partitions whose leader did not answer.

    `older` holds positions before the start of this page, None if there is nothing older.
    """

    silent: tuple[int, ...]
    records: tuple[ShownRecord, ...]
    spent: Spent
    took_ms: int
    stopped_at: str | None
    positions: dict[int, int]
    left_offsets: int
    has_more: bool
    older: dict[int, int] | None

    @property
    def next_positions(self) -> list[tuple[int, int]]:
        return sorted(self.positions.items())


def find_records(
    cluster: Cluster,
    name: str,
    query: RecordQuery,
    budget: Budget,
    clock: Callable[[], MonotonicMs],
    *,
    decode: Decode | None = None,
    is_whole: bool = False,
) -> RecordsFound:
    """Returns the records that a query finds within a budget, shortened unless `is_whole`. `decode` decodes
    keys and values. Raises KafkaError, ClientError.
    """
    began_ms = clock()
    topic = existing_topic(cluster, name)
    asked = [each.index for each in topic.partitions if query.partition in (None, each.index)]
    if not asked:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{name}' has no partition {query.partition}"
        )
    # A leader that does not answer delays only the searches in its own partitions.
    topic = replace(topic, partitions=tuple(each for each in topic.partitions if each.index in asked))
    isolation_level = READ_COMMITTED if query.is_committed_only else READ_UNCOMMITTED
    silent: set[int] = set()
    log_starts = _offsets(cluster, topic, EARLIEST_TIMESTAMP, silent)
    ends = _offsets(cluster, topic, LATEST_TIMESTAMP, silent, isolation_level)
    ends = {index: ends[index] for index in asked if index in ends and index in log_starts}
    at_time = _offsets(cluster, topic, query.time_ms, silent) if query.start == "time" else {}
    starts = query.starts(log_starts, ends, at_time)
    is_newest = query.start == "newest" and query.cursor is None
    scan = RecordScan(
        starts,
        ends,
        query.wanted,
        budget,
        query.limit,
        began_ms,
        is_whole=is_whole,
        keeps_latest=is_newest and not query.wanted.is_empty,
        decode=decode,
    )
    while (index := scan.next_partition(clock())) is not None:
        raw = fetch_batches(
            cluster,
            topic,
            index,
            scan.positions[index],
            isolation_level=isolation_level,
            max_bytes=FETCH_BYTES,
        )
        try:
            scan.take(raw.data, raw.aborted, clock)
        except ValueError as error:
            raise CorruptFetchError(
                f"topic '{name}' partition {index} near offset {scan.positions[index]}: {error}"
            ) from error
    window = query.window(len(ends))
    older = {index: max(log_starts[index], offset - window) for index, offset in starts.items()}
    return RecordsFound(
        tuple(index for index in asked if index not in ends),
        tuple(sorted(scan.found, key=record_order, reverse=is_newest)[: query.limit]),
        scan.spent,
        clock() - began_ms,
        scan.stopped_at,
        scan.positions,
        sum(ends[index] - offset for index, offset in scan.positions.items()),
        scan.has_more,
        None if older == starts else older,
    )


def find_record(
    cluster: Cluster,
    name: str,
    query: RecordQuery,
    clock: Callable[[], MonotonicMs],
    *,
    decode: Decode | None = None,
) -> ShownRecord | None:
    """Returns the first record that a query finds, with its whole content, or None if there is none. Raises
    KafkaError, ClientError.
    """
    only_one = replace(query, limit=1)
    found = find_records(cluster, name, only_one, Budget(), clock, decode=decode, is_whole=True)
    if found.silent:
        raise NoAnswerError(f"no leader answers for partition {query.partition} of topic '{name}'")
    return found.records[0] if found.records else None


def _offsets(
    cluster: Cluster,
    topic: Topic,
    timestamp: int,
    silent: set[int],
    isolation_level: int = READ_UNCOMMITTED,
) -> dict[int, int]:
    found = offsets_of_topics(cluster, [topic], timestamp, silent=silent, isolation_level=isolation_level)
    return {partition.partition: offset for partition, offset in found.items()}
