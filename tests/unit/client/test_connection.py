"""One connection and the connections of a client: the negotiation of versions, each way in which a response
can fail to arrive, logins that are renewed (KIP-368), and the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import struct
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

import pytest

from brokerlab.scripted_broker import ScriptedBroker, served_apis
from tidelog.client.address import Address
from tidelog.client.cluster import BrokerConnection
from tidelog.client.core.cluster_view import Node
from tidelog.client.core.settings import ProducerSettings
from tidelog.client.errors import (
    AuthenticationFailedError,
    ClosedError,
    ConnectionLostError,
    NoAnswerError,
    NotKafkaError,
    UnreachableError,
    UnsupportedApiError,
)
from tidelog.client.security import NO_SECURITY, ClientSecurity
from tidelog.client.shell import network as network_shell
from tidelog.client.shell.connection import AsyncConnection
from tidelog.client.shell.network import Network
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import response_encoder
from tidelog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from tidelog.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse

ASKS: list[Callable[[Network], Awaitable[Any]]] = [
    lambda network: network.broker(1),
    lambda network: network.any_broker(),
]


def connect(broker: ScriptedBroker, timeout_s: float = 10.0) -> BrokerConnection:
    return BrokerConnection.open(Address("127.0.0.1", broker.port), timeout_s=timeout_s)


def test_a_broker_that_ends_during_the_tls_handshake_is_not_called_untrusted() -> None:
    """A reader connects again after a lost connection, and gives up after a broker that it may not trust."""
    server = socket.create_server(("127.0.0.1", 0))

    def end_each() -> None:
        with contextlib.suppress(OSError):  # the server is closed
            while True:
                accepted, _ = server.accept()
                accepted.recv(1)  # the client has begun the handshake
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
                accepted.close()

    threading.Thread(target=end_each, daemon=True).start()
    security = ClientSecurity(ssl.create_default_context())
    address = Address("127.0.0.1", server.getsockname()[1])
    with contextlib.closing(server), pytest.raises(ConnectionLostError, match="during the TLS handshake"):
        BrokerConnection.open(address, security=security)


def test_the_newest_common_version_is_used() -> None:
    seen: list[int] = []

    def metadata(request: Any, version: int) -> MetadataResponse:
        seen.append(version)
        return MetadataResponse(cluster_id="c")

    rows = [ApiVersion(ApiKey.METADATA, 2, 9), ApiVersion(ApiKey.API_VERSIONS, 0, 3)]
    answers = {
        ApiKey.METADATA: metadata,
        ApiKey.API_VERSIONS: lambda request, version: ApiVersionsResponse(0, rows),
    }
    with ScriptedBroker(answers) as broker, connect(broker) as connection:
        assert connection.call(MetadataRequest(), MetadataResponse).cluster_id == "c"
        connection.call(MetadataRequest(), MetadataResponse, at_most=5)
        with pytest.raises(UnsupportedApiError, match="Metadata 2 to 9, but this command needs 10"):
            connection.call(MetadataRequest(), MetadataResponse, at_least=10)
        with pytest.raises(UnsupportedApiError, match="does not serve ListOffsets"):
            connection.call(ListOffsetsRequest(), ListOffsetsResponse)
        assert connection.call(MetadataRequest(), MetadataResponse).cluster_id == "c"  # still usable
    assert seen == [9, 5, 9]


def test_a_broker_that_knows_only_older_api_versions_is_asked_again() -> None:
    asked: list[int] = []

    def api_versions(request: Any, version: int) -> ApiVersionsResponse | bytes:
        asked.append(version)
        if version <= 2:
            return ApiVersionsResponse(0, served_apis())
        rows = [ApiVersion(ApiKey.API_VERSIONS, 0, 2)]
        body = b"".join(response_encoder(18, 0)(ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, rows)))
        return struct.pack(">ii", len(body) + 4, len(asked)) + body

    with ScriptedBroker({ApiKey.API_VERSIONS: api_versions}) as broker, connect(broker) as connection:
        assert ApiKey.PRODUCE in connection.served
    assert asked == [5, 2]


def test_a_refused_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UnreachableError, match=rf"127\.0\.0\.1:{port}: connection refused"):
        BrokerConnection.open(Address("127.0.0.1", port))


def test_a_name_server_that_is_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    look_ups = []

    def fail(host: str, *arguments: int) -> list[object]:
        if arguments[-1] & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not an IP address")
        look_ups.append(host)
        if len(look_ups) < 3:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", closed_port))]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed_port = listener.getsockname()[1]
    monkeypatch.setattr("socket.getaddrinfo", fail)
    monkeypatch.setattr("tidelog.client.shell.connection.LOOK_UP_BACKOFF_S", 0.001)
    with pytest.raises(UnreachableError, match="connection refused"):
        BrokerConnection.open(Address("broker-1", 9092))
    assert len(look_ups) == 3


def test_a_silent_name_server_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> list[object]:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr("socket.getaddrinfo", fail)
    monkeypatch.setattr("tidelog.client.shell.connection.LOOK_UP_AGAIN_FOR_S", 0.02)
    monkeypatch.setattr("tidelog.client.shell.connection.LOOK_UP_BACKOFF_S", 0.001)
    with pytest.raises(UnreachableError, match="broker-1:9092: the name server does not answer"):
        BrokerConnection.open(Address("broker-1", 9092))


def test_an_unknown_host() -> None:
    with pytest.raises(UnreachableError, match=r"no-such-host\.invalid:9092: the host name is unknown"):
        BrokerConnection.open(Address("no-such-host.invalid", 9092))


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x15\x03\x03\x00\x02\x02\x46",
        b"\0\0\0\x05\0\0\0\x01\0",
        b"\xff" * 8,
    ],
)
def test_the_server_is_not_a_kafka_broker(reply: bytes) -> None:
    with (
        ScriptedBroker({ApiKey.API_VERSIONS: lambda request, version: reply}) as broker,
        pytest.raises(NotKafkaError, match=rf"127\.0\.0\.1:{broker.port}"),
    ):
        connect(broker)


def test_the_broker_closes() -> None:
    with (
        ScriptedBroker({ApiKey.METADATA: lambda request, version: None}) as broker,
        connect(broker) as connection,
    ):
        with pytest.raises(ConnectionLostError, match="closed the connection"):
            connection.call(MetadataRequest(), MetadataResponse)
        assert connection.is_closed


def test_responses_that_nobody_asks_for_are_no_errors_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with (
        ScriptedBroker({ApiKey.METADATA: lambda request, version: None}) as broker,
        connect(broker) as connection,
    ):
        pending = [connection.send(MetadataRequest()) for _ in range(3)]
        with pytest.raises(ConnectionLostError):
            connection.receive(pending[0], MetadataResponse)
        pending.clear()
        gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_no_answer_in_time() -> None:
    release = threading.Event()

    def silent(request: Any, version: int) -> None:
        release.wait(30)

    with ScriptedBroker({ApiKey.METADATA: silent}) as broker, connect(broker, 0.2) as connection:
        with pytest.raises(NoAnswerError, match=r"in 0\.2 s"):
            connection.call(MetadataRequest(), MetadataResponse)
        release.set()
        assert connection.is_closed


def test_responses_to_other_requests_are_rejected() -> None:
    stale = struct.pack(">ii", 4 + 30, 77) + bytes(30)
    with (
        ScriptedBroker({ApiKey.METADATA: lambda request, version: stale}) as broker,
        connect(broker) as connection,
        pytest.raises(NotKafkaError),
    ):
        connection.call(MetadataRequest(), MetadataResponse)


class Line:
    """A connection that is open until it is closed."""

    is_closed = False

    async def renew_login(self, timeout_s: float) -> None: ...

    def close(self) -> None:
        self.is_closed = True


class Lines:
    """Opens connections when `may_open` is set, and counts them."""

    def __init__(self) -> None:
        self.may_open = asyncio.Event()
        self.all: list[Line] = []

    async def open(self, *address: object, **settings: object) -> Line:
        await self.may_open.wait()
        self.all.append(Line())
        return self.all[-1]

    @property
    def open_count(self) -> int:
        return sum(not line.is_closed for line in self.all)


def run(scenario: Callable[[Network, Lines], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    async def with_lines() -> None:
        lines = Lines()
        monkeypatch.setattr(network_shell, "AsyncConnection", lines)
        network = Network("127.0.0.1:1", ProducerSettings())
        network.learn_node(1, "h", 1)
        await scenario(network, lines)
        assert lines.open_count == 0

    asyncio.run(with_lines())


@pytest.mark.parametrize("ask", ASKS)
def test_a_call_after_the_close_opens_no_connection(
    ask: Callable[[Network], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a transaction in another task was repeated on connections that nobody closed."""

    async def scenario(network: Network, lines: Lines) -> None:
        lines.may_open.set()
        await network.start()
        await network.close()
        with pytest.raises(ClosedError):
            await ask(network)

    run(scenario, monkeypatch)


def test_a_connection_that_opens_during_the_close_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(network: Network, lines: Lines) -> None:
        opening = asyncio.ensure_future(network.any_broker())
        await asyncio.sleep(0)
        await network.close()
        lines.may_open.set()
        with pytest.raises(ClosedError):
            await opening

    run(scenario, monkeypatch)


def test_addresses_that_have_answered_are_tried_first_and_those_that_never_did_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Address] = []

    async def remain_silent(address: Address, **options: Any) -> AsyncConnection:
        tried.append(address)
        raise NoAnswerError(f"{address} does not answer")

    monkeypatch.setattr(AsyncConnection, "open", remain_silent)

    async def scenario() -> None:
        network = Network("127.0.0.1:1", ProducerSettings())
        network.nodes = {1: Node(1, "behind-a-tunnel", 9092, None), 2: Node(2, "known", 9092, None)}
        network.reached = {Address("known", 9092)}
        with pytest.raises(NoAnswerError, match="no broker answers: known:9092 does"):
            await network.any_broker()

    asyncio.run(scenario())
    assert tried == [Address("known", 9092), Address("127.0.0.1", 1), Address("behind-a-tunnel", 9092)]


def test_a_client_can_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(network: Network, lines: Lines) -> None:
        lines.may_open.set()
        for _ in range(2):
            await network.start()
            await network.broker(1)
            assert lines.open_count == 2
            await network.close()

    run(scenario, monkeypatch)


class Renewing(AsyncConnection):
    """A connection whose session ends soon, and whose login lasts until `answer` is set."""

    def __init__(self) -> None:
        super().__init__(Address("h", 1), "c", NO_SECURITY)
        self._renew_at_s = 0.0
        self.logins = 0
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def _authenticate(self, timeout_s: float) -> None:
        self.logins += 1
        await self.answer
        self._renew_at_s = None


def test_no_request_is_sent_while_a_login_is_renewed() -> None:
    """A broker closes the connection if another request comes between the steps of SASL."""

    async def scenario() -> None:
        connection = Renewing()
        first = asyncio.create_task(connection.renew_login(1))
        await asyncio.sleep(0)
        assert connection.must_renew_login, "a request that is sent now breaks the login"
        second = asyncio.create_task(connection.renew_login(1))
        await asyncio.sleep(0)
        assert not second.done()
        connection.answer.set_result(None)
        await asyncio.gather(first, second)
        assert connection.logins == 1 and not connection.must_renew_login

    asyncio.run(scenario())


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_connection_is_closed_after_half_a_login(is_cancelled: bool) -> None:
    async def scenario() -> None:
        connection = Renewing()
        renewal = asyncio.create_task(connection.renew_login(1))
        await asyncio.sleep(0)
        if is_cancelled:
            renewal.cancel()
        else:
            connection.answer.set_exception(AuthenticationFailedError("no"))
        with pytest.raises((AuthenticationFailedError, asyncio.CancelledError)):
            await renewal
        assert connection.is_closed

    asyncio.run(scenario())


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_renewal_sleeps_until_the_answer_to_a_request_that_was_cancelled(is_answered: bool) -> None:
    """The wait for a cancelled future ends at once, so the renewal spun until the broker answered."""
    steps = 0

    @types.coroutine
    def counted(work: Coroutine[Any, Any, None]) -> Generator[object, None, None]:
        nonlocal steps
        for future in work.__await__():
            steps += 1
            yield future

    async def scenario() -> None:
        connection = Renewing()
        connection.answer.set_result(None)
        replies = [connection.send(MetadataRequest([]), 4, 30) for _ in range(2)]
        replies[-1].cancel()

        async def renew() -> None:
            await counted(connection.renew_login(1))

        renewal = asyncio.create_task(renew())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not renewal.done() and connection.logins == 0
        assert steps == 1, "the renewal spins"
        if is_answered:
            connection._received(memoryview(b""))
            await asyncio.sleep(0)
            assert connection.logins == 0, "the second answer is missing"
            connection._received(memoryview(b""))
            await replies[0]
        else:
            connection.close()
            with pytest.raises(ConnectionLostError):
                await replies[0]
        async with asyncio.timeout(5):
            await renewal
        assert connection.logins == 1

    asyncio.run(scenario())
