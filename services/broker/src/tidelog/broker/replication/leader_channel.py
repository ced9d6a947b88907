"""One connection to another broker, over which a follower asks its leader: Kafka's protocol, the asking side.

Requests leave as they are sent, several may be under way, answers come in their order. `records` of an answer
are views into the receive buffer and hold only while the answer is being handled, so handling is a callback
and not a future.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from tidelog.broker.frames import BufferPool, FrameReader, InvalidFrameSizeError
from tidelog.broker.outbox import Outbox
from tidelog.broker.socket_protocol import SocketProtocol
from tidelog.model.brokers import Endpoint
from tidelog.wire.codec import MalformedMessageError, request_encoder, response_decoder
from tidelog.wire.headers import decode_response_header, encode_request_header
from tidelog.wire.schema import Buffer

CONNECT_TIMEOUT_MS: Final = 3_000
"""At most, however long an answer may take: the address may be that of a pod that went, which nobody answers
at, and the name has another by now. Each attempt asks for the name's address anew.
"""
MAX_IN_FLIGHT_REQUESTS: Final = 5
MAX_ANSWER_BYTES: Final = 2**31 - 1
"""An answer holds at least one batch of each partition that has news, whatever the limits asked for."""

_BEGIN = struct.Struct(">i4si")  # size, API key and version, correlation id

OnAnswer = Callable[[Any], None]
OnLost = Callable[[str], None]


class ChannelLostError(Exception):
    """The connection is gone or can't be had; the message says why. What was asked may or may not have
    arrived.
    """


class Question:
    """What can be asked over a channel: one version of an API, by default as the codec has it."""

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


class _Pending:
    __slots__ = ("correlation_id", "deadline_s", "on_answer", "question")

    def __init__(
        self, question: Question, correlation_id: int, deadline_s: float, on_answer: OnAnswer
    ) -> None:
        self.question = question
        self.correlation_id = correlation_id
        self.deadline_s = deadline_s  # the loop's clock
        self.on_answer = on_answer


class LeaderChannel:
    """Made by `open_channel`. `on_lost` is called once, with the reason, unless `close` was; nothing is
    answered after that.
    """

    __slots__ = (
        "_client_id",
        "_correlation_id",
        "_frames",
        "_headers",
        "_is_reading",
        "_loop",
        "_on_lost",
        "_outbox",
        "_pending",
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
        self._frames = FrameReader(pool, MAX_ANSWER_BYTES)
        self._pending: deque[_Pending] = deque()
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
        return len(self._pending)

    def send(self, question: Question, request: Any, timeout_ms: int, on_answer: OnAnswer) -> None:
        """`on_answer` gets the answer decoded; an exception from it ends the channel, for it is a bug.

        Raises ChannelLostError if the channel is closed, BufferError above MAX_IN_FLIGHT_REQUESTS.
        """
        if self.is_closed or self._outbox is None:
            raise ChannelLostError("the channel is closed")
        if len(self._pending) >= MAX_IN_FLIGHT_REQUESTS:
            raise BufferError(f"{len(self._pending)} requests are under way")
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = self._headers.get(question)
        if header is None:
            encoded = encode_request_header(question.api_key, question.version, 0, self._client_id)
            header = self._headers[question] = encoded[:4], encoded[8:]  # the correlation id stands between
        begins, ends = header
        body = question.encode(request)
        size = len(begins) + 4 + len(ends) + (len(body[0]) if len(body) == 1 else sum(map(len, body)))
        deadline_s = self._loop.time() + timeout_ms / 1000
        self._pending.append(_Pending(question, correlation_id, deadline_s, on_answer))
        if self._watchdog is None:
            self._watchdog = self._loop.call_at(deadline_s, self._check_deadline)
        if not self._unsent and not self._is_reading:
            self._loop.call_soon(self._flush)
        self._unsent.append(_BEGIN.pack(size, begins, correlation_id))
        self._unsent.append(ends)
        self._unsent.extend(body)

    def _flush(self) -> None:
        """Once for all that is asked in one go: at the end of a read, or of the loop's turn."""
        unsent = self._unsent
        self._unsent = []
        if self._outbox is not None and not self.is_closed:
            self._outbox.send((b"".join(unsent),))

    def close(self) -> None:
        """Ask nothing more; what is under way is never answered."""
        if self.is_closed:
            return
        self.is_closed = True
        self._pending.clear()
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
        fileno = transport.get_extra_info("socket").fileno()
        self._outbox = Outbox(self._loop, fileno, self._on_drained, self._on_send_error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("the leader closed the connection" if exc is None else f"the connection broke: {exc}")

    def _on_drained(self) -> None:
        """Nobody waits for it: requests are few and small."""

    def _on_send_error(self, error: OSError) -> None:
        self._lose(f"the connection broke: {error}")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        frames = self._frames
        self._is_reading = True
        try:
            frames.received(nbytes)
            while not self.is_closed and (frame := frames.next_frame()) is not None:
                self._answered(frame)
        except InvalidFrameSizeError:
            self._lose("what answers does not speak Kafka's protocol in plain text")
        except MalformedMessageError as error:
            self._lose(f"an answer can't be read: {error}")
        finally:
            self._is_reading = False
        if self._unsent:
            self._flush()

    def _answered(self, frame: memoryview) -> None:
        if not self._pending:
            raise MalformedMessageError("nothing was asked")
        pending = self._pending.popleft()
        question = pending.question
        correlation_id, position = decode_response_header(frame, 0, question.api_key, question.version)
        if correlation_id != pending.correlation_id:
            raise MalformedMessageError(f"request {correlation_id} instead of {pending.correlation_id}")
        answer, _ = question.decode(frame, position)
        pending.on_answer(answer)

    def _check_deadline(self) -> None:
        """One timer for all requests, set anew when it goes off: an answer need not cancel anything."""
        self._watchdog = None
        if self.is_closed or not self._pending:
            return
        deadline_s = self._pending[0].deadline_s
        if deadline_s <= self._loop.time():
            self._lose("the leader did not answer within replica.socket.timeout.ms")
        else:
            self._watchdog = self._loop.call_at(deadline_s, self._check_deadline)

    def _lose(self, reason: str) -> None:
        if not self.is_closed:
            self.close()
            self._on_lost(reason)


async def open_channel(
    endpoint: Endpoint,
    pool: BufferPool,
    *,
    client_id: str,
    receive_buffer_bytes: int,
    timeout_ms: int,
    on_lost: OnLost,
) -> LeaderChannel:
    """Connect to a broker's inter-broker listener. `receive_buffer_bytes` is SO_RCVBUF, -1 for the system's
    own.

    Raises ChannelLostError.
    """
    loop = asyncio.get_running_loop()
    timeout_ms = min(timeout_ms, CONNECT_TIMEOUT_MS)
    if endpoint.security_protocol != "PLAINTEXT":
        raise ChannelLostError(f"brokers can't talk over {endpoint.security_protocol} yet, only PLAINTEXT")
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            connection = await _connect(loop, endpoint, receive_buffer_bytes)
            channel = LeaderChannel(loop, pool, client_id, on_lost)
            await loop.create_connection(lambda: SocketProtocol(channel), sock=connection)
    except TimeoutError as error:
        raise ChannelLostError(f"{endpoint.host}:{endpoint.port} did not answer in time") from error
    except OSError as error:
        raise ChannelLostError(f"{endpoint.host}:{endpoint.port}: {error}") from error
    return channel


async def _connect(
    loop: asyncio.AbstractEventLoop, endpoint: Endpoint, receive_buffer_bytes: int
) -> socket.socket:
    """To the first of the host's addresses that takes it; the buffer's size has to be known before."""
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
