"""Creates the gRPC channels and servers of tidelog, with their limits, keepalives and credentials.

An unused channel or server needs no CPU. gRPC's own threads send keepalives, and only while a call is open.
An event loop that is busy for some time is therefore not considered dead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, cast

import grpc
import grpc.aio

from tidelog.rpc.peer_tls import (
    PERMITTED_CALLERS,
    CallerCheck,
    Identity,
    PeerTls,
    PermittedCallers,
    ServiceRole,
    role_name,
)

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
# An idle peer of an open stream is pinged after this interval, and the stream fails if there is no answer in
# time. A dead broker or controller is detected earlier by its lease. The pings detect a lost connection
# between two live processes.
KEEPALIVE_INTERVAL_MS: Final = 10_000
KEEPALIVE_TIMEOUT_MS: Final = 5_000
# Minimum interval of keepalives that a server accepts from clients of another version.
MIN_KEEPALIVE_INTERVAL_MS: Final = 5_000
CONNECT_TIMEOUT_MS: Final = 3_000
FIRST_RECONNECT_DELAY_MS: Final = 100
LAST_RECONNECT_DELAY_MS: Final = 1_000
# A pod that restarts has another address under its name. By default gRPC resolves a name at most twice a
# minute.
MIN_RESOLUTION_INTERVAL_MS: Final = 500
# Limit of concurrent calls and streams of a server. It rejects further ones with RESOURCE_EXHAUSTED.
MAX_CONCURRENT_CALLS: Final = 1_000

_COMMON_OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # grpc 1.85 uses this value (default 60 s), not the one above
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),  # no limit: a stream may be silent for days
)
_CHANNEL_OPTIONS: Final = _COMMON_OPTIONS + (
    ("grpc.initial_reconnect_backoff_ms", FIRST_RECONNECT_DELAY_MS),
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),  # gRPC's name for the connect timeout
    ("grpc.max_reconnect_backoff_ms", LAST_RECONNECT_DELAY_MS),
    ("grpc.dns_min_time_between_resolutions_ms", MIN_RESOLUTION_INTERVAL_MS),
    ("grpc.enable_retries", 0),  # the callers decide which calls may be repeated
    ("grpc.use_local_subchannel_pool", 1),  # a new channel uses a new connection
    ("grpc.enable_http_proxy", 0),  # services connect directly, even if the environment names a proxy
    ("grpc.service_config_disable_resolution", 1),  # DNS does not provide settings
)
_SERVER_OPTIONS: Final = _COMMON_OPTIONS + (
    ("grpc.so_reuseport", 0),  # two servers must not share an address
    ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_KEEPALIVE_INTERVAL_MS),
    ("grpc.http2.max_ping_strikes", 0),
)


def open_channel(address: str, tls: PeerTls | None, role: ServiceRole) -> grpc.aio.Channel:
    """Returns a channel to `host:port`, which connects at its first call. An event loop must be running.

    With `tls`, the channel uses the current certificates for as long as it exists, and connects only to a
    service of this role.
    """
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
    identity = tls.identity()
    credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.cert)
    expected = role_name(role, tls.server_name) if tls.checks_roles else tls.server_name
    options = (*_CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", expected))
    return grpc.aio.secure_channel(address, credentials, options=options)


class RpcService(Protocol):
    """A gRPC service of an RpcServer."""

    def add_to(self, server: grpc.aio.Server) -> None: ...

    async def stop(self) -> None:
        """Ends the streams and waits for calls in progress. The server no longer accepts new calls."""
        ...


class RpcServer:
    """The gRPC server of a process, with all its services at one address.

    With `tls`, each call is accepted only from the roles that `permitted` names for it.

    server = RpcServer(BrokerCommandsService(...))
    address = await server.start("127.0.0.1:0")
    await server.stop()
    """

    def __init__(
        self,
        *services: RpcService,
        tls: PeerTls | None = None,
        permitted: PermittedCallers = PERMITTED_CALLERS,
    ) -> None:
        self._services = services
        self._tls = tls
        self._permitted = permitted
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def start(self, listen: str) -> str:
        """Listens on `host:port` and returns `host:port` with the actual port. Port 0 selects a free port.

        Raises OSError if the address is not available.
        """
        checks: list[grpc.aio.ServerInterceptor] = []
        if self._tls is not None and self._tls.checks_roles:
            checks.append(CallerCheck(self._permitted, self._tls.server_name))
        server = grpc.aio.server(
            interceptors=checks, options=_SERVER_OPTIONS, maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS
        )
        for service in self._services:
            service.add_to(server)
        try:
            if self._tls is None:
                self.port = server.add_insecure_port(listen)
            else:
                self.port = server.add_secure_port(listen, _server_credentials(self._tls))
        except RuntimeError as error:
            raise OSError(f"can't listen on {listen}: {error}") from error
        await server.start()
        self._server = server
        return f"{listen.rpartition(':')[0]}:{self.port}"

    async def stop(self) -> None:
        """Rejects new calls, ends the streams and waits for calls in progress. A second call does nothing."""
        server, self._server = self._server, None
        if server is None:
            return
        await server.stop(None)
        for service in self._services:
            await service.stop()


def _server_credentials(tls: PeerTls) -> grpc.ServerCredentials:
    """Returns credentials that gRPC refreshes at each handshake, in its own thread."""
    shown = tls.identity()

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        identity = tls.identity()
        if identity is shown:
            return None
        shown = identity
        return _configuration(identity)

    # The function may return None if nothing has changed, as gRPC documents, but its annotation omits None.
    asked = cast("Callable[[], grpc.ServerCertificateConfiguration]", renewed)
    return grpc.dynamic_ssl_server_credentials(
        _configuration(shown), asked, require_client_authentication=True
    )


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(identity.key, identity.cert)], identity.ca)
