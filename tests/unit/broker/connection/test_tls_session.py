"""Encrypted bytes arrive complete and in order, however much the sockets accept, read or hold at a time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerlab.open_file import FILE_BYTES, OpenFile
from brokerlab.secured_broker import new_authority, put_identity
from tidelog.broker.net import tls
from tidelog.broker.net.socket_io import BufferPool, Chunk, FrameReader
from tidelog.broker.net.tls import TlsTransport, shake_hands
from tidelog.broker.net.tls_socket import TLS_PIECE_BYTES, TlsOutbox, TlsSession

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
DATA = FILE_BYTES[: 1 << 20]
MOST_BYTES = 3 * TLS_PIECE_BYTES


class Contexts:
    """The TLS contexts of a server and of a client that trusts it."""

    def __init__(self, directory: Path) -> None:
        authority = new_authority(directory, "ca")
        put_identity(directory / "localhost", authority, name="localhost")
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        files = (directory / "localhost" / name for name in ("tls.crt", "tls.key"))
        self.server.load_cert_chain(*files)
        self.client = ssl.create_default_context(cafile=str(authority.certificate))


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    return Contexts(tmp_path_factory.mktemp("tls"))


class Collector:
    """A receiver whose buffers have any size, and which pauses now and then."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.received = bytearray()
        self.end: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._transport: Any = None  # Any: what the transport passes
        self._buffer = memoryview(b"")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.end.set_result(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        self._buffer = memoryview(bytearray(self.random.choice((1, 100, 5_000, 70_000, 300_000))))
        return self._buffer

    def missing_bytes(self) -> int:
        return 0

    def buffer_updated(self, nbytes: int) -> None:
        assert 0 < nbytes <= len(self._buffer)
        self.received += self._buffer[:nbytes]
        if self.random.random() < 0.2:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(0.001, self._transport.resume_reading)


class Wire:
    """Two ends of a TLS connection with small buffers in the kernel."""

    def __init__(self, contexts: Contexts, buffer_bytes: int) -> None:
        with socket.socket() as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
            listening.bind(("127.0.0.1", 0))
            listening.listen(1)
            connecting = socket.socket()
            connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
            connecting.connect(listening.getsockname())
            accepted, _ = listening.accept()
        for each in (connecting, accepted):
            each.setblocking(False)
        self.server = TlsSession(contexts.server, accepted)
        self.client = TlsSession(contexts.client, connecting, server_hostname="localhost")

    async def shake_hands(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(10):
            await asyncio.gather(shake_hands(loop, self.server, None), shake_hands(loop, self.client, None))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is awaited has no event
            await asyncio.sleep(0.001)


def run(test: Callable[[], Any], new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(test())


@pytest.mark.parametrize("new_loop", LOOPS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.tuples(st.booleans(), st.integers(0, MOST_BYTES)), min_size=1, max_size=6),
    buffer_bytes=st.sampled_from((4_096, 65_536, 1 << 20)),
    seed=st.integers(0, 2**32),
)
def test_chunks_and_files_arrive_in_order(
    contexts: Contexts,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    sizes: list[tuple[bool, int]],
    buffer_bytes: int,
    seed: int,
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        wire = Wire(contexts, buffer_bytes)
        await wire.shake_hands()
        drained = asyncio.Event()
        errors: list[OSError] = []
        outbox = TlsOutbox(loop, wire.server, drained.set, errors.append)
        collector = Collector(seed)
        transport = TlsTransport(loop, wire.client, ("127.0.0.1", 1))
        transport.begin(collector)
        file, expected = OpenFile(), bytearray()
        for is_file, size in sizes:
            position = len(expected) % 1_000
            expected += DATA[position : position + size]
            if is_file and size:
                chunk: Chunk = file.range(position, size)
            else:
                chunk = DATA[position : position + size]
            outbox.send([chunk])
            assert outbox.waiting_bytes <= len(expected) + 64 * 1024  # records of TLS are a little larger
        await until(lambda: len(collector.received) >= len(expected) and not outbox.waiting_bytes)
        assert collector.received == expected
        assert (outbox.waiting_bytes, file.references, errors) == (0, 0, [])
        file.close()
        outbox.close()
        wire.server.close(ends_cleanly=True)
        async with asyncio.timeout(10):
            assert isinstance(await collector.end, ConnectionResetError)

    run(scenario, new_loop)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_what_a_peer_does_not_read_counts_as_waiting(
    contexts: Contexts, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        wire = Wire(contexts, 4_096)
        await wire.shake_hands()
        drained: list[bool] = []
        outbox = TlsOutbox(loop, wire.server, lambda: drained.append(True), lambda _: None)
        outbox.send([DATA])
        await asyncio.sleep(0.05)
        assert 900_000 < outbox.waiting_bytes <= len(DATA) + 8_192
        assert 0 < wire.server.unsent_bytes < 2 * TLS_PIECE_BYTES, "little is encrypted in advance"
        assert not drained
        outbox.close()
        assert outbox.waiting_bytes == 0
        wire.client.close(ends_cleanly=False)
        wire.server.close(ends_cleanly=False)

    run(scenario, new_loop)


def test_damaged_bytes_end_the_connection(contexts: Contexts) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        wire = Wire(contexts, 65_536)
        await wire.shake_hands()
        collector = Collector(1)
        TlsTransport(loop, wire.server, ("127.0.0.1", 1)).begin(collector)
        wire.client.encrypt(b"whole")
        wire.client.flush()
        wire.client.socket.send(b"\x17\x03\x03\x00\x20" + bytes(32))  # a record that nobody encrypted
        async with asyncio.timeout(10):
            assert isinstance(await collector.end, ssl.SSLError)
        assert collector.received == b"whole"
        wire.client.close(ends_cleanly=False)

    run(scenario, asyncio.new_event_loop)


def test_what_openssl_answers_by_itself_is_sent(contexts: Contexts) -> None:
    """OpenSSL refuses a renegotiation while it reads. No response may follow that carries the alert away."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        wire = Wire(contexts, 65_536)
        await wire.shake_hands()
        collector = Collector(1)
        transport = TlsTransport(loop, wire.server, ("127.0.0.1", 1))
        transport.begin(collector)
        # Python cannot ask for a renegotiation. These bytes stand for the alert: they are not in the outbox.
        wire.server.encrypt(b"no renegotiation")
        wire.client.encrypt(b"x")
        wire.client.flush()
        await until(lambda: bool(collector.received))
        assert wire.server.unsent_bytes == 0
        transport.close()
        wire.client.close(ends_cleanly=False)

    run(scenario, asyncio.new_event_loop)


def test_the_end_of_a_session_is_noticed_after_a_pause(contexts: Contexts) -> None:
    """The request and the alert that ends the session arrive in one read, and the request pauses reading."""

    class Pausing(Collector):
        def buffer_updated(self, nbytes: int) -> None:
            super().buffer_updated(nbytes)
            self._transport.pause_reading()

    async def scenario() -> None:
        wire = Wire(contexts, 65_536)
        await wire.shake_hands()
        collector = Pausing(2)
        collector.get_buffer = lambda sizehint: _kept(collector)  # type: ignore[method-assign]
        transport = TlsTransport(asyncio.get_running_loop(), wire.server, ("127.0.0.1", 1))
        transport.begin(collector)
        wire.client.encrypt(b"request")
        with contextlib.suppress(ssl.SSLError):
            wire.client.tls.unwrap()
        wire.client.flush()
        await until(lambda: bool(collector.received))
        transport.resume_reading()
        async with asyncio.timeout(10):
            assert isinstance(await collector.end, ConnectionResetError)
        wire.client.close(ends_cleanly=False)

    run(scenario, asyncio.new_event_loop)


class FrameCollector:
    """A receiver of frames, as the broker's connections are, which pauses now and then."""

    def __init__(self, seed: int, pause_chance: float) -> None:
        self.random = random.Random(seed)
        self.pause_chance = pause_chance
        self.frames: list[bytes] = []
        self.end: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._reader = FrameReader(BufferPool(), MOST_BYTES)
        self._transport: Any = None  # Any: what the transport passes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.end.set_result(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def missing_bytes(self) -> int:
        return self._reader.missing_bytes()

    def buffer_updated(self, nbytes: int) -> None:
        self._reader.received(nbytes)
        while (frame := self._reader.next_frame()) is not None:
            self.frames.append(bytes(frame))
        if self.random.random() < self.pause_chance:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(0.001, self._transport.resume_reading)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


async def send_records(session: TlsSession, data: bytes, sizes: Callable[[], int]) -> None:
    """Sends a record of TLS for each size, and lets the event loop run after each."""
    position = 0
    while position < len(data):
        size = sizes()
        session.encrypt(data[position : position + size])
        position += size
        while True:
            try:
                session.flush()
                break
            except BlockingIOError:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0)


@pytest.mark.parametrize("new_loop", LOOPS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(
        st.sampled_from((0, 1, 100, 2_047, 2_100, 16_500, 65_536, 70_000)), min_size=1, max_size=4
    ),
    buffer_bytes=st.sampled_from((16_384, 65_536, 1 << 20)),
    pause_chance=st.sampled_from((0.0, 0.3)),
    seed=st.integers(0, 2**32),
)
def test_no_frame_waits_for_bytes_that_do_not_come(
    contexts: Contexts,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    sizes: list[int],
    buffer_bytes: int,
    pause_chance: float,
    seed: int,
) -> None:
    """The transport asks the kernel to report no less than what a frame needs."""

    async def scenario() -> None:
        wire = Wire(contexts, buffer_bytes)
        wire.server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        await wire.shake_hands()
        collector = FrameCollector(seed, pause_chance)
        TlsTransport(asyncio.get_running_loop(), wire.server, ("127.0.0.1", 1)).begin(collector)
        chance = random.Random(seed)
        bodies = [DATA[size : 2 * size] for size in sizes]
        stream = b"".join(map(framed, bodies))
        await send_records(wire.client, stream, lambda: chance.choice((3, 700, 1_000, 16_384, 100_000)))
        await until(lambda: len(collector.frames) == len(bodies))
        assert collector.frames == bodies
        # A frame that never ends does not hide the end of the stream.
        await send_records(wire.client, framed(DATA[:50_000])[:20_000], lambda: 1_000)
        wire.client.socket.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(30):
            assert isinstance(await collector.end, ConnectionResetError)
        wire.client.socket.close()

    run(scenario, new_loop)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_reset_is_noticed_behind_bytes_that_the_kernel_held_back(
    contexts: Contexts, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """libuv reports an error of a socket once, together with the bytes before it."""

    async def scenario() -> None:
        wire = Wire(contexts, 65_536)
        await wire.shake_hands()
        collector = FrameCollector(1, 0.0)
        TlsTransport(asyncio.get_running_loop(), wire.server, ("127.0.0.1", 1)).begin(collector)
        part = framed(DATA[:50_000])[:20_000]
        await send_records(wire.client, part[:10_000], lambda: 1_000)
        await until(lambda: collector.missing_bytes() == 40_004)
        await send_records(wire.client, part[10_000:12_000], lambda: 1_000)
        wire.client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, *([0] * 7)]))
        wire.client.socket.close()  # resets the connection
        async with asyncio.timeout(10):
            assert isinstance(await collector.end, ConnectionResetError)

    run(scenario, new_loop)


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize(
    "sent",
    [framed(DATA[:50_000])[:20_000], framed(DATA[:5_000])[:4_000], b"\0\0", framed(DATA[:100])],
    ids=["frame-that-is-held-back", "most-of-a-frame", "half-a-size", "whole-frame"],
)
def test_a_reset_is_noticed_that_arrives_with_bytes(
    contexts: Contexts, new_loop: Callable[[], asyncio.AbstractEventLoop], sent: bytes
) -> None:
    """libuv reports both at once and then no longer watches the socket."""

    async def scenario() -> None:
        wire = Wire(contexts, 65_536)
        await wire.shake_hands()
        collector = FrameCollector(1, 0.0)
        TlsTransport(asyncio.get_running_loop(), wire.server, ("127.0.0.1", 1)).begin(collector)
        await asyncio.sleep(0.01)
        wire.client.encrypt(sent)
        wire.client.flush()
        wire.client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, *([0] * 7)]))
        wire.client.socket.close()
        async with asyncio.timeout(10):
            assert isinstance(await collector.end, ConnectionResetError)

    run(scenario, new_loop)


def test_a_silent_connection_is_read_once_more_and_then_left_alone(
    contexts: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "RESET_CHECK_S", 0.01)

    async def scenario() -> None:
        wire = Wire(contexts, 65_536)
        await wire.shake_hands()
        collector = FrameCollector(1, 0.0)
        transport = TlsTransport(asyncio.get_running_loop(), wire.server, ("127.0.0.1", 1))
        transport.begin(collector)
        reads: list[None] = []
        read = transport._read

        def count() -> None:
            reads.append(None)
            read()

        monkeypatch.setattr(transport, "_read", count)  # the event loop calls the original
        wire.client.encrypt(framed(DATA[:100]))
        wire.client.flush()
        await until(lambda: len(reads) == 1)
        await asyncio.sleep(0.1)
        assert len(reads) == 1 and len(collector.frames) == 1
        transport.close()
        wire.client.close(ends_cleanly=False)

    run(scenario, asyncio.new_event_loop)


def test_a_frame_of_many_records_is_read_in_a_few_calls(contexts: Contexts) -> None:
    """librdkafka sends a record of TLS for each message."""

    async def scenario() -> None:
        wire = Wire(contexts, 1 << 20)
        await wire.shake_hands()
        collector = FrameCollector(1, 0.0)
        receive, calls = wire.server.receive, []

        class Counting:
            """The session, with the calls of `receive` counted."""

            def __getattr__(self, name: str) -> Any:
                return getattr(wire.server, name)

            def receive(self) -> int:
                calls.append(receive())
                return calls[-1]

        TlsTransport(asyncio.get_running_loop(), Counting(), ("127.0.0.1", 1)).begin(collector)  # type: ignore[arg-type]
        for _ in range(3):
            await send_records(wire.client, framed(DATA[:60_000]), lambda: 1_000)
        await until(lambda: len(collector.frames) == 3)
        assert len(calls) <= 3 * 5, calls
        wire.client.close(ends_cleanly=False)
        wire.server.close(ends_cleanly=False)

    run(scenario, asyncio.new_event_loop)


def _kept(collector: Collector) -> memoryview:
    collector._buffer = memoryview(bytearray(65_536))
    return collector._buffer
