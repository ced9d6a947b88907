"""Searches a topic for records. The calls block; each search has a connection of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tidelog.client.admin.logs import fetch_batches
from tidelog.client.admin.offsets import offsets_of_topics
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.errors import CorruptFetchError, NoAnswerError
from tidelog.console.core.decoded import Decode
from tidelog.console.core.record_query import NEWEST_SEARCHED, RecordQuery
from tidelog.console.core.record_scan import MIB, Budget, RecordScan, Spent, record_order
from tidelog.console.core.record_text import ShownRecord
from tidelog.kernel.instants import MonotonicMs
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
)
from tidelog.observe.cluster_reader import existing_topics

FETCH_BYTES: Final = MIB
"""The bytes of a fetch. A broker sends the first batch even if it is larger."""
_WIDER: Final = 4
"""A search for the newest records that found too few continues with so many times the offsets. Those at the
ends may be of transactions' markers, or of records that compaction removed.
"""


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
    silent: set[int],
    *,
    decode: Decode | None = None,
    is_whole: bool = False,
) -> RecordsFound:
    """Returns the records that a query finds within a budget, shortened unless `is_whole`. `decode` decodes
    keys and values. Leaders in `silent` are not asked, and those that do not answer join them. Raises
    KafkaError, ClientError.
    """
    began_ms = clock()
    topic = _searched(existing_topics(cluster, [name])[name], query)
    isolation_level = READ_COMMITTED if query.is_committed_only else READ_UNCOMMITTED
    log_starts, starts, ends = _bounds(cluster, topic, query, isolation_level, silent)
    is_newest = query.start == "newest" and query.cursor is None

    def scanned(first: dict[int, int], last: dict[int, int], spent: Spent) -> RecordScan:
        scan = RecordScan(
            first,
            last,
            query.wanted,
            budget,
            query.limit,
            began_ms,
            is_whole=is_whole,
            keeps_latest=is_newest,
            decode=decode,
            spent=spent,
        )
        return _read(cluster, topic, scan, isolation_level, clock)

    window = query.window([end - log_starts[index] for index, end in ends.items()])
    scan = scanned(starts, ends, Spent(began_ms))
    records, first, is_complete = list(scan.found), starts, scan.stopped_at is None
    while is_newest and is_complete and len(records) < query.limit and window < NEWEST_SEARCHED:
        window *= _WIDER
        earlier = {index: max(log_starts[index], end - window) for index, end in ends.items()}
        if earlier == first:
            break
        more = scanned(earlier, first, scan.spent)
        records += more.found
        first, is_complete = earlier, more.stopped_at is None
    shown = sorted(records, key=record_order, reverse=is_newest)[: query.limit]
    if is_newest and scan.stopped_at is None and len(shown) < len(records) + scan.dropped:
        first = _first_offsets(shown, ends)
    older = {index: max(log_starts[index], offset - window) for index, offset in first.items()}
    return RecordsFound(
        tuple(each.index for each in topic.partitions if each.index not in ends),
        tuple(shown),
        scan.spent,
        clock() - began_ms,
        scan.stopped_at,
        scan.positions,
        sum(ends[index] - offset for index, offset in scan.positions.items()),
        scan.has_more,
        None if older == first else older,
    )


def _searched(topic: Topic, query: RecordQuery) -> Topic:
    """Returns a topic with only the partitions of a query: a leader that does not answer delays only searches
    in its own partitions. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION.
    """
    asked = tuple(each for each in topic.partitions if query.partition in (None, each.index))
    if not asked:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic '{topic.name}' has no partition {query.partition}",
        )
    return replace(topic, partitions=asked)


def _bounds(
    cluster: Cluster, topic: Topic, query: RecordQuery, isolation_level: int, silent: set[int]
) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    """Returns the log start offset, the first offset to read and the end of each partition whose leader
    answers.
    """
    log_starts = _offsets(cluster, topic, EARLIEST_TIMESTAMP, silent)
    ends = _offsets(cluster, topic, LATEST_TIMESTAMP, silent, isolation_level)
    ends = {index: end for index, end in sorted(ends.items()) if index in log_starts}
    at_time = _offsets(cluster, topic, query.time_ms, silent) if query.start == "time" else {}
    return log_starts, query.starts(log_starts, ends, at_time), ends


def _first_offsets(records: list[ShownRecord], ends: Mapping[int, int]) -> dict[int, int]:
    """Returns the offset of the first of these records in each partition, and its end where there is none."""
    first = dict(ends)
    for record in records:
        first[record.partition] = min(first[record.partition], record.offset)
    return first


def _read(
    cluster: Cluster,
    topic: Topic,
    scan: RecordScan,
    isolation_level: int,
    clock: Callable[[], MonotonicMs],
) -> RecordScan:
    """Fetches for a scan until it is over, and returns it. Raises KafkaError, ClientError."""
    while (index := scan.next_partition(clock())) is not None:
        offset = scan.positions[index]
        raw = fetch_batches(
            cluster, topic, index, offset, isolation_level=isolation_level, max_bytes=FETCH_BYTES
        )
        try:
            scan.take(raw.data, raw.aborted, clock)
        except ValueError as error:
            raise CorruptFetchError(
                f"topic '{topic.name}' partition {index} near offset {scan.positions[index]}: {error}"
            ) from error
    return scan


def find_record(
    cluster: Cluster,
    name: str,
    query: RecordQuery,
    clock: Callable[[], MonotonicMs],
    silent: set[int],
    *,
    decode: Decode | None = None,
) -> ShownRecord | None:
    """Returns the first record that a query finds, with its whole content, or None if there is none. Raises
    KafkaError, ClientError.
    """
    only_one = replace(query, limit=1)
    found = find_records(cluster, name, only_one, Budget(), clock, silent, decode=decode, is_whole=True)
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
