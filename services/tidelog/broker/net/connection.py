"""One client's TCP connection. It reads frames and sends the responses in the order of their requests.

A request starts as soon as it has arrived, so a client may pipeline. While a request is parked (a long poll,
acks=all), the next one starts; the responses still leave in order. A request whose handler is a coroutine
holds back the requests after it, as Kafka does with every request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final, Protocol, cast

import structlog

from tidelog.broker.net.socket_io import (
    BufferPool,
    Chunk,
    FrameReader,
    InvalidFrameSizeError,
    NoMemoryForRequestError,
    Outbox,
    memory_of,
    release_files,
)
from tidelog.broker.net.tls_socket import TlsOutbox
from tidelog.broker.net.turn import CONNECTION_TURN_S, Turn
from tidelog.broker.requests.request import RequestContext, RequestSource
from tidelog.model.brokers import host_and_port
from tidelog.model.fair_budget import SCAN_INTERVAL_S, FairBudget, Holding
from tidelog.process.structured_log import BoundedLog
from tidelog.wire.codec import MalformedMessageError

MAX_UNSENT_BYTES: Final = 1024 * 1024
"""The bytes of responses that the client may leave unread. Above it, the broker stops reading requests."""
MAX_READY_BYTES: Final = 256 * 1024
"""The responses to the requests of one read leave together, up to this size."""
LARGE_ANSWER_ROOM_BYTES: Final = 64 * 1024 * 1024
"""The room in the budget of unread responses that a request takes while its response is made, if that may be
large. A description of 16 MiB, the largest, takes about four times as much meanwhile.
"""
SMALL_ANSWERS_BYTES: Final = 16 * 1024
"""The unread responses of a connection in memory count in the budget if they have more bytes than this."""
MAX_CLIENT_LINES_PER_SECOND: Final = 20
CLIENT_LOG: Final = BoundedLog("tidelog.broker.clients", MAX_CLIENT_LINES_PER_SECOND)
"""The log of connections that are refused or closed because of what their clients did."""
_log = structlog.get_logger(__name__)


class ClosedByProtocolError(Exception):
    """The client sent something to which Kafka's protocol has no response. The message names it. The
    connection is closed.
    """


class _ClosedGate:
    """The gate of closed connections. They start no requests, but without a gate, a request that started by
    mistake would need no login.
    """

    @property
    def takes_raw_tokens(self) -> bool:
        return False

    def check(self, api_key: int) -> None:
        """Refuses every request."""
        raise ClosedByProtocolError(f"a request of API {api_key} after the end of the connection")


CLOSED_GATE: Final = _ClosedGate()


class ConnectionOwner(Protocol):
    """The part of a listener that its connections use."""

    name: str
    port: int
    loop: asyncio.AbstractEventLoop
    buffer_pool: BufferPool
    turn: Turn
    unread_answers: FairBudget
    max_request_bytes: int
    max_in_flight_requests: int

    def admit(self, connection: Connection) -> bool:
        """Counts the connection and returns whether it may stay."""
        ...

    def forget(self, connection: Connection) -> None:
        """Removes a connection that has ended."""
        ...

    def login_ended(self, succeeded: bool) -> None:
        """Counts a login or a failed one."""
        ...


class Dispatch(Protocol):
    """Starts the request in a frame, which is only valid during the call. Raises ClosedByProtocolError or
    MalformedMessageError to close the connection.
    """

    def __call__(self, connection: Connection, frame: memoryview, /) -> None: ...


class Connection(RequestSource):
    """Reads frames, passes them to `dispatch`, and sends the responses in order. A `SocketProtocol` passes
    the event loop's calls to it.
    """

    __slots__ = (
        "_awaits_memory",
        "_awaits_room",
        "_barriers",
        "_blocked_bytes",
        "_frames",
        "_is_processing",
        "_is_resume_due",
        "_is_room_granted",
        "_large",
        "_max_waiting",
        "_outbox",
        "_paused",
        "_pool",
        "_ready",
        "_ready_bytes",
        "_transport",
        "_turn",
        "_unmute",
        "_unread",
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
        self._pool = listener.buffer_pool
        self._frames = FrameReader(self._pool, listener.max_request_bytes, Holding(self._evicted))
        self._awaits_memory = False
        self._awaits_room = False  # for the response of the next request
        self._is_room_granted = False
        self._large = Holding(self._unread_evicted)
        self._max_waiting = listener.max_in_flight_requests
        self._waiting: deque[RequestContext] = deque()
        self._ready: list[Chunk] = []
        self._ready_bytes = 0
        self._blocked_bytes = 0  # of the responses that wait for earlier ones
        self._unread = Holding(self._unread_evicted, self._unread_progress)
        self._barriers = 0  # the reasons to hold back later requests
        self._paused = False
        self._unmute: asyncio.TimerHandle | None = None  # while the client is above a quota
        self._turn = listener.turn
        self._is_processing = False
        self._is_resume_due = False  # `_resume` will be called
        self._transport: asyncio.Transport | None = None
        self._outbox: Outbox | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether requests of this connection are unanswered. The connection is not idle then."""
        return bool(self._waiting) or self._barriers > 0

    @property
    def unanswered_count(self) -> int:
        """The number of requests that were started and not answered. Any thread may read it."""
        return len(self._waiting)

    @property
    def unsent_bytes(self) -> int:
        """The bytes of responses that the client has not accepted yet. Any thread may read it."""
        return self._unsent_bytes()

    @property
    def is_held_back(self) -> bool:
        """Whether the broker has stopped reading from this connection for now. Any thread may read it."""
        return self._paused

    def is_waiting_for(self, context: RequestContext) -> bool:
        """Returns whether the response is not ready, or waits for the responses before it."""
        return context in self._waiting

    def is_idle_since(self, time: float) -> bool:
        """Returns whether no request waits and no byte was received or sent since `time` (of the monotonic
        clock).
        """
        return (
            self.last_active < time
            and not self.is_waiting
            and (self._outbox is None or self._outbox.last_progress < time)
        )

    def limit_frames(self, max_request_bytes: int) -> None:
        """Sets the maximum size of the requests that arrive from now on, after a login for example."""
        self._frames.max_frame_bytes = max_request_bytes
        self._frames.key = self.budget_key

    @property
    def peer(self) -> str:
        """The client's address for logs, with an IPv6 address in brackets."""
        return host_and_port(self.peer_host, self.peer_port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peername = transport.get_extra_info("peername")
        if peername is None:  # the client reset the connection before it was accepted
            self.close()
            return
        self.peer_host, self.peer_port = peername[:2]
        self._frames.key = self.budget_key
        session = transport.get_extra_info("tls_session")
        if session is None:
            fileno = transport.get_extra_info("socket").fileno()
            self._outbox = Outbox(self.loop, fileno, self._on_drained, self._on_send_error)
        else:
            self._outbox = TlsOutbox(self.loop, session, self._on_drained, self._on_send_error)
        if not self.listener.admit(self):
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shut()
        self.listener.forget(self)
        # The outbox and the authentication refer to this connection. Without these references, its memory is
        # free at once, and does not wait for the garbage collector.
        self._outbox = self._transport = None
        self.authentication = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer()

    def missing_bytes(self) -> int:
        return self._frames.missing_bytes()

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
        if self._frames.is_starved:
            self._await_memory()

    def _await_memory(self) -> None:
        """Stops reading a frame until the budget has memory for the rest."""
        if not self._awaits_memory and not self.is_closed:
            self._awaits_memory = True
            self._pause()
            self._frames.await_room(self._memory_granted)
            self._check_memory()

    def _memory_granted(self) -> None:
        self._awaits_memory = False
        self._resume_soon()

    def _check_memory(self) -> None:
        if (self._awaits_memory or self._awaits_room) and not self.is_closed:
            self._pool.budget.check(monotonic())
            self.listener.unread_answers.check(monotonic())
            self.loop.call_later(SCAN_INTERVAL_S, self._check_memory)

    def has_room_for_large_answer(self, frame_bytes: int) -> bool:
        """Returns whether a request whose response may be large can start. A connection has one of them at a
        time. If it can't, its frame is served again when there is room.
        """
        if self._is_room_granted:
            self._is_room_granted = False
            return True
        budget, room = self.listener.unread_answers, LARGE_ANSWER_ROOM_BYTES
        is_alone = not self._large.amount
        if is_alone and budget.resize(self._large, self.budget_key, room, monotonic()):
            return True
        self._frames.take_back(frame_bytes)
        self._awaits_room = True
        if is_alone:
            budget.await_room(self._large, self.budget_key, room, self._room_granted, monotonic())
            self._check_memory()
        return False

    def _room_granted(self) -> None:
        self._awaits_room = False
        self._is_room_granted = True
        self._resume_soon()

    def _large_answered(self) -> None:
        self._awaits_room = False
        self.listener.unread_answers.resize(self._large, self.budget_key, 0, monotonic())
        self._resume_soon()

    def keep_copy(self, size_bytes: int, drop: Callable[[], object]) -> Callable[[], object]:
        def evicted() -> None:
            drop()
            self.refuse("others need the memory that its request holds (queued.max.request.bytes)")

        return self._frames.count_copy(size_bytes, evicted)

    def _evicted(self) -> None:
        self.refuse("others need the memory that its incomplete request holds (queued.max.request.bytes)")

    def _process(self) -> None:
        """Starts every complete request, but no more than fit in a turn. The responses leave at the end of
        the event loop's iteration.
        """
        frames, dispatch, turn = self._frames, self.dispatch, self._turn
        began_s = now_s = turn.seconds()
        left_s = turn.time_left_s(frames.key, began_s)
        ends_s = began_s + (left_s if left_s < CONNECTION_TURN_S else CONNECTION_TURN_S)
        self._is_processing = True
        try:
            while not self.is_closed:
                if (
                    self._barriers
                    or self._awaits_memory
                    or self._awaits_room
                    or len(self._waiting) >= self._max_waiting
                    or self._unsent_bytes() > MAX_UNSENT_BYTES
                ):
                    self._pause()
                    break
                frame = frames.next_frame()
                if frame is None:
                    break
                if now_s >= ends_s:
                    frames.take_back(len(frame))
                    self._pause()
                    self._await_turn()
                    break
                dispatch(self, frame)
                if self._ready_bytes > MAX_READY_BYTES:
                    self.flush()
                now_s = turn.seconds()
        except (
            InvalidFrameSizeError,
            NoMemoryForRequestError,
            MalformedMessageError,
            ClosedByProtocolError,
        ) as error:
            self.flush()
            self.refuse(str(error))
        except Exception as error:  # noqa: BLE001 - a bug: this connection ends, nothing else is hurt
            self.flush()
            _log.error("a request failed", peer=self.peer, exc_info=error)
            self.close()
        finally:
            self._is_processing = False
            if now_s > began_s:
                turn.spend(frames.key, now_s - began_s)
        if self._ready:
            turn.flush_at_end(self)

    def _pause(self) -> None:
        self._frames.keep_unread()
        if self._transport is not None:
            self._paused = True
            # Also if it is paused already: uvloop starts to read after connection_made, whatever that did.
            self._transport.pause_reading()

    def _resume(self) -> None:
        """Continues with the requests that were held back, and then with reading, if nothing holds them back
        any more.
        """
        if not self._paused or self.is_closed or self._is_processing:
            return
        if (
            self._barriers
            or self._awaits_memory
            or self._awaits_room
            or len(self._waiting) >= self._max_waiting
            or self._unsent_bytes() > MAX_UNSENT_BYTES
        ):
            return
        self._paused = False
        self._process()
        if self._frames.is_starved:
            self._await_memory()
        if not self._paused and not self.is_closed and self._transport is not None:
            self._transport.resume_reading()

    def _resume_soon(self) -> None:
        """Calls `_resume` later, because the caller may be serving a request of another connection."""
        if self._paused and not self.is_closed and not self._is_resume_due:
            self._is_resume_due = True
            self.loop.call_soon(self._resume_now)

    def _await_turn(self) -> None:
        """Calls `_resume` when this client has its turn again."""
        if not self._is_resume_due and not self.is_closed:
            self._is_resume_due = True
            self._turn.wait_for_next(self._frames.key, self._resume_now)

    def _resume_now(self) -> None:
        self._is_resume_due = False
        self._resume()

    def start_barrier(self) -> None:
        """Holds back later requests until `end_barrier`. There may be several barriers."""
        self._barriers += 1

    def hold_back(self) -> None:
        """Stops reading until `end_barrier`."""
        self._barriers += 1
        self._pause()

    def end_barrier(self) -> None:
        self._barriers -= 1
        self._resume()

    def mute(self, duration_s: float) -> None:
        """Starts no further request for that time, as Kafka mutes the channel of a client above its quota
        (KIP-219). A longer time that has begun stays in force.
        """
        if self.is_closed:
            return
        until = self.loop.time() + duration_s
        if self._unmute is None:
            self._barriers += 1
        elif self._unmute.when() >= until:
            return
        else:
            self._unmute.cancel()
        self._unmute = self.loop.call_at(until, self._end_mute)

    def _end_mute(self) -> None:
        self._unmute = None
        self.end_barrier()

    def answer_now(self, context: RequestContext, chunks: Sequence[Chunk]) -> None:
        """Sends the response of a request that was just started."""
        if context.route.may_answer_large:
            self._large_answered()
        if self._waiting:
            context.chunks = chunks
            self._waiting.append(context)
            self._blocked_bytes += context.answer_bytes
            if self._blocked_bytes > SMALL_ANSWERS_BYTES:
                self._count_unread()
        else:
            self._ready.extend(chunks)
            self._ready_bytes += context.answer_bytes

    def wait_for(self, context: RequestContext) -> None:
        """Keeps the place of a request that is answered later. If a coroutine has judged the request before
        its handler parks it, the request has its place already, the last one, or the connection has closed.
        """
        waiting = self._waiting
        if not self.is_closed and (not waiting or waiting[-1] is not context):
            waiting.append(context)

    def answer_later(self, context: RequestContext, chunks: Sequence[Chunk]) -> None:
        """Sends the response of a request that waited, once all responses before it are sent."""
        context.chunks = chunks
        self.last_active = monotonic()
        if context.route.may_answer_large:
            self._large_answered()
        self._blocked_bytes += context.answer_bytes
        waiting = self._waiting
        while waiting:
            done = waiting[0].chunks
            if done is None:
                break
            self._ready.extend(done)
            answer_bytes = waiting.popleft().answer_bytes
            self._ready_bytes += answer_bytes
            self._blocked_bytes -= answer_bytes
        if self._blocked_bytes > SMALL_ANSWERS_BYTES:
            self._count_unread()
        if self._ready and not self._is_processing:
            self._turn.flush_at_end(self)
        self._resume_soon()

    def at_end_of_turn(self, call: Callable[[], None]) -> None:
        """Calls `call` after what was readable has been served and before the responses are sent."""
        self._turn.call_at_end(call)

    def flush(self) -> None:
        """Sends the responses that are ready, in one write."""
        ready = self._ready
        if not ready or self._outbox is None:
            return
        is_small = self._ready_bytes <= MAX_READY_BYTES
        self._ready = []
        self._ready_bytes = 0
        if is_small and len(ready) > 1 and all(type(chunk) is bytes for chunk in ready):
            ready = [b"".join(cast(list[bytes], ready))]
        self._outbox.send(ready)
        if self._outbox.waiting_bytes > SMALL_ANSWERS_BYTES:
            self._count_unread()

    def _unsent_bytes(self) -> int:
        return self._blocked_bytes + (self._outbox.waiting_bytes if self._outbox is not None else 0)

    def _count_unread(self) -> None:
        """Counts the responses in memory that the client has not read. A client above its share that leaves
        even more of them unread is disconnected.
        """
        if self.is_closed or self._outbox is None:
            return
        held = self._outbox.memory_bytes()
        if self._blocked_bytes:
            held += sum(memory_of(context.chunks) for context in self._waiting if context.chunks)
        if held <= SMALL_ANSWERS_BYTES:
            held = 0
        if not self.listener.unread_answers.resize(self._unread, self.budget_key, held, monotonic()):
            self.refuse(f"it does not read its responses, of which {held} bytes are in memory")

    def _unread_progress(self) -> float:
        return self._unread.grew_s if self._outbox is None else self._outbox.last_progress

    def _unread_evicted(self) -> None:
        self.refuse("others need the memory of the responses that it does not read")

    def _on_drained(self) -> None:
        self.last_active = monotonic()
        if self._unread.amount:
            self._count_unread()
        self._resume_soon()

    def refuse(self, reason: str) -> None:
        """Closes the connection of a client that broke the protocol, and logs the reason."""
        if not self.is_closed:
            CLIENT_LOG.warning("connection closed", peer=self.peer, reason=reason)
            self.close()

    def finish(self) -> None:
        self.flush()
        self.close()

    def close(self) -> None:
        self._shut()
        if self._transport is not None:
            self._transport.close()

    def _on_send_error(self, error: OSError) -> None:
        _log.debug("connection lost", peer=self.peer, reason=str(error))
        self.close()

    def _shut(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.gate = CLOSED_GATE
        if self._outbox is not None:
            self._outbox.close()
        self._frames.close()
        for holding in (self._unread, self._large):
            self.listener.unread_answers.forget(holding, monotonic())
        if self._unmute is not None:
            self._unmute.cancel()
            self._unmute = None
        for context in self._waiting:
            context.abandon()
            release_files(context.chunks or ())
        self._waiting.clear()
        self._blocked_bytes = 0
        release_files(self._ready)
        self._ready.clear()
        if self.on_closed is not None:
            self.on_closed(self)
            self.on_closed = None
