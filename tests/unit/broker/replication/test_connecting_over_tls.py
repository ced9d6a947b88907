"""A follower connects to a leader's listener with TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from brokerlab.secured_broker import new_authority, put_identity
from tidelog.broker.net.socket_io import BufferPool
from tidelog.broker.net.tls import TlsFileError, client_context, server_context
from tidelog.broker.replication.leader_connection import (
    ConnectionLostError,
    LeaderConnection,
    Question,
    open_connection,
)
from tidelog.model.brokers import Endpoint
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.setting import SettingError
from tidelog.settings.tls_settings import TlsPlan, plan_tls
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.metadata import MetadataRequest

LISTENER = "BROKERS"
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def plan_of(directory: Path, name: str, *, trusted: Path | None) -> TlsPlan:
    """Returns the plan of a broker with a certificate for `name`."""
    keystore = directory / f"{name}.pem"
    identity = directory / name
    keystore.write_bytes((identity / "tls.key").read_bytes() + (identity / "tls.crt").read_bytes())
    settings = {"ssl.keystore.location": str(keystore)}
    if trusted is not None:
        settings["ssl.truststore.location"] = str(trusted)
    return plan_tls(LISTENER, BrokerSettings.parse(settings).listener_value)


async def connect(port: int, tls: ssl.SSLContext, lost: asyncio.Future[str]) -> LeaderConnection:
    return await open_connection(
        Endpoint(LISTENER, "localhost", port, "SSL"),
        BufferPool(),
        client_id="test",
        receive_buffer_bytes=-1,
        timeout_ms=5_000,
        on_lost=lost.set_result,
        tls=tls,
    )


def test_a_store_is_of_the_type_that_the_settings_name(tmp_path: Path) -> None:
    put_identity(tmp_path / "a", new_authority(tmp_path, "ours"), name="a")
    plan = plan_of(tmp_path, "a", trusted=None)
    server_context(plan._replace(keystore_type="PEM"))
    with pytest.raises(TlsFileError, match="the file is not PKCS12, as its type setting says"):
        server_context(plan._replace(keystore_type="PKCS12"))
    with pytest.raises(SettingError, match=r"^ssl\.truststore\.type: BCFKS is not one of JKS, PEM, PKCS12"):
        plan_tls(LISTENER, BrokerSettings.parse({"ssl.truststore.type": "bcfks"}).listener_value)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_only_a_leader_with_the_right_certificate_is_trusted(tmp_path: Path, new_loop: LoopFactory) -> None:
    ours, other = new_authority(tmp_path, "ours"), new_authority(tmp_path, "other")
    put_identity(tmp_path / "localhost", ours, name="localhost")
    put_identity(tmp_path / "elsewhere", ours, name="elsewhere")
    put_identity(tmp_path / "impostor", other, name="localhost")
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(4), "big")
        received.append(await reader.readexactly(size))
        writer.close()

    async def scenario() -> None:
        tls = client_context(plan_of(tmp_path, "localhost", trusted=ours.certificate))
        for name, is_trusted in (("localhost", True), ("elsewhere", False), ("impostor", False)):
            context = server_context(plan_of(tmp_path, name, trusted=None))
            async with await asyncio.start_server(serve, "localhost", 0, ssl=context) as server:
                port = server.sockets[0].getsockname()[1]
                lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
                if not is_trusted:
                    with pytest.raises(ConnectionLostError, match="certificate"):
                        await connect(port, tls, lost)
                    continue
                connection = await connect(port, tls, lost)
                question = Question(ApiKey.METADATA, 1)
                connection.send(question, MetadataRequest(topics=[]), 5_000, lambda _: None)
                assert "closed" in await asyncio.wait_for(lost, 5)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 30))
    assert len(received) == 1 and b"test" in received[0]


def test_a_follower_needs_an_authority_to_trust(tmp_path: Path) -> None:
    put_identity(tmp_path / "localhost", new_authority(tmp_path, "ours"), name="localhost")
    with pytest.raises(TlsFileError, match=r"ssl\.truststore\.location: brokers use TLS"):
        client_context(plan_of(tmp_path, "localhost", trusted=None))
