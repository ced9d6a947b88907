"""Are these the batches that follow in a leader's log? Decided from their headers and CRCs, record bytes
unseen.

A leader sends whole batches as its log holds them, offsets and epochs set, so a follower only has to know
that they arrived whole and that they go on where its own log ends. Source: Kafka's `UnifiedLog` for appends
as follower.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from tidelog.broker.partition.events import NO_MARKERS, Markers
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    CONTROL_BIT,
    CRC_COVERS_FROM,
    CURRENT_MAGIC,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    CorruptBatchError,
    assign_offset_and_epoch,
    iterate_headers,
)
from tidelog.records.record import end_transaction_marker

_MIN_BATCH_LENGTH: Final = BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES
_HEADER = struct.Struct(">qiibIhiqqqhii")
_new_tuple = tuple.__new__


def received_headers(records: memoryview, log_end_offset: int) -> list[BatchHeader]:
    """The header of each whole batch in `records`, in order; a last one that is cut off is left out.

    The bytes of the batches lie one after the other from the beginning of `records`. Offsets may leap (the
    leader's log may be compacted), never go back. Raises KafkaError: CORRUPT_MESSAGE for what is no sound
    batch, INVALID_RECORD for one that begins below `log_end_offset` or below the end of the one before.
    """
    headers: list[BatchHeader] = []
    position, end, next_offset = 0, len(records), log_end_offset
    last_start = end - BATCH_HEADER_BYTES
    unpack = _HEADER.unpack_from
    while position <= last_start:
        fields = unpack(records, position)
        base_offset, length, _, magic, crc, _, last_offset_delta, *_ = fields
        stop = position + length + LOG_OVERHEAD_BYTES
        if length < _MIN_BATCH_LENGTH or magic != CURRENT_MAGIC or last_offset_delta < 0:
            raise _no_batch(base_offset, length, magic, last_offset_delta)
        if stop > end:
            break
        if crc32c(records[position + CRC_COVERS_FROM : stop]) != crc:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {base_offset} does not have its CRC, {crc}"
            )
        if base_offset < next_offset:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"a batch at offset {base_offset} where {next_offset} is next"
            )
        headers.append(_new_tuple(BatchHeader, fields))
        next_offset = base_offset + last_offset_delta + 1
        position = stop
    return headers


def numbered_headers(records: memoryview, base_offset: int, leader_epoch: int) -> list[BatchHeader]:
    """Give the batches, at least one, their offsets from `base_offset` on and the epoch; their
    headers. Raises KafkaError as `received_headers`, and CORRUPT_MESSAGE if one is cut off.
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
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{len(records)} bytes are not whole batches")
    return headers


def control_markers(records: memoryview, headers: Sequence[BatchHeader]) -> Markers:
    """How each control batch among those of `headers`, which lie one after the other in `records`, ends its
    transaction: by base offset, None where it does not. Raises KafkaError CORRUPT_MESSAGE.
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
        f"what follows is no batch: base offset {base_offset}, length {length}, magic {magic}, "
        f"last offset delta {last_offset_delta}",
    )
