"""Listening sockets, and the limits on connections: their number, their number per address, their rates (of
the broker and of single addresses, KIP-612), and their idle time.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, OrderedDict
from collections.abc import Hashable
from time import monotonic
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import structlog

from tidelog.broker.net.connection import CLIENT_LOG, Connection, Dispatch
from tidelog.broker.net.socket_io import BufferPool
from tidelog.broker.net.socket_protocol import SocketProtocol
from tidelog.broker.net.tls import ServerCertificates, TlsAcceptor
from tidelog.broker.net.turn import Turn
from tidelog.model.brokers import Endpoint, host_and_port
from tidelog.model.fair_budget import NO_LIMIT, FairBudget

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tidelog.broker.cluster.view import CurrentSettings
    from tidelog.broker.net.authentication import Authenticator
    from tidelog.broker.security.client_quotas import ClientQuotas
    from tidelog.kernel.timer import Timer
    from tidelog.metrics.telemetry import Telemetry


C = TypeVar("C", bound=Hashable)


class ConnectionRate:
    """Limits connections to a number per second, with bursts of one second's worth."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0.0  # when the latest connection would have come at an even rate

    def delay_s(self, rate: float, now: float) -> float:
        """Returns how many seconds one more connection would have to wait."""
        return max(self._after_one_more(rate, now) - now, 0.0)

    def count(self, rate: float, now: float) -> None:
        """Counts a connection."""
        self._next = self._after_one_more(rate, now)

    def is_idle(self, now: float) -> bool:
        """Returns whether the full burst is available."""
        return self._next <= now - 1

    def _after_one_more(self, rate: float, now: float) -> float:
        return max(self._next, now - 1) + 1 / rate


class WaitingConnections(Generic[C]):
    """The connections above `max.connection.creation.rate`, which wait until they are served.

    Addresses take turns. An address that opens connections faster than the rate therefore delays another
    one by one turn for each connection of that other one. A connection that the broker closes while it waits
    takes no turn. That a client has closed one is noticed only in its turn, because nothing is read before.
    """

    def __init__(self) -> None:
        self._rate = ConnectionRate()
        self._by_host: OrderedDict[str, OrderedDict[C, None]] = OrderedDict()

    def admit(self, connection: C, host: str, rate: float, now: float) -> bool:
        """Returns whether the connection is served at once. Otherwise it waits for `take_due`."""
        if not self._by_host and not self._rate.delay_s(rate, now):
            self._rate.count(rate, now)
            return True
        self._by_host.setdefault(host, OrderedDict())[connection] = None
        return False

    def forget(self, connection: C, host: str) -> None:
        """Forgets a connection that ended, if it waits."""
        waiting = self._by_host.get(host)
        if waiting is not None and connection in waiting:
            del waiting[connection]
            if not waiting:
                del self._by_host[host]

    def take_due(self, rate: float, now: float) -> list[C]:
        """Returns the connections whose turn has come. They wait no longer."""
        due: list[C] = []
        while self._by_host and not self._rate.delay_s(rate, now):
            self._rate.count(rate, now)
            host, waiting = self._by_host.popitem(last=False)
            due.append(waiting.popitem(last=False)[0])
            if waiting:
                self._by_host[host] = waiting
        return due

    def next_turn_s(self, rate: float, now: float) -> float | None:
        """Returns the seconds until the next turn, or None if no connection waits."""
        return self._rate.delay_s(rate, now) if self._by_host else None


IDLE_CHECKS_PER_TIMEOUT = 10
"""A connection is closed at most a tenth of `connections.max.idle.ms` late."""
MAX_HOST_RATES = 10_000
"""The addresses whose rate of connections is remembered, if a quota limits it."""
MAX_UNREAD_ANSWER_BYTES = 256 * 1024 * 1024
"""The responses in memory that clients have not read, without the small ones."""
RESERVED_PART = 8
"""The brokers' own listener has memory of its own: this part of what clients have."""
MAX_EXCESS_S = 1.0
"""The longest time for which a connection above the quota of its address stays open: Kafka's quota window."""
MIN_BACKLOG = 1024
"""Lets a thousand clients reconnect at once. With Kafka's default of 50 they wait for SYN retries."""

_log = structlog.get_logger(__name__)


class ConnectionLimits:
    """Applies `max.connections`, `max.connections.per.ip` and `max.connection.creation.rate`, which are
    dynamic settings, to all listeners of a broker, and holds the receive buffers that they share.

    If brokers have a listener of their own, its connections are admitted in any case, as in Kafka. Clients
    can therefore not cut the brokers off from each other, and administrators can use this listener if a
    limit keeps them out.

    A quota `connection_creation_rate` limits the rate of one address (KIP-612). As in Kafka, a connection
    above it is closed after a moment, and the quota does not count it.

    Deviations: a connection above `max.connections` is closed; Kafka leaves it waiting until another ends.
    Above `max.connection.creation.rate`, addresses take turns; Kafka accepts connections in their order.
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
        self._waiting: WaitingConnections[Connection] = WaitingConnections()
        self._turn: asyncio.TimerHandle | None = None
        self.buffer_pool = BufferPool(self._budget(settings.broker.queued_max_request_bytes))
        self.unread_answers = self._budget(MAX_UNREAD_ANSWER_BYTES)
        self.per_host: Counter[str] = Counter()
        self.total = 0

    def is_of_brokers(self, listener_name: str) -> bool:
        """Returns whether a listener is the brokers', and clients have other ones."""
        return listener_name in self._exempt_listener_names

    def _budget(self, max_bytes: int) -> FairBudget:
        """Returns a budget with a reserve for brokers if they have a listener of their own."""
        if max_bytes <= 0:
            return FairBudget(NO_LIMIT)
        reserve = max_bytes // RESERVED_PART if self._exempt_listener_names else 0
        return FairBudget(max_bytes + reserve, reserve)

    def admit(self, host: str, listener_name: str) -> str | None:
        """Counts a connection from `host`. Returns the limit that it exceeds, or None."""
        settings = self._current.broker
        if settings is not self._settings:
            self._settings, self._overrides = settings, settings.connection_limits_per_ip()
        self.total += 1
        self.per_host[host] += 1
        if self.is_of_brokers(listener_name):
            return None
        if self.total > settings.max_connections:
            return f"max.connections is {settings.max_connections}"
        limit = self._overrides.get(host, settings.max_connections_per_ip)
        if self.per_host[host] > limit:
            return f"max.connections.per.ip is {limit} for {host}"
        return None

    def excess_s(self, now: float, listener_name: str, host: str) -> float:
        """Returns how many seconds a connection that was admitted at `now` (of the monotonic clock) comes
        too early for the quota of its address.
        """
        rate = self._quotas.limits.connection_rate(host)
        if rate is None or self.is_of_brokers(listener_name):
            return 0.0
        known = self._rate_of(host, now)
        delay_s = known.delay_s(rate, now)
        if not delay_s:
            known.count(rate, now)
        return delay_s

    def start(self, now: float, listener_name: str, connection: Connection) -> None:
        """Holds back an admitted connection until its turn has come, if it is above the broker's rate."""
        rate = self._settings.max_connection_creation_rate
        if self.is_of_brokers(listener_name):
            return
        if self._waiting.admit(connection, connection.peer_host, rate, now):
            return
        connection.hold_back()
        if self._turn is None:
            self._take_turns(connection.loop)

    def _take_turns(self, loop: asyncio.AbstractEventLoop) -> None:
        now, rate = monotonic(), self._settings.max_connection_creation_rate
        for connection in self._waiting.take_due(rate, now):
            connection.end_barrier()
        next_turn_s = self._waiting.next_turn_s(rate, now)
        self._turn = None if next_turn_s is None else loop.call_later(next_turn_s, self._take_turns, loop)

    def _rate_of(self, host: str, now: float) -> ConnectionRate:
        known = self._host_rates.get(host)
        if known is None:
            if len(self._host_rates) >= MAX_HOST_RATES:
                busy = {host: rate for host, rate in self._host_rates.items() if not rate.is_idle(now)}
                self._host_rates = busy if len(busy) < MAX_HOST_RATES // 2 else {}
            known = self._host_rates[host] = ConnectionRate()
        return known

    def forget(self, connection: Connection) -> None:
        host = connection.peer_host
        self._waiting.forget(connection, host)
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
        self.unread_answers = limits.unread_answers
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
                error.errno,
                f"{self.name} can't listen on {host_and_port(self._host, self.port)}: {error.strerror}",
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
                self.login_ended,
                is_authenticating=self._authenticator is None,
            )
            self._acceptor.start(backlog)
        self._watch_idle()

    def _new_connection(self) -> Connection:
        connection = Connection(self, self._dispatch)
        connection.is_of_brokers = self._limits.is_of_brokers(self.name)
        if self._authenticator is not None:
            self._authenticator.guard(connection)
        return connection

    def login_ended(self, succeeded: bool) -> None:
        """Counts a login or a failed one."""
        self._telemetry.login_ended(self.name, succeeded=succeeded)

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
        """Counts the connection and returns whether it may stay. A connection above a rate is held back."""
        self._connections.add(connection)
        self._telemetry.connection_opened(self.name)
        broken = self._limits.admit(connection.peer_host, self.name)
        if broken is not None:
            CLIENT_LOG.warning("connection refused", peer=connection.peer, reason=broken)
            return False
        if connection.authentication is not None:
            connection.authentication.start_deadline()
        now = monotonic()
        excess_s = self._limits.excess_s(now, self.name, connection.peer_host)
        if excess_s:
            connection.hold_back()
            self.loop.call_later(min(excess_s, MAX_EXCESS_S), connection.close)
        else:
            self._limits.start(now, self.name, connection)
        return True

    def forget(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._limits.forget(connection)
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
                _log.debug("idle connection closed", peer=connection.peer)
                connection.close()
        self._timer.add_after(self._watch_idle, max(max_idle_ms // IDLE_CHECKS_PER_TIMEOUT, 1))
