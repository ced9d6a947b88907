"""A coordinator's side of its sessions: one connection with one stream on it to each broker."""

from __future__ import annotations

import asyncio
from typing import Final, TypeAlias

import grpc.aio
from tidelog.model.brokers import BrokerRegistration
from tidelog.rpc.coordinator_session import SessionEnd, SessionLine
from tidelog.rpc.grpc_session_line import GrpcSessionLine, Receiver
from tidelog.rpc.grpc_session_server import METHOD, SERVICE
from tidelog.rpc.grpc_transport import open_channel
from tidelog.rpc.session_messages import broker_items, coordinator_frame

_METHOD: Final = f"/{SERVICE}/{METHOD}"

_Method: TypeAlias = "grpc.aio.StreamStreamMultiCallable[bytes, bytes]"


class GrpcSessionConnector:
    """`SessionConnector` over gRPC, by the brokers' `rpc_address`. Make one for a process, close it at its
    end. A session that could not be had, or broke, is not tried again here.
    """

    def __init__(self) -> None:
        self._sessions: dict[asyncio.Task[None], GrpcSessionLine] = {}

    def connect(self, broker: BrokerRegistration, end: SessionEnd) -> SessionLine:
        peer = f"broker {broker.broker_id} at {broker.rpc_address}"
        line = GrpcSessionLine(coordinator_frame, peer)
        receiver = Receiver(broker_items, line, end, peer)
        session = asyncio.create_task(_live(broker.rpc_address, line, receiver), name=f"session-with-{peer}")
        self._sessions[session] = line
        session.add_done_callback(self._sessions.pop)
        return line

    async def close(self) -> None:
        """All sessions end, after what their lines were given if that leaves soon. Ends are not told."""
        for line in self._sessions.values():
            line.close()
        await asyncio.gather(*self._sessions, return_exceptions=True)


async def _live(address: str, line: GrpcSessionLine, receiver: Receiver) -> None:
    """A session from its connection to its end."""
    if not address:
        receiver.closed()
        return
    channel = open_channel(address)
    method: _Method = channel.stream_stream(_METHOD, request_serializer=None, response_deserializer=None)
    stream = method()
    reading = asyncio.create_task(receiver.read_all(stream.read))
    writing = asyncio.create_task(line.write_all(stream.write))
    line.opened(stream.cancel)
    try:
        await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
        if line.is_closing and not reading.done() and writing.exception() is None:
            await stream.done_writing()
            await asyncio.wait(
                (reading,)
            )  # the broker ends it in its turn; if it doesn't, the line breaks off
    finally:
        receiver.closed(reading, writing)
        stream.cancel()
        writing.cancel()  # a write to a stream that never was connected doesn't return by itself
        await asyncio.gather(reading, writing, return_exceptions=True)
        await channel.close()
