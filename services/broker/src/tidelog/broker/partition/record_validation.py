"""The records of a produced batch, one by one: microseconds a record, so only where a topic needs it.

Needed for compacted topics (each record has a key), for a topic with a codec of its own, with
`tidelog.validate.records`, and to tell which records have a timestamp out of range. Source: Kafka's
`LogValidator`.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.broker.partition.append_rules import INT64_MAX, AppendRules
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.batch import BATCH_HEADER_BYTES, COMPRESSION_MASK, BatchHeader, parse_header
from tidelog.records.builder import assemble_batch
from tidelog.records.compression import (
    MAX_DECOMPRESSED_BYTES,
    Compression,
    CompressionDataError,
    DecompressedTooLargeError,
    compress,
)
from tidelog.records.record import CorruptRecordError, read_headers, records_of, scan_records

MAX_RECORD_ERRORS = 1_000  # of one batch in an answer; Kafka lists them all


class RecordError(NamedTuple):
    """Why the record number `batch_index` of a batch was refused (ProduceResponse v8+, KIP-467)."""

    batch_index: int
    message: str


class RecordValidationError(KafkaError):
    """A batch refused for some of its records."""

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[RecordError, ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def validate_records(
    records: memoryview,
    header: BatchHeader,
    *,
    rules: AppendRules,
    now_ms: int,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> tuple[memoryview, BatchHeader]:
    """Check the records of the batch that `records` begins with, and bring it to the topic's codec.

    `header` is what `validate_batches` returned. Returns the batch to append and its header: a view of
    `records`, or a new batch if the codec or a wrong `max_timestamp` had to change. Raises KafkaError
    INVALID_RECORD or MESSAGE_TOO_LARGE, RecordValidationError INVALID_RECORD or INVALID_TIMESTAMP.
    """
    batch = records[: header.size_bytes]
    try:
        body = records_of(batch, header, max_bytes=max_decompressed_bytes)
        max_timestamp = _check_records(body, header, rules, now_ms)
    except DecompressedTooLargeError as error:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"The batch is too large: {error}") from error
    except (CompressionDataError, CorruptRecordError) as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"The batch can't be read: {error}") from error
    if rules.is_log_append_time:
        max_timestamp = header.max_timestamp  # about to be replaced anyway
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
            f"The batch has {len(changed)} bytes under the topic's codec {Compression(codec).name.lower()}, "
            f"which exceeds max.message.bytes, {rules.max_message_bytes}",
        )
    return memoryview(changed), parse_header(changed)


def _check_records(body: memoryview, header: BatchHeader, rules: AppendRules, now_ms: int) -> int:
    """The greatest timestamp of the records. Raises CorruptRecordError, RecordValidationError."""
    errors: list[RecordError] = []
    code = ErrorCode.INVALID_RECORD
    max_timestamp = -1
    for index, span in enumerate(scan_records(body, header.record_count)):
        if span.offset_delta != index:
            raise CorruptRecordError(f"record {index} has offset delta {span.offset_delta}")
        timestamp = header.base_timestamp + span.timestamp_delta
        if timestamp > INT64_MAX:
            raise CorruptRecordError(f"record {index} has a timestamp beyond 64 bits")
        read_headers(body, span.headers_start, span.end)
        max_timestamp = max(max_timestamp, timestamp)
        if rules.is_compacted and span.key_length < 0:
            problem = "A compacted topic takes no record without a key"
        elif not rules.takes_timestamp(timestamp, now_ms):
            problem = f"Timestamp {timestamp} is out of range, {rules.timestamp_range(now_ms)} is allowed"
            code = ErrorCode.INVALID_TIMESTAMP
        else:
            continue
        if len(errors) < MAX_RECORD_ERRORS:
            errors.append(RecordError(index, problem))
    if errors:
        raise RecordValidationError(
            code,
            f"{len(errors)} of {header.record_count} records are refused: {errors[0].message}",
            tuple(errors),
        )
    return max_timestamp
