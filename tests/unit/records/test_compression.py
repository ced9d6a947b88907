from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.records.compression import (
    Compression,
    CompressionDataError,
    DecompressedTooLargeError,
    compress,
    decompress,
)

CODECS = st.sampled_from(list(Compression))
COMPRESSING = [codec for codec in Compression if codec is not Compression.NONE]
DATA = st.one_of(
    st.binary(max_size=2_000),
    st.builds(lambda unit, n: unit * n, st.binary(max_size=40), st.integers(0, 5_000)),
)


@given(CODECS, DATA)
def test_round_trip(codec: Compression, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data


@given(st.sampled_from(COMPRESSING), DATA.filter(len))
def test_the_limit_is_exact(codec: Compression, data: bytes) -> None:
    compressed = compress(codec, data)
    assert decompress(codec, compressed, max_bytes=len(data)) == data
    with pytest.raises(DecompressedTooLargeError):
        decompress(codec, compressed, max_bytes=len(data) - 1)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_is_stopped_at_the_limit(codec: Compression) -> None:
    bomb = compress(codec, bytes(50_000_000))
    with pytest.raises(DecompressedTooLargeError):
        decompress(codec, bomb, max_bytes=1_000_000)


@given(st.sampled_from(COMPRESSING), DATA, st.data())
def test_damage_gives_an_error_or_bytes_within_the_limit(
    codec: Compression, data: bytes, draw: st.DataObject
) -> None:
    damaged = bytearray(compress(codec, data))
    position = draw.draw(st.integers(0, len(damaged) - 1))
    damaged[position] ^= draw.draw(st.integers(1, 255))
    with suppress(CompressionDataError):
        assert len(decompress(codec, damaged, max_bytes=300_000)) <= 300_000


@given(st.sampled_from(COMPRESSING), st.binary(min_size=1, max_size=300))
def test_random_bytes_are_refused_or_bounded(codec: Compression, data: bytes) -> None:
    with suppress(CompressionDataError):
        assert len(decompress(codec, data, max_bytes=100_000)) <= 100_000


@pytest.mark.parametrize(
    ("codec", "levels"),
    [
        (Compression.GZIP, [-1, 1, 9]),
        (Compression.LZ4, [1, 9, 17]),
        (Compression.ZSTD, [-131072, 1, 22]),
    ],
)
def test_all_compression_levels_of_kafka(codec: Compression, levels: list[int]) -> None:
    data = b"level " * 500
    for level in levels:
        assert decompress(codec, compress(codec, data, level)) == data


def test_snappy_has_the_framing_of_java() -> None:
    data = bytes(70_000)
    framed = bytes(compress(Compression.SNAPPY, data))
    assert framed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    first = struct.unpack_from(">i", framed, 16)[0]
    assert (
        decompress(Compression.SNAPPY, framed[20 : 20 + first]) == data[: 32 * 1024]
    )  # a raw block, as librdkafka writes it


@pytest.mark.parametrize("cut", range(1, 24))
def test_a_cut_snappy_frame_is_refused(cut: int) -> None:
    framed = bytes(compress(Compression.SNAPPY, b"abc" * 10))
    with pytest.raises(CompressionDataError):
        decompress(Compression.SNAPPY, framed[:-cut] if cut < len(framed) - 16 else framed[:15])


def test_lz4_blocks_are_independent() -> None:
    flags = memoryview(compress(Compression.LZ4, b"x" * 100))[4]
    assert (
        flags & 0b1110_0000 == 0b0110_0000
    )  # version 1 and independent blocks: Java's reader accepts nothing else


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_refused(codec: int) -> None:
    with pytest.raises(CompressionDataError):
        decompress(codec, b"x")
    with pytest.raises(CompressionDataError):
        compress(codec, b"x")
