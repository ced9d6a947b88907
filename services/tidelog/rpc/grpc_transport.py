"""How every gRPC channel and server of tidelog is made: limits, keepalives, credentials.

A channel or server that nobody uses costs no CPU: keepalives are sent only while a call is open, and by
gRPC's own threads, so that an event loop that is busy for a while isn't taken for dead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, cast

import grpc
import grpc.aio

from tidelog.rpc.peer_tls import Identity, PeerTls

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
# An open stream's other side is asked for a sign of life after so long in silence, and given up if none comes
# in time. A dead broker or controller is found out sooner by its lease; this is for a connection that is cut
# while both its ends live.
KEEPALIVE_INTERVAL_MS: Final = 10_000
KEEPALIVE_TIMEOUT_MS: Final = 5_000
# What a server takes from clients of another version before it calls their keepalives a nuisance.
MIN_KEEPALIVE_INTERVAL_MS: Final = 5_000
CONNECT_TIMEOUT_MS: Final = 3_000
FIRST_RECONNECT_DELAY_MS: Final = 100
LAST_RECONNECT_DELAY_MS: Final = 1_000
# A pod that comes back has another address under its name; gRPC would look it up twice a minute at most.
MIN_RESOLUTION_INTERVAL_MS: Final = 500
# Calls and streams that a server has in work; more are refused at once (RESOURCE_EXHAUSTED).
MAX_CONCURRENT_CALLS: Final = 1_000

_COMMON_OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),  # what counts in fact; 60 s if it isn't set
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),  # no limit: a stream may be silent for days
)
_CHANNEL_OPTIONS: Final = _COMMON_OPTIONS + (
    ("grpc.initial_reconnect_backoff_ms", FIRST_RECONNECT_DELAY_MS),
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),  # gRPC's name for the time a connect may take
    ("grpc.max_reconnect_backoff_ms", LAST_RECONNECT_DELAY_MS),
    ("grpc.dns_min_time_between_resolutions_ms", MIN_RESOLUTION_INTERVAL_MS),
    ("grpc.enable_retries", 0),  # what may be sent again is decided by us
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection
    ("grpc.enable_http_proxy", 0),  # services speak to each other directly, whatever the environment says
    ("grpc.service_config_disable_resolution", 1),  # settings don't come from DNS
)
_SERVER_OPTIONS: Final = _COMMON_OPTIONS + (
    ("grpc.so_reuseport", 0),  # an address in use is an error, not shared
    ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_KEEPALIVE_INTERVAL_MS),
    ("grpc.http2.max_ping_strikes", 0),
)


def open_channel(address: str, tls: PeerTls | None = None) -> grpc.aio.Channel:
    """A channel to `host:port`; it connects at its first call. Call from a running event loop. With `tls` it
    uses the certificates of this moment for as long as it lives.
    """
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
    identity = tls.identity()
    credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.cert)
    options = (*_CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", tls.server_name))
    return grpc.aio.secure_channel(address, credentials, options=options)


class RpcService(Protocol):
    """One gRPC service that an RpcServer offers."""

    def add_to(self, server: grpc.aio.Server) -> None: ...

    async def stop(self) -> None:
        """End its streams and see what is in work through; new calls no longer come."""
        ...


class RpcServer:
    """A process's gRPC door, with all its services behind one address.

    server = RpcServer(BrokerCommandsService(...))
    address = await server.start("127.0.0.1:0")
    await server.stop()
    """

    def __init__(self, *services: RpcService, tls: PeerTls | None = None) -> None:
        self._services = services
        self._tls = tls
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def start(self, listen: str) -> str:
        """Listen on `host:port` (port 0: any that is free); answers `host:port` with the port that was had.

        Raises OSError if the address can't be had.
        """
        server = grpc.aio.server(options=_SERVER_OPTIONS, maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS)
        for service in self._services:
            service.add_to(server)
        try:
            if self._tls is None:
                self.port = server.add_insecure_port(listen)
            else:
                self.port = server.add_secure_port(listen, _server_credentials(self._tls))
        except RuntimeError as error:
            raise OSError(f"{listen} can't be listened on: {error}") from error
        await server.start()
        self._server = server
        return f"{listen.rpartition(':')[0]}:{self.port}"

    async def stop(self) -> None:
        """Take no more calls, break off the streams, wait for what is in work. Safe to call twice."""
        server, self._server = self._server, None
        if server is None:
            return
        await server.stop(None)
        for service in self._services:
            await service.stop()


def _server_credentials(tls: PeerTls) -> grpc.ServerCredentials:
    """gRPC asks at each handshake whether there are new certificates, in a thread of its own."""
    shown = tls.identity()

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        identity = tls.identity()
        if identity is shown:
            return None
        shown = identity
        return _configuration(identity)

    # Its annotation does not know what its text says: None is for no change.
    asked = cast("Callable[[], grpc.ServerCertificateConfiguration]", renewed)
    return grpc.dynamic_ssl_server_credentials(
        _configuration(shown), asked, require_client_authentication=True
    )


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(identity.key, identity.cert)], identity.ca)
