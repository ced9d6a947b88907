from __future__ import annotations

import struct
import time
from contextlib import suppress

import cramjam
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidelog.records.compression import (
    LZ4_MAGIC,
    Compression,
    CompressionDataError,
    DecompressedTooLargeError,
    compress,
    decompress,
    is_readable_lz4,
    lz4_frame_end,
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


def test_a_cut_snappy_frame_is_refused() -> None:
    framed = bytes(compress(Compression.SNAPPY, b"abc" * 10))
    for size in (10, 15, *range(20, len(framed))):
        with pytest.raises(CompressionDataError):
            decompress(Compression.SNAPPY, framed[:size])


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


def lz4_frame(data: bytes, **options: bool) -> bytes:
    frame = cramjam.lz4.Compressor(**{"block_linked": False, "content_checksum": False} | options)
    frame.compress(data)
    return bytes(frame.finish())


@given(DATA, st.sampled_from([Compression.LZ4, Compression.GZIP]), st.binary(min_size=1, max_size=60))
def test_bytes_after_a_stream_are_ignored_as_by_java(data: bytes, codec: Compression, rest: bytes) -> None:
    stream = bytes(compress(codec, data))
    assume(not rest.startswith((b"\x1f\x8b\x08", LZ4_MAGIC)))
    assert decompress(codec, stream + bytes(16)) == data
    assert decompress(codec, stream + rest) == data


def test_streams_that_follow_each_other_are_read() -> None:
    first, second = b"first " * 9_000, b"second " * 9_000
    for codec in COMPRESSING:
        both = bytes(compress(codec, first)) + bytes(compress(codec, second))
        assert decompress(codec, both) == first + second, codec
    gzip = bytes(compress(Compression.GZIP, first))
    assert decompress(Compression.GZIP, gzip + gzip + b"rest") == first + first


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_few_bytes_after_snappy_are_ignored_as_by_java(count: int) -> None:
    stream = bytes(compress(Compression.SNAPPY, b"data"))
    assert decompress(Compression.SNAPPY, stream + bytes(count)) == b"data"
    with pytest.raises(CompressionDataError):
        decompress(Compression.SNAPPY, stream + bytes(4))


def test_many_gzip_members_before_other_bytes_do_not_take_long() -> None:
    members = bytes(compress(Compression.GZIP, b"")) * 50_000
    assert decompress(Compression.GZIP, members) == b""
    began = time.thread_time()
    with pytest.raises(CompressionDataError):
        decompress(Compression.GZIP, members + b"rest")
    assert time.thread_time() - began < 0.5


@pytest.mark.parametrize("options", [{}, {"content_checksum": True}])
@given(data=DATA, rest=st.binary(max_size=8).filter(lambda rest: not rest.startswith(LZ4_MAGIC)))
def test_the_end_of_an_lz4_frame_is_found(options: dict[str, bool], data: bytes, rest: bytes) -> None:
    frame = lz4_frame(data, **options)
    whole = memoryview(frame + rest)
    assert lz4_frame_end(whole, 100) == len(frame)
    assert is_readable_lz4(whole, 100)
    assert lz4_frame_end(whole[: len(frame) - 1], 100) == 0
    assert not is_readable_lz4(memoryview(frame + frame), 100), "Java reads only the first frame"
    assert not is_readable_lz4(memoryview(lz4_frame(data, block_linked=True)), 100)
