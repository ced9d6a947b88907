"""The functions and tables that generated encoders and decoders use.

Generated code reads lengths below 128 itself. It calls this module for longer lengths, tagged fields, UUIDs
and arrays of numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from uuid import UUID, SafeUUID

from tidelog.wire.malformed import MalformedMessageError
from tidelog.wire.schema import ZERO_UUID, Buffer

MAX_STRING_BYTES = 32767
"""The most bytes in a string. Kafka refuses longer strings, also where the length is a varint."""
MAX_UVARINT_BYTES = 5
MAX_INT32 = 0x7FFFFFFF
MAX_TAGGED_FIELDS = 127
"""The most unknown tagged fields in one section. Kafka's largest message has fewer than 10."""
MAX_CACHED_UUIDS = 16384
SMALL_ARRAY = 32
"""Arrays of up to this many numbers are coded by a `struct.Struct` of their own."""

SHORT_TEXT = 128
"""Strings whose length on the wire is below this are read by a `struct.Struct` of their own."""

UVARINTS: tuple[bytes, ...] = tuple(bytes((n,)) for n in range(128))
"""Encoded unsigned varints of one byte."""

TEXT_READERS = tuple(struct.Struct(f">{n}s").unpack_from for n in range(SHORT_TEXT))
"""The `unpack_from` of n bytes, by n."""
COMPACT_TEXT_READERS = (TEXT_READERS[0], *TEXT_READERS[:-1])
"""The `unpack_from` of n bytes, by n + 1."""

_uuid_of_bytes: dict[bytes, UUID] = {bytes(16): ZERO_UUID}
_unknown_safety = SafeUUID.unknown
_set_attribute = object.__setattr__


def malformed(what: str) -> MalformedMessageError:
    return MalformedMessageError(what)


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Returns (value, end position). Raises MalformedMessageError for a value above 2^31-1, and IndexError
    when the buffer ends.
    """
    value = buffer[position]
    if value < 128:
        return value, position + 1
    return read_long_uvarint(buffer, position + 1, value)


def read_long_uvarint(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Reads the rest of a varint whose first byte (>= 128) has been read. Returns (value, end position)."""
    byte = buffer[position]
    if byte < 128:  # up to 16 KB
        return first & 127 | byte << 7, position + 1
    value = first & 127 | (byte & 127) << 7
    shift = 14
    for at in range(position + 1, position + MAX_UVARINT_BYTES - 1):
        byte = buffer[at]
        value |= (byte & 127) << shift
        if byte < 128:
            if value > MAX_INT32:
                raise MalformedMessageError(f"a length of {value} is above 2^31-1")
            return value, at + 1
        shift += 7
    raise MalformedMessageError(f"a varint is longer than {MAX_UVARINT_BYTES} bytes")


def read_long_string_length(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Does the same as read_long_uvarint for the length + 1 of a string, which it also checks."""
    value, position = read_long_uvarint(buffer, position, first)
    if value > MAX_STRING_BYTES + 1:
        raise MalformedMessageError(f"a string of {value - 1} bytes is longer than {MAX_STRING_BYTES}")
    return value, position


def uvarint(value: int) -> bytes:
    """Returns `value` (0 to 2^32-1) as an unsigned varint."""
    if value < 128:
        return UVARINTS[value]
    if value < 1 << 14:
        return bytes((value & 127 | 128, value >> 7))
    if value < 1 << 21:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def string_length_uvarint(length_plus_one: int) -> bytes:
    """Returns the encoded length of a compact string. Raises ValueError if the string is longer than Kafka
    allows.
    """
    if length_plus_one > MAX_STRING_BYTES + 1:
        raise ValueError(f"a string of {length_plus_one - 1} bytes is longer than {MAX_STRING_BYTES}")
    return uvarint(length_plus_one)


def skip_tagged_fields(buffer: Buffer, position: int, count: int) -> int:
    """Returns the end position of a section of tagged fields. `count` is the first byte of their number,
    which has been read. A section may have up to MAX_TAGGED_FIELDS fields that this version does not know.
    """
    if count > MAX_TAGGED_FIELDS:
        raise MalformedMessageError(f"a section has more than {MAX_TAGGED_FIELDS} unknown tagged fields")
    end = len(buffer)
    for _ in range(count):  # each iteration reads two bytes or raises
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
        if position > end:
            raise MalformedMessageError("a tagged field is longer than the rest of the message")
    return position


def new_uuid(data: bytes) -> UUID:
    """Returns the UUID of 16 bytes and remembers it, because topic ids recur and `uuid.UUID()` takes a
    microsecond.
    """
    value = UUID.__new__(UUID)
    _set_attribute(value, "int", int.from_bytes(data, "big"))
    _set_attribute(value, "is_safe", _unknown_safety)
    if len(_uuid_of_bytes) >= MAX_CACHED_UUIDS:
        _uuid_of_bytes.clear()
        _uuid_of_bytes[bytes(16)] = ZERO_UUID
    _uuid_of_bytes[data] = value
    return value


cached_uuid: Callable[[bytes], UUID | None] = _uuid_of_bytes.get


def array_readers(letter: str) -> tuple[Callable[[Buffer, int], tuple[object, ...]], ...]:
    """Returns the `unpack_from` of 0, 1, 2, ... numbers."""
    return tuple(struct.Struct(f">{n}{letter}").unpack_from for n in range(SMALL_ARRAY))


def array_packers(prefix: str, letter: str) -> tuple[Callable[..., bytes], ...]:
    """Returns the `pack` of a length of 0, 1, 2, ... and as many numbers. `prefix` is the format letter of
    the length (B for a compact length of one byte).
    """
    return tuple(struct.Struct(f">{prefix}{n}{letter}").pack for n in range(SMALL_ARRAY))


def pack_long_array(letter: str, values: Sequence[object], *, compact: bool) -> bytes:
    """Encodes an array of any size with its length."""
    count = len(values)
    length = uvarint(count + 1) if compact else struct.pack(">i", count)
    return length + struct.pack(f">{count}{letter}", *values)


def pack_tagged_fields(fields: list[tuple[int, bytes]]) -> bytes:
    """Encodes the section of tagged fields from (tag, content), in the order of the tags."""
    return uvarint(len(fields)) + b"".join(
        uvarint(tag) + uvarint(len(content)) + content for tag, content in fields
    )
