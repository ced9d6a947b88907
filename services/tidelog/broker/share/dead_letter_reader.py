"""Reads the records that a share group has given up from the log of their partition."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import islice, takewhile
from typing import Final, NamedTuple

import structlog

from tidelog.broker.hosting.replica import Replica
from tidelog.broker.log.errors import LogStorageError, TornLogError
from tidelog.broker.log.segment import FileRange
from tidelog.broker.log.segment_indexes import AbortedTransaction
from tidelog.broker.share.dead_letter_records import DeadLetter, letters_of_batch, letters_without_records
from tidelog.broker.share.deliveries import DeadLetters
from tidelog.broker.share.log_reader import AbortedByProducer
from tidelog.model.protocol_values import READ_COMMITTED
from tidelog.records.batch import BatchHeader, CorruptBatchError, crc_matches, iterate_headers

MAX_ABORTED_TRANSACTIONS: Final = 5_000
"""The most aborted transactions of one read. It ends before the next one begins."""
MAX_READ_BYTES: Final = 1024 * 1024
"""The most bytes of the log that one read takes, unless a single batch is larger."""
MAX_READS: Final = 16
"""The most reads for one copy."""

_log = structlog.get_logger(__name__)


class ReadLetters(NamedTuple):
    """Dead letters, and the offset below which every wanted offset that has none has no record."""

    letters: list[DeadLetter]
    end_offset: int


async def read_letters(
    replica: Replica,
    wanted: Sequence[DeadLetters],
    max_bytes: int,
    isolation_level: int,
    record_walks: Executor,
    *,
    copies: bool,
) -> ReadLetters:
    """Reads the records of `wanted`, which are in order, up to about `max_bytes`. With read_committed, the
    records of aborted transactions are left out. Stops where the log may not be read yet: a new leader does
    not know at once how much of its log is replicated.

    Raises KafkaError.
    """
    loop = asyncio.get_running_loop()
    letters: list[DeadLetter] = []
    position, size_bytes = wanted[0].first, 0
    for _ in range(MAX_READS):
        left = [found for found in wanted if found.last >= position]
        if not left or size_bytes >= max_bytes:
            break
        core = replica.core
        position = max(position, left[0].first, core.log_start_offset)
        limit = core.read_limit(isolation_level)
        if position >= limit:
            break
        file_range = replica.log.read(position, MAX_READ_BYTES, limit, at_least_one_batch=True)
        if file_range is None:  # compaction has removed the last records before the limit
            position = limit
            break
        try:
            found: list[AbortedTransaction] = []
            if isolation_level == READ_COMMITTED:
                found, shorter = replica.aborted_within(
                    position, file_range, MAX_ABORTED_TRANSACTIONS, at_least_one_batch=True
                )
                if shorter is None:
                    break
                file_range = shorter
            aborted = AbortedByProducer(found)
            read = await loop.run_in_executor(
                record_walks, _decode, file_range, left, aborted, max_bytes - size_bytes, copies
            )
        except (OSError, TornLogError) as error:
            raise LogStorageError(
                f"{replica.topic_partition}: the batches at offset {position} cannot be read: {error}"
            ) from error
        finally:
            file_range.release()
        letters += read.letters
        size_bytes += sum(letter.content.size_bytes for letter in read.letters)
        position = max(read.end_offset, position)
    return ReadLetters(letters, position)


def _decode(
    file_range: FileRange,
    wanted: Sequence[DeadLetters],
    aborted: AbortedByProducer,
    max_bytes: int,
    copies: bool,
) -> ReadLetters:
    """Reads the batches of a range and takes the wanted records until they have `max_bytes`. It runs in a
    thread.
    """
    data = memoryview(file_range.read())
    if len(data) != len(file_range):
        raise TornLogError(file_range.position, "the file ends in the range")
    letters: list[DeadLetter] = []
    at, size_bytes = 0, 0
    for position, header in iterate_headers(data):
        while at < len(wanted) and wanted[at].last < header.base_offset:
            at += 1
        in_batch = list(takewhile(partial(_begins_in, header), islice(wanted, at, None)))
        if not in_batch or header.is_control or aborted.has(header):
            continue
        for letter in _letters(data[position : position + header.size_bytes], header, in_batch, copies):
            letters.append(letter)
            size_bytes += letter.content.size_bytes
            if size_bytes >= max_bytes:
                return ReadLetters(letters, letter.offset + 1)
    return ReadLetters(letters, file_range.next_offset)


def _letters(
    batch: memoryview, header: BatchHeader, wanted: list[DeadLetters], copies: bool
) -> Iterator[DeadLetter]:
    """Yields the dead letters of a batch. The rest of a batch that cannot be decoded has no content."""
    left = wanted
    try:
        if not crc_matches(header, batch):
            raise CorruptBatchError("its CRC is wrong")
        for letter in letters_of_batch(batch, header, wanted, copies=copies):
            yield letter
            left = [found._replace(first=max(found.first, letter.offset + 1)) for found in left]
    except ValueError as error:
        _log.warning(
            "a batch cannot be decoded; its dead letters have no key and no value",
            offset=header.base_offset,
            reason=str(error),
        )
        yield from letters_without_records(header, left)


def _begins_in(header: BatchHeader, wanted: DeadLetters) -> bool:
    return wanted.first <= header.last_offset
