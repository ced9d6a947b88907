"""A broker's side of coordinators' sessions: one stream each, taken at the broker's rpc door."""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from tidelog.rpc.coordinator_session import SessionAcceptor
from tidelog.rpc.generated import coordinator_session_pb2 as pb
from tidelog.rpc.grpc_session_line import GrpcSessionLine, Receiver
from tidelog.rpc.session_messages import broker_frame, coordinator_items

SERVICE: Final = pb.DESCRIPTOR.services_by_name["CoordinatorSession"].full_name
METHOD: Final = "Session"

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class CoordinatorSessionService:
    """gRPC's `CoordinatorSession` in front of the broker's own acceptor.

    Frames are bytes to gRPC, so that many items are encoded one by one, where they are made, and joined.
    """

    def __init__(self, acceptor: SessionAcceptor) -> None:
        self._acceptor = acceptor
        self._sessions: set[asyncio.Task[None]] = set()

    def add_to(self, server: grpc.aio.Server) -> None:
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._session)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))

    async def stop(self) -> None:
        """All streams were broken off; returns when their ends know."""
        sessions = tuple(self._sessions)
        for session in sessions:
            session.cancel()
        await asyncio.gather(*sessions, return_exceptions=True)

    async def _session(self, _requests: object, context: _Context) -> None:
        # In a task of its own: gRPC's is not told of every way in which a server may stop.
        session = asyncio.create_task(self._live(context))
        self._sessions.add(session)
        session.add_done_callback(self._sessions.discard)
        await session

    async def _live(self, context: _Context) -> None:
        """A session from its first to its last frame."""
        peer = context.peer()
        line = GrpcSessionLine(broker_frame, peer)
        receiver = Receiver(coordinator_items, line, self._acceptor.accept(line), peer)
        reading = asyncio.create_task(receiver.read_all(context.read))
        writing = asyncio.create_task(line.write_all(context.write))
        line.opened(reading.cancel)
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
        finally:  # also when it is cancelled: the server stops, or the connection is lost
            receiver.closed(reading, writing)
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
