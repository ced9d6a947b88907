"""The extent of an LZ4 frame, found without decompressing it. mypyc compiles the module (ADR 0020)."""

from __future__ import annotations

import struct
from typing import Final

LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"

_HEADER_BYTES: Final = 7
_CONTENT_SIZE_BYTES: Final = 8
_FLAGS_MASK: Final = 0xE3
_READABLE_FLAGS: Final = 0x60  # version 1, independent blocks, no dictionary
_HAS_BLOCK_CHECKSUMS: Final = 0x10
_HAS_CONTENT_SIZE: Final = 0x08
_HAS_CONTENT_CHECKSUM: Final = 0x04
_LENGTH_MASK: Final = 0x7FFFFFFF  # the other bit: the block is not compressed
_LENGTH = struct.Struct("<I")


def is_readable_frame(data: memoryview, most_blocks: int) -> bool:
    """Returns whether `data` begins with a frame that Kafka's Java clients read, and no other frame follows.
    They refuse linked blocks, and ignore what follows the first frame. If it has more than `most_blocks`
    blocks, the rest is not looked at.
    """
    if len(data) < _HEADER_BYTES or data[4] & _FLAGS_MASK != _READABLE_FLAGS:
        return False
    end = frame_end(data, most_blocks)
    return end > 0 and bytes(data[end : end + 4]) != LZ4_MAGIC


def frame_end(data: memoryview, most_blocks: int) -> int:
    """Returns the position after the frame at the beginning of `data`, the length of `data` if it has more
    than `most_blocks` blocks, and 0 if there is no whole frame.
    """
    size = len(data)
    if size < _HEADER_BYTES or bytes(data[:4]) != LZ4_MAGIC:
        return 0
    flags = data[4]
    position = _HEADER_BYTES
    if flags & _HAS_CONTENT_SIZE:
        position += _CONTENT_SIZE_BYTES
    checksum_bytes = 4 if flags & _HAS_BLOCK_CHECKSUMS else 0
    for _ in range(most_blocks):
        if position + 4 > size:
            return 0
        block_bytes: int = _LENGTH.unpack_from(data, position)[0] & _LENGTH_MASK
        position += 4
        if not block_bytes:
            if flags & _HAS_CONTENT_CHECKSUM:
                position += 4
            return position if position <= size else 0
        position += block_bytes + checksum_bytes
    return size
