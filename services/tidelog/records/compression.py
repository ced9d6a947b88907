"""The four compression codecs of record batches, as Kafka's clients write and read them.

- gzip: a gzip stream.
- snappy: xerial framing (Java clients) or one raw block (librdkafka). We write xerial framing.
- lz4: the frame format with independent blocks, because Java's reader accepts no others.
- zstd: a zstd frame.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import cramjam

from tidelog.records.batch import Buffer

MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024  # a batch of 1 MiB that expands beyond this limit is an attack
_FIRST_GUESS_BYTES = 64 * 1024
_GUESSED_RATIO = 4

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_VERSIONS = struct.pack(">ii", 1, 1)
_XERIAL_HEADER_BYTES = len(_XERIAL_MAGIC) + len(_XERIAL_VERSIONS)
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = struct.Struct(">i")
_OUTPUT_FULL = "failed to write whole buffer"  # cramjam's message if the output buffer is too small


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
    # The frames do not state their decompressed size, and a small frame can expand to gigabytes. So the
    # output grows until the data fits or the limit is exceeded.
    room = min(max_bytes, max(_FIRST_GUESS_BYTES, _GUESSED_RATIO * len(data)))
    while True:
        output = bytearray(room)
        try:
            return memoryview(output)[: decompress_into(data, output)]
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise CompressionDataError(f"{Compression(codec).name.lower()}: {error}") from error
        if room >= max_bytes:
            raise DecompressedTooLargeError(f"{len(data)} bytes decompress to more than {max_bytes}")
        room = min(max_bytes, 4 * room)


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
    while position < len(data):
        if len(data) - position < _BLOCK_LENGTH.size:
            raise CompressionDataError("snappy: a block length is cut off")
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
