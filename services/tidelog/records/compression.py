"""The four compression codecs of record batches, as Kafka's clients write and read them.

- gzip: a gzip stream. What follows its last member is ignored.
- snappy: xerial framing (Java clients) or one raw block (librdkafka). We write xerial framing.
- lz4: the frame format with independent blocks, because Java's reader accepts no others. What follows a frame
  and is no other frame is ignored.
- zstd: zstd frames.

mypyc compiles the module, because a broker looks at the frames of all LZ4 batches (ADR 0020).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import cramjam

from tidelog.records.batch import Buffer

MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024  # a batch of 1 MiB that expands beyond this limit is an attack
_FIRST_GUESS_BYTES = 64 * 1024
_GUESSED_RATIO = 4

_GZIP_MAGIC = b"\x1f\x8b\x08"
_GZIP_CHUNK_BYTES = 1024
_MOST_GZIP_MEMBERS = 1_000
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_VERSIONS = struct.pack(">ii", 1, 1)
_XERIAL_HEADER_BYTES = len(_XERIAL_MAGIC) + len(_XERIAL_VERSIONS)
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = struct.Struct(">i")
_OUTPUT_FULL = "failed to write whole buffer"  # cramjam's message if the output buffer is too small
LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_HEADER_BYTES: Final = 7
_CONTENT_SIZE_BYTES: Final = 8
_FLAGS_MASK: Final = 0xE3
_READABLE_FLAGS: Final = 0x60  # version 1, independent blocks, no dictionary
_HAS_BLOCK_CHECKSUMS: Final = 0x10
_HAS_CONTENT_SIZE: Final = 0x08
_HAS_CONTENT_CHECKSUM: Final = 0x04
_LENGTH_MASK: Final = 0x7FFFFFFF  # the other bit: the block is not compressed
_LZ4_LENGTH = struct.Struct("<I")


class Compression(IntEnum):
    """The low three bits of a batch's attributes. The lower-case names are values of `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CompressionDataError(ValueError):
    """The bytes are not valid for the codec; the message gives the reason."""


class DecompressedTooLargeError(CompressionDataError):
    """The decompressed data would exceed the limit."""


def decompress(codec: int, data: Buffer, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> memoryview:
    """Returns the decompressed data. With NONE, it returns `data` itself.

    Raises CompressionDataError for damaged bytes or an unknown codec, and DecompressedTooLargeError if the
    result exceeds `max_bytes`.
    """
    if codec == Compression.NONE:
        return memoryview(data)
    if codec == Compression.SNAPPY:
        return _decompress_snappy(memoryview(data), max_bytes)
    if codec == Compression.GZIP:
        decompress_into = cramjam.gzip.decompress_into
    elif codec == Compression.LZ4:
        decompress_into = cramjam.lz4.decompress_into
    elif codec == Compression.ZSTD:
        decompress_into = cramjam.zstd.decompress_into
    else:
        raise CompressionDataError(f"unknown compression codec {codec}")
    try:
        return _decompress_frames(codec, decompress_into, data, max_bytes)
    except DecompressedTooLargeError:
        raise
    except CompressionDataError:
        end = len(data)
        if codec == Compression.LZ4:
            end = lz4_frame_end(memoryview(data), most_blocks=len(data))
        elif codec == Compression.GZIP:
            end = _end_of_gzip_members(memoryview(data), max_bytes)
        if not 0 < end < len(data):
            raise
        return _decompress_frames(codec, decompress_into, memoryview(data)[:end], max_bytes)


def _decompress_frames(
    codec: int, decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, max_bytes: int
) -> memoryview:
    # The frames do not state their decompressed size, and a small frame can expand to gigabytes. So the
    # output grows until the data fits or the limit is exceeded.
    room = min(max_bytes, max(_FIRST_GUESS_BYTES, _GUESSED_RATIO * len(data)))
    while True:
        output = bytearray(room)
        try:
            size_bytes = decompress_into(data, output)
            return memoryview(output)[:size_bytes]
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise CompressionDataError(f"{Compression(codec).name.lower()}: {error}") from error
        if room >= max_bytes:
            raise DecompressedTooLargeError(f"{len(data)} bytes decompress to more than {max_bytes}")
        room = min(max_bytes, 4 * room)


def _end_of_gzip_members(data: memoryview, max_bytes: int) -> int:
    """Returns the position after the whole members at the beginning of `data` if no other member follows,
    otherwise 0. Java's `GZIPInputStream` ignores such bytes.
    """
    position = size = 0
    for _ in range(_MOST_GZIP_MEMBERS):
        if data[position : position + len(_GZIP_MAGIC)] != _GZIP_MAGIC:
            return position
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        while not member.eof:
            chunk = data[position : position + _GZIP_CHUNK_BYTES]
            try:
                size += len(member.decompress(chunk))
            except zlib.error:
                return 0
            position += len(chunk) - len(member.unused_data)
            if not chunk or size > max_bytes:
                return 0
    return 0


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """Returns the compressed data. `level` is that of `compression.gzip.level` etc.; None is the codec's
    default.

    For gzip, -1 is the default, too, as in Kafka's setting. Raises CompressionDataError for an unknown codec.
    """
    if codec == Compression.NONE:
        return data
    if codec == Compression.GZIP:
        return memoryview(cramjam.gzip.compress(data, None if level == -1 else level))
    if codec == Compression.SNAPPY:
        return _compress_snappy(memoryview(data))
    if codec == Compression.LZ4:
        frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        frame.compress(bytes(data))
        return memoryview(frame.finish())
    if codec == Compression.ZSTD:
        return memoryview(cramjam.zstd.compress(data, level))
    raise CompressionDataError(f"unknown compression codec {codec}")


def _decompress_snappy(data: memoryview, max_bytes: int) -> memoryview:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, max_bytes)
    output = bytearray()
    position = _XERIAL_HEADER_BYTES
    if len(data) < position:
        raise CompressionDataError("snappy: the xerial header is cut off")
    while len(data) - position >= _BLOCK_LENGTH.size:  # Java ignores fewer bytes
        if data[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            position += _XERIAL_HEADER_BYTES  # another stream
            continue
        length = _BLOCK_LENGTH.unpack_from(data, position)[0]
        position += _BLOCK_LENGTH.size
        if not 0 < length <= len(data) - position:
            raise CompressionDataError(f"snappy: a block of {length} bytes in {len(data) - position}")
        output += _decompress_snappy_block(data[position : position + length], max_bytes - len(output))
        position += length
    return memoryview(output)


def _decompress_snappy_block(block: memoryview, max_bytes: int) -> memoryview:
    try:
        length = cramjam.snappy.decompress_raw_len(block)
        if length > max_bytes:
            raise DecompressedTooLargeError(f"a snappy block holds {length} bytes, {max_bytes} are allowed")
        output = bytearray(length)
        cramjam.snappy.decompress_raw_into(block, output)
    except cramjam.DecompressionError as error:
        raise CompressionDataError(f"snappy: {error}") from error
    return memoryview(output)


def _compress_snappy(data: memoryview) -> bytes:
    chunks = [_XERIAL_MAGIC, _XERIAL_VERSIONS]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        chunks += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(chunks)


def is_readable_lz4(data: memoryview, most_blocks: int) -> bool:
    """Returns whether `data` begins with a frame that Kafka's Java clients read, and no other frame follows.
    They refuse linked blocks, and ignore what follows the first frame. If it has more than `most_blocks`
    blocks, the rest is not looked at.
    """
    if len(data) < _LZ4_HEADER_BYTES or data[4] & _FLAGS_MASK != _READABLE_FLAGS:
        return False
    end = lz4_frame_end(data, most_blocks)
    return end > 0 and bytes(data[end : end + 4]) != LZ4_MAGIC


def lz4_frame_end(data: memoryview, most_blocks: int) -> int:
    """Returns the position after the frame at the beginning of `data`, the length of `data` if it has more
    than `most_blocks` blocks, and 0 if there is no whole frame.
    """
    size = len(data)
    if size < _LZ4_HEADER_BYTES or bytes(data[:4]) != LZ4_MAGIC:
        return 0
    flags = data[4]
    position = _LZ4_HEADER_BYTES
    if flags & _HAS_CONTENT_SIZE:
        position += _CONTENT_SIZE_BYTES
    checksum_bytes = 4 if flags & _HAS_BLOCK_CHECKSUMS else 0
    for _ in range(most_blocks):
        if position + 4 > size:
            return 0
        block_bytes: int = _LZ4_LENGTH.unpack_from(data, position)[0] & _LENGTH_MASK
        position += 4
        if not block_bytes:
            if flags & _HAS_CONTENT_CHECKSUM:
                position += 4
            return position if position <= size else 0
        position += block_bytes + checksum_bytes
    return size
