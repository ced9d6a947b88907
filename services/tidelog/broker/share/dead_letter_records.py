"""Reads the records that a share group has given up, and builds the batches of a dead letter topic from them.

`read_letters` reads them from the log of their partition, and `batches_of` builds the batches. Only this
module of the broker looks at single records of consumers. It copies keys, values and headers as bytes, and
adds the headers of KIP-1191.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import islice, takewhile
from typing import Final, NamedTuple

import structlog

from tidelog.broker.hosting.replica import Replica
from tidelog.broker.log.segment import FileRange
from tidelog.broker.share.deliveries import DeadLetters
from tidelog.broker.share.log_reader import open_range
from tidelog.kernel.instants import WallMs
from tidelog.log_format.batches import TornLogError
from tidelog.model import dead_letters
from tidelog.records.aborted import AbortedBatches
from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    BatchHeader,
    Buffer,
    CorruptBatchError,
    crc_matches,
    iterate_headers,
    wrap_records,
)
from tidelog.records.record import CorruptRecordError, RecordSpan, records_of, scan_offsets
from tidelog.records.record_writer import append_encoded, encode_headers, encode_varint
from tidelog.records.varint import CorruptVarintError, read_varint

MAX_DECOMPRESSED_BYTES: Final = 32 * 1024 * 1024
"""The most decompressed bytes of a batch from which records are copied. The dead letters of a larger batch
have no key and no value.
"""
MAX_ABORTED_TRANSACTIONS: Final = 5_000
"""The most aborted transactions of one read. It ends before the next one begins."""
MAX_READ_BYTES: Final = 1024 * 1024
"""The most bytes of the log that one read takes, unless a single batch is larger."""
MAX_READS: Final = 16
"""The most reads for one copy."""

_log = structlog.get_logger(__name__)


class Origin(NamedTuple):
    """The share group and the partition from which dead letters come."""

    group_id: str
    topic: str
    partition: int


class RecordBytes(NamedTuple):
    """A record as bytes. `headers` are `header_count` encoded headers."""

    key: bytes | None = None
    value: bytes | None = None
    header_count: int = 0
    headers: bytes = b""

    @property
    def size_bytes(self) -> int:
        return len(self.key or b"") + len(self.value or b"") + len(self.headers)


NO_RECORD: Final = RecordBytes()
"""The content of a dead letter that only states where its record is."""


class DeadLetter(NamedTuple):
    """One record for the dead letter topic, with the offset that it has in its own topic."""

    offset: int
    delivery_count: int
    is_rejected: bool
    content: RecordBytes


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
        with open_range(
            replica, position, file_range, isolation_level, MAX_ABORTED_TRANSACTIONS, at_least_one_batch=True
        ) as found:
            if found is None:
                break
            kept, aborted = found
            read = await loop.run_in_executor(
                record_walks, _decode, kept, aborted, left, max_bytes - size_bytes, copies
            )
        letters += read.letters
        size_bytes += sum(letter.content.size_bytes for letter in read.letters)
        position = max(read.end_offset, position)
    return ReadLetters(letters, position)


def _decode(
    file_range: FileRange,
    aborted: AbortedBatches,
    wanted: Sequence[DeadLetters],
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
        if not in_batch or header.is_control or header in aborted:
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


def letters_of_batch(
    batch: Buffer, header: BatchHeader, wanted: Sequence[DeadLetters], *, copies: bool
) -> Iterator[DeadLetter]:
    """Yields a dead letter for each record of the batch that is wanted; `wanted` is in order. Offsets without
    a record, which compaction has removed, yield nothing. Without `copies`, dead letters have no content.

    Raises ValueError if the batch cannot be decoded, perhaps after some dead letters.
    """
    body = records_of(batch, header, max_bytes=MAX_DECOMPRESSED_BYTES)
    at = 0
    for offset, span in scan_offsets(body, header):
        while at < len(wanted) and wanted[at].last < offset:
            at += 1
        if at == len(wanted):
            return
        found = wanted[at]
        if found.first <= offset:
            content = _content(body, span) if copies else NO_RECORD
            yield DeadLetter(offset, found.delivery_count, found.is_rejected, content)


def letters_without_records(header: BatchHeader, wanted: Sequence[DeadLetters]) -> Iterator[DeadLetter]:
    """Yields a dead letter without content for each offset of the batch that is wanted."""
    for found in wanted:
        for offset in range(max(found.first, header.base_offset), min(found.last, header.last_offset) + 1):
            yield DeadLetter(offset, found.delivery_count, found.is_rejected, NO_RECORD)


def _content(body: memoryview, span: RecordSpan) -> RecordBytes:
    try:
        header_count, headers_at = read_varint(body, span.headers_start)
    except CorruptVarintError as error:
        raise CorruptRecordError("a record's headers are cut off") from error
    if header_count < 0 or headers_at > span.end:
        raise CorruptRecordError(f"a record has {header_count} headers")
    return RecordBytes(
        None if span.key_length < 0 else bytes(body[span.key_start : span.key_start + span.key_length]),
        None
        if span.value_length < 0
        else bytes(body[span.value_start : span.value_start + span.value_length]),
        header_count,
        bytes(body[headers_at : span.end]),
    )


class LetterBatch(NamedTuple):
    """A batch for the dead letter topic, and the offsets of its records in their own topic."""

    batch: bytearray
    offsets: list[int]


def batches_of(
    letters: Iterable[DeadLetter], origin: Origin, now_ms: WallMs, max_bytes: int
) -> Iterator[LetterBatch]:
    """Yields batches of at most `max_bytes`, or of one record that is larger. Each record's timestamp is
    `now_ms`, the time of the copy, so that the retention of the dead letter topic begins then.
    """
    payload, offsets = bytearray(), list[int]()
    for letter in letters:
        record = _encoded(letter, origin, len(offsets))
        if offsets and BATCH_HEADER_BYTES + len(payload) + len(record) > max_bytes:
            yield LetterBatch(_wrapped(payload, len(offsets), now_ms), offsets)
            payload, offsets = bytearray(), []
            record = _encoded(letter, origin, 0)
        payload += record
        offsets.append(letter.offset)
    if offsets:
        yield LetterBatch(_wrapped(payload, len(offsets), now_ms), offsets)


def _encoded(letter: DeadLetter, origin: Origin, offset_delta: int) -> bytearray:
    content, reason = letter.content, dead_letters.DELIVERED_TOO_OFTEN
    if letter.is_rejected:
        reason = dead_letters.REJECTED
    texts = (
        origin.topic,
        str(origin.partition),
        str(letter.offset),
        origin.group_id,
        str(letter.delivery_count),
        reason,
    )
    own = tuple((name, text.encode()) for name, text in zip(dead_letters.HEADERS, texts, strict=True))
    headers = encode_varint(content.header_count + len(own)) + content.headers + encode_headers(own)
    record = bytearray()
    append_encoded(record, 0, offset_delta, content.key, content.value, headers)
    return record


def _wrapped(payload: bytearray, record_count: int, now_ms: WallMs) -> bytearray:
    return wrap_records((payload,), record_count, base_timestamp=now_ms, max_timestamp=now_ms)
