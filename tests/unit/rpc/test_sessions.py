"""Sessions between coordinators and brokers: over gRPC, with good and bad connections, and in one process."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
import uvloop
from structlog.testing import capture_logs

from brokerlab.tcp_relay import TcpRelay
from tidelog.model.brokers import BrokerRegistration
from tidelog.rpc import grpc_sessions, grpc_transport
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
from tidelog.rpc.grpc_sessions import CoordinatorSessionsService, GrpcSessionConnector
from tidelog.rpc.grpc_transport import RpcServer
from tidelog.rpc.in_process import InProcessSessionConnector
from tidelog.rpc.peer_tls import ServiceRole

ANSWERED_LATE_S = 30


class End:
    """Keeps the items that it receives. `answers` is called with each item."""

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
    """Creates an End for each session."""

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
    """A connector, and the acceptor to which it connects."""

    def __init__(self, connector: SessionConnector, acceptor: Acceptor, broker: BrokerRegistration) -> None:
        self.connector = connector
        self.acceptor = acceptor
        self.broker = broker

    def connect(self, end: End) -> SessionLine:
        line = end.line = self.connector.connect(self.broker, end)
        return line


Opened = Callable[[Acceptor], "asyncio._AsyncGeneratorContextManager[Pair]"]


@asynccontextmanager
async def over_grpc(acceptor: Acceptor) -> AsyncIterator[Pair]:
    server, connector = RpcServer(CoordinatorSessionsService(acceptor)), GrpcSessionConnector()
    address = await server.start("127.0.0.1:0")
    try:
        yield Pair(connector, acceptor, broker_at(address))
    finally:
        await connector.close()
        await server.stop()


@asynccontextmanager
async def within_a_process(acceptor: Acceptor) -> AsyncIterator[Pair]:
    connector = InProcessSessionConnector()
    connector.attach(1, acceptor)
    yield Pair(connector, acceptor, BrokerRegistration(1, 1, ()))


def broker_at(address: str) -> BrokerRegistration:
    return BrokerRegistration(1, 1, (), rpc_address=address)


both_kinds = pytest.mark.parametrize("opened", [over_grpc, within_a_process])


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
            assert broker_end.calls <= 2  # the items of a turn arrive together
            assert end.calls <= 4
            line.close()
            await broker_end.until(lambda end: end.closings == 1)

    run(scenario())


@both_kinds
def test_an_end_is_never_called_while_it_sends(opened: Opened) -> None:
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
def test_items_sent_before_close_arrive_and_no_later_ones(opened: Opened) -> None:
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
        assert end.closings == 0  # an end is not notified of its own close
        assert broker_end.closings == 1

    run(scenario())


@both_kinds
def test_all_items_of_a_broker_that_closes_arrive(opened: Opened) -> None:
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


def test_an_unreachable_broker_closes_the_session() -> None:
    async def scenario() -> None:
        async with TcpRelay("127.0.0.1", 1) as relay:
            free = relay.port
        connector, ends = GrpcSessionConnector(), [End(), End()]
        for end, address in zip(ends, (f"127.0.0.1:{free}", ""), strict=True):
            connector.connect(broker_at(address), end).send(Hello(1))
            await end.until(lambda end: end.closings == 1)
        await connector.close()
        missing = End()
        InProcessSessionConnector().connect(BrokerRegistration(1, 1, ()), missing).send(Hello(1))
        assert missing.closings == 0  # `connect` itself does not notify the end
        await missing.until(lambda end: end.closings == 1)

    run(scenario())


def test_a_server_that_stops_ends_its_sessions() -> None:
    async def scenario() -> None:
        acceptor, end = Acceptor(echo), End()
        server, connector = RpcServer(CoordinatorSessionsService(acceptor)), GrpcSessionConnector()
        address = await server.start("127.0.0.1:0")
        connector.connect(broker_at(address), end).send(AskProducerIds(1))
        await end.until(lambda end: len(end.items) == 1)
        await server.stop()
        await end.until(lambda end: end.closings == 1)
        assert acceptor.ends[0].closings == 1
        await connector.close()

    run(scenario())


def test_large_items_and_many_small_items_arrive_complete() -> None:
    async def scenario() -> None:
        body = b"x" * 3_000_000
        small = [AnswerRequest(number, b"y" * 1000) for number in range(3000)]
        sent: list[Item] = [AnswerRequest(0, body), *small, AnswerRequest(1, body)]
        async with over_grpc(Acceptor()) as pair:
            line = pair.connect(End())
            for item in sent:
                line.send(item)
            line.close()
            broker_end = await pair.acceptor.first()
            await broker_end.until(lambda end: end.closings == 1)
            assert broker_end.items == sent

    run(scenario())


@pytest.mark.usefixtures("impatient")
def test_an_idle_session_stays_open() -> None:
    async def scenario() -> None:
        async with over_grpc(Acceptor(echo)) as pair:
            end = End()
            line = pair.connect(end)
            await asyncio.sleep(2)
            line.send(AskProducerIds(1))
            await end.until(lambda end: len(end.items) == 1)
            assert not end.closings

    run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_a_session_that_is_cut_loses_only_its_last_items(seed: int) -> None:
    """Wherever the session is cut, each side has received the first items and is notified once."""

    async def scenario() -> None:
        randomness = random.Random(seed)
        acceptor = Acceptor(echo)
        server, connector = RpcServer(CoordinatorSessionsService(acceptor)), GrpcSessionConnector()
        address = await server.start("127.0.0.1:0")
        ends = []
        async with TcpRelay("127.0.0.1", int(address.rpartition(":")[2])) as relay:
            broker = broker_at(f"127.0.0.1:{relay.port}")
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
    """Connects several times, because a cut may happen before the connection."""
    while not end.closings:
        await asyncio.sleep(every_s)
        await relay.cut()


IMPATIENT = {
    "grpc.keepalive_time_ms": 200,
    "grpc.keepalive_timeout_ms": 500,
    "grpc.http2.ping_timeout_ms": 500,
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes keepalive detect a silent peer within a second."""
    for name in ("_CHANNEL_OPTIONS", "_SERVER_OPTIONS"):
        options = {**dict(getattr(grpc_transport, name)), **IMPATIENT}
        monkeypatch.setattr(grpc_transport, name, tuple(options.items()))


@pytest.mark.usefixtures("impatient")
def test_both_sides_close_a_connection_that_loses_everything() -> None:
    """The connection is half-open: neither side sees its end."""

    async def scenario() -> None:
        acceptor, end = Acceptor(echo), End()
        server, connector = RpcServer(CoordinatorSessionsService(acceptor)), GrpcSessionConnector()
        address = await server.start("127.0.0.1:0")
        async with TcpRelay("127.0.0.1", int(address.rpartition(":")[2])) as relay:
            broker = broker_at(f"127.0.0.1:{relay.port}")
            connector.connect(broker, end).send(AskProducerIds(1))
            await end.until(lambda end: len(end.items) == 1)
            relay.swallow()
            await end.until(lambda end: end.closings == 1)
            await acceptor.ends[0].until(lambda end: end.closings == 1)
        await connector.close()
        await server.stop()

    run(scenario())


def test_a_line_whose_peer_does_not_read_is_closed_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 1_000_000
    monkeypatch.setattr(grpc_sessions, "MAX_UNSENT_BYTES", limit)

    async def scenario() -> None:
        is_over = asyncio.Event()

        async def never_read(_requests: object, _context: object) -> None:
            await is_over.wait()

        server = RpcServer(RawService(never_read))
        connector, end = GrpcSessionConnector(), End()
        line = connector.connect(broker_at(await server.start("127.0.0.1:0")), end)
        sent_bytes = 0
        while not end.closings:
            line.send(AnswerRequest(1, b"x" * 10_000))
            sent_bytes += 10_000
            await asyncio.sleep(0.0001)
            assert sent_bytes < 20 * limit  # gRPC and the kernel buffer some of it
        is_over.set()
        await connector.close()
        await server.stop()

    run(scenario())


def test_a_closed_line_whose_peer_does_not_read_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_sessions, "CLOSE_TIMEOUT_MS", 200)

    async def scenario() -> None:
        is_over = asyncio.Event()

        async def never_read(_requests: object, _context: object) -> None:
            await is_over.wait()

        server = RpcServer(RawService(never_read))
        connector, end = GrpcSessionConnector(), End()
        connector.connect(broker_at(await server.start("127.0.0.1:0")), end).send(
            AnswerRequest(1, b"x" * 10_000_000)
        )
        async with asyncio.timeout(ANSWERED_LATE_S):
            await connector.close()
        assert not end.closings
        is_over.set()
        await server.stop()

    run(scenario())


class RawService:
    """Serves the sessions' method with `handler`, which takes gRPC's arguments."""

    def __init__(self, handler: Callable[[object, object], Awaitable[None]]) -> None:
        self._handler = handler

    def add_to(self, server: grpc.aio.Server) -> None:
        handler = grpc.stream_stream_rpc_method_handler(self._handler)
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "tidelog.rpc.v1.CoordinatorSessions", {"Session": handler}
                ),
            )
        )

    async def stop(self) -> None:
        pass


def test_a_broker_without_the_service_closes_the_session() -> None:
    """Such a broker has a build that accepted sessions elsewhere."""

    async def scenario() -> None:
        server, connector, end = RpcServer(), GrpcSessionConnector(), End()
        connector.connect(broker_at(await server.start("127.0.0.1:0")), end).send(Hello(1))
        await end.until(lambda end: end.closings == 1)
        await connector.close()
        await server.stop()

    with capture_logs() as logs:
        run(scenario())
    assert any("UNIMPLEMENTED" in str(entry.get("reason")) for entry in logs)


@pytest.mark.parametrize("garbage", [b"\x0a\xff", b"\xff"])
def test_a_message_that_cannot_be_decoded_ends_the_session(garbage: bytes) -> None:
    async def scenario() -> None:
        async with over_grpc(Acceptor()) as pair:
            async with grpc_transport.open_channel(
                pair.broker.rpc_address, None, ServiceRole.BROKER
            ) as channel:
                call = channel.stream_stream("/tidelog.rpc.v1.CoordinatorSessions/Session")()
                await call.write(garbage)
                async with asyncio.timeout(ANSWERED_LATE_S):
                    assert await call.read() is grpc.aio.EOF
            broker_end = await pair.acceptor.first()
            await broker_end.until(lambda end: end.closings == 1)
            assert broker_end.items == []

    run(scenario())


def test_an_end_that_raises_loses_only_its_own_session() -> None:
    def answers(line: SessionLine, item: Item) -> None:
        if item == Hello(13):
            raise RuntimeError("unlucky")
        line.send(ShardCommitted(1, 1))

    async def scenario() -> None:
        async with over_grpc(Acceptor(answers)) as pair:
            unlucky, lucky = End(), End()
            pair.connect(unlucky).send(Hello(13))
            pair.connect(lucky).send(Hello(1))
            await unlucky.until(lambda end: end.closings == 1)
            await lucky.until(lambda end: len(end.items) == 1)
            assert lucky.closings == 0

    with capture_logs() as logs:
        run(scenario())
    assert "a session failed" in [entry["event"] for entry in logs]


def test_a_name_that_dns_does_not_know_closes_the_session() -> None:
    surprises: list[dict[str, object]] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: surprises.append(context))
        connector, end = GrpcSessionConnector(), End()
        connector.connect(broker_at("nowhere.invalid:1"), end)
        await end.until(lambda end: end.closings == 1)
        await connector.close()
        gc.collect()

    uvloop.run(asyncio.wait_for(scenario(), 60))
    assert not surprises
