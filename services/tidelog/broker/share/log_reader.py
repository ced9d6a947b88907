"""Reads the batches that a member acquires from the log of a share partition, by their headers.

The records stay opaque: the result is a range of the segment's file, trimmed to the batches that contain
acquired records.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from tidelog.broker.hosting.replica import Replica
from tidelog.broker.log.directory_files import LogStorageError
from tidelog.broker.log.segment import FileRange
from tidelog.broker.share.deliveries import AcquiredRange, DeliveryLimits, LogBatch, Wanted
from tidelog.broker.share.partition_core import SharePartitionCore
from tidelog.broker.share.screening import FoundFacts, WantedFacts, find_facts
from tidelog.kernel.instants import MonotonicMs
from tidelog.log_format.batches import TornLogError, scan_headers
from tidelog.model.protocol_values import READ_COMMITTED
from tidelog.records.aborted import AbortedBatches, AbortedTransaction

LOOK_BYTES: Final = 1_048_576
"""The most bytes of the log that one look at records reads, if the first batch is not larger."""
MAX_BATCHES: Final = 1_000
"""The most batches whose headers one read looks at, about 10 ms of work."""
NO_LIMIT: Final = sys.maxsize
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
        # A committed read needs the end of the range for the aborted transactions in it. To find the end that
        # `max_bytes` allows costs a search of the index, and the walk over the headers mostly ends before.
        read_bytes = max_bytes if isolation_level == READ_COMMITTED else NO_LIMIT
        file_range = replica.read(offset, read_bytes, isolation_level, at_least_one_batch=at_least_one_batch)
        if file_range is None:
            if not at_least_one_batch:
                return None
            # Compaction has removed the last records before the limit.
            core.acquire(wanted, [LogBatch(offset, limit - 1, is_deliverable=False)], now_ms, limits)
            continue
        with open_range(
            replica, offset, file_range, isolation_level, MAX_BATCHES, at_least_one_batch=at_least_one_batch
        ) as found:
            if found is None:
                return None
            batches = _Batches(*found, max_bytes, at_least_one_batch=at_least_one_batch)
            acquired = core.acquire(wanted, batches, now_ms, limits)
            if acquired:
                read = batches.trimmed(acquired)
                replica.log.remember_place(read.next_offset, read.segment, read.position + len(read))
                return AcquiredRead(acquired, read)
        if not batches.placed:
            return None
    return None


@contextmanager
def open_range(
    replica: Replica,
    offset: int,
    file_range: FileRange,
    isolation_level: int,
    most_aborted: int,
    *,
    at_least_one_batch: bool,
) -> Iterator[tuple[FileRange, AbortedBatches] | None]:
    """Returns a range that was read from `offset`, and its batches of aborted transactions, which a committed
    read leaves out. The range is shorter if it has more than `most_aborted` transactions; it is None if
    nothing is left. Releases the range at the end, and turns an error in it into LogStorageError.
    """
    aborted: list[AbortedTransaction] = []
    left: FileRange | None = file_range
    try:
        if isolation_level == READ_COMMITTED:
            aborted, left = replica.aborted_within(
                offset, file_range, most_aborted, at_least_one_batch=at_least_one_batch
            )
        yield None if left is None else (left, AbortedBatches(aborted))
    except (OSError, TornLogError) as error:
        raise LogStorageError(
            f"{replica.topic_partition}: the batches at offset {offset} cannot be read: {error}"
        ) from error
    finally:
        (file_range if left is None else left).release()


class _Batches:
    """The batches of a range, at most `max_bytes`. Iterating walks over their headers."""

    __slots__ = ("_aborted", "_at_least_one_batch", "_max_bytes", "_range", "placed")

    def __init__(
        self,
        file_range: FileRange,
        aborted: AbortedBatches,
        max_bytes: int,
        *,
        at_least_one_batch: bool,
    ) -> None:
        self._range = file_range
        self._aborted = aborted
        self._max_bytes = max_bytes
        self._at_least_one_batch = at_least_one_batch
        self.placed: list[_PlacedBatch] = []
        """The batches that were read."""

    def __iter__(self) -> Iterator[LogBatch]:
        begin = self._range.position
        headers = scan_headers(partial(os.pread, self._range.fileno()), begin, begin + self._range.length)
        for position, header, _ in islice(headers, MAX_BATCHES):
            end = position + header.size_bytes
            if end - begin > self._max_bytes and (self.placed or not self._at_least_one_batch):
                return
            is_deliverable = not header.is_control and header not in self._aborted
            batch = LogBatch(header.base_offset, header.last_offset, is_deliverable)
            self.placed.append(_PlacedBatch(position, end, batch))
            yield batch

    def trimmed(self, acquired: list[AcquiredRange]) -> FileRange:
        """Returns the range of the batches with acquired records."""
        first, last = acquired[0].first, acquired[-1].last
        held = [found for found in self.placed if found.batch.last >= first and found.batch.first <= last]
        position, end = held[0].position, held[-1].end
        return FileRange(self._range.segment, position, end - position, held[-1].batch.last + 1)


async def look(
    replica: Replica, offset: int, isolation_level: int, wanted: WantedFacts, record_walks: Executor
) -> FoundFacts:
    """Finds facts of the next records in a thread. Raises KafkaError, OSError or CorruptBatchError."""
    offset = max(offset, replica.core.log_start_offset)
    limit = replica.core.read_limit(isolation_level)
    file_range = replica.read(offset, LOOK_BYTES, isolation_level, at_least_one_batch=True)
    if file_range is None:  # compaction has removed the last records before the limit
        return FoundFacts([], limit)
    try:
        return await asyncio.get_running_loop().run_in_executor(
            record_walks, lambda: find_facts(file_range.read(), offset, wanted)
        )
    finally:
        file_range.release()


def available_bytes(replica: Replica, core: SharePartitionCore, isolation_level: int, most: int) -> int:
    """Returns how many bytes a fetch of at most `most` bytes finds. Acquires nothing. Raises KafkaError."""
    offset = max(core.next_fetch_offset, replica.core.log_start_offset)
    file_range = replica.read(offset, most, isolation_level, at_least_one_batch=True)
    if file_range is None:
        return most  # only compacted records are there, which the fetch has to skip
    file_range.release()
    return len(file_range)
