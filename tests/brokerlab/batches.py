"""Builds and parses record batches (magic 2) by hand, as an independent second implementation for tests."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

HEADER_BYTES = 61
_HEADER = struct.Struct(">qiibIhiqqqhii")


def _varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def _record(offset_delta: int, timestamp_delta_ms: int, key: bytes | None, value: bytes | None) -> bytes:
    body = b"\0" + _varint(timestamp_delta_ms) + _varint(offset_delta)
    for part in (key, value):
        body += _varint(-1) if part is None else _varint(len(part)) + part
    body += _varint(0)
    return _varint(len(body)) + body


def build_batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    base_offset: int = 0,
    timestamps_ms: Sequence[int] | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
    magic: int = 2,
    record_count: int | None = None,
) -> bytes:
    """Returns an uncompressed batch with the current time and a correct CRC. Its fields may be invalid."""
    times = list(timestamps_ms or [round(time.time() * 1000)] * len(values))
    keys = list(keys or [None] * len(values))
    records = b"".join(
        _record(i, times[i] - times[0], key, value)
        for i, (key, value) in enumerate(zip(keys, values, strict=True))
    )
    count = len(values) if record_count is None else record_count
    tail = (
        struct.pack(
            ">hiqqqhii",
            attributes,
            len(values) - 1,
            times[0],
            max(times),
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        )
        + records
    )
    length = 4 + 1 + 4 + len(tail)
    return struct.pack(">qiibI", base_offset, length, -1, magic, crc32c(tail)) + tail


class Batch(NamedTuple):
    base_offset: int
    last_offset: int
    leader_epoch: int
    max_timestamp: int
    producer_id: int
    base_sequence: int
    record_count: int
    attributes: int
    size_bytes: int
    is_crc_right: bool


def read_batches(data: bytes | None) -> Iterator[Batch]:
    """Parses the whole batches of fetched bytes. A last batch that is cut short is left out, as clients
    do.
    """
    position = 0
    data = data or b""
    while len(data) - position >= HEADER_BYTES:
        (
            base,
            length,
            epoch,
            _magic,
            crc,
            attributes,
            last_delta,
            _first,
            newest,
            pid,
            _pepoch,
            sequence,
            count,
        ) = _HEADER.unpack_from(data, position)
        end = position + 12 + length
        if end > len(data):
            return
        is_right = crc32c(data[position + 21 : end]) == crc
        yield Batch(
            base, base + last_delta, epoch, newest, pid, sequence, count, attributes, end - position, is_right
        )
        position = end
