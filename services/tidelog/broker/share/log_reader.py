"""Reads the batches that a member acquires from the log of a share partition, by their headers.

The records stay opaque: the result is a range of the segment's file, trimmed to the batches that contain
acquired records.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from tidelog.broker.log.batch_scan import scan_headers
from tidelog.broker.log.errors import LogStorageError, TornLogError
from tidelog.broker.log.segment import FileRange
from tidelog.broker.log.segment_indexes import AbortedTransaction
from tidelog.broker.partition.core import READ_COMMITTED
from tidelog.broker.replica import Replica
from tidelog.broker.share.deliveries import AcquiredRange, DeliveryLimits, LogBatch, Wanted
from tidelog.broker.share.partition_core import SharePartitionCore
from tidelog.model.instants import MonotonicMs
from tidelog.records.batch import BatchHeader

MAX_BATCHES: Final = 1_000
"""The most batches whose headers one read looks at, about 10 ms of work."""
MAX_EMPTY_READS: Final = 4
"""The most reads without a deliverable record that one fetch skips. The next fetch continues behind them."""


class AcquiredRead(NamedTuple):
    """The records that a member has acquired, and where they are. The receiver releases the range."""

    acquired: list[AcquiredRange]
    range: FileRange


class _PlacedBatch(NamedTuple):
    position: int
    end: int
    batch: LogBatch


def has_records(
    replica: Replica, core: SharePartitionCore, isolation_level: int, limits: DeliveryLimits
) -> bool:
    """Returns whether a fetch can make progress."""
    offset = max(core.next_fetch_offset, replica.core.log_start_offset)
    return offset < replica.core.read_limit(isolation_level) and core.may_acquire(limits)


def acquire(
    replica: Replica,
    core: SharePartitionCore,
    wanted: Wanted,
    max_bytes: int,
    isolation_level: int,
    now_ms: MonotonicMs,
    limits: DeliveryLimits,
    *,
    at_least_one_batch: bool,
) -> AcquiredRead | None:
    """Acquires records for a member. Returns None if there are none now. Raises KafkaError."""
    core.log_start_moved(replica.core.log_start_offset)
    for _ in range(MAX_EMPTY_READS):
        offset, limit = core.next_fetch_offset, replica.core.read_limit(isolation_level)
        if offset >= min(limit, replica.core.log_end_offset) or not core.may_acquire(limits):
            return None
        file_range = replica.read(offset, max_bytes, isolation_level, at_least_one_batch=at_least_one_batch)
        if file_range is None:
            if not at_least_one_batch:
                return None
            # Compaction has removed the last records before the limit.
            core.acquire(wanted, [LogBatch(offset, limit - 1, is_deliverable=False)], now_ms, limits)
            continue
        try:
            read = _acquire_of(file_range, replica, core, wanted, offset, isolation_level, now_ms, limits)
        except (OSError, TornLogError) as error:
            raise LogStorageError(
                f"{replica.topic_partition}: the batches at offset {offset} cannot be read: {error}"
            ) from error
        finally:
            file_range.release()
        if read is not None:
            return read
    return None


def _acquire_of(
    file_range: FileRange,
    replica: Replica,
    core: SharePartitionCore,
    wanted: Wanted,
    offset: int,
    isolation_level: int,
    now_ms: MonotonicMs,
    limits: DeliveryLimits,
) -> AcquiredRead | None:
    aborted: list[AbortedTransaction] = []
    if isolation_level == READ_COMMITTED:
        aborted = replica.log.aborted_transactions(offset, file_range.next_offset)
    placed: list[_PlacedBatch] = []
    acquired = core.acquire(wanted, _batches(file_range, aborted, placed), now_ms, limits)
    if not acquired:
        return None
    first, last = acquired[0].first, acquired[-1].last
    held = [found for found in placed if found.batch.last >= first and found.batch.first <= last]
    position, end = held[0].position, held[-1].end
    trimmed = FileRange(file_range.segment, position, end - position, held[-1].batch.last + 1)
    return AcquiredRead(acquired, trimmed)


def _batches(
    file_range: FileRange, aborted: list[AbortedTransaction], placed: list[_PlacedBatch]
) -> Iterator[LogBatch]:
    """Yields the batches of a range, and adds each to `placed`."""
    end = file_range.position + file_range.length
    headers = scan_headers(file_range.fileno(), file_range.position, end)
    for position, header, _ in islice(headers, MAX_BATCHES):
        is_deliverable = not header.is_control and not is_aborted(header, aborted)
        batch = LogBatch(header.base_offset, header.last_offset, is_deliverable)
        placed.append(_PlacedBatch(position, position + header.size_bytes, batch))
        yield batch


def is_aborted(header: BatchHeader, aborted: list[AbortedTransaction]) -> bool:
    return header.is_transactional and any(
        found.producer_id == header.producer_id
        and found.first_offset <= header.base_offset <= found.last_offset
        for found in aborted
    )


def available_bytes(replica: Replica, core: SharePartitionCore, isolation_level: int, most: int) -> int:
    """Returns how many bytes a fetch of at most `most` bytes finds. Acquires nothing. Raises KafkaError."""
    offset = max(core.next_fetch_offset, replica.core.log_start_offset)
    file_range = replica.read(offset, most, isolation_level, at_least_one_batch=True)
    if file_range is None:
        return most  # only compacted records are there, which the fetch has to skip
    file_range.release()
    return len(file_range)
