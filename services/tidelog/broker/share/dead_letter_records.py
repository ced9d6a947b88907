"""Takes records by their offsets out of batches, and builds the batches of a dead letter topic from them.

Only this module of the broker looks at single records of consumers. It copies keys, values and headers as
bytes, and adds the headers of KIP-1191.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from tidelog.broker.share.deliveries import DeadLetters
from tidelog.model import dead_letters
from tidelog.model.instants import WallMs
from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    CURRENT_MAGIC,
    NO_PRODUCER_ID,
    BatchHeader,
    Buffer,
    assemble_batch,
)
from tidelog.records.builder import NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_SEQUENCE
from tidelog.records.compression import Compression
from tidelog.records.record import CorruptRecordError, RecordSpan, records_of, scan_offsets
from tidelog.records.varint import CorruptVarintError, append_varint, read_varint

MAX_DECOMPRESSED_BYTES: Final = 32 * 1024 * 1024
"""The most decompressed bytes of a batch from which records are copied. The dead letters of a larger batch
have no key and no value.
"""
_NULL: Final = -1


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
            yield LetterBatch(_batch(payload, len(offsets), now_ms), offsets)
            payload, offsets = bytearray(), []
            record = _encoded(letter, origin, 0)
        payload += record
        offsets.append(letter.offset)
    if offsets:
        yield LetterBatch(_batch(payload, len(offsets), now_ms), offsets)


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
    record = bytearray(1)  # attributes
    append_varint(record, 0)  # the timestamp's difference to the batch's
    append_varint(record, offset_delta)
    _append_bytes(record, content.key)
    _append_bytes(record, content.value)
    append_varint(record, content.header_count + len(texts))
    record += content.headers
    for name, text in zip(dead_letters.HEADERS, texts, strict=True):
        _append_bytes(record, name.encode())
        _append_bytes(record, text.encode())
    output = bytearray()
    append_varint(output, len(record))
    return output + record


def _append_bytes(output: bytearray, data: bytes | None) -> None:
    append_varint(output, _NULL if data is None else len(data))
    output += data or b""


def _batch(payload: bytearray, record_count: int, now_ms: WallMs) -> bytearray:
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        partition_leader_epoch=NO_LEADER_EPOCH,
        magic=CURRENT_MAGIC,
        crc=0,
        attributes=Compression.NONE,
        last_offset_delta=record_count - 1,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=record_count,
    )
    return assemble_batch(header, payload)
