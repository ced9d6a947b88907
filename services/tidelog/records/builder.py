"""Builds record batches."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.records.batch import (
    CONTROL_BIT,
    CURRENT_MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    EndTransactionMarker,
    assemble_batch,
    encode_end_transaction,
)
from tidelog.records.compression import Compression, compress
from tidelog.records.record import Record
from tidelog.records.record_writer import append_record


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int | None = None,
    compression: int = Compression.NONE,
    compression_level: int | None = None,
    log_append_time_ms: int | None = None,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytearray:
    """Returns a batch of `records`, whose offsets increase; `base_offset` defaults to that of the first
    record.

    With `log_append_time_ms`, all records have that timestamp. Raises ValueError if there are no records or
    if their offsets do not increase.
    """
    payload = bytearray()
    count, last_delta, base_timestamp, max_timestamp = 0, -1, NO_TIMESTAMP, NO_TIMESTAMP
    for record in records:
        if count == 0:
            base_offset = record.offset if base_offset is None else base_offset
            base_timestamp = record.timestamp
        assert base_offset is not None  # set with the first record
        if record.offset - base_offset <= last_delta:
            raise ValueError(f"offset {record.offset} does not rise above {base_offset + last_delta}")
        last_delta = record.offset - base_offset
        max_timestamp = max(max_timestamp, record.timestamp)
        append_record(
            payload,
            timestamp_delta=record.timestamp - base_timestamp,
            offset_delta=last_delta,
            key=record.key,
            value=record.value,
            headers=record.headers,
        )
        count += 1
    if base_offset is None or count == 0:
        raise ValueError("a batch needs at least one record")
    attributes = compression
    attributes |= TRANSACTIONAL_BIT if is_transactional else 0
    attributes |= CONTROL_BIT if is_control else 0
    attributes |= TIMESTAMP_TYPE_BIT if log_append_time_ms is not None else 0
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        partition_leader_epoch=leader_epoch,
        magic=CURRENT_MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=last_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp if log_append_time_ms is None else log_append_time_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count,
    )
    return assemble_batch(header, compress(compression, payload, compression_level))


def build_end_transaction_batch(
    marker: EndTransactionMarker,
    *,
    base_offset: int,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """Returns the control batch that commits or aborts a producer's transaction in a partition."""
    key, value = encode_end_transaction(marker)
    return build_batch(
        [Record(base_offset, timestamp_ms, key, value)],
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )
