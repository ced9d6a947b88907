"""Connecting to a leader whose name resolves to other addresses over time."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tidelog.broker.net.socket_io import BufferPool
from tidelog.broker.replication import leader_connection
from tidelog.broker.replication.leader_connection import (
    ConnectionLostError,
    LeaderConnection,
    open_connection,
)
from tidelog.model.brokers import Endpoint

LEADER = Endpoint("REPLICATION", "broker-1.brokers", 9093)


async def connect() -> LeaderConnection:
    return await open_connection(
        LEADER,
        BufferPool(),
        client_id="test",
        receive_buffer_bytes=-1,
        timeout_ms=30_000,
        on_lost=lambda reason: None,
    )


def test_each_attempt_resolves_the_name_again() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with socket.create_server(("127.0.0.1", 0)) as closed:
                gone = closed.getsockname()[1]
            known = [("127.0.0.1", gone)]
            asked: list[tuple[str, int]] = []

            async def getaddrinfo(host: str, at: int, **_: Any) -> list[Any]:
                asked.append((host, at))
                return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in known]

            loop.getaddrinfo = getaddrinfo  # type: ignore[method-assign, assignment]
            with pytest.raises(ConnectionLostError, match=r"broker-1\.brokers:9093"):
                await connect()
            known[:] = [("127.0.0.1", port)]
            connection = await connect()
            connection.close()
            assert asked == [(LEADER.host, LEADER.port)] * 2

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_an_address_without_an_answer_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit applies however long a response may take (replica.socket.timeout.ms)."""
    monkeypatch.setattr(leader_connection, "CONNECT_TIMEOUT_MS", 50)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        async def getaddrinfo(host: str, at: int, **_: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))]

        async def sock_connect(connection: socket.socket, address: Any) -> None:
            await asyncio.sleep(3600)

        loop.getaddrinfo = getaddrinfo  # type: ignore[method-assign, assignment]
        loop.sock_connect = sock_connect  # type: ignore[method-assign]
        with pytest.raises(ConnectionLostError, match="did not answer in time"):
            await connect()

    asyncio.run(asyncio.wait_for(scenario(), 20))
