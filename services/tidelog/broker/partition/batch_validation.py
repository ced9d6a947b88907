"""Checks batches before they are appended: those of clients, of a leader, and of the owner of a shard.

`validate_batches` checks a client's batch by the 61 bytes of its header and the CRC. Kafka walks all records
here. This broker walks them (`validate_records`, a microsecond per record) only if the topic needs it:
compacted topics (each record has a key), topics with a codec of their own, topics with
`tidelog.validate.records`, batches whose greatest timestamp cannot be right, and short batches with a
timestamp out of range, to name the records. So if a header misstates its records otherwise, only the reader
notices. The event loop walks at most WALK_ON_LOOP_BYTES; a
worker walks more, and no walk may exceed MAX_WALK_RATIO times `max.message.bytes`. Rules and error codes are
those of Kafka 4.3's `ProduceRequest`, `UnifiedLog` and `LogValidator`, in the order in which Kafka applies
them.

A leader sends whole batches from its log, with offsets and epochs. A follower only checks that they are
complete and follow its own log (Kafka's `UnifiedLog` for appends as follower).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog.broker.partition.events import NO_MARKERS, Markers
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC_COVERS_FROM,
    CURRENT_MAGIC,
    HEADER,
    LOG_OVERHEAD_BYTES,
    MAGIC_OFFSET,
    MIN_BATCH_LENGTH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    CorruptBatchError,
    assemble_batch,
    assign_offset_and_epoch,
    iterate_headers,
    parse_header,
)
from tidelog.records.compression import (
    LZ4_MAGIC,
    MAX_DECOMPRESSED_BYTES,
    Compression,
    CompressionDataError,
    DecompressedTooLargeError,
    compress,
    is_readable_lz4,
)
from tidelog.records.record import (
    CorruptRecordError,
    check_headers,
    end_transaction_marker,
    records_of,
    scan_records,
)
from tidelog.records.record_walk import walk

INT64_MAX: Final = 2**63 - 1
FIRST_PRODUCE_VERSION_WITH_ZSTD: Final = 7
NEWEST_PRODUCE_VERSION: Final = 13
MIN_RECORD_BYTES: Final = 14  # the least size field that Kafka accepts for any magic
MAX_RECORD_ERRORS: Final = 1_000  # per batch in a response; Kafka lists all of them

LEAST_RECORD_BYTES: Final = 7
"""The bytes of a record without key, value and headers: seven fields of one byte."""
_MAGIC_OF_CODEC: Final = (b"", b"\x1f\x8b", b"", LZ4_MAGIC, b"\x28\xb5\x2f\xfd")
"""The first bytes of compressed data by the number of the codec: none, gzip, snappy, lz4, zstd."""
_SKIPPABLE_MAGIC: Final = b"\x2a\x4d\x18"
"""The second to fourth byte of a zstd frame without data, whose first byte is 0x50 to 0x5F."""
MOST_LZ4_BLOCKS: Final = 4_096
"""The number of LZ4 blocks of a batch that are looked at. They usually have 64 KiB."""
WALK_ON_LOOP_BYTES: Final = 64 * 1024
"""The most decompressed bytes of records that the event loop walks over. It takes some milliseconds."""
MAX_WALK_RATIO: Final = 16
"""The decompressed records of a batch may have this many times `max.message.bytes` if they must be walked."""

_LENGTH = struct.Struct(">i")
_UNUSUAL_ATTRIBUTES: Final = CONTROL_BIT | TIMESTAMP_TYPE_BIT
_LZ4 = Compression.LZ4.value  # a plain int: comparing enum members is slow
_ZSTD = Compression.ZSTD.value
_new_header = tuple.__new__


@dataclass(frozen=True, slots=True)
class AppendRules:
    """The settings of a topic that an append must keep to, with Kafka's names and defaults."""

    max_message_bytes: int = 1_048_588
    segment_bytes: int = 1_073_741_824
    is_log_append_time: bool = False  # message.timestamp.type
    timestamp_before_max_ms: int = INT64_MAX  # message.timestamp.before.max.ms
    timestamp_after_max_ms: int = 3_600_000  # message.timestamp.after.max.ms
    is_compacted: bool = False  # cleanup.policy contains compact
    target_compression: int | None = None  # None: compression.type=producer
    target_compression_level: int | None = None  # compression.gzip.level etc.; None: the codec's default
    validates_records: bool = False  # tidelog.validate.records

    @property
    def needs_records_of_sound_batches(self) -> bool:
        """Whether `needs_records` can be True for a batch with plausible times."""
        return self.is_compacted or self.validates_records or self.target_compression is not None

    def needs_records(self, header: BatchHeader) -> bool:
        """Returns whether this batch must go through `validate_records`."""
        return (
            self.is_compacted
            or self.validates_records
            or (self.target_compression is not None and self.target_compression != header.compression)
            or self.doubts_times(header)
        )

    def doubts_times(self, header: BatchHeader) -> bool:
        """Returns whether the header's greatest timestamp may be wrong, so that only the records tell it.

        Some clients leave the field at 0 or -1 (Sarama up to 1.45), and Kafka sets it itself.
        """
        return not self.is_log_append_time and (
            header.max_timestamp <= 0 or header.max_timestamp < header.base_timestamp
        )

    def takes_timestamp(self, timestamp_ms: int, now_ms: WallMs) -> bool:
        """Returns whether a record's timestamp is near enough to now.

        -1 (no timestamp) always is. With LogAppendTime any timestamp is, because the broker replaces it.
        """
        return (
            self.is_log_append_time
            or timestamp_ms == NO_TIMESTAMP
            or (
                now_ms - timestamp_ms <= self.timestamp_before_max_ms
                and timestamp_ms - now_ms <= self.timestamp_after_max_ms
            )
        )

    def timestamp_range(self, now_ms: WallMs) -> str:
        """Returns the text of the allowed range, for messages."""
        return f"[{now_ms - self.timestamp_before_max_ms}, {now_ms + self.timestamp_after_max_ms}]"


class LongWalkError(Exception):
    """The records of the batch are too long to be walked on the event loop."""


class RecordError(NamedTuple):
    """The reason why record number `batch_index` of a batch is refused (ProduceResponse v8+, KIP-467)."""

    batch_index: int
    message: str


class RecordValidationError(KafkaError):
    """A batch that is refused because of some of its records."""

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[RecordError, ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def validate_batches(
    records: memoryview,
    *,
    rules: AppendRules,
    now_ms: WallMs,
    produce_version: int = NEWEST_PRODUCE_VERSION,
) -> BatchHeader:
    """Checks the records of one partition in a Produce request. Returns the header of the one batch.

    `header.size_bytes` can be less than `len(records)`: like Kafka, this ignores an incomplete batch behind
    the first. Raises KafkaError: CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE,
    INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE.
    """
    size = len(records)
    if size < BATCH_HEADER_BYTES:
        raise _refusal_of_short(records)
    fields = HEADER.unpack_from(records)
    (
        base_offset,
        length,
        _,
        magic,
        crc,
        attributes,
        delta,
        first_ms,
        max_ms,
        producer_id,
        _,
        sequence,
        count,
    ) = fields
    if (
        magic != CURRENT_MAGIC
        or length + LOG_OVERHEAD_BYTES != size
        or base_offset
        or size > rules.max_message_bytes
        or size > rules.segment_bytes
        or delta + 1 != count
        or count < 1
        or attributes & _UNUSUAL_ATTRIBUTES
        or attributes & COMPRESSION_MASK >= _ZSTD
        or (sequence < 0 if producer_id >= 0 else attributes & TRANSACTIONAL_BIT)
        or (
            count * LEAST_RECORD_BYTES > size - BATCH_HEADER_BYTES
            if not attributes & COMPRESSION_MASK
            else not _begins_as(records, attributes & COMPRESSION_MASK)
        )
        or (
            not rules.is_log_append_time
            and (
                max_ms - now_ms > rules.timestamp_after_max_ms
                or now_ms - max_ms > rules.timestamp_before_max_ms
                or now_ms - first_ms > rules.timestamp_before_max_ms
                or first_ms - now_ms > rules.timestamp_after_max_ms
            )
        )
    ):
        return _validate_in_order(records, BatchHeader._make(fields), rules, now_ms, produce_version)
    if crc32c(records[CRC_COVERS_FROM:]) != crc:
        raise _crc_mismatch(crc)
    return tuple.__new__(BatchHeader, fields)


def _validate_in_order(
    records: memoryview, header: BatchHeader, rules: AppendRules, now_ms: WallMs, produce_version: int
) -> BatchHeader:
    """Makes the same checks one by one, so that the first failure in Kafka's order is the one reported."""
    _check_framing(records, header, produce_version)
    if header.base_offset:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"A produced batch has base offset 0, this one has {header.base_offset}"
        )
    if header.size_bytes > rules.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The batch of {header.size_bytes} bytes exceeds max.message.bytes, {rules.max_message_bytes}",
        )
    if crc32c(records[CRC_COVERS_FROM : header.size_bytes]) != header.crc:
        raise _crc_mismatch(header.crc)
    if header.is_transactional and header.producer_id == NO_PRODUCER_ID:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "The transactional batch has no producer id"
        )
    if header.compression > _ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Compression codec {header.compression} does not exist"
        )
    _check_fields(header)
    _check_body(records, header)
    _check_timestamp_fields(records, header, rules, now_ms)
    if header.size_bytes > rules.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"The batch of {header.size_bytes} bytes exceeds segment.bytes, {rules.segment_bytes}",
        )
    return header


def _check_framing(records: memoryview, header: BatchHeader, produce_version: int) -> None:
    size = len(records)
    if header.batch_length < MIN_RECORD_BYTES:
        raise _too_small(header.batch_length)
    if not 0 <= header.magic <= CURRENT_MAGIC:
        raise _unknown_magic(header.magic)
    if header.size_bytes > size:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"The batch of {header.size_bytes} bytes is incomplete: it ends after {size} bytes",
        )
    if header.magic != CURRENT_MAGIC:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"Record format {header.magic} is not supported, only {CURRENT_MAGIC}"
        )
    if header.size_bytes < BATCH_HEADER_BYTES:
        raise _too_small(header.batch_length)
    if header.compression == _ZSTD and produce_version < FIRST_PRODUCE_VERSION_WITH_ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs Produce version {FIRST_PRODUCE_VERSION_WITH_ZSTD}, this is {produce_version}",
        )
    if _has_batch(records[header.size_bytes :]):
        raise KafkaError(ErrorCode.INVALID_RECORD, "A Produce request has exactly one batch per partition")


def _has_batch(records: memoryview) -> bool:
    """Returns whether a complete batch of any format begins here.

    Raises KafkaError CORRUPT_MESSAGE if no batch can begin here, even with more bytes.
    """
    if len(records) < LOG_OVERHEAD_BYTES:
        return False
    length: int = _LENGTH.unpack_from(records, 8)[0]
    if length < MIN_RECORD_BYTES:
        raise _too_small(length)
    if len(records) <= MAGIC_OFFSET:
        return False
    if records[MAGIC_OFFSET] > CURRENT_MAGIC:
        raise _unknown_magic(records[MAGIC_OFFSET])
    return length + LOG_OVERHEAD_BYTES <= len(records)


def _refusal_of_short(records: memoryview) -> KafkaError:
    """Returns the error for fewer bytes than a header has."""
    if not _has_batch(records):
        return KafkaError(ErrorCode.INVALID_RECORD, f"{len(records)} bytes do not contain a complete batch")
    if records[MAGIC_OFFSET] != CURRENT_MAGIC:
        return KafkaError(
            ErrorCode.INVALID_RECORD,
            f"Record format {records[MAGIC_OFFSET]} is not supported, only {CURRENT_MAGIC}",
        )
    return _too_small(_LENGTH.unpack_from(records, 8)[0])


def _check_fields(header: BatchHeader) -> None:
    offsets = header.last_offset_delta + 1
    if offsets <= 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"The batch has no valid offset range: last delta {header.last_offset_delta}",
        )
    if header.record_count <= 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"The batch states {header.record_count} records")
    if header.record_count != offsets:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"The batch has {header.record_count} records for {offsets} offsets"
        )
    if header.is_control:
        raise KafkaError(ErrorCode.INVALID_RECORD, "Clients must not write control records")
    if header.producer_id > NO_PRODUCER_ID and header.base_sequence < 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"The batch of producer {header.producer_id} has sequence {header.base_sequence}",
        )


def _check_body(records: memoryview, header: BatchHeader) -> None:
    """Refuses a batch whose header alone shows that nobody can read its records. Such a batch would stop
    every consumer of the topic.
    """
    body_bytes = header.size_bytes - BATCH_HEADER_BYTES
    if not header.compression:
        if header.record_count * LEAST_RECORD_BYTES > body_bytes:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"The batch states {header.record_count} records in {body_bytes} bytes",
            )
    elif not body_bytes or not _begins_as(records, header.compression):
        codec = Compression(header.compression).name.lower()
        problem = f"The records of the batch are not compressed by {codec}"
        if header.compression == _LZ4:
            problem += " in one whole frame with independent blocks, the only form that Java clients read"
        raise KafkaError(ErrorCode.INVALID_RECORD, problem)


def _begins_as(records: memoryview, codec: int) -> bool:
    """Returns whether there are records and they begin with the magic bytes of the codec. Snappy has none.
    For LZ4, the lengths of the blocks must be those of one frame, too.
    """
    body = records[BATCH_HEADER_BYTES:]
    if codec == _LZ4:
        return is_readable_lz4(body, MOST_LZ4_BLOCKS)
    if codec == _ZSTD and bytes(body[1:4]) == _SKIPPABLE_MAGIC and body[0] & 0xF0 == 0x50:
        return True
    magic = _MAGIC_OF_CODEC[codec] if codec <= _ZSTD else b""
    return len(body) > 0 and body[: len(magic)] == magic


def _check_timestamp_fields(
    records: memoryview, header: BatchHeader, rules: AppendRules, now_ms: WallMs
) -> None:
    if header.is_log_append_time:
        # With CreateTime, Kafka accepts the batch and clears the attribute. No client sends this.
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "Only the broker may mark a batch with LogAppendTime")
    if rules.doubts_times(header):
        return  # `validate_records` checks the times of the records themselves
    if not (
        rules.takes_timestamp(header.base_timestamp, now_ms)
        and rules.takes_timestamp(header.max_timestamp, now_ms)
    ):
        if header.size_bytes <= WALK_ON_LOOP_BYTES and not header.compression:
            validate_records(records, header, rules=rules, now_ms=now_ms)  # raises, and names the records
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"The batch has timestamps from {header.base_timestamp} to {header.max_timestamp}; "
            f"the allowed range is {rules.timestamp_range(now_ms)}",
        )


def _too_small(length: int) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"A batch cannot have a length of {length} bytes")


def _unknown_magic(magic: int) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Record format {magic} does not exist")


def _crc_mismatch(crc: int) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"The CRC of the batch does not match its header, {crc}")


def validate_records(
    records: memoryview,
    header: BatchHeader,
    *,
    rules: AppendRules,
    now_ms: WallMs,
    most_bytes: int | None = None,
) -> tuple[memoryview, BatchHeader]:
    """Checks the records of the first batch in `records` and compresses them with the topic's codec.

    `header` is the result of `validate_batches`. Returns the batch to append and its header: a view of
    `records`, or a new batch if the codec or a wrong `max_timestamp` had to change. Raises KafkaError
    INVALID_RECORD or MESSAGE_TOO_LARGE, RecordValidationError INVALID_RECORD or INVALID_TIMESTAMP, and
    LongWalkError if the records have more than `most_bytes`.
    """
    batch = records[: header.size_bytes]
    limit = min(MAX_DECOMPRESSED_BYTES, MAX_WALK_RATIO * rules.max_message_bytes)
    if most_bytes is not None:
        limit = min(limit, most_bytes)
    try:
        body = records_of(batch, header, max_bytes=limit)
        if most_bytes is not None and len(body) > most_bytes:
            raise LongWalkError
        max_timestamp = _check_records(body, header, rules, now_ms)
    except DecompressedTooLargeError as error:
        if limit == most_bytes:
            raise LongWalkError from error
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"The batch is too large: {error}") from error
    except (CompressionDataError, CorruptRecordError) as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"The batch cannot be read: {error}") from error
    if rules.is_log_append_time:
        max_timestamp = header.max_timestamp  # `set_log_append_time` replaces it
    codec = header.compression if rules.target_compression is None else rules.target_compression
    if codec == header.compression and max_timestamp == header.max_timestamp:
        return batch, header
    if codec == header.compression:
        payload = batch[BATCH_HEADER_BYTES:]
    else:
        payload = memoryview(compress(codec, body, rules.target_compression_level))
    attributes = header.attributes & ~COMPRESSION_MASK | codec
    changed = assemble_batch(header._replace(attributes=attributes, max_timestamp=max_timestamp), payload)
    if len(changed) > rules.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The batch has {len(changed)} bytes with the topic's codec {Compression(codec).name.lower()}, "
            f"which exceeds max.message.bytes, {rules.max_message_bytes}",
        )
    return memoryview(changed), parse_header(changed)


def _check_records(body: memoryview, header: BatchHeader, rules: AppendRules, now_ms: WallMs) -> int:
    """Returns the greatest timestamp of the records. Raises CorruptRecordError, RecordValidationError."""
    max_timestamp = _max_timestamp_if_valid(body, header, rules, now_ms)
    if max_timestamp is not None:
        return max_timestamp
    errors: list[RecordError] = []
    code = ErrorCode.INVALID_RECORD
    max_timestamp = -1
    for index, span in enumerate(scan_records(body, header.record_count)):
        if span.offset_delta != index:
            raise CorruptRecordError(f"record {index} has offset delta {span.offset_delta}")
        timestamp = header.base_timestamp + span.timestamp_delta
        if timestamp > INT64_MAX:
            raise CorruptRecordError(f"record {index} has a timestamp beyond 64 bits")
        check_headers(body, span.headers_start, span.end)
        max_timestamp = max(max_timestamp, timestamp)
        if rules.is_compacted and span.key_length < 0:
            problem = "A compacted topic does not accept a record without a key"
        elif not rules.takes_timestamp(timestamp, now_ms):
            problem = f"Timestamp {timestamp} is out of the range {rules.timestamp_range(now_ms)}"
            code = ErrorCode.INVALID_TIMESTAMP
        else:
            continue
        if len(errors) < MAX_RECORD_ERRORS:
            errors.append(RecordError(index, problem))
    if errors:
        raise RecordValidationError(
            code,
            f"{len(errors)} of {header.record_count} records are invalid: {errors[0].message}",
            tuple(errors),
        )
    return max_timestamp


def _max_timestamp_if_valid(
    body: memoryview, header: BatchHeader, rules: AppendRules, now_ms: WallMs
) -> int | None:
    """Returns the greatest timestamp if a fast walk shows that all records are valid, otherwise None."""
    walked = walk(bytes(body), header.record_count)
    if walked is None or (rules.is_compacted and walked.keyless_count):
        return None
    least, greatest = (header.base_timestamp + delta for delta in walked[:2])
    if greatest > INT64_MAX:
        return None
    if not rules.is_log_append_time and (
        now_ms - least > rules.timestamp_before_max_ms or greatest - now_ms > rules.timestamp_after_max_ms
    ):
        return None
    return max(greatest, NO_TIMESTAMP)


def received_headers(records: memoryview, log_end_offset: int) -> list[BatchHeader]:
    """Returns the header of each whole batch in `records`, in order; ignores an incomplete last batch.

    The batches are contiguous from the beginning of `records`. There can be gaps between their offsets,
    because the leader's log may be compacted. Raises KafkaError: CORRUPT_MESSAGE for an invalid batch,
    INVALID_RECORD for a batch that begins below `log_end_offset` or below the end of the previous one.
    """
    headers: list[BatchHeader] = []
    position, end, next_offset = 0, len(records), log_end_offset
    last_start = end - BATCH_HEADER_BYTES
    unpack = HEADER.unpack_from
    while position <= last_start:
        fields = unpack(records, position)
        base_offset, length, _, magic, crc, _, last_offset_delta, *_ = fields
        stop = position + length + LOG_OVERHEAD_BYTES
        if length < MIN_BATCH_LENGTH or magic != CURRENT_MAGIC or last_offset_delta < 0:
            raise _no_batch(base_offset, length, magic, last_offset_delta)
        if stop > end:
            break
        if crc32c(records[position + CRC_COVERS_FROM : stop]) != crc:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"The CRC of the batch at offset {base_offset} does not match its header, {crc}",
            )
        if base_offset < next_offset:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"The batch at offset {base_offset} is below the next offset, {next_offset}",
            )
        headers.append(_new_header(BatchHeader, fields))
        next_offset = base_offset + last_offset_delta + 1
        position = stop
    return headers


def numbered_headers(records: memoryview, base_offset: int, leader_epoch: int) -> list[BatchHeader]:
    """Assigns offsets from `base_offset` and the leader epoch to the batches, and returns their headers.

    Raises KafkaError as `received_headers` does, and CORRUPT_MESSAGE if a batch is incomplete or there is
    none.
    """
    position, offset = 0, base_offset
    try:
        for position, header in iterate_headers(records):
            assign_offset_and_epoch(records, position, offset, leader_epoch)
            offset += header.last_offset_delta + 1
    except CorruptBatchError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    headers = received_headers(records, base_offset)
    if not headers or sum(header.size_bytes for header in headers) != len(records):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"The {len(records)} bytes are not whole batches")
    return headers


def control_markers(records: memoryview, headers: Sequence[BatchHeader]) -> Markers:
    """Returns the markers of the control batches, by base offset; None for a batch without a marker.

    `headers` are those of the batches in `records`, which are contiguous. Raises KafkaError CORRUPT_MESSAGE.
    """
    for header in headers:
        if header[5] & CONTROL_BIT:
            break
    else:
        return NO_MARKERS
    markers, position = {}, 0
    for header in headers:
        if header[5] & CONTROL_BIT:
            try:
                markers[header.base_offset] = end_transaction_marker(records, position)
            except ValueError as error:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        position += header.size_bytes
    return markers


def _no_batch(base_offset: int, length: int, magic: int, last_offset_delta: int) -> KafkaError:
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE,
        f"The bytes are not a batch: base offset {base_offset}, length {length}, magic {magic}, "
        f"last offset delta {last_offset_delta}",
    )
