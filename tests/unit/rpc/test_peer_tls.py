"""TLS between the services: gRPC calls and sessions, with valid, foreign, expired and renewed
certificates.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest
import uvloop

from brokerlab.secured_broker import Authority, new_authority, put_identity, tls_of
from tidelog.model.brokers import BrokerRegistration
from tidelog.rpc.coordinator_session import Hello, Item, SessionLine, Welcome
from tidelog.rpc.grpc_sessions import CoordinatorSessionsService, GrpcSessionConnector
from tidelog.rpc.grpc_transport import RpcServer, open_channel
from tidelog.rpc.peer_tls import PeerTls, ServiceRole

TIMEOUT_S = 10.0
METHOD = "/test.Echo/Say"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path, "authority")


@pytest.fixture
def ours(tmp_path: Path, authority: Authority) -> Path:
    """Returns the directory of a service's own certificate."""
    put_identity(tmp_path / "ours", authority)
    return tmp_path / "ours"


class Echo:
    """An RpcService that returns its requests."""

    def add_to(self, server: grpc.aio.Server) -> None:
        async def say(request: bytes, context: object) -> bytes:
            return request

        handler = grpc.method_handlers_generic_handler(
            "test.Echo", {"Say": grpc.unary_unary_rpc_method_handler(say)}
        )
        server.add_generic_rpc_handlers((handler,))

    async def stop(self) -> None:
        pass


class EchoServer:
    """An RpcServer. `call` raises ConnectionError if either side rejects the other."""

    def __init__(self, tls: PeerTls | None) -> None:
        self._server = RpcServer(Echo(), tls=tls, permitted={METHOD: frozenset(ServiceRole)})
        self._address = ""

    async def open(self) -> None:
        self._address = await self._server.start("127.0.0.1:0")

    async def call(self, tls: PeerTls | None) -> None:
        async with open_channel(self._address, tls, ServiceRole.BROKER) as channel:
            try:
                assert await channel.unary_unary(METHOD)(b"hello", timeout=TIMEOUT_S) == b"hello"
            except grpc.aio.AioRpcError as error:
                raise ConnectionError(error.details()) from error

    async def close(self) -> None:
        await self._server.stop()


class _End:
    """A SessionEnd that waits for Welcome."""

    def __init__(self) -> None:
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def received(self, items: object) -> None:
        self.welcomed.set_result(None)

    def closed(self) -> None:
        self.welcomed.set_exception(ConnectionError("the session was closed"))


class _Acceptor:
    """A SessionAcceptor and its ends, which answer with Welcome."""

    def __init__(self, line: SessionLine | None = None) -> None:
        self.line = line

    def accept(self, line: SessionLine) -> _Acceptor:
        return _Acceptor(line)

    def received(self, items: list[Item]) -> None:
        assert self.line is not None
        self.line.send(Welcome(1, 1))

    def closed(self) -> None:
        pass


class SessionServer:
    """An RpcServer that accepts sessions. `call` raises ConnectionError if either side rejects the other."""

    def __init__(self, tls: PeerTls | None) -> None:
        self._server = RpcServer(CoordinatorSessionsService(_Acceptor()), tls=tls)
        self._address = ""

    async def open(self) -> None:
        self._address = await self._server.start("127.0.0.1:0")

    async def call(self, tls: PeerTls | None) -> None:
        connector, end = GrpcSessionConnector(tls), _End()
        try:
            line = connector.connect(BrokerRegistration(1, 1, (), rpc_address=self._address), end)
            line.send(Hello(7))
            async with asyncio.timeout(TIMEOUT_S):
                await end.welcomed
        finally:
            await connector.close()

    async def close(self) -> None:
        await self._server.stop()


TlsServer = EchoServer | SessionServer
servers = pytest.mark.parametrize("make_server", [EchoServer, SessionServer])
Scenario = Callable[[TlsServer], Awaitable[None]]


def serve(
    make_server: Callable[[PeerTls | None], TlsServer], tls: PeerTls | None, scenario: Scenario
) -> None:
    async def live() -> None:
        server = make_server(tls)
        await server.open()
        try:
            await asyncio.wait_for(scenario(server), 50)
        finally:
            await server.close()

    uvloop.run(live())


@servers
def test_both_sides_show_a_certificate(make_server: type[TlsServer], ours: Path) -> None:
    async def scenario(server: TlsServer) -> None:
        await server.call(tls_of(ours))

    serve(make_server, tls_of(ours), scenario)


@servers
def test_clients_that_the_server_rejects(
    make_server: type[TlsServer], tmp_path: Path, ours: Path, authority: Authority
) -> None:
    put_identity(tmp_path / "foreign", new_authority(tmp_path, "other"))
    shutil.copyfile(ours / "ca.crt", tmp_path / "foreign" / "ca.crt")  # it trusts our authority
    put_identity(tmp_path / "expired", authority, expired=True)

    async def scenario(server: TlsServer) -> None:
        for caller in (None, tls_of(tmp_path / "foreign"), tls_of(tmp_path / "expired")):
            with pytest.raises(ConnectionError):
                await server.call(caller)
        await server.call(tls_of(ours))

    serve(make_server, tls_of(ours), scenario)


@servers
@pytest.mark.parametrize("fault", ["foreign", "expired", "wrong name", "plain text"])
def test_servers_that_the_client_rejects(
    make_server: type[TlsServer], tmp_path: Path, ours: Path, authority: Authority, fault: str
) -> None:
    theirs = tmp_path / "theirs"
    if fault == "foreign":
        put_identity(theirs, new_authority(tmp_path, "other"))
        shutil.copyfile(ours / "ca.crt", theirs / "ca.crt")
    elif fault != "plain text":
        put_identity(
            theirs,
            authority,
            name="kafka" if fault == "wrong name" else "tidelog",
            expired=fault == "expired",
        )

    async def scenario(server: TlsServer) -> None:
        with pytest.raises(ConnectionError):
            await server.call(tls_of(ours))

    serve(make_server, None if fault == "plain text" else tls_of(theirs), scenario)


@servers
def test_certificates_are_renewed_while_the_server_runs(
    make_server: type[TlsServer], tmp_path: Path, authority: Authority
) -> None:
    """First the certificate is renewed, then also the authority. A client with only the old authority is then
    rejected.
    """
    put_identity(tmp_path / "theirs", authority, expired=True)
    put_identity(tmp_path / "before", authority)
    put_identity(tmp_path / "ours", authority)
    before, caller = tls_of(tmp_path / "before"), tls_of(tmp_path / "ours")

    async def scenario(server: TlsServer) -> None:
        with pytest.raises(ConnectionError):
            await server.call(caller)
        put_identity(tmp_path / "theirs", authority)
        await server.call(caller)
        await server.call(before)
        new = new_authority(tmp_path, "new")
        put_identity(tmp_path / "theirs", new)
        with pytest.raises(ConnectionError):
            await server.call(caller)
        put_identity(tmp_path / "ours", new)
        await server.call(caller)
        (tmp_path / "before" / "ca.crt").write_bytes(new.certificate.read_bytes())  # now it trusts the server
        with pytest.raises(ConnectionError):
            await server.call(before)

    serve(make_server, tls_of(tmp_path / "theirs"), scenario)


def test_invalid_files_are_reported_at_the_start(ours: Path, tmp_path: Path, authority: Authority) -> None:
    put_identity(tmp_path / "other", authority)
    shutil.copyfile(ours / "tls.key", tmp_path / "other" / "tls.key")
    with pytest.raises(OSError, match=r"tls\.crt and .*tls\.key do not match"):
        tls_of(tmp_path / "other")
    (ours / "ca.crt").write_text("nothing")
    with pytest.raises(OSError, match=r"ca\.crt contains no certificates"):
        tls_of(ours)
    (ours / "ca.crt").unlink()
    with pytest.raises(OSError, match=r"ca\.crt"):
        tls_of(ours)


def test_invalid_renewed_files_are_not_used(ours: Path, authority: Authority) -> None:
    tls = tls_of(ours)
    before = tls.identity()
    assert tls.identity() is before
    certificate = (ours / "tls.crt").read_bytes()
    (ours / "tls.crt").write_bytes(certificate[:100])
    assert tls.identity() is before
    (ours / "tls.crt").unlink()
    assert tls.identity() is before
    put_identity(ours, authority)
    after = tls.identity()
    assert after is not before and after.cert != before.cert
    assert tls.identity() is after
