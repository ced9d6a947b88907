"""Zigzag varints: 7 bits per byte, least significant first. The numbers 0, 1, 2, 3 stand for 0, -1, 1, -2."""

from __future__ import annotations

from tidelog.records.batch import Buffer

_MAX_BYTES = 10
_UINT64_MAX = 2**64 - 1


class CorruptVarintError(ValueError):
    """The varint is incomplete or longer than 64 bits."""


def append_varint(output: bytearray, value: int) -> None:
    zigzag = value << 1 if value >= 0 else (-value << 1) - 1
    while zigzag > 0x7F:
        output.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    output.append(zigzag)


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Returns (value, position after it)."""
    try:
        zigzag = buffer[position]
        position += 1
        if zigzag > 0x7F:
            zigzag, position = continue_varint(buffer, position, zigzag)
    except IndexError:
        raise CorruptVarintError("a varint is cut off") from None
    return (zigzag >> 1) ^ -(zigzag & 1), position


def continue_varint(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Returns (zigzag number, position after it) of a varint whose `first` byte is not its last.

    It is for loops that handle varints of one byte themselves. Raises IndexError at the end of the buffer.
    """
    zigzag = first & 0x7F
    for shift in range(7, 7 * _MAX_BYTES, 7):
        byte = buffer[position]
        position += 1
        zigzag |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            if zigzag > _UINT64_MAX:
                break
            return zigzag, position
    raise CorruptVarintError("a varint is longer than 64 bits")
