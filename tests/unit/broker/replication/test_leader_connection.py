"""One connection to a leader: when requests are sent, in which order they are answered, and how it ends."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from brokerlab.in_memory_broker import until
from tidelog.broker.net.socket_io import BufferPool
from tidelog.broker.replication.leader_connection import (
    MAX_IN_FLIGHT_REQUESTS,
    ConnectionLostError,
    LeaderConnection,
    Question,
    open_connection,
)
from tidelog.model.brokers import Endpoint
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.headers import decode_request_header

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]
TEXT = Question(
    ApiKey.LIST_OFFSETS, 8, lambda text: [text], lambda frame, position: (bytes(frame[position:]), len(frame))
)
LIMIT_S = 20


class Leader:
    """A leader that answers each request with the request's body in capitals, or as a test tells it to."""

    def __init__(self) -> None:
        self.reads: list[bytes] = []
        self.asked: list[tuple[int, str | None, bytes]] = []
        self.correlation_id_is_off_by = 0
        self.is_silent = False
        self.writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer, buffer = writer, b""
        while data := await reader.read(1 << 16):
            self.reads.append(data)
            buffer += data
            while len(buffer) >= 4 and len(buffer) >= 4 + (size := struct.unpack(">i", buffer[:4])[0]):
                frame, buffer = buffer[4 : 4 + size], buffer[4 + size :]
                self._answer(frame)
        writer.close()

    def _answer(self, frame: bytes) -> None:
        api_key, _, correlation_id, client_id, position = decode_request_header(frame, 0)
        self.asked.append((api_key, client_id, frame[position:]))
        if not self.is_silent and self.writer is not None:
            answer = struct.pack(">ix", correlation_id + self.correlation_id_is_off_by)
            answer += frame[position:].upper()
            self.writer.write(struct.pack(">i", len(answer)) + answer)


class Asker:
    """A connection and the responses and losses that it reported."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.lost: list[str] = []
        self.connection: LeaderConnection

    def ask(self, *texts: bytes, timeout_ms: int = 10_000) -> None:
        for text in texts:
            self.connection.send(TEXT, text, timeout_ms, self.answers.append)


def played(scenario: Callable[[Leader, Asker], Awaitable[None]], loop: Any = asyncio.new_event_loop) -> None:
    async def play() -> None:
        leader, asker = Leader(), Asker()
        server = await asyncio.start_server(leader.serve, "127.0.0.1", 0)
        async with server:
            endpoint = Endpoint("REPLICATION", "127.0.0.1", server.sockets[0].getsockname()[1])
            asker.connection = await open_connection(
                endpoint,
                BufferPool(),
                client_id="me",
                receive_buffer_bytes=-1,
                timeout_ms=5_000,
                on_lost=asker.lost.append,
            )
            try:
                await scenario(leader, asker)
            finally:
                asker.connection.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(play(), LIMIT_S))


@pytest.mark.parametrize("loop", LOOPS)
def test_requests_of_one_turn_are_sent_together_and_answered_in_order(loop: Any) -> None:
    async def scenario(leader: Leader, asker: Asker) -> None:
        asker.ask(b"one", b"two", b"three")
        await until(lambda: len(asker.answers) == 3)
        assert asker.answers == [b"ONE", b"TWO", b"THREE"]
        assert leader.asked == [(ApiKey.LIST_OFFSETS, "me", text) for text in (b"one", b"two", b"three")]
        assert len(leader.reads) == 1
        assert asker.connection.in_flight_count == 0

    played(scenario, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_response_handler_may_send_the_next_request(loop: Any) -> None:
    async def scenario(_leader: Leader, asker: Asker) -> None:
        def again(answer: bytes) -> None:
            asker.answers.append(answer)
            if len(asker.answers) < 50:
                asker.connection.send(TEXT, b"%d" % len(asker.answers), 10_000, again)

        asker.connection.send(TEXT, b"0", 10_000, again)
        await until(lambda: len(asker.answers) == 50)
        assert asker.answers == [b"%d" % number for number in range(50)]

    played(scenario, loop)


def test_a_response_with_another_correlation_id_ends_the_connection() -> None:
    async def scenario(leader: Leader, asker: Asker) -> None:
        leader.correlation_id_is_off_by = 7
        asker.ask(b"one")
        await until(lambda: bool(asker.lost))
        assert asker.lost == ["a response cannot be decoded: its correlation id is 8 instead of 1"]
        assert asker.connection.is_closed
        with pytest.raises(ConnectionLostError):
            asker.ask(b"two")

    played(scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_lost_connection_is_reported_once(loop: Any) -> None:
    async def scenario(leader: Leader, asker: Asker) -> None:
        asker.ask(b"one")
        await until(lambda: bool(asker.answers))
        assert leader.writer is not None
        leader.writer.close()
        await until(lambda: bool(asker.lost))
        await asyncio.sleep(0.01)
        assert len(asker.lost) == 1

    played(scenario, loop)


def test_a_leader_that_does_not_answer_is_given_up() -> None:
    async def scenario(leader: Leader, asker: Asker) -> None:
        leader.is_silent = True
        asker.ask(b"one", timeout_ms=20)
        await until(lambda: bool(asker.lost))
        assert asker.lost == ["the leader did not answer within replica.socket.timeout.ms"]
        assert asker.answers == []

    played(scenario)


def test_requests_in_flight_are_bounded() -> None:
    async def scenario(leader: Leader, asker: Asker) -> None:
        leader.is_silent = True
        asker.ask(*[b"one"] * MAX_IN_FLIGHT_REQUESTS)
        with pytest.raises(BufferError, match=str(MAX_IN_FLIGHT_REQUESTS)):
            asker.ask(b"one more")

    played(scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_request_larger_than_the_socket_buffer_arrives_whole(loop: Any) -> None:
    async def scenario(leader: Leader, asker: Asker) -> None:
        large = b"x" * 8_000_000
        asker.ask(large, b"small")
        await until(lambda: len(asker.answers) == 2)
        assert asker.answers == [large.upper(), b"SMALL"]
        assert len(leader.reads) > 1

    played(scenario, loop)


def test_a_closed_connection_reports_nothing() -> None:
    async def scenario(leader: Leader, asker: Asker) -> None:
        asker.ask(b"one")
        asker.connection.close()
        await asyncio.sleep(0.01)
        assert (asker.answers, asker.lost, leader.asked) == ([], [], [])

    played(scenario)
