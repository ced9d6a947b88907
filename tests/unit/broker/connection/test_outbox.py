"""The contents of an outbox arrive complete and in order, however much the socket accepts at a time, and no
file remains open.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerlab.open_file import FILE_BYTES, OpenFile
from tidelog.broker.net import socket_io
from tidelog.broker.net.socket_io import SENDFILE_BYTES_PER_TURN, Chunk, Outbox

MOST_READS = 1_000
"""The limit of pieces in which the reader reads everything. Byte by byte, an example would take a minute."""

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]


class Wire:
    """An outbox at one end of a TCP connection. The test is at the other end."""

    def __init__(self, send_buffer_bytes: int = 4096) -> None:
        with socket.socket() as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
            listening.bind(("127.0.0.1", 0))
            listening.listen(1)
            self.client = socket.socket()
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, send_buffer_bytes)
            self.client.connect(listening.getsockname())
            self.server, _ = listening.accept()
        self.server.setblocking(False)
        self.client.setblocking(False)
        self.drained = 0
        self.errors: list[OSError] = []
        self.outbox = Outbox(
            asyncio.get_running_loop(), self.server.fileno(), self._on_drained, self._on_error
        )

    def _on_drained(self) -> None:
        self.drained += 1

    def _on_error(self, error: OSError) -> None:
        self.errors.append(error)
        self.outbox.close()

    async def receive(self, count: int, at_most: int = 1 << 20) -> bytes:
        """Returns `count` bytes, or fewer if the connection ends."""
        got = bytearray()
        loop = asyncio.get_running_loop()
        while len(got) < count:
            data = await asyncio.wait_for(loop.sock_recv(self.client, min(at_most, count - len(got))), 10)
            if not data:
                break
            got += data
        return bytes(got)

    def close(self) -> None:
        self.outbox.close()
        self.server.close()
        self.client.close()


def run(
    test: Callable[[], Coroutine[Any, Any, None]],
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(test())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is awaited has no event
            await asyncio.sleep(0.001)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def file() -> Iterator[OpenFile]:
    opened = OpenFile()
    yield opened
    opened.close()


pieces = st.one_of(
    st.tuples(st.just("bytes"), st.integers(0, 30_000), st.just(0)),
    st.tuples(st.just("view"), st.integers(1, 30_000), st.just(0)),
    st.tuples(st.just("range"), st.integers(1, 200_000), st.integers(0, 1_000_000)),
)


@pytest.mark.parametrize("new_loop", LOOPS)
@settings(deadline=None, max_examples=25)
@given(
    sends=st.lists(st.lists(pieces, min_size=1, max_size=90), min_size=1, max_size=4),
    reads=st.lists(st.integers(1, 60_000), min_size=1, max_size=5),
    cold=st.lists(st.booleans(), max_size=12),
    seed=st.integers(0, 2**16),
)
def test_bytes_and_ranges_leave_in_order(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    sends: list[list[tuple[str, int, int]]],
    reads: list[int],
    cold: list[bool],
    seed: int,
) -> None:
    async def sending() -> None:
        file, wire, source = OpenFile(), Wire(), random.Random(seed)
        coldness = iter(cold)
        expected = b""
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(socket_io, "is_resident", lambda *_: not next(coldness, False))
                for send in sends:
                    chunks: list[Chunk] = []
                    for kind, size, position in send:
                        if kind == "range":
                            chunks.append(file.range(position, size))
                            expected += FILE_BYTES[position : position + size]
                        else:
                            data = source.randbytes(size)
                            chunks.append(data if kind == "bytes" else memoryview(data))
                            expected += data
                    wire.outbox.send(chunks)
                    await asyncio.sleep(0)
                got, turn = bytearray(), 0
                least = len(expected) // MOST_READS + 1
                while len(got) < len(expected):
                    size = max(reads[turn % len(reads)], least)
                    got += await wire.receive(min(size, len(expected) - len(got)))
                    turn += 1
                assert got == expected
                await until(lambda: not wire.outbox.waiting_bytes)
            assert file.references == 0
            assert not wire.errors
        finally:
            wire.close()
            file.close()

    run(sending, new_loop)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_closing_in_the_middle_releases_everything(
    new_loop: Callable[[], asyncio.AbstractEventLoop], file: OpenFile
) -> None:
    async def sending() -> None:
        wire = Wire()
        descriptors = open_descriptors()
        wire.outbox.send([b"head", file.range(0, 2_000_000), b"between", file.range(5, 1_000_000)])
        await wire.receive(100_000)
        assert file.references == 2
        wire.outbox.close()
        assert file.references == 0
        assert wire.outbox.waiting_bytes == 0
        assert open_descriptors() == descriptors
        wire.outbox.send([b"late", file.range(0, 10)])
        assert file.references == 0
        await asyncio.sleep(0.01)
        assert wire.drained == 0
        wire.close()

    run(sending, new_loop)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_peer_that_leaves_is_reported_once(
    new_loop: Callable[[], asyncio.AbstractEventLoop], file: OpenFile
) -> None:
    async def sending() -> None:
        wire = Wire()
        wire.outbox.send([b"head", file.range(0, 3_000_000)])
        await wire.receive(10)
        wire.client.close()
        await until(lambda: bool(wire.errors))
        await asyncio.sleep(0.01)
        assert len(wire.errors) == 1
        assert file.references == 0
        wire.close()

    run(sending, new_loop)


def test_a_file_that_is_shorter_than_announced_ends_the_connection() -> None:
    async def sending() -> None:
        wire, short = Wire(), OpenFile(bytes(1000))
        wire.outbox.send([short.range(500, 2000)])
        await until(lambda: bool(wire.errors))
        assert short.references == 0
        wire.close()
        short.close()

    run(sending)


@pytest.mark.parametrize("chunks", [[bytes(8_000_000)], [bytes(4_000_000), memoryview(bytes(4_000_000))]])
def test_a_missing_descriptor_for_waiting_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, chunks: list[Chunk]
) -> None:
    """`send` is called while another client's request is handled, so it must not raise."""

    def no_more(fileno: int) -> int:
        raise OSError(24, "Too many open files")

    async def sending() -> None:
        wire = Wire()
        monkeypatch.setattr(os, "dup", no_more)
        wire.outbox.send(chunks)
        assert [error.errno for error in wire.errors] == [24]
        wire.close()

    run(sending)


# -- cold pages


def test_closing_while_a_thread_reads_keeps_its_file_open(
    monkeypatch: pytest.MonkeyPatch, file: OpenFile
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(socket_io, "is_resident", lambda *_: False)
    monkeypatch.setattr(socket_io, "read_ahead", lambda *_: may_end.wait(10))

    async def sending() -> None:
        wire = Wire()
        wire.outbox.send([b"head", file.range(0, 100_000), file.range(0, 50_000)])
        assert file.references == 2
        wire.outbox.close()
        assert file.references == 1  # the file that the thread holds
        may_end.set()
        await until(lambda: file.references == 0)
        wire.close()

    run(sending)


def test_a_read_that_fails_in_the_thread_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, file: OpenFile
) -> None:
    def broken(*_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(socket_io, "is_resident", lambda *_: False)
    monkeypatch.setattr(socket_io, "read_ahead", broken)

    async def sending() -> None:
        wire = Wire()
        wire.outbox.send([file.range(0, 100_000)])
        await until(lambda: bool(wire.errors))
        assert file.references == 0
        wire.close()

    run(sending)


def test_data_sent_while_a_thread_reads_waits_for_its_turn(
    monkeypatch: pytest.MonkeyPatch, file: OpenFile
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(socket_io, "is_resident", lambda *_: False)
    monkeypatch.setattr(socket_io, "read_ahead", lambda *_: may_end.wait(10))

    async def sending() -> None:
        wire = Wire()
        wire.outbox.send([file.range(0, 1000)])
        wire.outbox.send([b"behind"])
        await asyncio.sleep(0.01)
        with pytest.raises(BlockingIOError):
            wire.client.recv(1)
        may_end.set()
        assert await wire.receive(1006) == FILE_BYTES[:1000] + b"behind"
        wire.close()

    run(sending)


# -- fairness


def test_a_large_range_leaves_turns_to_others(monkeypatch: pytest.MonkeyPatch, file: OpenFile) -> None:
    """A socket that accepts everything gets a limited number of bytes before the event loop continues."""
    sent_by_turn = [0]

    def takes_all(out: int, source: int, position: int, count: int) -> int:
        sent_by_turn[-1] += count
        return count

    monkeypatch.setattr(os, "sendfile", takes_all)

    async def sending() -> None:
        wire = Wire()
        wire.outbox.send([file.range(0, 4 * 1024 * 1024)])
        while wire.outbox.waiting_bytes:
            sent_by_turn.append(0)
            await asyncio.sleep(0)
        wire.close()

    run(sending)
    assert sum(sent_by_turn) == 4 * 1024 * 1024
    assert max(sent_by_turn) <= SENDFILE_BYTES_PER_TURN + socket_io.PROBE_STEP_BYTES


def test_progress_is_reported_while_a_slow_reader_reads(file: OpenFile) -> None:
    """The connection is not idle as long as the reader accepts bytes."""

    async def sending() -> None:
        wire = Wire()
        wire.outbox.send([file.range(0, 3_000_000)])
        first = wire.outbox.last_progress
        await wire.receive(300_000)
        await until(lambda: wire.outbox.last_progress > first)
        await asyncio.sleep(0.02)
        stalled = wire.outbox.last_progress
        await asyncio.sleep(0.02)
        assert wire.outbox.last_progress == stalled
        wire.close()

    run(sending)
