"""A connection to one etcd member: its address and options, the gRPC channel, and the calls."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import grpc
import grpc.aio

from tidelog.metadata.etcd.generated import rpc_pb2 as pb
from tidelog.metadata.etcd.generated import rpc_pb2_grpc as stubs
from tidelog.metadata.etcd.messages import CallFailedError, CallFault, failed_call
from tidelog.model.brokers import host_and_port

DEFAULT_PORT: Final = 2379
# After this time without a connection, the client tries the next endpoint.
DEFAULT_CONNECT_TIMEOUT_MS: Final = 1000
# Timeout of one attempt of a read or of a renewal. The client considers a slower member dead.
DEFAULT_ATTEMPT_TIMEOUT_MS: Final = 2000
# Timeout of an operation with all its attempts, and of the single attempt of a transaction. It is longer than
# an election in etcd (1 to 2 s with its defaults).
DEFAULT_OPERATION_TIMEOUT_MS: Final = 5000
# A watch may be silent for a long time. Pings detect that its member is unreachable (power, network, a frozen
# process). etcd disconnects clients that ping more often than every 5 s (--grpc-keepalive-min-time).
PING_INTERVAL_MS: Final = 6000
PING_TIMEOUT_MS: Final = 3000
# Maximum size of an answer. Listings are read in pages and watches arrive in fragments, so only a single huge
# value could exceed it.
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
# A request contains at most one transaction: MAX_TXN_BYTES and the fields around it.
MAX_REQUEST_BYTES: Final = 2 * 1024 * 1024
_NEVER_MS: Final = 2**31 - 1
# A member that has lost its leader then rejects the call instead of keeping the caller waiting.
REQUIRE_LEADER: Final = ("hasleader", "true")
Metadata = tuple[tuple[str, str], ...]
_REASON_TIMEOUT_S: Final = 0.2
T = TypeVar("T")


class EtcdAddressError(ValueError):
    """An endpoint is not `http://host:port`, `https://host:port` or `host:port`."""


class EtcdEndpoint(NamedTuple):
    target: str
    is_tls: bool

    @staticmethod
    def parse(text: str, *, is_tls_default: bool = False) -> EtcdEndpoint:
        """Raises EtcdAddressError."""
        has_scheme = "://" in text
        try:
            parts = urlsplit(text if has_scheme else f"//{text}")
            port = parts.port or DEFAULT_PORT
        except ValueError as error:
            raise EtcdAddressError(f"{text!r} is not an etcd endpoint: {error}") from error
        extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
        if not parts.hostname or extra or (has_scheme and parts.scheme not in ("http", "https")):
            raise EtcdAddressError(
                f"{text!r} is not an etcd endpoint; write http://host:port or https://host:port"
            )
        return EtcdEndpoint(
            host_and_port(parts.hostname, port), parts.scheme == "https" if has_scheme else is_tls_default
        )


class EtcdOptions(NamedTuple):
    """Options for the connection to etcd.

    The client tries `endpoints` in their order. `prefix` precedes every key, so that several clusters can
    share an etcd. The files contain PEM. They are read again for each connection, so that they can be
    rotated. Without a CA file the client trusts the system's certificate authorities. An endpoint without a
    scheme uses TLS if there is a CA file.
    """

    endpoints: tuple[str, ...]
    username: str = ""
    password: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    prefix: str = ""
    connect_timeout_ms: int = DEFAULT_CONNECT_TIMEOUT_MS
    attempt_timeout_ms: int = DEFAULT_ATTEMPT_TIMEOUT_MS
    operation_timeout_ms: int = DEFAULT_OPERATION_TIMEOUT_MS

    def parsed_endpoints(self) -> tuple[EtcdEndpoint, ...]:
        """Raises EtcdAddressError if an endpoint is invalid, or if there is none."""
        if not self.endpoints:
            raise EtcdAddressError("no etcd endpoint is given")
        if bool(self.cert_file) != bool(self.key_file):
            raise EtcdAddressError("a client certificate needs both a certificate file and a key file")
        return tuple(
            EtcdEndpoint.parse(text.strip(), is_tls_default=bool(self.ca_file)) for text in self.endpoints
        )


def channel_options() -> list[tuple[str, int]]:
    return [
        ("grpc.keepalive_time_ms", PING_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
        # grpc 1.85 uses this value (default 60 s), not the one above
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
        ("grpc.max_send_message_length", MAX_REQUEST_BYTES),
        ("grpc.client_idle_timeout_ms", _NEVER_MS),
        # A new channel uses a new connection, without the back-off of an earlier one.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.enable_http_proxy", 0),
    ]


def read_credentials(options: EtcdOptions) -> grpc.ChannelCredentials:
    """Reads the credentials from files; call it in a thread. Raises OSError.

    Without a CA file the client trusts the system's certificate authorities.
    """
    system_file = ssl.get_default_verify_paths().cafile or ""  # if it is missing, gRPC uses its own list
    return grpc.ssl_channel_credentials(
        root_certificates=_read(options.ca_file or system_file),
        private_key=_read(options.key_file),
        certificate_chain=_read(options.cert_file),
    )


def call_metadata(token: str | None) -> Metadata:
    return (REQUIRE_LEADER,) if token is None else (REQUIRE_LEADER, ("token", token))


def _read(path: str) -> bytes | None:
    return Path(path).read_bytes() if path else None


class Cancellable(Protocol):
    """A call. `cancel` does nothing if the call has ended."""

    def cancel(self) -> bool: ...


class EtcdConnection:
    """A connection to a member, created by `open`.

    It is used until a call fails in a way that blames the member. Then it is retired: its watches end at
    once, but other calls may still be answered.
    """

    def __init__(self, endpoint: EtcdEndpoint, channel: grpc.aio.Channel) -> None:
        self.endpoint = endpoint
        self.is_retired = False
        self.kv = stubs.KVStub(channel)
        self.watch = stubs.WatchStub(channel)
        self.lease = stubs.LeaseStub(channel)
        self.auth = stubs.AuthStub(channel)
        self.maintenance = stubs.MaintenanceStub(channel)
        self.cluster = stubs.ClusterStub(channel)
        self._channel = channel
        self._watches: set[Cancellable] = set()

    @classmethod
    async def open(cls, endpoint: EtcdEndpoint, options: EtcdOptions) -> EtcdConnection:
        """Connects to a member. Raises OSError (the member or a certificate file is missing) and
        TimeoutError.
        """
        if endpoint.is_tls:
            credentials = await asyncio.to_thread(read_credentials, options)
            channel = grpc.aio.secure_channel(endpoint.target, credentials, channel_options())
        else:
            channel = grpc.aio.insecure_channel(endpoint.target, channel_options())
        try:
            async with asyncio.timeout(options.connect_timeout_ms / 1000):
                await _until_ready(channel)
        except BaseException:
            await channel.close()
            raise
        return cls(endpoint, channel)

    @property
    def is_ready(self) -> bool:
        """False after the connection was lost, although gRPC reconnects by itself.

        After such a reconnect it is not known whether a call was sent before or after it.
        """
        return not self.is_retired and self._channel.get_state() is grpc.ChannelConnectivity.READY

    async def authenticate(self, options: EtcdOptions) -> str | None:
        """Returns a token, or None if authentication is not enabled in etcd. Raises CallFailedError."""
        request = pb.AuthenticateRequest(name=options.username, password=options.password)
        try:
            return (
                await answer_of(self.auth.Authenticate(request, timeout=options.attempt_timeout_ms / 1000))
            ).token
        except CallFailedError as error:
            if error.fault is CallFault.AUTH_NOT_ENABLED:
                return None
            raise

    def add_watch(self, call: Cancellable) -> None:
        self._watches.add(call)

    def remove_watch(self, call: Cancellable) -> None:
        self._watches.discard(call)
        call.cancel()

    def retire(self) -> None:
        self.is_retired = True
        for call in tuple(self._watches):
            call.cancel()

    async def close(self, grace_s: float | None = None) -> None:
        self.retire()
        await self._channel.close(grace_s)


async def answer_of(call: Awaitable[T]) -> T:
    """Returns the answer of a call. Raises CallFailedError, and CancelledError only if the caller is
    cancelled.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise failed_call(error) from error
    except asyncio.InvalidStateError as error:  # a write to a stream that has just ended
        raise CallFailedError(CallFault.UNKNOWN, "the stream has ended") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise CallFailedError(CallFault.UNKNOWN, "the connection was retired") from error


async def _until_ready(channel: grpc.aio.Channel) -> None:
    while True:
        state = channel.get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.READY:
            return
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            raise ConnectionError(await _why_not_connected(channel))
        await channel.wait_for_state_change(state)


async def _why_not_connected(channel: grpc.aio.Channel) -> str:
    """Returns why a channel is not connected. Only a call that fails on the channel has the reason."""
    try:
        await stubs.MaintenanceStub(channel).Status(pb.StatusRequest(), timeout=_REASON_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        return error.details() or "no connection"
    return "the connection was lost"
