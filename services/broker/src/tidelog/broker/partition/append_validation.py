"""Is what a client sent to a partition one sound batch? Decided from the 61 bytes of its header and the CRC.

Kafka walks all records here; we only where the topic needs it (`record_validation.py`), so a batch whose
header lies about its records is found by no one but its reader. Rules and error codes: Kafka 4.3's
`ProduceRequest`, `UnifiedLog`, `LogValidator`, in the order in which Kafka would meet them.
"""

from __future__ import annotations

import struct

from crc32c import crc32c
from tidelog.broker.partition.append_rules import AppendRules as AppendRules  # its users need both
from tidelog.broker.partition.record_validation import validate_records
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC_COVERS_FROM,
    CURRENT_MAGIC,
    LOG_OVERHEAD_BYTES,
    MAGIC_OFFSET,
    NO_PRODUCER_ID,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
)
from tidelog.records.compression import Compression

FIRST_PRODUCE_VERSION_WITH_ZSTD = 7
NEWEST_PRODUCE_VERSION = 13
MIN_RECORD_BYTES = 14  # the least size field Kafka takes for any magic

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">i")
_UNUSUAL_ATTRIBUTES = CONTROL_BIT | TIMESTAMP_TYPE_BIT
_ZSTD = Compression.ZSTD.value  # plain: an enum member is slow to compare


def validate_batches(
    records: memoryview, *, rules: AppendRules, now_ms: int, produce_version: int = NEWEST_PRODUCE_VERSION
) -> BatchHeader:
    """The header of the one batch in `records`, which a Produce request has for a partition.

    `header.size_bytes` may be less than `len(records)`: a cut-off batch behind the first is ignored, as by
    Kafka. Raises KafkaError: CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE,
    INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE.
    """
    size = len(records)
    if size < BATCH_HEADER_BYTES:
        raise _refusal_of_short(records)
    fields = _HEADER.unpack_from(records)
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
        or (sequence < 0 and producer_id >= 0)
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
    records: memoryview, header: BatchHeader, rules: AppendRules, now_ms: int, produce_version: int
) -> BatchHeader:
    """The same checks one by one, so that the first that fails in Kafka's order is the one reported."""
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
    if header.compression > _ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"There is no compression codec {header.compression}"
        )
    _check_fields(header)
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
            ErrorCode.INVALID_RECORD, f"The batch of {header.size_bytes} bytes is cut off after {size} bytes"
        )
    if header.magic != CURRENT_MAGIC:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"Record format {header.magic} is not taken, only {CURRENT_MAGIC}"
        )
    if header.size_bytes < BATCH_HEADER_BYTES:
        raise _too_small(header.batch_length)
    if header.compression == _ZSTD and produce_version < FIRST_PRODUCE_VERSION_WITH_ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs Produce version {FIRST_PRODUCE_VERSION_WITH_ZSTD}, this is {produce_version}",
        )
    if _has_batch(records[header.size_bytes :]):
        raise KafkaError(ErrorCode.INVALID_RECORD, "A partition takes exactly one batch a Produce request")


def _has_batch(records: memoryview) -> bool:
    """Does a whole batch, of any format, begin here? Raises CORRUPT_MESSAGE if none ever can."""
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
    """Fewer bytes than a header has."""
    if not _has_batch(records):
        return KafkaError(ErrorCode.INVALID_RECORD, f"There is no whole batch in {len(records)} bytes")
    if records[MAGIC_OFFSET] != CURRENT_MAGIC:
        return KafkaError(
            ErrorCode.INVALID_RECORD,
            f"Record format {records[MAGIC_OFFSET]} is not taken, only {CURRENT_MAGIC}",
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
        raise KafkaError(ErrorCode.INVALID_RECORD, f"The batch says it has {header.record_count} records")
    if header.record_count != offsets:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"The batch has {header.record_count} records for {offsets} offsets"
        )
    if header.is_control:
        raise KafkaError(ErrorCode.INVALID_RECORD, "Clients may not write control records")
    if header.producer_id > NO_PRODUCER_ID and header.base_sequence < 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"The batch of producer {header.producer_id} has sequence {header.base_sequence}",
        )


def _check_timestamp_fields(
    records: memoryview, header: BatchHeader, rules: AppendRules, now_ms: int
) -> None:
    if header.is_log_append_time:
        # Kafka lets this pass, and clears the mark, if the topic has CreateTime. No client does it.
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "Only the broker may mark a batch with LogAppendTime")
    if not (
        rules.takes_timestamp(header.base_timestamp, now_ms)
        and rules.takes_timestamp(header.max_timestamp, now_ms)
    ):
        validate_records(
            records, header, rules=rules, now_ms=now_ms
        )  # raises, and tells which records they are
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"The batch states timestamps {header.base_timestamp} to {header.max_timestamp}, "
            f"{rules.timestamp_range(now_ms)} is allowed",
        )


def _too_small(length: int) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"A batch can't have a length of {length} bytes")


def _unknown_magic(magic: int) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"There is no record format {magic}")


def _crc_mismatch(crc: int) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"The batch does not have the CRC that it states, {crc}")
