"""The doors at which the other services come to a process, as its settings want them."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from tidelog.rpc.coordinator_session import SessionAcceptor
from tidelog.rpc.grpc_transport import RpcServer, RpcService
from tidelog.rpc.session_stream import SessionDoor
from tidelog.runtime.broker_settings import BrokerSettings


async def open_rpc_door(
    settings: BrokerSettings, stack: contextlib.AsyncExitStack, *services: RpcService
) -> str:
    """gRPC's. Answers the address that the other services are told. Raises OSError naming the setting."""
    server = RpcServer(*services)
    listening = await _listening("tidelog.rpc.listener", settings.tidelog_rpc_listener, server.start)
    stack.push_async_callback(server.stop)
    return _told(listening, settings.tidelog_rpc_advertised_address)


async def open_session_door(
    settings: BrokerSettings, stack: contextlib.AsyncExitStack, acceptor: SessionAcceptor
) -> str:
    """Coordinators'. As `open_rpc_door`."""
    door = SessionDoor(acceptor)
    listening = await _listening("tidelog.session.listener", settings.tidelog_session_listener, door.start)
    stack.push_async_callback(door.stop)
    return _told(listening, settings.tidelog_session_advertised_address)


async def _listening(setting: str, listen: str, start: Callable[[str], Awaitable[str]]) -> str:
    try:
        return await start(listen)
    except OSError as error:
        raise OSError(
            f"{setting}: {listen} can't be listened on: is it in use, or not an address of this machine?"
        ) from error


def _told(listening: str, advertised: str) -> str:
    if not advertised:
        return listening
    host, _, port = advertised.rpartition(":")
    return f"{host}:{listening.rpartition(':')[2]}" if port == "0" else advertised
