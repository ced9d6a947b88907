"""The doors at which the other services come to a process, as its settings want them."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from tidelog.rpc.coordinator_session import SessionAcceptor
from tidelog.rpc.grpc_transport import RpcServer, RpcService
from tidelog.rpc.peer_tls import PeerTls
from tidelog.rpc.session_stream import SessionDoor
from tidelog.runtime.broker_settings import BrokerSettings
from tidelog.runtime.setting import SettingError


def peer_tls(settings: BrokerSettings) -> PeerTls | None:
    """TLS among the services, if the settings name files for it. Raises OSError, SettingError."""
    named = {
        "tidelog.rpc.tls.ca.file": settings.tidelog_rpc_tls_ca_file,
        "tidelog.rpc.tls.cert.file": settings.tidelog_rpc_tls_cert_file,
        "tidelog.rpc.tls.key.file": settings.tidelog_rpc_tls_key_file,
    }
    if not any(named.values()):
        return None
    for name, path in named.items():
        if not path:
            raise SettingError(name, f"{name}: is missing; the three tidelog.rpc.tls files go together")
    try:
        return PeerTls(*map(str, named.values()), server_name=settings.tidelog_rpc_tls_server_name)
    except OSError as error:
        raise OSError(f"tidelog.rpc.tls: {error}") from error


async def open_rpc_door(
    settings: BrokerSettings,
    stack: contextlib.AsyncExitStack,
    *services: RpcService,
    tls: PeerTls | None,
) -> str:
    """gRPC's. Answers the address that the other services are told. Raises OSError naming the setting."""
    server = RpcServer(*services, tls=tls)
    listening = await _listening("tidelog.rpc.listener", settings.tidelog_rpc_listener, server.start)
    stack.push_async_callback(server.stop)
    return _told(listening, settings.tidelog_rpc_advertised_address)


async def open_session_door(
    settings: BrokerSettings,
    stack: contextlib.AsyncExitStack,
    acceptor: SessionAcceptor,
    *,
    tls: PeerTls | None,
) -> str:
    """Coordinators'. As `open_rpc_door`."""
    door = SessionDoor(acceptor, tls)
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
