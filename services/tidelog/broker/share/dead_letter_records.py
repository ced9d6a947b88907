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
from tidelog.records.batch import BATCH_HEADER_BYTES, BatchHeader, Buffer, wrap_records
from tidelog.records.record import CorruptRecordError, RecordSpan, records_of, scan_offsets
from tidelog.records.record_writer import append_encoded, encode_headers, encode_varint
from tidelog.records.varint import CorruptVarintError, read_varint

MAX_DECOMPRESSED_BYTES: Final = 32 * 1024 * 1024
"""The most decompressed bytes of a batch from which records are copied. The dead letters of a larger batch
have no key and no value.
"""


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
