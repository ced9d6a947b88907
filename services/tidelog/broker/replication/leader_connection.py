"""The connection from a follower to its leader: Kafka's protocol, the client's half.

`LeaderConnection` is one TCP connection. Requests leave in the order in which they were sent, several may be
in flight, and responses come back in the same order. The `records` of a response are views into the receive
buffer and are valid only while the response is handled, so a response goes to a callback and not to a future.
`LeaderLink` opens a connection when one is wanted and opens another one when it is lost.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

import structlog

from tidelog.broker.net.socket_io import BufferPool, FrameReader, InvalidFrameSizeError, Outbox
from tidelog.broker.net.socket_protocol import SocketProtocol
from tidelog.broker.net.tls import TlsTransport, shake_hands
from tidelog.broker.net.tls_socket import TlsOutbox, TlsSession
from tidelog.kernel.instants import Backoff
from tidelog.model.brokers import Endpoint
from tidelog.wire.codec import MalformedMessageError, request_encoder, response_decoder
from tidelog.wire.headers import decode_response_header, encode_request_header
from tidelog.wire.schema import Buffer

CONNECT_TIMEOUT_MS: Final = 3_000
"""The longest time that one attempt to connect takes, however long a response may take. The address may be
that of a deleted pod, at which nothing answers, while the name already has another address. Each attempt
resolves the name again.
"""
FIRST_BACKOFF_MS: Final = 50
"""The pause before the second attempt to connect. It doubles up to `replica.fetch.backoff.ms`."""
MAX_IN_FLIGHT_REQUESTS: Final = 5
MAX_RESPONSE_BYTES: Final = 2**31 - 1
"""A response holds at least one batch of each partition that has records, whatever limits were requested."""

_BEGIN = struct.Struct(">i4si")  # size, API key and version, correlation id

# `Any`: a question's request and response are messages of one API, and each question has its own types. The
# caller of `send` passes the two together.
OnResponse = Callable[[Any], None]
OnLost = Callable[[str], None]

_log = structlog.get_logger(__name__)


class ConnectionLostError(Exception):
    """The connection is lost or cannot be opened; the message gives the reason. The requests in flight may or
    may not have reached the leader.
    """


class Question:
    """A request that a follower can send: one version of an API. By default the codec encodes and decodes
    it.
    """

    __slots__ = ("api_key", "decode", "encode", "version")

    def __init__(
        self,
        api_key: int,
        version: int,
        encode: Callable[[Any], Sequence[Buffer]] | None = None,
        decode: Callable[[memoryview, int], tuple[Any, int]] | None = None,
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.encode = encode or request_encoder(api_key, version)
        self.decode = decode or response_decoder(api_key, version)


class _InFlight:
    """A request that the leader has not answered yet."""

    __slots__ = ("correlation_id", "deadline_s", "on_response", "question")

    def __init__(
        self, question: Question, correlation_id: int, deadline_s: float, on_response: OnResponse
    ) -> None:
        self.question = question
        self.correlation_id = correlation_id
        self.deadline_s = deadline_s  # on the event loop's clock
        self.on_response = on_response


class LeaderConnection:
    """Made by `open_connection`. `on_lost` is called once with the reason, unless `close` was called before.
    After that no response arrives.
    """

    __slots__ = (
        "_client_id",
        "_correlation_id",
        "_frames",
        "_headers",
        "_in_flight",
        "_is_reading",
        "_loop",
        "_on_lost",
        "_outbox",
        "_transport",
        "_unsent",
        "_watchdog",
        "is_closed",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pool: BufferPool, client_id: str, on_lost: OnLost
    ) -> None:
        self._loop = loop
        self._client_id = client_id
        self._on_lost = on_lost
        self._frames = FrameReader(pool, MAX_RESPONSE_BYTES)
        self._in_flight: deque[_InFlight] = deque()
        self._unsent: list[Buffer] = []
        self._headers: dict[Question, tuple[bytes, bytes]] = {}
        self._correlation_id = 0
        self._is_reading = False
        self._transport: asyncio.Transport | None = None
        self._outbox: Outbox | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self.is_closed = False

    @property
    def in_flight_count(self) -> int:
        return len(self._in_flight)

    def send(self, question: Question, request: Any, timeout_ms: int, on_response: OnResponse) -> None:
        """Sends a request. `on_response` receives the decoded response; if it raises, which is a bug, the
        connection ends.

        Raises ConnectionLostError if the connection is closed, BufferError above MAX_IN_FLIGHT_REQUESTS.
        """
        if self.is_closed or self._outbox is None:
            raise ConnectionLostError("the connection is closed")
        if len(self._in_flight) >= MAX_IN_FLIGHT_REQUESTS:
            raise BufferError(f"{len(self._in_flight)} requests are in flight")
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = self._headers.get(question)
        if header is None:
            encoded = encode_request_header(question.api_key, question.version, 0, self._client_id)
            header = self._headers[question] = encoded[:4], encoded[8:]  # around the correlation id
        begins, ends = header
        body = question.encode(request)
        size = len(begins) + 4 + len(ends) + (len(body[0]) if len(body) == 1 else sum(map(len, body)))
        deadline_s = self._loop.time() + timeout_ms / 1000
        self._in_flight.append(_InFlight(question, correlation_id, deadline_s, on_response))
        if self._watchdog is None:
            self._watchdog = self._loop.call_at(deadline_s, self._check_deadline)
        if not self._unsent and not self._is_reading:
            self._loop.call_soon(self._flush)
        self._unsent.append(_BEGIN.pack(size, begins, correlation_id))
        self._unsent.append(ends)
        self._unsent.extend(body)

    def _flush(self) -> None:
        """Writes the requests of one read event, or of one iteration of the event loop, together."""
        unsent = self._unsent
        self._unsent = []
        if self._outbox is not None and not self.is_closed:
            self._outbox.send((b"".join(unsent),))

    def close(self) -> None:
        """Closes the connection. The requests in flight are never answered."""
        if self.is_closed:
            return
        self.is_closed = True
        self._in_flight.clear()
        self._frames.close()
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._outbox is not None:
            self._outbox.close()
        if self._transport is not None:
            self._transport.abort()

    # -- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        session = transport.get_extra_info("tls_session")
        if session is None:
            fileno = transport.get_extra_info("socket").fileno()
            self._outbox = Outbox(self._loop, fileno, self._on_drained, self._on_send_error)
        else:
            self._outbox = TlsOutbox(self._loop, session, self._on_drained, self._on_send_error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("the leader closed the connection" if exc is None else f"the connection broke: {exc}")

    def _on_drained(self) -> None:
        """Does nothing: requests are few and small, so no caller waits until they are sent."""

    def _on_send_error(self, error: OSError) -> None:
        self._lose(f"the connection broke: {error}")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer()

    def missing_bytes(self) -> int:
        return self._frames.missing_bytes()

    def buffer_updated(self, nbytes: int) -> None:
        frames = self._frames
        self._is_reading = True
        try:
            frames.received(nbytes)
            while not self.is_closed and (frame := frames.next_frame()) is not None:
                self._received(frame)
        except InvalidFrameSizeError:
            self._lose("the peer does not speak Kafka's protocol in plain text")
        except MalformedMessageError as error:
            self._lose(f"a response cannot be decoded: {error}")
        finally:
            self._is_reading = False
        if self._unsent:
            self._flush()

    def _received(self, frame: memoryview) -> None:
        if not self._in_flight:
            raise MalformedMessageError("it belongs to no request")
        request = self._in_flight.popleft()
        question = request.question
        correlation_id, position = decode_response_header(frame, 0, question.api_key, question.version)
        if correlation_id != request.correlation_id:
            raise MalformedMessageError(
                f"its correlation id is {correlation_id} instead of {request.correlation_id}"
            )
        response, _ = question.decode(frame, position)
        request.on_response(response)

    def _check_deadline(self) -> None:
        """Checks the deadline of the oldest request. One timer serves all requests: it is set again when it
        fires, so a response cancels nothing.
        """
        self._watchdog = None
        if self.is_closed or not self._in_flight:
            return
        deadline_s = self._in_flight[0].deadline_s
        if deadline_s <= self._loop.time():
            self._lose("the leader did not answer within replica.socket.timeout.ms")
        else:
            self._watchdog = self._loop.call_at(deadline_s, self._check_deadline)

    def _lose(self, reason: str) -> None:
        if not self.is_closed:
            self.close()
            self._on_lost(reason)


async def open_connection(
    endpoint: Endpoint,
    pool: BufferPool,
    *,
    client_id: str,
    receive_buffer_bytes: int,
    timeout_ms: int,
    on_lost: OnLost,
    tls: ssl.SSLContext | None = None,
) -> LeaderConnection:
    """Connects to a broker's inter-broker listener. `receive_buffer_bytes` is SO_RCVBUF; -1 means the
    system's default. The connection uses TLS if `tls` is given.

    Raises ConnectionLostError.
    """
    loop = asyncio.get_running_loop()
    timeout_ms = min(timeout_ms, CONNECT_TIMEOUT_MS)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            connected = await _connect(loop, endpoint, receive_buffer_bytes)
            connection = LeaderConnection(loop, pool, client_id, on_lost)
            if tls is None:
                await loop.create_connection(lambda: SocketProtocol(connection), sock=connected)
            else:
                await _begin_tls(loop, connected, connection, tls, endpoint)
    except TimeoutError as error:
        raise ConnectionLostError(f"{endpoint.address} did not answer in time") from error
    except OSError as error:
        raise ConnectionLostError(f"{endpoint.address}: {error}") from error
    return connection


async def _begin_tls(
    loop: asyncio.AbstractEventLoop,
    connected: socket.socket,
    connection: LeaderConnection,
    tls: ssl.SSLContext,
    endpoint: Endpoint,
) -> None:
    session = TlsSession(tls, connected, server_hostname=endpoint.host)
    try:
        await shake_hands(loop, session, None)
    except BaseException:
        connected.close()
        raise
    TlsTransport(loop, session, (endpoint.host, endpoint.port)).begin(connection)


async def _connect(
    loop: asyncio.AbstractEventLoop, endpoint: Endpoint, receive_buffer_bytes: int
) -> socket.socket:
    """Returns a socket connected to the first of the host's addresses that accepts.

    SO_RCVBUF takes effect only if it is set before the socket connects.
    """
    addresses = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    refusal: OSError | None = None
    for family, kind, protocol, _, address in addresses:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            if receive_buffer_bytes >= 0:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(connection, address)
        except OSError as error:
            connection.close()
            refusal = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise refusal or OSError(f"{endpoint.host} has no address")


OpenConnection = Callable[[Endpoint, OnLost], Awaitable[LeaderConnection]]


class LeaderLink:
    """Opens a connection to one leader on demand, with pauses that grow while attempts fail. `on_up` is
    called when there is a connection, `on_down` when it is lost. After a loss, `want` must be called again.
    """

    def __init__(
        self,
        leader_id: int,
        find_endpoint: Callable[[], Endpoint | None],
        open_connection: OpenConnection,
        *,
        longest_backoff_ms: int,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> None:
        self.connection: LeaderConnection | None = None
        self._leader_id = leader_id
        self._find_endpoint = find_endpoint
        self._open_connection = open_connection
        self._backoff = Backoff(FIRST_BACKOFF_MS, longest_backoff_ms)
        self._on_up = on_up
        self._on_down = on_down
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self._retry = asyncio.Event()
        self._last_warning = ""
        self._is_closed = False

    def want(self) -> None:
        """Starts to connect, unless there is a connection or an attempt is under way."""
        if self.connection is None and self._task is None and not self._is_closed:
            self._task = asyncio.create_task(self._connect(), name=f"connect to broker {self._leader_id}")

    def retry_now(self) -> None:
        """Ends the pause before the next attempt: the leader's address may be known now."""
        self._retry.set()

    def lose(self, reason: str) -> None:
        """Closes the connection, if there is one, as if it broke."""
        if self.connection is not None:
            self.connection.close()
            self._lost(reason)

    def works(self) -> None:
        """Resets the pause: a response arrived, so the next loss does not count with the earlier ones."""
        if self._failures:
            self._failures = 0
            self._last_warning = ""

    async def close(self) -> None:
        self._is_closed = True
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _connect(self) -> None:
        while True:
            await self._pause()
            endpoint = self._find_endpoint()
            try:
                if endpoint is None:
                    if self._backoff.delay_ms(self._failures) < self._backoff.most_ms:
                        continue  # the controller sends roles before addresses
                    raise ConnectionLostError("the broker is not alive or has no such listener")
                connection = await self._open_connection(endpoint, self._lost)
            except ConnectionLostError as error:
                self._warn("leader cannot be reached", str(error))
                continue
            if connection.is_closed:  # it was lost before this task resumed
                continue
            self.connection, self._task = connection, None
            self._on_up()
            return

    async def _pause(self) -> None:
        pause_ms = self._backoff.delay_ms(self._failures) if self._failures else 0
        self._failures += 1
        self._retry.clear()
        if pause_ms:
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._retry.wait()
            except TimeoutError:
                return

    def _lost(self, reason: str) -> None:
        if self.connection is None:  # while connecting
            return
        self.connection = None
        self._warn("connection to leader lost", reason)
        self._on_down()

    def _warn(self, event: str, reason: str) -> None:
        """Logs a warning, unless it is the same as the last one."""
        if self._last_warning != event + reason:
            self._last_warning = event + reason
            _log.warning(event, leader=self._leader_id, reason=reason)
