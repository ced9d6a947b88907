"""Listening sockets, and the limits on connections: their number, their number per address, their rate, and
their idle time.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import structlog

from tidelog.broker.connection import CLIENT_LOG, Connection, Dispatch
from tidelog.broker.socket_io import BufferPool, Turn
from tidelog.broker.socket_protocol import SocketProtocol
from tidelog.broker.tls import ServerCertificates, TlsAcceptor
from tidelog.model.brokers import Endpoint
from tidelog.model.instants import MonotonicMs

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tidelog.broker.authentication import Authenticator
    from tidelog.broker.current_settings import CurrentSettings
    from tidelog.broker.quotas.client_quotas import ClientQuotas
    from tidelog.metrics.telemetry import Telemetry
    from tidelog.timing.timer import Timer

IDLE_CHECKS_PER_TIMEOUT = 10
"""A connection is closed at most a tenth of `connections.max.idle.ms` late."""
MAX_HOST_RATES = 10_000
"""The addresses whose rate of connections is remembered, if a quota limits it."""
MIN_BACKLOG = 1024
"""Lets a thousand clients reconnect at once. With Kafka's default of 50 they wait for SYN retries."""

_log = structlog.get_logger(__name__)


class ConnectionRate:
    """Limits connections to `max.connection.creation.rate` per second, with bursts of one second's worth."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0.0  # when the latest connection would have come at an even rate

    def delay_s(self, rate: float, now: float) -> float:
        """Returns how many seconds one more connection has to wait."""
        self._next = max(self._next, now - 1) + 1 / rate
        return max(self._next - now, 0.0)

    def is_idle(self, now: float) -> bool:
        """Returns whether the full burst is available."""
        return self._next <= now - 1


class ConnectionLimits:
    """Applies `max.connections`, `max.connections.per.ip` and `max.connection.creation.rate`, which are
    dynamic settings, to all listeners of a broker, and holds the receive buffers that they share.

    If brokers have a listener of their own, its connections are admitted in any case, as in Kafka. Clients
    can therefore not cut the brokers off from each other, and administrators can use this listener if a
    limit keeps them out.

    A quota `connection_creation_rate` limits the rate of one address (KIP-612).

    Deviation: a connection above `max.connections` is closed; Kafka leaves it waiting until another ends. A
    connection above the rate of its address waits; Kafka closes it after that time.
    """

    def __init__(self, settings: CurrentSettings, quotas: ClientQuotas) -> None:
        self._current = settings
        self._quotas = quotas
        self._host_rates: dict[str, ConnectionRate] = {}
        self._settings = settings.broker
        self._overrides = settings.broker.connection_limits_per_ip()
        plan = settings.broker.listener_plan()
        names = frozenset(plan.replication_listener_names)
        self._exempt_listener_names = names if len(plan.bind) > len(names) else frozenset()
        self._rate = ConnectionRate()
        self.buffer_pool = BufferPool(max(settings.broker.queued_max_request_bytes, 0))
        self.per_host: Counter[str] = Counter()
        self.total = 0

    def admit(self, host: str, listener_name: str) -> str | None:
        """Counts a connection from `host`. Returns the limit that it exceeds, or None."""
        settings = self._current.broker
        if settings is not self._settings:
            self._settings, self._overrides = settings, settings.connection_limits_per_ip()
        self.total += 1
        self.per_host[host] += 1
        if listener_name in self._exempt_listener_names:
            return None
        if self.total > settings.max_connections:
            return f"max.connections is {settings.max_connections}"
        limit = self._overrides.get(host, settings.max_connections_per_ip)
        if self.per_host[host] > limit:
            return f"max.connections.per.ip is {limit} for {host}"
        return None

    def delay_s(self, now: float, listener_name: str, host: str) -> float:
        """Returns how many seconds a connection that was admitted at `now` (of the monotonic clock) has to
        wait before it is served.
        """
        if listener_name in self._exempt_listener_names:
            return 0.0
        delay_s = self._rate.delay_s(self._settings.max_connection_creation_rate, now)
        rate = self._quotas.limits.connection_rate(host)
        if rate is None:
            return delay_s
        return max(delay_s, self._rate_of(host, now).delay_s(rate, now))

    def _rate_of(self, host: str, now: float) -> ConnectionRate:
        known = self._host_rates.get(host)
        if known is None:
            if len(self._host_rates) >= MAX_HOST_RATES:
                busy = {host: rate for host, rate in self._host_rates.items() if not rate.is_idle(now)}
                self._host_rates = busy if len(busy) < MAX_HOST_RATES // 2 else {}
            known = self._host_rates[host] = ConnectionRate()
        return known

    def forget(self, host: str) -> None:
        self.total -= 1
        self.per_host[host] -= 1
        if not self.per_host[host]:
            del self.per_host[host]


class ConnectionLoad(NamedTuple):
    """The unfinished work of a listener's connections at one moment."""

    unanswered_requests: int
    with_unsent_answers: int
    unsent_bytes: int
    held_back: int


class Listener:
    """Accepts the connections of one of `listeners` and keeps them."""

    def __init__(
        self,
        endpoint: Endpoint,
        settings: CurrentSettings,
        telemetry: Telemetry,
        timer: Timer,
        dispatch: Dispatch,
        limits: ConnectionLimits,
        authenticator: Authenticator | None = None,
        certificates: ServerCertificates | None = None,
        handshakes: Executor | None = None,
    ) -> None:
        """Creates a listener that does not listen yet. `authenticator` authenticates its clients with SASL.
        With `certificates`, its connections use TLS, and `handshakes` are the threads for their handshakes.
        """
        self.name = endpoint.listener_name
        self.loop = asyncio.get_running_loop()
        self.buffer_pool = limits.buffer_pool
        self.turn = Turn(self.loop)
        self.max_request_bytes = settings.broker.socket_request_max_bytes
        self.max_in_flight_requests = settings.broker.tidelog_connection_max_in_flight_requests
        self.port = endpoint.port
        self._host = endpoint.host
        self._settings = settings
        self._telemetry = telemetry
        self._timer = timer
        self._dispatch = dispatch
        self._limits = limits
        self._authenticator = authenticator
        self._certificates = certificates
        self._handshakes = handshakes
        self._acceptor: TlsAcceptor | None = None
        self._connections: set[Connection] = set()
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None

    def bind(self) -> None:
        """Binds the address without listening yet. Port 0 binds a free port, which `port` shows afterwards.
        Raises OSError.
        """
        settings = self._settings.broker
        is_ipv6 = ":" in self._host
        bound = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted sockets inherit these. A small send buffer keeps sendfile's data in the CPU's cache.
            if settings.socket_send_buffer_bytes > 0:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.socket_send_buffer_bytes)
            if settings.socket_receive_buffer_bytes > 0:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.socket_receive_buffer_bytes)
            bound.bind((self._host or "0.0.0.0", self.port))
        except OSError as error:
            bound.close()
            raise OSError(
                error.errno, f"{self.name} can't listen on {self._host}:{self.port}: {error.strerror}"
            ) from error
        self.port = bound.getsockname()[1]
        self._socket = bound

    async def serve(self) -> None:
        """Starts to accept connections."""
        assert self._socket is not None, "bind comes first"
        backlog = max(self._settings.broker.socket_listen_backlog_size, MIN_BACKLOG)
        if self._certificates is None:
            self._server = await self.loop.create_server(
                lambda: SocketProtocol(self._new_connection()), sock=self._socket, backlog=backlog
            )
        else:
            assert self._handshakes is not None
            self._acceptor = TlsAcceptor(
                self.loop,
                self._socket,
                self._certificates,
                self._handshakes,
                self._new_connection,
                is_authenticating=self._authenticator is None,
            )
            self._acceptor.start(backlog)
        self._watch_idle()

    def _new_connection(self) -> Connection:
        connection = Connection(self, self._dispatch)
        if self._authenticator is not None:
            self._authenticator.guard(connection)
        return connection

    def load(self) -> ConnectionLoad:
        """Returns what the connections have in progress. Any thread may call it."""
        unanswered = with_unsent = unsent_bytes = held_back = 0
        for connection in tuple(self._connections):
            unanswered += connection.unanswered_count
            unsent = connection.unsent_bytes
            with_unsent += unsent > 0
            unsent_bytes += unsent
            held_back += connection.is_held_back
        return ConnectionLoad(unanswered, with_unsent, unsent_bytes, held_back)

    def admit(self, connection: Connection) -> bool:
        """Counts the connection and returns whether it may stay. A connection above the rate is held back."""
        self._connections.add(connection)
        self._telemetry.connection_opened(self.name)
        broken = self._limits.admit(connection.peer_host, self.name)
        if broken is not None:
            CLIENT_LOG.warning(
                "connection refused", peer=f"{connection.peer_host}:{connection.peer_port}", reason=broken
            )
            return False
        if connection.gate is not None:
            connection.gate.start_deadline()
        delay_s = self._limits.delay_s(monotonic(), self.name, connection.peer_host)
        if delay_s:
            connection.hold_back()
            self.loop.call_later(delay_s, connection.end_barrier)
        return True

    def forget(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._limits.forget(connection.peer_host)
            self._telemetry.connection_closed(self.name)
            if connection.authentication is not None:
                connection.authentication.end()

    def stop_accepting(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        elif self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()

    def close(self) -> None:
        self.stop_accepting()
        for connection in list(self._connections):
            connection.close()

    def _watch_idle(self) -> None:
        max_idle_ms = self._settings.broker.connections_max_idle_ms
        if max_idle_ms < 0:
            return
        oldest = monotonic() - max_idle_ms / 1000
        for connection in list(self._connections):
            if connection.is_idle_since(oldest):
                _log.debug("idle connection closed", peer=f"{connection.peer_host}:{connection.peer_port}")
                connection.close()
        self._timer.add(
            self._watch_idle,
            MonotonicMs(self._timer.monotonic_ms() + max(max_idle_ms // IDLE_CHECKS_PER_TIMEOUT, 1)),
        )
