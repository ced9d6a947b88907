"""What both ends of a session's gRPC stream have in common: the line that gathers items into frames."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
import structlog
from tidelog.rpc.coordinator_session import MAX_UNSENT_BYTES, Item, SessionEnd

MAX_FRAME_BYTES: Final = 1024 * 1024
"""Frames are closed once they hold so much; one item may be larger."""
LAST_WORD_MS: Final = 1_000
"""How long what was sent before `close` may take to leave."""

_log = structlog.get_logger(__name__)


class GrpcSessionLine:
    """`SessionLine` over one stream. `write_all` is the only one who writes to the stream."""

    def __init__(self, frame: Callable[[Item], bytes], peer: str) -> None:
        self._frame = frame
        self._peer = peer
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._is_ended = False
        self._is_closing = False
        self._writer: asyncio.Future[None] | None = None
        self._breaks_off: Callable[[], object] | None = None

    @property
    def is_closing(self) -> bool:
        """The own end has closed it, and is not to be told anything more."""
        return self._is_closing

    def send(self, item: Item) -> None:
        if self._is_ended:
            return
        encoded = self._frame(item)
        self._unsent.append(encoded)
        self._unsent_bytes += len(encoded)
        if self._unsent_bytes > MAX_UNSENT_BYTES:
            _log.warning("a session takes nothing and is closed", peer=self._peer, bytes=self._unsent_bytes)
            self.break_off()
        else:
            self._wake()

    def close(self) -> None:
        if self._is_ended:
            return
        self._is_ended = self._is_closing = True
        self._wake()
        asyncio.get_running_loop().call_later(LAST_WORD_MS / 1000, self.break_off)

    def opened(self, breaks_off: Callable[[], object]) -> None:
        """How the stream is ended at once."""
        self._breaks_off = breaks_off

    def ended(self) -> None:
        """The stream has ended."""
        self._is_ended = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self._breaks_off = None
        self._wake()

    def break_off(self) -> None:
        breaks_off = self._breaks_off
        self.ended()
        if breaks_off is not None:
            breaks_off()

    async def write_all(self, write: Callable[[bytes], Awaitable[object]]) -> None:
        """Until the line has ended. Raises what `write` does."""
        while True:
            if self._unsent:
                # The loop's turn is over: whoever woke this task did it through the loop's queue.
                await write(self._next_frame())
            elif self._is_ended:
                return
            else:
                self._writer = asyncio.get_running_loop().create_future()
                await self._writer

    def _next_frame(self) -> bytes:
        unsent = self._unsent
        if self._unsent_bytes <= MAX_FRAME_BYTES:
            frame = unsent[0] if len(unsent) == 1 else b"".join(unsent)
            unsent.clear()
            self._unsent_bytes = 0
            return frame
        taken = [unsent.popleft()]
        size = len(taken[0])
        while unsent and size + len(unsent[0]) <= MAX_FRAME_BYTES:
            size += len(unsent[0])
            taken.append(unsent.popleft())
        self._unsent_bytes -= size
        return b"".join(taken)

    def _wake(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None and not writer.done():
            writer.set_result(None)


class Receiver:
    """Hands what arrives to an end, and tells it once when nothing more will."""

    def __init__(
        self, items: Callable[[bytes], list[Item]], line: GrpcSessionLine, end: SessionEnd, peer: str
    ) -> None:
        self._items = items
        self._line = line
        self._end = end
        self._peer = peer

    async def read_all(self, read: Callable[[], Awaitable[Any]]) -> None:
        """To the end of the stream, or a frame that makes no sense. Raises what `read` does."""
        while (frame := await read()) is not grpc.aio.EOF:
            try:
                items = self._items(frame)
            except ValueError as error:
                _log.warning("a session's frame can't be read", peer=self._peer, reason=str(error))
                return
            if not self._line.is_closing:
                self._end.received(items)

    def closed(self, *tasks: asyncio.Task[None]) -> None:
        """Call once, with the tasks that read and wrote."""
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self._note(error)
        self._line.ended()
        if not self._line.is_closing:
            self._end.closed()

    def _note(self, error: BaseException) -> None:
        if isinstance(error, grpc.aio.AioRpcError):
            reason = f"{error.code().name} {error.details()}"
            _log.info("a session broke", peer=self._peer, reason=reason)
        elif isinstance(error, grpc.RpcError | asyncio.InvalidStateError):  # written after its end
            _log.info("a session broke", peer=self._peer, reason=str(error))
        else:
            _log.error("a session failed", peer=self._peer, exc_info=error)
