"""A listening socket and the limits on who may connect: in all, per address, and for how long without a
word.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING

import structlog
from tidelog.broker.connection import Connection
from tidelog.broker.frames import BufferPool
from tidelog.broker.socket_protocol import SocketProtocol
from tidelog.broker.turn import Turn
from tidelog.model.brokers import Endpoint
from tidelog.runtime.broker_metrics import ConnectionLoad

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Dispatcher

IDLE_CHECKS_PER_TIMEOUT = 10
"""A connection is closed at most a tenth of `connections.max.idle.ms` late."""
MIN_BACKLOG = 1024
"""A thousand clients that come back at once are all let in; Kafka's default of 50 makes them wait for SYN
retries.
"""

_log = structlog.get_logger(__name__)


class ConnectionRate:
    """`max.connection.creation.rate`: so many a second, a second's worth of them at once."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0.0  # when the latest connection was due, were they evenly spread

    def delay_s(self, rate: int, now: float) -> float:
        """How long one more connection has to wait, in seconds."""
        self._next = max(self._next, now - 1) + 1 / rate
        return max(self._next - now, 0.0)


class ConnectionLimits:
    """`max.connections`, `max.connections.per.ip` and `max.connection.creation.rate` over all listeners of a
    broker, as they are at the moment: they are dynamic settings.

    Deviation: a connection above `max.connections` is closed; Kafka leaves it waiting until another ends.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._settings = broker.settings
        self._overrides = broker.settings.connection_limits_per_ip()
        self._rate = ConnectionRate()
        self.per_host: Counter[str] = Counter()
        self.total = 0

    def admit(self, host: str) -> str | None:
        """Count a connection from `host`; the limit it breaks, or None."""
        settings = self._broker.settings
        if settings is not self._settings:
            self._settings, self._overrides = settings, settings.connection_limits_per_ip()
        self.total += 1
        self.per_host[host] += 1
        if self.total > settings.max_connections:
            return f"max.connections is {settings.max_connections}"
        limit = self._overrides.get(host, settings.max_connections_per_ip)
        if self.per_host[host] > limit:
            return f"max.connections.per.ip is {limit} for {host}"
        if not settings.max_connection_creation_rate:
            return "max.connection.creation.rate is 0"
        return None

    def delay_s(self, now: float) -> float:
        """How long a connection that was admitted at `now` (monotonic clock) has to wait before it is
        served.
        """
        return self._rate.delay_s(self._settings.max_connection_creation_rate, now)

    def forget(self, host: str) -> None:
        self.total -= 1
        self.per_host[host] -= 1
        if not self.per_host[host]:
            del self.per_host[host]


class Listener:
    """One of `listeners`; owns its connections."""

    def __init__(
        self, endpoint: Endpoint, broker: Broker, dispatcher: Dispatcher, limits: ConnectionLimits
    ) -> None:
        self.name = endpoint.listener_name
        self.loop = asyncio.get_running_loop()
        self.buffer_pool = BufferPool()
        self.turn = Turn(self.loop)
        self.max_request_bytes = broker.settings.socket_request_max_bytes
        self.max_in_flight_requests = broker.settings.tidelog_connection_max_in_flight_requests
        self.port = endpoint.port
        self._host = endpoint.host
        self._broker = broker
        self._dispatcher = dispatcher
        self._limits = limits
        self._connections: set[Connection] = set()
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None

    def bind(self) -> None:
        """Take the address, without listening yet. Raises OSError. Port 0 takes a free one, told by `port`
        afterwards.
        """
        settings = self._broker.settings
        is_ipv6 = ":" in self._host
        bound = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted sockets inherit these. A small send buffer keeps sendfile's data in the CPU's cache.
            if settings.socket_send_buffer_bytes > 0:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.socket_send_buffer_bytes)
            bound.bind((self._host or "0.0.0.0", self.port))
        except OSError as error:
            bound.close()
            raise OSError(
                error.errno, f"{self.name} can't listen on {self._host}:{self.port}: {error.strerror}"
            ) from error
        self.port = bound.getsockname()[1]
        self._socket = bound

    async def serve(self) -> None:
        """Accept connections from now on."""
        assert self._socket is not None, "bind comes first"
        backlog = max(self._broker.settings.socket_listen_backlog_size, MIN_BACKLOG)
        self._server = await self.loop.create_server(
            lambda: SocketProtocol(Connection(self, self._dispatcher)), sock=self._socket, backlog=backlog
        )
        self._broker.telemetry.listener_views.append(self)
        self._watch_idle()

    def load(self) -> ConnectionLoad:
        """What its connections have in work. Any thread."""
        unanswered = with_unsent = unsent_bytes = held_back = 0
        for connection in tuple(self._connections):
            unanswered += connection.unanswered_count
            unsent = connection.unsent_bytes
            with_unsent += unsent > 0
            unsent_bytes += unsent
            held_back += connection.is_held_back
        return ConnectionLoad(unanswered, with_unsent, unsent_bytes, held_back)

    def admit(self, connection: Connection) -> bool:
        """Whether it may stay. One that comes too fast is held back for a while."""
        self._connections.add(connection)
        self._broker.telemetry.connection_opened(self.name)
        broken = self._limits.admit(connection.peer_host)
        if broken is not None:
            _log.warning(
                "connection refused", peer=f"{connection.peer_host}:{connection.peer_port}", reason=broken
            )
            return False
        delay_s = self._limits.delay_s(monotonic())
        if delay_s:
            connection.hold_back()
            self.loop.call_later(delay_s, connection.end_barrier)
        return True

    def forget(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._limits.forget(connection.peer_host)
            self._broker.telemetry.connection_closed(self.name)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()

    def close(self) -> None:
        self.stop_accepting()
        for connection in list(self._connections):
            connection.close()

    def _watch_idle(self) -> None:
        max_idle_ms = self._broker.settings.connections_max_idle_ms
        if max_idle_ms < 0:
            return
        oldest = monotonic() - max_idle_ms / 1000
        for connection in list(self._connections):
            if connection.is_idle_since(oldest):
                _log.debug("idle connection closed", peer=f"{connection.peer_host}:{connection.peer_port}")
                connection.close()
        self._broker.timer.add(
            self._watch_idle, self._broker.timer.now_ms() + max(max_idle_ms // IDLE_CHECKS_PER_TIMEOUT, 1)
        )
