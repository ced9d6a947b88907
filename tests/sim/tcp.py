"""TCP connections between simulated processes, with the real ends of tidelog's client and broker.

Bytes arrive in order and once. After a loss nothing arrives any more, and each end learns it at its own time,
unless the client gives the connection up before. The end of a process resets its connections, if the network
delivers the reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from sim.loop import PROCESS, SimLoop, SimProcess
from sim.network import Network
from tidelog.broker.net import connection as broker_connection
from tidelog.broker.net.connection import Connection, Dispatch
from tidelog.broker.net.socket_io import BufferPool
from tidelog.broker.net.turn import Turn
from tidelog.model.fair_budget import NO_LIMIT, FairBudget
from tidelog.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

CONNECT_TIMEOUT_S: Final = 10.0
LOST_WITHIN_S: Final = 8.0
"""The time until an end learns that a message was lost for good."""
MAX_REQUEST_BYTES: Final = 10_000_000
MAX_IN_FLIGHT_REQUESTS: Final = 100
_LENGTH_BYTES: Final = 4
_API_KEY_BYTES: Final = 2

Chunks = Iterable[Any]


class SimListener:
    """The listener of one life of a broker (`ConnectionOwner`)."""

    def __init__(self, loop: SimLoop, port: int, dispatch: Dispatch) -> None:
        self.name = "PLAINTEXT"
        self.port = port
        self.loop: asyncio.AbstractEventLoop = loop
        self.buffer_pool = BufferPool()
        self.turn = Turn(loop, loop.time)
        self.unread_answers = FairBudget(NO_LIMIT)
        self.max_request_bytes = MAX_REQUEST_BYTES
        self.max_in_flight_requests = MAX_IN_FLIGHT_REQUESTS
        self.connections: dict[Connection, None] = {}
        self._dispatch = dispatch

    def admit(self, connection: Connection) -> bool:
        self.connections[connection] = None
        return True

    def login_ended(self, succeeded: bool) -> None:
        pass

    def forget(self, connection: Connection) -> None:
        self.connections.pop(connection, None)

    def accept(self) -> Connection:
        return Connection(self, self._dispatch)

    def close(self) -> None:
        for connection in list(self.connections):
            connection.close()


class TcpConnection:
    """Both ends of a connection."""

    def __init__(self, network: Network, client: SimProcess, broker: SimProcess) -> None:
        self.network = network
        self.is_broken = False
        self.near = TcpEnd(self, client, broker)
        self.far = TcpEnd(self, broker, client)
        self.ends = (self.near, self.far)

    def other(self, end: TcpEnd) -> TcpEnd:
        return self.far if end is self.near else self.near

    def lose(self) -> None:
        """Breaks the connection, which each end learns later."""
        if self.is_broken:
            return
        self.is_broken = True
        loop = self.near.process.loop
        for end in self.ends:
            loop.call_outside(self.network.some_seconds(LOST_WITHIN_S), end.tell_end)


class TcpEnd(asyncio.Transport):
    """The transport of one end. Its process is known, so a later life with the same name receives nothing."""

    def __init__(self, connection: TcpConnection, process: SimProcess, peer: SimProcess) -> None:
        super().__init__()
        self.process = process
        self.receiver: Any = None
        self.is_over = False
        self._connection = connection
        self._peer = peer
        self._is_reading = True
        self._unread: list[bytes] = []
        process.on_killed.append(self._died)

    # -- the calls of the protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return (self._peer.name, 0)
        return self if name == "socket" else default

    def fileno(self) -> Any:
        """Returns this end, which `SimOutbox` takes where the real outbox takes a file descriptor."""
        return self

    def is_closing(self) -> bool:
        return self.is_over

    def writelines(self, chunks: Chunks) -> None:
        data = b"".join(chunk.read() if hasattr(chunk, "read") else bytes(chunk) for chunk in chunks)
        if not self.is_over:
            self._transmit(lambda other: other.received(data), self._name_of(data))

    def write(self, data: Any) -> None:
        self.writelines([data])

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self.process.loop.call_soon(self._read)

    def close(self) -> None:
        if not self.is_over:
            self._transmit(TcpEnd.ended, "connection closed")
            self.process.loop.call_soon(self.receiver.connection_lost, None)
            self._end()

    abort = close

    # -- the network

    def _name_of(self, data: bytes) -> str:
        if self is self._connection.far:
            return "answer"
        return ApiKey(int.from_bytes(data[_LENGTH_BYTES : _LENGTH_BYTES + _API_KEY_BYTES], "big")).name

    def _transmit(self, arrived: Callable[[TcpEnd], None], what: str) -> None:
        connection = self._connection
        if connection.is_broken:
            return
        other = connection.other(self)

        def arrive(process: SimProcess) -> None:
            if connection.is_broken:
                return
            if process is other.process:
                arrived(other)
            else:  # another life, which knows no such connection
                process.loop.call_outside(0, self.tell_end)

        connection.network.send(
            self.process,
            other.process.name,
            arrive,
            what,
            stream=connection,
            repeatable=False,
            on_lost=connection.lose,
        )

    def received(self, data: bytes) -> None:
        if not self.is_over:
            self._unread.append(data)
            self._read()

    def _read(self) -> None:
        while self._is_reading and self._unread and not self.is_over:
            data = self._unread.pop(0)
            buffer = self.receiver.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            if count < len(data):
                self._unread.insert(0, data[count:])
            self.receiver.buffer_updated(count)

    def ended(self) -> None:
        """The other end has closed the connection, or its process has ended."""
        if not self.is_over:
            self._end()
            if self.receiver is not None:  # else the client did not learn that it was connected
                self.receiver.connection_lost(ConnectionResetError("the connection was reset"))

    def tell_end(self) -> None:
        """Ends this end of a connection that does not exist any more. It runs outside of any process."""
        self.process.loop.call_soon(self.ended, context=self.process.context)

    def _died(self) -> None:
        if not self.is_over:
            self._transmit(TcpEnd.ended, "connection reset")
            self.is_over = True

    def _end(self) -> None:
        self.is_over = True
        self.process.on_killed.remove(self._died)


class SimOutbox:
    """Replaces `Outbox` of the broker's connections."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        end: TcpEnd,
        on_drained: Callable[[], None],
        on_error: Callable[[OSError], None],
    ) -> None:
        self.waiting_bytes = 0
        self.last_progress = 0.0
        self._end = end

    def send(self, chunks: Sequence[Any]) -> None:
        self._end.writelines(chunks)

    def close(self) -> None:
        """Does nothing, because nothing waits here."""


async def connect(receiver: Any, broker: str) -> None:
    """Connects the receiver of this process to a broker's listener. Raises ConnectionError."""
    client = PROCESS.get()
    assert client is not None
    network: Network = client.network

    async def accept(process: SimProcess) -> TcpConnection:
        listener = None if process.service is None else process.service.listener
        if listener is None:
            raise ConnectionRefusedError(f"{process} does not listen")
        connection = TcpConnection(network, client, process)
        connection.far.receiver = listener.accept()
        connection.far.receiver.connection_made(connection.far)
        return connection

    connection: TcpConnection = await network.call(
        broker, accept, "connect", timeout_s=CONNECT_TIMEOUT_S, repeatable=False
    )
    connection.near.receiver = receiver
    receiver.connection_made(connection.near)


def installed() -> AbstractContextManager[Any]:
    """Lets the broker's connections write to simulated sockets."""
    return patch.object(broker_connection, "Outbox", SimOutbox)
