"""One client's TCP connection: frames in, answers out in the order of their requests.

Requests are started as they arrive, so a client may pipeline; one that parks (a long poll, acks=all)
lets the next start, and the answers still leave in order. A request handled by a coroutine holds back
those behind it, as Kafka does with every request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final, Protocol, cast

import structlog

from tidelog.broker.request import RequestContext, RequestSource
from tidelog.broker.socket_io import (
    BufferPool,
    Chunk,
    FrameReader,
    InvalidFrameSizeError,
    Outbox,
    Turn,
    release_files,
)
from tidelog.wire.codec import MalformedMessageError

MAX_UNSENT_BYTES: Final = 1024 * 1024
"""Answers the client has not taken yet; beyond it nothing more is read from the socket."""
MAX_READY_BYTES: Final = 256 * 1024
"""Answers to the requests of one read leave together, but not more of them."""

_log = structlog.get_logger(__name__)


class ClosedByProtocolError(Exception):
    """The client said something that has no answer in Kafka's protocol; the message says what. The
    connection is closed.
    """


class ConnectionOwner(Protocol):
    """The part of a listener that its connections use."""

    name: str
    port: int
    loop: asyncio.AbstractEventLoop
    buffer_pool: BufferPool
    turn: Turn
    max_request_bytes: int
    max_in_flight_requests: int

    def admit(self, connection: Connection) -> bool:
        """Counts the connection and returns whether it may stay."""
        ...

    def forget(self, connection: Connection) -> None:
        """The connection has ended."""
        ...


class Dispatch(Protocol):
    """Starts the request in a frame, which is only valid during the call. Raises ClosedByProtocolError or
    MalformedMessageError to close the connection.
    """

    def __call__(self, connection: Connection, frame: memoryview, /) -> None: ...


class Connection(RequestSource):
    """Reads frames and sends answers in order; `dispatch` knows what a request means. A `SocketProtocol`
    passes the event loop's calls to it.
    """

    __slots__ = (
        "_barrier",
        "_frames",
        "_is_processing",
        "_max_waiting",
        "_outbox",
        "_paused",
        "_ready",
        "_ready_bytes",
        "_transport",
        "_turn",
        "_waiting",
        "dispatch",
        "listener",
        "peer_port",
    )

    def __init__(self, listener: ConnectionOwner, dispatch: Dispatch) -> None:
        super().__init__(listener.loop, listener.name)
        self.listener = listener
        self.dispatch = dispatch
        self.peer_port = 0
        self._frames = FrameReader(listener.buffer_pool, listener.max_request_bytes)
        self._max_waiting = listener.max_in_flight_requests
        self._waiting: deque[RequestContext] = deque()
        self._ready: list[Chunk] = []
        self._ready_bytes = 0
        self._barrier = False
        self._paused = False
        self._turn = listener.turn
        self._is_processing = False
        self._transport: asyncio.Transport | None = None
        self._outbox: Outbox | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether requests of this connection are still to be answered: then it isn't idle."""
        return bool(self._waiting) or self._barrier

    @property
    def unanswered_count(self) -> int:
        """Requests begun and not answered. Any thread, as the two below."""
        return len(self._waiting)

    @property
    def unsent_bytes(self) -> int:
        """Answers that the client has not taken yet."""
        return self._unsent_bytes()

    @property
    def is_held_back(self) -> bool:
        """Whether nothing is read from it for now."""
        return self._paused

    def is_waiting_for(self, context: RequestContext) -> bool:
        """Whether its answer is not there yet, or waits for those before it."""
        return context in self._waiting

    def is_idle_since(self, time: float) -> bool:
        """Whether it waits for nothing and has not heard or told anything since `time` (monotonic clock)."""
        return (
            self.last_active < time
            and not self.is_waiting
            and (self._outbox is None or self._outbox.last_progress < time)
        )

    # -- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peername = transport.get_extra_info("peername")
        if peername is None:  # it was reset before it was let in
            self.close()
            return
        self.peer_host, self.peer_port = peername[:2]
        fileno = transport.get_extra_info("socket").fileno()
        self._outbox = Outbox(self.loop, fileno, self._on_drained, self._on_send_error)
        if not self.listener.admit(self):
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shut()
        self.listener.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_closed:
            return
        self.last_active = monotonic()
        try:
            self._frames.received(nbytes)
        except InvalidFrameSizeError as error:
            self.refuse(str(error))
            return
        self._process()

    # -- requests in

    def _process(self) -> None:
        """Start every whole request that is here; the answers leave at the end of the loop's turn."""
        frames, dispatch = self._frames, self.dispatch
        self._is_processing = True
        try:
            while not self.is_closed:
                if (
                    self._barrier
                    or len(self._waiting) >= self._max_waiting
                    or self._unsent_bytes() > MAX_UNSENT_BYTES
                ):
                    self._pause()
                    break
                frame = frames.next_frame()
                if frame is None:
                    break
                dispatch(self, frame)
                if self._ready_bytes > MAX_READY_BYTES:
                    self.flush()
        except (InvalidFrameSizeError, MalformedMessageError, ClosedByProtocolError) as error:
            self.flush()
            self.refuse(str(error))
        except Exception as error:  # noqa: BLE001 - a bug: this connection ends, nothing else is hurt
            self.flush()
            _log.error("a request failed", peer=f"{self.peer_host}:{self.peer_port}", exc_info=error)
            self.close()
        finally:
            self._is_processing = False
        if self._ready:
            self._turn.flush_at_end(self)

    def _pause(self) -> None:
        self._frames.keep_unread()
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        """Something that held requests back may be gone: take up what was kept, then read on."""
        if not self._paused or self.is_closed or self._is_processing:
            return
        if (
            self._barrier
            or len(self._waiting) >= self._max_waiting
            or self._unsent_bytes() > MAX_UNSENT_BYTES
        ):
            return
        self._paused = False
        self._process()
        if not self._paused and not self.is_closed and self._transport is not None:
            self._transport.resume_reading()

    def _resume_soon(self) -> None:
        """Not within the caller, who may be another connection's request."""
        if self._paused and not self.is_closed:
            self.loop.call_soon(self._resume)

    def start_barrier(self) -> None:
        """Hold back later requests until `end_barrier`."""
        self._barrier = True

    def hold_back(self) -> None:
        """Read nothing until `end_barrier`."""
        self._barrier = True
        self._pause()

    def end_barrier(self) -> None:
        self._barrier = False
        self._resume()

    # -- answers out

    def answer_now(self, context: RequestContext, chunks: Sequence[Chunk]) -> None:
        """The answer of a request that was just started."""
        if self._waiting:
            context.chunks = chunks
            self._waiting.append(context)
        else:
            self._ready.extend(chunks)
            self._ready_bytes += context.answer_bytes

    def wait_for(self, context: RequestContext) -> None:
        """Keep the place of a request that is answered later."""
        self._waiting.append(context)

    def answer_later(self, context: RequestContext, chunks: Sequence[Chunk]) -> None:
        """The answer of a request that waited; it leaves once all before it have left."""
        context.chunks = chunks
        self.last_active = monotonic()
        waiting = self._waiting
        while waiting:
            done = waiting[0].chunks
            if done is None:
                break
            self._ready.extend(done)
            waiting.popleft()
        if self._ready and not self._is_processing:
            self._turn.flush_at_end(self)
        self._resume_soon()

    def at_end_of_turn(self, call: Callable[[], None]) -> None:
        """Have `call` run once all that can be read has been; what it answers leaves with the others."""
        self._turn.call_at_end(call)

    def flush(self) -> None:
        """Send the answers that are ready, in one write."""
        ready = self._ready
        if not ready or self._outbox is None:
            return
        self._ready = []
        self._ready_bytes = 0
        if len(ready) > 1 and all(type(chunk) is bytes for chunk in ready):
            ready = [b"".join(cast(list[bytes], ready))]
        self._outbox.send(ready)

    def _unsent_bytes(self) -> int:
        return self._outbox.waiting_bytes if self._outbox is not None else 0

    def _on_drained(self) -> None:
        self.last_active = monotonic()
        self._resume_soon()

    # -- the end

    def refuse(self, reason: str) -> None:
        """Close a connection that broke the protocol, with one line in the log."""
        if not self.is_closed:
            _log.warning("connection closed", peer=f"{self.peer_host}:{self.peer_port}", reason=reason)
            self.close()

    def close(self) -> None:
        self._shut()
        if self._transport is not None:
            self._transport.close()

    def _on_send_error(self, error: OSError) -> None:
        _log.debug("connection lost", peer=f"{self.peer_host}:{self.peer_port}", reason=str(error))
        self.close()

    def _shut(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self._outbox is not None:
            self._outbox.close()
        self._frames.close()
        for context in self._waiting:
            context.abandon()
            release_files(context.chunks or ())
        self._waiting.clear()
        release_files(self._ready)
        self._ready.clear()
