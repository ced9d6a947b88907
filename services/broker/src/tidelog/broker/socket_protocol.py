"""What an event loop sees of whoever receives from a socket.

The loop (asyncio's own, at least) takes only what derives from its BufferedProtocol, and a class that derives
from a Python class isn't compiled to a native one. So the receiver derives from nothing, and this hands its
methods on without a frame of Python between.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Receiver(Protocol):
    """See asyncio.BufferedProtocol for what each is called for."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...


class SocketProtocol(asyncio.BufferedProtocol):
    __slots__ = ("buffer_updated", "connection_lost", "connection_made", "get_buffer", "receiver")

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.connection_made = receiver.connection_made  # type: ignore[method-assign]
        self.connection_lost = receiver.connection_lost  # type: ignore[method-assign]
        self.get_buffer = receiver.get_buffer  # type: ignore[method-assign]
        self.buffer_updated = receiver.buffer_updated  # type: ignore[method-assign]
