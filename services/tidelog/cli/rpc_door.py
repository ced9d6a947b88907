"""The gRPC server of a process and its TLS, as the settings configure them."""

from __future__ import annotations

import contextlib

from tidelog.rpc.grpc_transport import RpcServer, RpcService
from tidelog.rpc.peer_tls import PeerTls
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.listeners import is_loopback_host
from tidelog.settings.setting import SettingError


def peer_tls(settings: BrokerSettings) -> PeerTls | None:
    """Returns the certificates for TLS between services, or None if the settings name none.

    Raises OSError if a file cannot be used, SettingError if one of the three settings is missing.
    """
    named = {
        "tidelog.rpc.tls.ca.file": settings.tidelog_rpc_tls_ca_file,
        "tidelog.rpc.tls.cert.file": settings.tidelog_rpc_tls_cert_file,
        "tidelog.rpc.tls.key.file": settings.tidelog_rpc_tls_key_file,
    }
    if not any(named.values()):
        return None
    for name, path in named.items():
        if not path:
            raise SettingError(name, f"{name}: is missing; set all three tidelog.rpc.tls files, or none")
    try:
        return PeerTls(
            *map(str, named.values()),
            server_name=settings.tidelog_rpc_tls_server_name,
            checks_roles=settings.tidelog_rpc_tls_check_roles,
        )
    except OSError as error:
        raise OSError(f"tidelog.rpc.tls: {error}") from error


async def open_rpc_door(
    settings: BrokerSettings,
    stack: contextlib.AsyncExitStack,
    *services: RpcService,
    tls: PeerTls | None,
) -> str:
    """Starts the process's gRPC server and stops it when `stack` is closed.

    Returns the address at which other services call it. Raises OSError and SettingError, which name the
    setting.
    """
    server = RpcServer(*services, tls=tls)
    listen = settings.tidelog_rpc_listener
    if tls is None and not settings.tidelog_rpc_allow_plaintext and not is_loopback(listen):
        raise SettingError(
            "tidelog.rpc.listener",
            f"tidelog.rpc.listener: {listen} is not a loopback address, and calls would not be encrypted or "
            "authenticated; set the tidelog.rpc.tls files, or tidelog.rpc.allow.plaintext=true",
        )
    try:
        listening = await server.start(listen)
    except OSError as error:
        raise OSError(
            f"tidelog.rpc.listener: cannot listen on {listen}: the address is in use or does not belong to "
            "this machine"
        ) from error
    stack.push_async_callback(server.stop)
    advertised = settings.tidelog_rpc_advertised_address
    if not advertised:
        return listening
    host, _, port = advertised.rpartition(":")
    return f"{host}:{listening.rpartition(':')[2]}" if port == "0" else advertised


def is_loopback(address: str) -> bool:
    """Returns whether only this machine reaches `host:port`."""
    return is_loopback_host(address.rpartition(":")[0].strip("[]"))
