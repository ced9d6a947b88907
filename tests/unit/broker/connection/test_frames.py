"""Frames are the same for any division of the stream by the socket, and in order."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.net import socket_io
from tidelog.broker.net.socket_io import BufferPool, FrameReader, InvalidFrameSizeError

MAX_FRAME_BYTES = 4 * 1024 * 1024

frame_sizes = st.one_of(
    st.integers(0, 40),
    st.integers(1000, 40_000),
    st.integers(120_000, 300_000),
    st.integers(1_000_000, 2_500_000),
)


def feed(
    pool: BufferPool, reader: FrameReader, stream: bytes, chunk_sizes: list[int], stop_after: int = 0
) -> list[bytes]:
    """Feeds `stream` in pieces like a socket, at most one chunk size per read. Sometimes it stops between
    frames and keeps the rest.
    """
    out: list[bytes] = []
    position, turn = 0, 0
    while position < len(stream):
        buffer = reader.buffer()
        assert len(buffer) > 0
        size = min(len(buffer), chunk_sizes[turn % len(chunk_sizes)], len(stream) - position)
        buffer[:size] = stream[position : position + size]
        position += size
        turn += 1
        reader.received(size)
        while (frame := reader.next_frame()) is not None:
            out.append(bytes(frame))
            if stop_after and len(out) % stop_after == 0:
                reader.keep_unread()
                other = FrameReader(pool, MAX_FRAME_BYTES)  # another connection's read in between
                other.buffer()[:4] = b"\xff" * 4
    return out


@given(
    sizes=st.lists(frame_sizes, min_size=1, max_size=12),
    chunk_sizes=st.lists(st.integers(1, 300_000), min_size=1, max_size=8).filter(lambda c: max(c) > 5000),
    stop_after=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
def test_frames_come_out_as_they_went_in(
    sizes: list[int], chunk_sizes: list[int], stop_after: int, seed: int
) -> None:
    source = random.Random(seed)
    sent = [source.randbytes(size) for size in sizes]
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in sent)
    pool = BufferPool()
    reader = FrameReader(pool, MAX_FRAME_BYTES)
    assert feed(pool, reader, stream, chunk_sizes, stop_after) == sent


@pytest.mark.parametrize("size", [-1, -(2**31), MAX_FRAME_BYTES + 1, 2**31 - 1])
def test_an_impossible_size_is_refused(size: int) -> None:
    reader = FrameReader(BufferPool(), MAX_FRAME_BYTES)
    reader.buffer()[:4] = struct.pack(">i", size)
    with pytest.raises(InvalidFrameSizeError, match=r"socket\.request\.max\.bytes"):
        reader.received(4)
        reader.next_frame()


def test_a_size_alone_takes_little_memory() -> None:
    """A client may announce 100 MB and send nothing more. Memory is allocated as bytes arrive."""
    pool = BufferPool()
    reader = FrameReader(pool, 100_000_000)
    reader.buffer()[:4] = struct.pack(">i", 90_000_000)
    reader.received(4)
    assert reader.next_frame() is None
    assert 0 < pool.in_use_bytes <= socket_io.FIRST_ALLOCATION_BYTES


def test_many_announced_sizes_take_little_memory() -> None:
    """Above EAGER_BYTES, each further frame starts with a small buffer."""
    pool = BufferPool()
    readers = [FrameReader(pool, 100_000_000) for _ in range(4_000)]
    for reader in readers:
        reader.buffer()[:6] = struct.pack(">i", 90_000_000) + b"\0\3"
        reader.received(6)
        assert reader.next_frame() is None
    most = socket_io.EAGER_BYTES + socket_io.FIRST_ALLOCATION_BYTES
    assert pool.in_use_bytes <= most + len(readers) * socket_io.CAUTIOUS_ALLOCATION_BYTES
    for reader in readers:
        reader.close()
    assert pool.in_use_bytes == 0


def test_a_frame_that_starts_small_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_io, "EAGER_BYTES", 0)
    pool = BufferPool()
    body = bytes(range(256)) * 8_000
    frames = feed(pool, FrameReader(pool, 100_000_000), (struct.pack(">i", len(body)) + body) * 2, [100_000])
    assert frames == [body, body]
    assert pool.in_use_bytes == 0


def test_an_idle_connection_holds_no_buffer() -> None:
    pool = BufferPool()
    reader = FrameReader(pool, MAX_FRAME_BYTES)
    feed(pool, reader, struct.pack(">i", 2_000_000) + bytes(2_000_000), [100_000])
    assert pool.in_use_bytes == 0


def test_large_frames_are_read_in_place_after_the_first() -> None:
    """The second large frame is read from the socket directly into the buffer that the handler receives."""
    pool = BufferPool()
    reader = FrameReader(pool, MAX_FRAME_BYTES)
    stream = (struct.pack(">i", 1_000_000) + bytes(1_000_000)) * 2
    feed(pool, reader, stream[: len(stream) // 2], [65_536])
    buffer = reader.buffer()
    reader_buffer = buffer.obj
    buffer[: len(buffer)] = stream[: len(buffer)]
    reader.received(len(buffer))
    while reader.next_frame() is None:
        buffer = reader.buffer()
        assert buffer.obj is reader_buffer
        reader.received(len(buffer))


def test_closing_gives_the_buffer_back() -> None:
    pool = BufferPool()
    reader = FrameReader(pool, MAX_FRAME_BYTES)
    reader.buffer()[:4] = struct.pack(">i", 900_000)
    reader.received(4)
    assert reader.next_frame() is None
    reader.close()
    assert pool.in_use_bytes == 0


def test_the_start_of_a_tls_handshake_is_named() -> None:
    reader = FrameReader(BufferPool(), MAX_FRAME_BYTES)
    reader.buffer()[:5] = b"\x16\x03\x01\x02\x00"
    with pytest.raises(InvalidFrameSizeError, match="TLS handshake"):
        reader.received(5)
        reader.next_frame()
