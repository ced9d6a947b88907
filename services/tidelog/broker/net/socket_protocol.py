"""The asyncio protocol in front of a connection.

asyncio's own event loop accepts only classes that derive from its BufferedProtocol, and mypyc compiles no
class that derives from a Python class to a native one. Therefore the receiver derives from nothing, and this
protocol passes the receiver's methods on without a Python frame in between.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Receiver(Protocol):
    """The receiving end of a socket. `asyncio.BufferedProtocol` says when each method is called."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...

    def missing_bytes(self) -> int:
        """Returns how many bytes complete what has begun to arrive, or 0 if that is not known."""
        ...


class SocketProtocol(asyncio.BufferedProtocol):
    """A protocol whose methods are the receiver's."""

    __slots__ = ("buffer_updated", "connection_lost", "connection_made", "get_buffer", "receiver")

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.connection_made = receiver.connection_made  # type: ignore[method-assign]
        self.connection_lost = receiver.connection_lost  # type: ignore[method-assign]
        self.get_buffer = receiver.get_buffer  # type: ignore[method-assign]
        self.buffer_updated = receiver.buffer_updated  # type: ignore[method-assign]
