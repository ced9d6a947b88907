"""Sessions of coordinators with brokers, over real connections, good and bad, and within a process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import uvloop
from brokerlab.tcp_relay import TcpRelay
from structlog.testing import capture_logs
from tidelog.model.brokers import BrokerRegistration
from tidelog.rpc import session_stream
from tidelog.rpc.coordinator_session import (
    AnswerRequest,
    AskProducerIds,
    Hello,
    Item,
    ProducerIdsTold,
    SessionConnector,
    SessionLine,
    ShardCommitted,
    Welcome,
)
from tidelog.rpc.in_process import InProcessSessionConnector
from tidelog.rpc.session_stream import SessionDoor, StreamSessionConnector

ANSWERED_LATE_S = 30


class End:
    """Keeps what it receives; `answers` is called with each item."""

    def __init__(self, answers: Callable[[SessionLine, Item], None] | None = None) -> None:
        self.line: SessionLine | None = None
        self.items: list[Item] = []
        self.calls = 0
        self.closings = 0
        self._answers = answers
        self._changed = asyncio.Event()

    def received(self, items: Sequence[Item]) -> None:
        assert not self.closings
        assert items
        self.calls += 1
        self.items += items
        self._changed.set()
        if self._answers is not None:
            assert self.line is not None
            for item in items:
                self._answers(self.line, item)

    def closed(self) -> None:
        self.closings += 1
        self._changed.set()

    async def until(self, is_so: Callable[[End], bool]) -> None:
        async with asyncio.timeout(ANSWERED_LATE_S):
            while not is_so(self):
                self._changed.clear()
                await self._changed.wait()


class Acceptor:
    """Makes an End of each session."""

    def __init__(self, answers: Callable[[SessionLine, Item], None] | None = None) -> None:
        self.ends: list[End] = []
        self._answers = answers
        self._accepted = asyncio.Event()

    async def first(self) -> End:
        async with asyncio.timeout(ANSWERED_LATE_S):
            await self._accepted.wait()
        return self.ends[0]

    def accept(self, line: SessionLine) -> End:
        end = End(self._answers)
        end.line = line
        self.ends.append(end)
        self._accepted.set()
        return end


class Pair:
    """A connector, and the acceptor that it leads to."""

    def __init__(self, connector: SessionConnector, acceptor: Acceptor, broker: BrokerRegistration) -> None:
        self.connector = connector
        self.acceptor = acceptor
        self.broker = broker

    def connect(self, end: End) -> SessionLine:
        line = end.line = self.connector.connect(self.broker, end)
        return line


Opened = Callable[[Acceptor], "asyncio._AsyncGeneratorContextManager[Pair]"]


@asynccontextmanager
async def over_tcp(acceptor: Acceptor) -> AsyncIterator[Pair]:
    server, connector = SessionDoor(acceptor), StreamSessionConnector()
    address = await server.start("127.0.0.1:0")
    try:
        yield Pair(connector, acceptor, BrokerRegistration(1, 1, (), session_address=address))
    finally:
        await connector.close()
        await server.stop()


@asynccontextmanager
async def within_a_process(acceptor: Acceptor) -> AsyncIterator[Pair]:
    connector = InProcessSessionConnector()
    connector.attach(1, acceptor)
    yield Pair(connector, acceptor, BrokerRegistration(1, 1, ()))


both_kinds = pytest.mark.parametrize("opened", [over_tcp, within_a_process])


def run(scenario: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario, 60)

    asyncio.run(bounded())


def echo(line: SessionLine, item: Item) -> None:
    if isinstance(item, AskProducerIds):
        line.send(ProducerIdsTold(item.call_id, 0, 0))


@both_kinds
def test_items_arrive_in_order_both_ways_many_at_a_time(opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(Acceptor(echo)) as pair:
            end = End()
            line = pair.connect(end)
            asked: list[Item] = [AskProducerIds(number) for number in range(500)]
            for item in asked:
                line.send(item)
            await end.until(lambda end: len(end.items) == len(asked))
            [broker_end] = pair.acceptor.ends
            assert broker_end.items == asked
            assert end.items == [ProducerIdsTold(number, 0, 0) for number in range(500)]
            assert broker_end.calls <= 2  # a turn's items in one
            assert end.calls <= 4
            line.close()
            await broker_end.until(lambda end: end.closings == 1)

    run(scenario())


@both_kinds
def test_an_end_is_never_called_while_it_speaks(opened: Opened) -> None:
    async def scenario() -> None:
        speaking = 0

        def answers(line: SessionLine, item: Item) -> None:
            nonlocal speaking
            assert speaking == 0
            speaking += 1
            assert isinstance(item, AskProducerIds | ProducerIdsTold)
            if item.call_id < 100:
                line.send(
                    ProducerIdsTold(item.call_id + 1, 0, 0)
                    if isinstance(item, AskProducerIds)
                    else AskProducerIds(item.call_id + 1)
                )
            speaking -= 1

        async with opened(Acceptor(answers)) as pair:
            end = End(answers)
            pair.connect(end).send(AskProducerIds(0))
            await end.until(lambda end: len(end.items) == 50)

    run(scenario())


@both_kinds
def test_what_was_sent_before_closing_arrives_and_nothing_after(opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(Acceptor()) as pair:
            end = End()
            line = pair.connect(end)
            line.send(Hello(1))
            line.close()
            line.send(Hello(2))
            broker_end = await pair.acceptor.first()
            await broker_end.until(lambda end: end.closings == 1)
            assert broker_end.items == [Hello(1)]
            line.close()
        assert end.closings == 0  # it is not told of what it did itself
        assert broker_end.closings == 1

    run(scenario())


@both_kinds
def test_a_broker_that_closes_is_heard_to_the_end(opened: Opened) -> None:
    def farewell(line: SessionLine, item: Item) -> None:
        line.send(Welcome(1, 1))
        line.close()
        line.send(Welcome(2, 2))

    async def scenario() -> None:
        async with opened(Acceptor(farewell)) as pair:
            end = End()
            line = pair.connect(end)
            line.send(Hello(1))
            await end.until(lambda end: end.closings == 1)
            assert end.items == [Welcome(1, 1)]
            line.send(Hello(2))
            line.close()
            assert pair.acceptor.ends[0].items == [Hello(1)]
        assert end.closings == 1
        assert pair.acceptor.ends[0].closings == 0

    run(scenario())


def test_a_broker_that_is_not_there_closes_the_session() -> None:
    async def scenario() -> None:
        async with TcpRelay("127.0.0.1", 1) as relay:
            free = relay.port
        connector, ends = StreamSessionConnector(), [End(), End()]
        for end, address in zip(ends, (f"127.0.0.1:{free}", ""), strict=True):
            connector.connect(BrokerRegistration(1, 1, (), session_address=address), end).send(Hello(1))
            await end.until(lambda end: end.closings == 1)
        await connector.close()
        missing = End()
        InProcessSessionConnector().connect(BrokerRegistration(1, 1, ()), missing).send(Hello(1))
        assert missing.closings == 0  # not within connect
        await missing.until(lambda end: end.closings == 1)

    run(scenario())


def test_a_server_that_stops_ends_its_sessions() -> None:
    async def scenario() -> None:
        acceptor, end = Acceptor(echo), End()
        server, connector = SessionDoor(acceptor), StreamSessionConnector()
        address = await server.start("127.0.0.1:0")
        connector.connect(BrokerRegistration(1, 1, (), session_address=address), end).send(AskProducerIds(1))
        await end.until(lambda end: len(end.items) == 1)
        await server.stop()
        await end.until(lambda end: end.closings == 1)
        assert acceptor.ends[0].closings == 1
        await connector.close()

    run(scenario())


def test_large_items_and_many_small_ones_arrive_whole() -> None:
    async def scenario() -> None:
        body = b"x" * 3_000_000
        small = [AnswerRequest(number, b"y" * 1000) for number in range(3000)]
        sent: list[Item] = [AnswerRequest(0, body), *small, AnswerRequest(1, body)]
        async with over_tcp(Acceptor()) as pair:
            line = pair.connect(End())
            for item in sent:
                line.send(item)
            line.close()
            broker_end = await pair.acceptor.first()
            await broker_end.until(lambda end: end.closings == 1)
            assert broker_end.items == sent

    run(scenario())


def test_a_session_in_which_nobody_has_anything_to_say_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    _impatient(monkeypatch)

    async def scenario() -> None:
        async with over_tcp(Acceptor(echo)) as pair:
            end = End()
            line = pair.connect(end)
            await asyncio.sleep(2)
            line.send(AskProducerIds(1))
            await end.until(lambda end: len(end.items) == 1)
            assert not end.closings

    run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_a_session_that_is_cut_loses_only_its_end(seed: int) -> None:
    """Cut anywhere: each side has had a beginning of what was sent, and is told once."""

    async def scenario() -> None:
        randomness = random.Random(seed)
        acceptor = Acceptor(echo)
        server, connector = SessionDoor(acceptor), StreamSessionConnector()
        address = await server.start("127.0.0.1:0")
        ends = []
        async with TcpRelay("127.0.0.1", int(address.rpartition(":")[2])) as relay:
            broker = BrokerRegistration(1, 1, (), session_address=f"127.0.0.1:{relay.port}")
            for _ in range(15):
                end = End()
                ends.append(end)
                line = connector.connect(broker, end)
                cut = asyncio.create_task(_cut_until(end, relay, randomness.uniform(0.005, 0.1)))
                number = 0
                while not end.closings:
                    for _ in range(randomness.randrange(1, 50)):
                        line.send(AskProducerIds(number))
                        number += 1
                    await asyncio.sleep(randomness.uniform(0, 0.003))
                await cut
        await connector.close()
        await server.stop()
        for either in (*ends, *acceptor.ends):
            assert [item.call_id for item in either.items] == list(range(len(either.items)))  # type: ignore[union-attr]
            assert either.closings == 1
        assert any(end.items for end in ends)

    run(scenario())


async def _cut_until(end: End, relay: TcpRelay, every_s: float) -> None:
    """More than once, for a cut may come before the connection."""
    while not end.closings:
        await asyncio.sleep(every_s)
        await relay.cut()


def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_stream, "HEARTBEAT_INTERVAL_MS", 100)
    monkeypatch.setattr(session_stream, "MAX_SILENCE_MS", 1_000)


def test_both_sides_give_up_a_line_that_swallows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-open: no side sees the connection end."""
    _impatient(monkeypatch)

    async def scenario() -> None:
        acceptor, end = Acceptor(echo), End()
        server, connector = SessionDoor(acceptor), StreamSessionConnector()
        address = await server.start("127.0.0.1:0")
        async with TcpRelay("127.0.0.1", int(address.rpartition(":")[2])) as relay:
            broker = BrokerRegistration(1, 1, (), session_address=f"127.0.0.1:{relay.port}")
            connector.connect(broker, end).send(AskProducerIds(1))
            await end.until(lambda end: len(end.items) == 1)
            relay.swallow()
            await end.until(lambda end: end.closings == 1)
            await acceptor.ends[0].until(lambda end: end.closings == 1)
        await connector.close()
        await server.stop()

    run(scenario())


def test_a_line_that_takes_nothing_is_closed_when_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stalled: the connection lives, but nobody reads at its other side."""
    limit = 1_000_000
    monkeypatch.setattr(session_stream, "MAX_UNSENT_BYTES", limit)

    async def scenario() -> None:
        is_over = asyncio.Event()

        async def stall(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await is_over.wait()
            writer.transport.abort()

        server = await asyncio.start_server(stall, "127.0.0.1", 0, limit=1)
        port = server.sockets[0].getsockname()[1]
        connector, end = StreamSessionConnector(), End()
        line = connector.connect(BrokerRegistration(1, 1, (), session_address=f"127.0.0.1:{port}"), end)
        sent = 0
        while not end.closings:
            line.send(AnswerRequest(1, b"x" * 10_000))
            sent += 10_000
            await asyncio.sleep(0)
            assert sent < 100 * limit  # the kernel's buffers take some
        is_over.set()
        await connector.close()
        server.close()

    run(scenario())


@pytest.mark.parametrize("nonsense", [b"\0\0\0\x02\x0a\xff", b"GET / HTTP/1.1\r\n\r\n"])
def test_what_makes_no_sense_ends_the_session(nonsense: bytes) -> None:
    async def scenario() -> None:
        async with over_tcp(Acceptor()) as pair:
            host, _, port = pair.broker.session_address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(nonsense)
            async with asyncio.timeout(ANSWERED_LATE_S):
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()
            broker_end = await pair.acceptor.first()
            await broker_end.until(lambda end: end.closings == 1)
            assert broker_end.items == []

    run(scenario())


def test_an_end_that_raises_loses_its_session_and_no_other() -> None:
    def answers(line: SessionLine, item: Item) -> None:
        if item == Hello(13):
            raise RuntimeError("unlucky")
        line.send(ShardCommitted(1, 1))

    async def scenario() -> None:
        async with over_tcp(Acceptor(answers)) as pair:
            unlucky, lucky = End(), End()
            pair.connect(unlucky).send(Hello(13))
            pair.connect(lucky).send(Hello(1))
            await unlucky.until(lambda end: end.closings == 1)
            await lucky.until(lambda end: len(end.items) == 1)
            assert lucky.closings == 0

    with capture_logs() as logs:
        run(scenario())
    assert "a session failed" in [entry["event"] for entry in logs]


def test_a_name_that_dns_refuses_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt is over by then, and nobody is surprised by the answer."""
    monkeypatch.setattr(session_stream, "CONNECT_TIMEOUT_MS", 0.5)
    surprises: list[dict[str, object]] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, told: surprises.append(told))
        connector, end = StreamSessionConnector(), End()
        connector.connect(BrokerRegistration(1, 1, (), session_address="nowhere.invalid:1"), end)
        await end.until(lambda end: end.closings == 1)
        await connector.close()
        with contextlib.suppress(OSError):
            await loop.getaddrinfo("nowhere.invalid", 1)  # answered after the first
        gc.collect()

    uvloop.run(asyncio.wait_for(scenario(), 60))
    assert not surprises
