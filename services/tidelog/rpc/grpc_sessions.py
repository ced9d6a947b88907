"""Sessions of coordinators with brokers over gRPC: each session is one call of `CoordinatorSessions.Session`.

A coordinator opens a channel to the broker's gRPC address and starts one bidirectional stream on it. A gRPC
message holds all items that its sender produced in one turn of its event loop, or since the message before
it. gRPC provides flow control, keepalive and TLS, as for all other calls between services. `session_messages`
encodes and decodes the items, so gRPC passes bytes through.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeAlias

import grpc
import grpc.aio
import structlog

from tidelog.kernel.slices import TaskSet
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.errors import KafkaError
from tidelog.rpc.coordinator_session import (
    MAX_UNSENT_BYTES,
    Hello,
    Item,
    SessionAcceptor,
    SessionEnd,
    SessionLine,
)
from tidelog.rpc.generated import coordinator_session_pb2 as pb
from tidelog.rpc.grpc_transport import open_channel
from tidelog.rpc.peer_tls import PeerTls, ServiceRole, check_speaks_for
from tidelog.rpc.session_messages import (
    broker_items,
    broker_message,
    coordinator_items,
    coordinator_message,
)

MESSAGE_INTERVAL_MS: Final = 1
"""The minimum time between two messages of one side.

A message costs about 0.1 ms of CPU on either side, with one item or with fifty. The items of a busy session
therefore wait and leave together. An idle session sends at once.
"""
CLOSE_TIMEOUT_MS: Final = 1_000
"""Time for the items that were sent before `close` to leave."""

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["CoordinatorSessions"].full_name
_METHOD: Final = "Session"

_Read: TypeAlias = Callable[[], Awaitable[object]]
"""Returns the next message as bytes, or gRPC's EOF."""
_Write: TypeAlias = Callable[[bytes], Awaitable[None]]
_DoneWriting: TypeAlias = Callable[[], Awaitable[None]]

_log = structlog.get_logger(__name__)


class CoordinatorSessionsService:
    """The gRPC service through which a broker accepts sessions. It is an `RpcService`."""

    def __init__(self, acceptor: SessionAcceptor) -> None:
        self._acceptor = acceptor
        self._sessions: TaskSet[None] = TaskSet()

    def add_to(self, server: grpc.aio.Server) -> None:
        # The generated servicer would decode each message a second time; a generic handler receives bytes.
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._session)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))

    async def stop(self) -> None:
        """Waits until the sessions, which the server has cancelled, have notified their ends."""
        if self._sessions:
            await asyncio.wait(self._sessions)

    async def _session(
        self, _requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        task: asyncio.Task[None] | None = asyncio.current_task()
        assert task is not None
        self._sessions.keep(task)
        line = _Line(context.peer(), broker_message, _checked_items())
        line.end = self._acceptor.accept(line)
        await line.carry(context.read, context.write)


def _checked_items() -> Callable[[bytes], list[Item]]:
    """Returns a decoder for one session, which also checks that the coordinator says its own id in Hello.

    Raises ValueError.
    """
    is_checked = False

    def decode(message: bytes) -> list[Item]:
        nonlocal is_checked
        items = coordinator_items(message)
        if not is_checked and items:
            is_checked = True  # the broker refuses a session that does not begin with Hello
            first = items[0]
            if type(first) is Hello:
                try:
                    check_speaks_for(ServiceRole.GROUP_COORDINATOR, first.coordinator_id)
                except KafkaError as error:
                    raise ValueError(str(error)) from error
        return items

    return decode


class GrpcSessionConnector:
    """A `SessionConnector` that uses the brokers' `rpc_address`. A process has one and closes it at its end.

    A session that cannot be opened, or that breaks, ends. The connector does not open it again.
    """

    def __init__(self, tls: PeerTls | None = None) -> None:
        self._tls = tls
        self._lines: dict[asyncio.Task[None], _Line] = {}

    def connect(self, broker: BrokerRegistration, end: SessionEnd) -> SessionLine:
        line = _Line(broker.rpc_address, coordinator_message, broker_items)
        line.end = end
        task = asyncio.create_task(
            self._session(broker, line), name=f"session-with-broker-{broker.broker_id}"
        )
        self._lines[task] = line
        task.add_done_callback(self._lines.pop)
        return line

    async def close(self) -> None:
        """Ends all sessions after their unsent items have left, or after CLOSE_TIMEOUT_MS."""
        for line in self._lines.values():
            line.close()
        await asyncio.gather(*self._lines)

    async def _session(self, broker: BrokerRegistration, line: _Line) -> None:
        if not broker.rpc_address:
            _log.warning("a broker has registered no gRPC address", broker_id=broker.broker_id)
            line.ended()
            return
        channel = open_channel(broker.rpc_address, self._tls, ServiceRole.BROKER)
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(
            f"/{_SERVICE}/{_METHOD}", request_serializer=None, response_deserializer=None
        )()
        try:
            await line.carry(call.read, call.write, call.done_writing)
        finally:
            call.cancel()
            await channel.close()


class _Line:
    """One side of a session: it sends the items of its end and gives the arriving items to that end."""

    def __init__(
        self, peer: str, encode: Callable[[Item], bytes], decode: Callable[[bytes], list[Item]]
    ) -> None:
        self.end: SessionEnd | None = None
        self._peer = peer
        self._encode = encode
        self._decode = decode
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        """Number of unsent bytes, including the message that gRPC is sending."""
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._writable: asyncio.Future[None] | None = None
        """A future while the writer waits for items."""
        self._aborted: asyncio.Future[None] = loop.create_future()
        self._is_closing = False
        self._is_over = False

    def send(self, item: Item) -> None:
        if self._is_over or self._is_closing:
            return
        encoded = self._encode(item)
        self._unsent_bytes += len(encoded)
        if self._unsent_bytes > MAX_UNSENT_BYTES:
            _log.warning(
                "the peer of a session does not read; closing the session",
                peer=self._peer,
                unsent_bytes=self._unsent_bytes,
            )
            self._abort()
            return
        self._unsent.append(encoded)
        self._wake_writer()

    @property
    def unsent_bytes(self) -> int:
        return self._unsent_bytes

    def close(self) -> None:
        if self._is_over or self._is_closing:
            return
        self._is_closing = True
        self._wake_writer()
        self._loop.call_later(CLOSE_TIMEOUT_MS / 1000, self._abort)

    async def carry(self, read: _Read, write: _Write, done_writing: _DoneWriting | None = None) -> None:
        """Carries the session until either side ends it. A client passes `done_writing`."""
        reader = asyncio.create_task(self._read_all(read))
        writer = asyncio.create_task(self._write_all(write, done_writing))
        try:
            await asyncio.wait((reader, writer, self._aborted), return_when=asyncio.FIRST_COMPLETED)
            if not self._is_closing or done_writing is not None:
                await asyncio.wait((reader, self._aborted), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reader.cancel()
            writer.cancel()
            self.ended()

    def ended(self) -> None:
        """Notifies the end, unless it has closed the session itself."""
        if self._is_over:
            return
        self._is_over = True
        self._unsent.clear()
        if not self._is_closing and self.end is not None:
            self.end.closed()

    def _abort(self) -> None:
        if not self._aborted.done():
            self._aborted.set_result(None)

    def _wake_writer(self) -> None:
        writable = self._writable
        if writable is not None:
            self._writable = None
            writable.set_result(None)

    async def _write_all(self, write: _Write, done_writing: _DoneWriting | None) -> None:
        unsent = self._unsent
        try:
            while True:
                if unsent:
                    message = b"".join(unsent)  # Protobuf merges messages that are concatenated.
                    unsent.clear()
                    await write(message)
                    self._unsent_bytes -= len(message)
                    await asyncio.sleep(MESSAGE_INTERVAL_MS / 1000)
                elif self._is_closing:
                    if done_writing is not None:
                        await done_writing()  # the server then ends the call
                    return
                else:
                    self._writable = self._loop.create_future()
                    await self._writable
        except (grpc.RpcError, asyncio.InvalidStateError):
            return  # The call has ended. The reader learns the reason.

    async def _read_all(self, read: _Read) -> None:
        try:
            while isinstance(message := await read(), bytes):
                items = self._decode(message)
                if items and not self._is_closing and self.end is not None:
                    self.end.received(items)
        except ValueError as error:
            _log.warning("a session's message cannot be decoded", peer=self._peer, reason=str(error))
        except grpc.RpcError as error:
            if not self._is_closing:
                _log.info("a session broke", peer=self._peer, reason=_reason(error))
        except Exception:  # noqa: BLE001 - a bug at one session's end must not end the others
            _log.exception("a session failed", peer=self._peer)


def _reason(error: grpc.RpcError) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name} {error.details()}"
    return str(error) or type(error).__name__
