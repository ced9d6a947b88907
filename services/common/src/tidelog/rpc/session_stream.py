"""Sessions of coordinators with brokers between processes: frames over one TCP connection each (ADR 0015).

A frame is its length (uint32, big endian) and a `FromCoordinator` or `FromBroker` message of
protos/tidelog/rpc/v1/coordinator_session.proto, which holds all that one side said in a turn of its loop. An
empty frame says no more than that the sender lives.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any, Final

import structlog
from tidelog.model.brokers import BrokerRegistration
from tidelog.rpc.coordinator_session import MAX_UNSENT_BYTES, Item, SessionAcceptor, SessionEnd, SessionLine
from tidelog.rpc.peer_tls import PeerTls
from tidelog.rpc.session_messages import broker_frame, broker_items, coordinator_frame, coordinator_items

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
"""A longer one is no frame of ours, and ends the session."""
CONNECT_TIMEOUT_MS: Final = 3_000
LAST_WORD_MS: Final = 1_000
"""How long what was sent before `close` may take to leave."""
MAX_SESSIONS: Final = 1_000
"""At one door; more are turned away."""
HEARTBEAT_INTERVAL_MS: Final = 5_000
MAX_SILENCE_MS: Final = 15_000
"""A side that hears nothing for so long, not even a heartbeat, gives the session up: the line is cut while
both its ends live, or the other process stands still. A dead one is found out sooner, by its lease.
"""

_LENGTH: Final = struct.Struct(">I")

_log = structlog.get_logger(__name__)


class _Stream(asyncio.Protocol):
    """One side of a session: its line, and what arrives for its end."""

    def __init__(self, encode: Callable[[Item], bytes], decode: Callable[[bytes], list[Item]]) -> None:
        self.end: SessionEnd | None = None
        self._encode = encode
        self._decode = decode
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._is_flush_due = False
        self._is_closing = False
        self._is_over = False
        self._arrived = bytearray()
        self._heard_at_s = self._loop.time()
        self._heartbeat: asyncio.TimerHandle | None = None
        self.over: asyncio.Future[None] = self._loop.create_future()

    # -- SessionLine

    def send(self, item: Item) -> None:
        if self._is_over or self._is_closing:
            return
        encoded = self._encode(item)
        self._unsent.append(encoded)
        self._unsent_bytes += len(encoded)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        if self._is_over or self._is_closing:
            return
        self._is_closing = True
        if self._transport is not None:
            self._flush()
            self._transport.close()
        self._loop.call_later(LAST_WORD_MS / 1000, self.abort)

    def abort(self) -> None:
        """At once, whatever is unsent."""
        if self._transport is not None:
            self._transport.abort()
        else:
            self.connection_lost(None)

    def _flush(self) -> None:
        """All that was said in this turn of the loop leaves as one frame."""
        self._is_flush_due = False
        transport = self._transport
        waiting_bytes = self._unsent_bytes
        if transport is not None:
            waiting_bytes += transport.get_write_buffer_size()
        if waiting_bytes > MAX_UNSENT_BYTES:
            _log.warning("a session takes nothing and is closed", peer=self._peer, unsent_bytes=waiting_bytes)
            self._unsent.clear()
            self.abort()
        elif transport is not None and self._unsent:
            transport.write(b"".join((_LENGTH.pack(self._unsent_bytes), *self._unsent)))
            self._unsent.clear()
            self._unsent_bytes = 0

    def _beat(self) -> None:
        if (self._loop.time() - self._heard_at_s) * 1000 > MAX_SILENCE_MS:
            _log.warning("a session's other side is silent", peer=self._peer, max_silence_ms=MAX_SILENCE_MS)
            self.abort()
        elif self._transport is not None:
            self._transport.write(_LENGTH.pack(0))
            self._heartbeat = self._loop.call_later(HEARTBEAT_INTERVAL_MS / 1000, self._beat)

    # -- asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._peer = "{}:{}".format(*transport.get_extra_info("peername")[:2])
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._heard_at_s = self._loop.time()
        self._heartbeat = self._loop.call_later(HEARTBEAT_INTERVAL_MS / 1000, self._beat)
        self._flush()
        if self._is_closing:
            transport.close()

    def data_received(self, data: bytes) -> None:
        self._heard_at_s = self._loop.time()
        arrived = self._arrived
        if arrived:
            arrived += data
        view = memoryview(arrived or data)
        try:
            taken = self._take_frames(view)
        except ValueError as error:
            _log.warning("a session's frame can't be read", peer=self._peer, reason=str(error))
            self.abort()
            return
        except Exception as error:  # noqa: BLE001 - a bug at one session's end must not end the others
            _log.error("a session failed", peer=self._peer, exc_info=error)
            self.abort()
            return
        finally:
            view.release()
        if arrived:
            del arrived[:taken]
        else:
            arrived += data[taken:]

    def _take_frames(self, view: memoryview) -> int:
        """Hands over the whole frames; answers how many bytes they took. Raises ValueError."""
        at, end = 0, len(view)
        while end - at >= _LENGTH.size and not self._is_over:
            length = _LENGTH.unpack_from(view, at)[0]
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            if end - at - _LENGTH.size < length:
                break
            at += _LENGTH.size
            if length and not self._is_closing and self.end is not None:
                items = self._decode(bytes(view[at : at + length]))
                if items:
                    self.end.received(items)
            at += length
        return at

    def connection_lost(self, error: Exception | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        self.over.set_result(None)
        self._unsent.clear()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if error is not None:
            level = logging.WARNING if isinstance(error, ssl.SSLError) else logging.INFO
            _log.log(level, "a session broke", peer=self._peer, reason=str(error))
        if not self._is_closing and self.end is not None:
            self.end.closed()


class SessionDoor:
    """Where a broker takes coordinators' sessions: `await start("127.0.0.1:0")`, `await stop()`."""

    def __init__(self, acceptor: SessionAcceptor, tls: PeerTls | None = None) -> None:
        self._acceptor = acceptor
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._streams: set[_Stream] = set()
        self.port = 0

    async def start(self, listen: str) -> str:
        """Answers `host:port` with the port that was had. Raises OSError if the address can't be had."""
        host, _, port = listen.rpartition(":")
        loop = asyncio.get_running_loop()
        if self._tls is None:
            self._server = await loop.create_server(self._accept, host, int(port))
        else:
            self._server = await loop.create_server(
                self._accept,
                host,
                int(port),
                ssl=_door_context(self._tls),
                ssl_handshake_timeout=CONNECT_TIMEOUT_MS / 1000,
            )
        self.port = self._server.sockets[0].getsockname()[1]
        return f"{host}:{self.port}"

    async def stop(self) -> None:
        """All sessions end, and their ends know. Safe to call twice."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for stream in tuple(self._streams):
            stream.abort()
        await server.wait_closed()
        await _all_over(self._streams)

    def _accept(self) -> _Stream:
        return _AcceptedStream(self._acceptor, self._streams)


class _AcceptedStream(_Stream):
    def __init__(self, acceptor: SessionAcceptor, streams: set[_Stream]) -> None:
        super().__init__(broker_frame, coordinator_items)
        self._acceptor = acceptor
        self._streams = streams

    def connection_made(self, transport: Any) -> None:
        if len(self._streams) >= MAX_SESSIONS:
            _log.warning("too many sessions, one is turned away", max_sessions=MAX_SESSIONS)
            transport.abort()
            return
        self._streams.add(self)
        super().connection_made(transport)
        self.end = self._acceptor.accept(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._streams.discard(self)
        super().connection_lost(error)


class StreamSessionConnector:
    """`SessionConnector` by the brokers' `session_address`. Make one for a process, close it at its end. A
    session that could not be had, or broke, is not tried again here.
    """

    def __init__(self, tls: PeerTls | None = None) -> None:
        self._tls = tls
        self._connecting: dict[asyncio.Task[None], _Stream] = {}
        self._streams: set[_Stream] = set()

    def connect(self, broker: BrokerRegistration, end: SessionEnd) -> SessionLine:
        stream = _ConnectedStream(self._streams)
        stream.end = end
        task = asyncio.create_task(
            _connect(broker, stream, self._tls), name=f"session-with-broker-{broker.broker_id}"
        )
        self._connecting[task] = stream
        task.add_done_callback(self._connecting.pop)
        return stream

    async def close(self) -> None:
        """All sessions end, after what their lines were given if that leaves soon. Ends are not told."""
        for stream in (*self._connecting.values(), *self._streams):
            stream.close()
        for task in tuple(self._connecting):
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        await _all_over(self._streams)  # bounded by LAST_WORD_MS


class _ConnectedStream(_Stream):
    def __init__(self, streams: set[_Stream]) -> None:
        super().__init__(coordinator_frame, broker_items)
        self._streams = streams

    def connection_made(self, transport: Any) -> None:
        self._streams.add(self)
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._streams.discard(self)
        super().connection_lost(error)


def _door_context(tls: PeerTls) -> ssl.SSLContext:
    """One that has each handshake done with the certificates of the moment."""

    def renew(connection: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext) -> None:
        identity = tls.identity()
        if identity.server_context is not context:
            connection.context = identity.server_context

    context = tls.identity().server_context
    context.sni_callback = renew
    return context


async def _connect(broker: BrokerRegistration, stream: _Stream, tls: PeerTls | None) -> None:
    host, _, port = broker.session_address.rpartition(":")
    try:
        if not host:
            raise OSError(f"broker {broker.broker_id} takes no sessions")
        async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
            loop = asyncio.get_running_loop()
            # By us: uvloop's create_connection leaves the question to DNS behind when it is cancelled.
            found = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            address: Any = found[0][4]
            await loop.create_connection(
                lambda: stream,
                address[0],
                address[1],
                ssl=None if tls is None else tls.identity().client_context,
                server_hostname=None if tls is None else tls.server_name,
            )
    except (OSError, TimeoutError) as error:
        stream.connection_lost(error if str(error) else TimeoutError("no connection in time"))


async def _all_over(streams: set[_Stream]) -> None:
    for stream in tuple(streams):
        await asyncio.wait([stream.over])
