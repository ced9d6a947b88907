"""Appends one record to the records of a batch, whose layout `record.py` describes.

This is the hot path of a producer. Most lengths and deltas are small, so their varints come from a table.
mypyc compiles this module (ADR 0020).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidelog.records.varint import append_varint

Header = tuple[str, bytes | None]

MAX_RECORD_OVERHEAD_BYTES: Final = 36
"""The most bytes of a record without headers beyond its key and value: six varints and the attributes."""
MAX_HEADER_OVERHEAD_BYTES: Final = 10
"""The most bytes of a header beyond its key and value."""
_TABLE_SIZE: Final = 4096


def _varint(value: int) -> bytes:
    output = bytearray()
    append_varint(output, value)
    return bytes(output)


_SHORT: Final = [_varint(value) for value in range(_TABLE_SIZE)]
_NULL: Final = _varint(-1)
_PLAIN: Final = b"\x00"
"""The attributes of a record."""
NO_HEADERS: Final = b"\x00"
"""The headers of a record that has none."""


def encode_varint(value: int) -> bytes:
    """Returns the zigzag varint of `value`."""
    return _SHORT[value] if 0 <= value < _TABLE_SIZE else _varint(value)


def append_record(
    output: bytearray,
    *,
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: tuple[Header, ...] = (),
) -> None:
    """Appends one record to `output`."""
    encoded = counted_headers(headers) if headers else NO_HEADERS
    append_encoded(output, timestamp_delta, offset_delta, key, value, encoded)


def append_encoded(
    output: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: bytes,
) -> None:
    """Appends one record whose `headers` are encoded: their number, and then each of them."""
    short = _SHORT
    if key is None:
        key_length = _NULL
        key = b""
    else:
        size = len(key)
        key_length = short[size] if size < _TABLE_SIZE else _varint(size)
    if value is None:
        value_length = _NULL
        value = b""
    else:
        size = len(value)
        value_length = short[size] if size < _TABLE_SIZE else _varint(size)
    body = b"".join(
        (
            _PLAIN,
            short[timestamp_delta] if 0 <= timestamp_delta < _TABLE_SIZE else _varint(timestamp_delta),
            short[offset_delta] if 0 <= offset_delta < _TABLE_SIZE else _varint(offset_delta),
            key_length,
            key,
            value_length,
            value,
            headers,
        )
    )
    size = len(body)
    output += short[size] if size < _TABLE_SIZE else _varint(size)
    output += body


def append_values(
    output: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    values: Sequence[bytes | None],
    start: int,
    max_bytes: int,
) -> int:
    """Appends records with `values` from index `start` on. They have one timestamp, and no keys and headers.

    Stops where `output` could exceed `max_bytes`, and before a value that is not bytes. Returns the number of
    appended records.
    """
    short, join = _SHORT, b"".join
    beginning = _PLAIN + encode_varint(timestamp_delta)
    fixed_bytes = len(beginning) + len(_NULL) + len(NO_HEADERS)
    count = 0
    try:
        for index in range(start, len(values)):
            value = values[index]
            if value is None:
                size = 0
                value_length = _NULL
                value = b""
            else:
                size = len(value)
                value_length = short[size] if size < _TABLE_SIZE else _varint(size)
            if len(output) + size + MAX_RECORD_OVERHEAD_BYTES > max_bytes:
                break
            offset = short[offset_delta] if offset_delta < _TABLE_SIZE else _varint(offset_delta)
            size += fixed_bytes + len(offset) + len(value_length)
            length = short[size] if size < _TABLE_SIZE else _varint(size)
            output += join((length, beginning, offset, _NULL, value_length, value, NO_HEADERS))
            offset_delta += 1
            count += 1
    except TypeError:
        return count  # appending this value alone raises the error to the caller
    return count


def headers_size_bound(headers: tuple[Header, ...]) -> int:
    """Returns an upper bound of the bytes that the headers need in a record."""
    size = MAX_HEADER_OVERHEAD_BYTES * len(headers)
    for name, content in headers:
        size += len(name.encode())
        if content is not None:
            size += len(content)
    return size


def counted_headers(headers: tuple[Header, ...]) -> bytes:
    """Returns the headers as a record has them, with their number before them."""
    return encode_varint(len(headers)) + encode_headers(headers)


def encode_headers(headers: tuple[Header, ...]) -> bytes:
    """Returns the headers as a record has them, without the number before them."""
    chunks: list[bytes] = []
    for name, content in headers:
        encoded = name.encode()
        chunks += (encode_varint(len(encoded)), encoded)
        chunks += (_NULL, b"") if content is None else (encode_varint(len(content)), content)
    return b"".join(chunks)
