"""The sending half of one connection: chunks of bytes and ranges of files, out in order, with one writer.

Everything leaves by system calls on the connection's socket, never by the transport, so bytes and
`sendfile` can't overtake each other. What the socket doesn't take waits here; a duplicate of the socket
(uvloop forbids its own) then tells when it takes more.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from tidelog.broker.log.file_range import FileRange
from tidelog.broker.page_cache import is_resident, read_ahead

MAX_CHUNKS_PER_WRITE = 64
"""Chunks joined or handed to one writev; IOV_MAX is 1024."""
PROBE_STEP_BYTES = 128 * 1024
"""A file range is probed for pages missing from the page cache every so often: the kernel's default
read-ahead.
"""
READ_AHEAD_BYTES = 1024 * 1024
SENDFILE_BYTES_PER_TURN = 1024 * 1024
"""One connection sends so much from files before the event loop turns to the others."""

Chunk = bytes | bytearray | memoryview | FileRange


class Outbox:
    """Bounded by its user: `waiting_bytes` says what the socket has not taken yet."""

    __slots__ = (
        "_chunks",
        "_closed",
        "_duplicate",
        "_fileno",
        "_loop",
        "_on_drained",
        "_on_error",
        "_probed_to",
        "_reading_ahead",
        "_watching",
        "last_progress",
        "waiting_bytes",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fileno: int,
        on_drained: Callable[[], None],
        on_error: Callable[[OSError], None],
    ) -> None:
        self._loop = loop
        self._fileno = fileno
        self._on_drained = on_drained
        self._on_error = on_error
        self._chunks: deque[Chunk] = deque()
        self._duplicate: socket.socket | None = None
        self._watching = False
        self._reading_ahead = False
        self._probed_to = 0
        self._closed = False
        self.last_progress = 0.0  # monotonic clock: when the socket last took some of what had to wait
        self.waiting_bytes = 0

    def send(self, chunks: Sequence[Chunk]) -> None:
        """Send `chunks` after all that was sent before. Never blocks; an error closes through `on_error`."""
        if self._closed:
            release_files(chunks)
            return
        if not self._chunks and len(chunks) == 1 and type(chunks[0]) is bytes:  # the usual small answer
            self._send_bytes(chunks[0])
            return
        self._chunks.extend(chunks)
        self.waiting_bytes += sum(map(len, chunks))
        if not self._watching and not self._reading_ahead:
            self._pump()

    def close(self) -> None:
        """Drop what waits and let go of files and of the duplicated socket."""
        self._closed = True
        self._stop_watching()
        if self._duplicate is not None:
            self._duplicate.close()
            self._duplicate = None
        if (
            self._reading_ahead
        ):  # the thread still uses the first range's file; it is let go when the thread is done
            self._chunks.popleft()
        release_files(self._chunks)
        self._chunks.clear()
        self.waiting_bytes = 0

    def _send_bytes(self, data: bytes) -> None:
        try:
            sent = os.write(self._fileno, data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._on_error(error)
            return
        if sent < len(data):
            self._chunks.append(memoryview(data)[sent:])
            self.waiting_bytes += len(data) - sent
            self._watch()

    def _pump(self) -> None:
        """Send until all is sent, the socket is full, a file's pages have to be read first, or others have
        waited long enough.
        """
        budget, waited_bytes = SENDFILE_BYTES_PER_TURN, self.waiting_bytes
        try:
            while self._chunks:
                head = self._chunks[0]
                if isinstance(head, FileRange):
                    if self._is_cold(head):
                        self._read_ahead(head)
                        return
                    sent = os.sendfile(
                        self._fileno,
                        head.fileno(),
                        head.position,
                        min(head.length, self._probed_to - head.position),
                    )
                    if sent == 0:  # the file is shorter than promised: the answer can't be finished
                        raise OSError(f"segment ended {head.length} bytes early in sendfile")
                    head.position += sent
                    head.length -= sent
                    if not head.length:
                        self._chunks.popleft()
                        head.release()
                        self._probed_to = 0
                    self.waiting_bytes -= sent
                    budget -= sent
                    if budget <= 0 and self._chunks:
                        break
                else:
                    self.waiting_bytes -= self._write_some()
        except BlockingIOError:
            pass
        except OSError as error:
            self._on_error(error)
            return
        if self._chunks:
            if self.waiting_bytes != waited_bytes:
                self.last_progress = monotonic()
            self._watch()
        else:
            self._stop_watching()
            self._on_drained()

    def _write_some(self) -> int:
        """Write the bytes before the next file range; returns how many the socket took."""
        batch: list[bytes | bytearray | memoryview] = []
        for chunk in self._chunks:
            if isinstance(chunk, FileRange) or len(batch) == MAX_CHUNKS_PER_WRITE:
                break
            batch.append(chunk)
        sent = left = os.writev(self._fileno, batch)
        for chunk in batch:
            size = len(chunk)
            if left < size:
                if left:
                    self._chunks[0] = memoryview(chunk)[left:]
                return sent
            left -= size
            self._chunks.popleft()
        return sent

    # -- pages that are not in memory: read them in a thread, so that the loop never waits for the disk

    def _is_cold(self, head: FileRange) -> bool:
        """Whether the next bytes of `head` would block on the disk; moves `_probed_to` up to where they
        don't.
        """
        if self._probed_to > head.position:
            return False
        step_end = min(head.position + PROBE_STEP_BYTES, head.position + head.length)
        if not (is_resident(head.fileno(), head.position) and is_resident(head.fileno(), step_end - 1)):
            return True
        self._probed_to = step_end
        return False

    def _read_ahead(self, head: FileRange) -> None:
        self._stop_watching()
        self._reading_ahead = True
        length = min(READ_AHEAD_BYTES, head.length)
        reading = self._loop.run_in_executor(None, read_ahead, head.fileno(), head.position, length)
        reading.add_done_callback(lambda done: self._read_ahead_done(done, head, length))

    def _read_ahead_done(self, reading: asyncio.Future[None], head: FileRange, length: int) -> None:
        self._reading_ahead = False
        error = reading.exception()
        if self._closed:
            head.release()
            return
        if isinstance(error, OSError):
            self._on_error(error)
            return
        self._probed_to = head.position + length
        self._pump()

    # -- waiting for the socket

    def _watch(self) -> None:
        if not self._watching:
            if self._duplicate is None:
                try:
                    self._duplicate = socket.socket(fileno=os.dup(self._fileno))
                except OSError as error:  # no descriptor left
                    self._on_error(error)
                    return
            self._loop.add_writer(self._duplicate.fileno(), self._pump)
            self._watching = True

    def _stop_watching(self) -> None:
        if self._watching and self._duplicate is not None:
            self._loop.remove_writer(self._duplicate.fileno())
        self._watching = False


def release_files(chunks: Iterable[Chunk]) -> None:
    """Of chunks that won't be sent."""
    for chunk in chunks:
        if isinstance(chunk, FileRange):
            chunk.release()
