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
_NO_VALUE: Final = -1
NO_HEADERS: Final = b"\x00"
"""The headers of a record that has none."""
MIN_SHARED_BYTES: Final = 512
"""The size from which on a batch refers to a value until it is sent. It copies shorter ones, because a
reference would need more memory.
"""


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
    """Appends one record whose `headers` are encoded: their number, and then each of them. Raises TypeError
    if the key or the value is not bytes; `output` is unchanged then.
    """
    head = _head(timestamp_delta, offset_delta, key, _NO_VALUE if value is None else len(value), len(headers))
    if value is None:
        output += head + headers
    else:
        output += b"".join((head, value, headers))


def _head(
    timestamp_delta: int, offset_delta: int, key: bytes | None, value_bytes: int, headers_bytes: int
) -> bytes:
    """Returns the bytes of a record before its value."""
    short = _SHORT
    if key is None:
        key_length = _NULL
        key = b""
        size = 1
    else:
        size = len(key)
        key_length = short[size] if size < _TABLE_SIZE else _varint(size)
        size += len(key_length)
    if value_bytes < 0:
        value_length = _NULL
        size += 1
    else:
        value_length = short[value_bytes] if value_bytes < _TABLE_SIZE else _varint(value_bytes)
        size += value_bytes + len(value_length)
    timestamp = short[timestamp_delta] if 0 <= timestamp_delta < _TABLE_SIZE else _varint(timestamp_delta)
    offset = short[offset_delta] if 0 <= offset_delta < _TABLE_SIZE else _varint(offset_delta)
    size += 1 + len(timestamp) + len(offset) + headers_bytes
    length = short[size] if size < _TABLE_SIZE else _varint(size)
    return b"".join((length, _PLAIN, timestamp, offset, key_length, key, value_length))


class RecordPieces:
    """The encoded records of a batch in pieces, until they are joined. Long values are not copied before."""

    __slots__ = ("_pieces", "_tail", "size_bytes")

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []
        self._tail: bytearray = bytearray()
        """The end of the records, with short values."""
        self.size_bytes: int = 0

    def append(
        self,
        timestamp_delta: int,
        offset_delta: int,
        key: bytes | None,
        value: bytes | None,
        headers: bytes,
    ) -> None:
        """Appends one record as `append_encoded` does."""
        if type(value) is not bytes or len(value) < MIN_SHARED_BYTES:
            tail = self._tail
            before = len(tail)
            append_encoded(tail, timestamp_delta, offset_delta, key, value, headers)
            self.size_bytes += len(tail) - before
        else:
            head = _head(timestamp_delta, offset_delta, key, len(value), len(headers))
            self._share(head, value, headers)

    def _share(self, head: bytes, value: bytes, headers: bytes) -> None:
        pieces = self._pieces
        if self._tail:
            pieces.append(self._tail)
            self._tail = bytearray()
        pieces.append(head)
        pieces.append(value)
        pieces.append(headers)
        self.size_bytes += len(head) + len(value) + len(headers)

    def append_values(
        self,
        timestamp_delta: int,
        offset_delta: int,
        values: Sequence[bytes | None],
        start: int,
        max_bytes: int,
    ) -> int:
        """Appends records with `values` from index `start` on. They have one timestamp, and no keys and
        headers.

        Stops where there could be more than `max_bytes`, and before a value that is not bytes. Returns the
        number of appended records.
        """
        count = 0
        try:
            for index in range(start, len(values)):
                value = values[index]
                size = 0 if value is None else len(value)
                if self.size_bytes + size + MAX_RECORD_OVERHEAD_BYTES > max_bytes:
                    break
                self.append(timestamp_delta, offset_delta + count, None, value, NO_HEADERS)
                count += 1
        except TypeError:
            return count  # appending this value alone raises the error to the caller
        return count

    def pieces(self) -> list[bytes | bytearray]:
        """Returns the records. No more must be appended."""
        return [*self._pieces, self._tail]


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
