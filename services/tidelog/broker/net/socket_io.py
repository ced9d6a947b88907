"""The bytes of one TCP connection: frames in, chunks out.

`FrameReader` cuts what a socket receives into frames. `Outbox` sends chunks of bytes and ranges of files, in
order; `tls_socket.py` has the same for encrypted connections. `Turn` says when both work. `SocketProtocol`
connects them to asyncio. A client's `Connection` and a follower's `LeaderConnection` consist of these parts.

All connections read into one shared buffer, because the event loop hands a connection its bytes before it
reads for another one. Only the incomplete frame at the end is copied, into a buffer that belongs to the
connection. A connection that sends large frames reads directly into such a buffer. Therefore an idle
connection holds no memory, and a large Produce request is one contiguous range of bytes from the socket to
the log.

All bytes leave by system calls on the connection's socket and none through the transport, so that `write`
and `sendfile` cannot overtake each other. What the socket does not accept waits in the outbox. The event
loop watches a duplicate of the socket (uvloop forbids to watch its own) and reports when it accepts more.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Final

from tidelog.broker.log.segment import FileRange, is_resident, read_ahead
from tidelog.model.fair_budget import NO_LIMIT, FairBudget, Holding
from tidelog.wire.headers import SIZE_BYTES

_TLS_HANDSHAKE: Final = 0x1603
"""The first bytes of a TLS connection, in place of the upper half of a frame's size."""
SHARED_BUFFER_BYTES: Final = 256 * 1024
FIRST_READ_BYTES: Final = 64 * 1024
"""The size of the reads of a connection that sends large frames, before the size of the next frame is known.
"""
LARGE_FRAME_BYTES: Final = 128 * 1024
FIRST_ALLOCATION_BYTES: Final = 1024 * 1024 + 64 * 1024
"""The first buffer for a frame. A frame may claim any size up to the limit, so the buffer starts with this
size and doubles as bytes arrive.
"""
POOLED_BYTES: Final = 8 * 1024 * 1024
EAGER_BYTES: Final = 64 * 1024 * 1024
"""While all incomplete frames together hold less than this, a frame gets FIRST_ALLOCATION_BYTES at once."""
CAUTIOUS_ALLOCATION_BYTES: Final = 16 * 1024
"""The first buffer for a frame above EAGER_BYTES. The memory then grows with the bytes that arrive, whatever
size the clients announce. Buffers up to this size do not count in the budget of the pool: small requests
are served, and slowly read, whatever large ones hold.
"""

_NO_MEMORY: Final = "other requests hold all memory (queued.max.request.bytes)"

MAX_CHUNKS_PER_WRITE: Final = 64
"""The most chunks that one writev takes; IOV_MAX is 1024."""
PROBE_STEP_BYTES: Final = 128 * 1024
"""The distance between two probes of a file range for pages that are not in the page cache. It is the
kernel's default read-ahead.
"""
READ_AHEAD_BYTES: Final = 1024 * 1024
SENDFILE_BYTES_PER_TURN: Final = 1024 * 1024
"""The most bytes from files that one connection sends before the event loop serves the other connections."""

Chunk = bytes | bytearray | memoryview | FileRange

_unpack_size = struct.Struct(">i").unpack_from


class InvalidFrameSizeError(ValueError):
    """The length of a frame is negative or exceeds `socket.request.max.bytes`."""


class NoMemoryForRequestError(Exception):
    """There is no memory to keep what a client has sent, because other requests hold all of it."""


class BufferPool:
    """The receive buffers that the connections of one event loop share. Keeps at most POOLED_BYTES for
    reuse. `budget` bounds the buffers of incomplete frames (`queued.max.request.bytes`).
    """

    __slots__ = ("_free", "_free_bytes", "budget", "in_use_bytes", "shared")

    def __init__(self, budget: FairBudget | None = None) -> None:
        self.shared = memoryview(bytearray(SHARED_BUFFER_BYTES))
        self.budget = FairBudget(NO_LIMIT) if budget is None else budget
        self.in_use_bytes = 0
        self._free: list[bytearray] = []
        self._free_bytes = 0

    def first_size(self, frame_bytes: int) -> int:
        """Returns the size of the first buffer for a frame that will have `frame_bytes`."""
        is_eager = self.in_use_bytes < EAGER_BYTES
        return min(frame_bytes, FIRST_ALLOCATION_BYTES if is_eager else CAUTIOUS_ALLOCATION_BYTES)

    def take(self, size_bytes: int) -> bytearray:
        """Returns a buffer of at least `size_bytes` with arbitrary contents."""
        for index in range(len(self._free) - 1, -1, -1):
            if len(self._free[index]) >= size_bytes:
                buffer = self._free.pop(index)
                self._free_bytes -= len(buffer)
                self.in_use_bytes += len(buffer)
                return buffer
        self.in_use_bytes += size_bytes
        return bytearray(size_bytes)

    def give_back(self, buffer: bytearray) -> None:
        """Takes a buffer back for reuse, unless the pool is full."""
        self.in_use_bytes -= len(buffer)
        if len(buffer) >= FIRST_READ_BYTES and self._free_bytes + len(buffer) <= POOLED_BYTES:
            self._free.append(buffer)
            self._free_bytes += len(buffer)


class FrameReader:
    """The receiving half of one connection. Read into `buffer()`, then call `received(n)`, then call
    `next_frame()` until it returns None.

    A frame comes without its length prefix. It is valid until any method other than `next_frame` is called.
    """

    __slots__ = (
        "_data",
        "_end",
        "_expects_large",
        "_own",
        "_own_filled",
        "_own_frame_end",
        "_pool",
        "_start",
        "holding",
        "is_starved",
        "key",
        "max_frame_bytes",
    )

    def __init__(self, pool: BufferPool, max_frame_bytes: int, holding: Holding | None = None) -> None:
        self._pool = pool
        self.max_frame_bytes = max_frame_bytes
        self.holding = Holding() if holding is None else holding
        """The part of the pool's budget that this connection's buffer takes."""
        self.key = ""
        """The client in that budget: a principal, or an address without a login."""
        self.is_starved = False
        """Whether the rest of a frame has no room, so that nothing may be read until `await_room` calls back.
        """
        self._own: bytearray | None = None
        self._own_filled = 0
        self._own_frame_end = 0  # 0 while the frame's size is unknown
        self._expects_large = False
        self._data = pool.shared
        self._start = self._end = 0

    def await_room(self, granted: Callable[[], object]) -> None:
        """Calls `granted` when the frame that is arriving has room."""

        def on_granted() -> None:
            self.is_starved = False
            self._grow_if_full()
            granted()

        self._pool.budget.await_room(self.holding, self.key, self._own_frame_end, on_granted, monotonic())

    def missing_bytes(self) -> int:
        """Returns how many bytes complete the frame that has begun to arrive, or 0 if its size is unknown."""
        return max(0, self._own_frame_end - self._own_filled) if self._own is not None else 0

    def buffer(self) -> memoryview:
        """Returns the buffer for the next bytes from the socket."""
        if self._own is None:
            pool = self._pool
            is_short = pool.budget.spare_left < SHARED_BUFFER_BYTES
            size_bytes = pool.first_size(FIRST_ALLOCATION_BYTES) if self._expects_large else 0
            if not size_bytes or not self._may_hold(size_bytes):
                # While memory is short, no more is read than can be kept.
                return pool.shared[:CAUTIOUS_ALLOCATION_BYTES] if is_short else pool.shared
            self._own, self._own_filled, self._own_frame_end = self._pool.take(size_bytes), 0, 0
        if self._own_frame_end:
            return memoryview(self._own)[self._own_filled : min(self._own_frame_end, len(self._own))]
        if self._own_filled:  # fewer than 4 bytes: read only the size, so that no frame has to move
            return memoryview(self._own)[self._own_filled : SIZE_BYTES]
        return memoryview(self._own)[:FIRST_READ_BYTES]

    def received(self, size_bytes: int) -> None:
        """Takes note that the socket filled `size_bytes` of `buffer()`. Raises InvalidFrameSizeError."""
        if self._own is None:
            self._data, self._start, self._end = self._pool.shared, 0, size_bytes
            return
        self._own_filled += size_bytes
        if not self._own_frame_end and self._own_filled >= SIZE_BYTES:
            self._own_frame_end = SIZE_BYTES + self._checked_size(self._own, 0)
            self.is_starved = not self._may_hold(max(self._own_frame_end, len(self._own)))
        self._grow_if_full()
        if self._own_frame_end and self._own_filled >= self._own_frame_end:
            self._data, self._start, self._end = memoryview(self._own), 0, self._own_filled

    def next_frame(self) -> memoryview | None:
        """Returns the next whole frame. Returns None if there is none, and keeps the incomplete frame.

        Raises InvalidFrameSizeError.
        """
        start, left = self._start, self._end - self._start
        if left >= SIZE_BYTES:
            (size,) = _unpack_size(self._data, start)  # _checked_size without the call, once per request
            if not 0 <= size <= self.max_frame_bytes:
                raise self._invalid_size(size)
            if left >= size + SIZE_BYTES:
                start += SIZE_BYTES
                self._start = start + size
                return self._data[start : start + size]
        if left == 0 and self._own is None:  # the usual end of a read
            self._start = self._end = 0
            self._expects_large = False
        elif self._end:
            self._keep_rest()
        return None

    def take_back(self, frame_bytes: int) -> None:
        """Lets `next_frame` return again what it has just returned."""
        self._start -= SIZE_BYTES + frame_bytes

    def keep_unread(self) -> None:
        """Copies the frames that `next_frame` has not returned yet out of the shared buffer, so that the
        caller may stop in the middle. Raises NoMemoryForRequestError.
        """
        if self._start < self._end and self._own is None:
            left = self._end - self._start
            if not self._may_hold(left):
                raise NoMemoryForRequestError(_NO_MEMORY)
            self._own = self._pool.take(left)
            self._own_filled = left
            self._own[: self._own_filled] = self._data[self._start : self._end]
            self._own_frame_end = 0
            self._data, self._start, self._end = memoryview(self._own), 0, self._own_filled

    def count_copy(self, size_bytes: int, evict: Callable[[], object]) -> Callable[[], object]:
        """Counts a copy of the frame that `next_frame` has returned. It takes the place of the frame, whose
        buffer goes back to the pool, unless other frames follow there. Returns the call that ends the count.
        Raises NoMemoryForRequestError.
        """
        budget, holding = self._pool.budget, Holding()
        if self._own is not None and self._start == self._end > 0:
            holding = self.holding
            self.holding = Holding(holding.evict)
            self._keep_rest()
        holding.evict, holding.grew_s = evict, monotonic()  # it does not stall: its work begins
        if not budget.resize(holding, self.key, size_bytes, monotonic()):
            raise NoMemoryForRequestError(_NO_MEMORY)
        return lambda: budget.forget(holding, monotonic())

    def close(self) -> None:
        """Gives the buffer back to the pool."""
        if self._own is not None:
            self._data, self._start, self._end = self._pool.shared, 0, 0
            self._pool.give_back(self._own)
            self._own = None
        self._pool.budget.forget(self.holding, monotonic())

    def _checked_size(self, data: bytearray | memoryview, position: int) -> int:
        size: int = _unpack_size(data, position)[0]
        if not 0 <= size <= self.max_frame_bytes:
            raise self._invalid_size(size)
        return size

    def _invalid_size(self, size: int) -> InvalidFrameSizeError:
        if size >> 16 == _TLS_HANDSHAKE:
            return InvalidFrameSizeError("the client began a TLS handshake, but this listener has no TLS")
        return InvalidFrameSizeError(
            f"a request of {size} bytes is invalid: the size must be from 0 to {self.max_frame_bytes} bytes "
            "(socket.request.max.bytes, or sasl.server.max.receive.size before the authentication)"
        )

    def _keep_rest(self) -> None:
        """Releases the buffer if no bytes are left, else moves the beginning of the next frame to its
        front.
        """
        data, start, left = self._data, self._start, self._end - self._start
        frame_bytes = SIZE_BYTES + self._checked_size(data, start) if left >= SIZE_BYTES else 0
        self._expects_large = frame_bytes >= LARGE_FRAME_BYTES or (
            self._own is not None and left == 0 and self._end >= LARGE_FRAME_BYTES
        )
        self._data, self._start, self._end = self._pool.shared, 0, 0
        if left:
            old = keep = self._own
            needed = max(self._pool.first_size(frame_bytes), min(2 * left, frame_bytes), SIZE_BYTES)
            if not self._may_hold(frame_bytes):  # only what is here, until the whole frame has room
                keep, needed, self.is_starved = None, left, True
                if not self._may_hold(left):
                    raise NoMemoryForRequestError(_NO_MEMORY)
            if keep is None or len(keep) < needed:
                keep = self._pool.take(needed)
            memoryview(keep)[:left] = data[start : start + left]
            self._own, self._own_filled, self._own_frame_end = keep, left, frame_bytes
            if old is not None and old is not keep:
                self._pool.give_back(old)
        elif self._own is not None:
            self._pool.give_back(self._own)
            self._own = None
            self._may_hold(0)

    def _may_hold(self, frame_bytes: int) -> bool:
        """Returns whether a frame of this size may be kept. If so, it counts from now on, as a whole: frames
        that have begun to arrive would otherwise wait for each other.
        """
        holding = self.holding
        counted = 0 if frame_bytes <= CAUTIOUS_ALLOCATION_BYTES else frame_bytes
        return counted == holding.amount or self._pool.budget.resize(holding, self.key, counted, monotonic())

    def _grow_if_full(self) -> None:
        old = self._own
        assert old is not None
        if self._own_filled == len(old) < self._own_frame_end:
            grown = self._own = self._pool.take(min(self._own_frame_end, 2 * len(old)))
            grown[: len(old)] = old
            self._pool.give_back(old)
            self.holding.grew_s = monotonic()


class Outbox:
    """The sending half of one connection. It has no limit: its user must stop at a limit of `waiting_bytes`,
    the bytes that the socket has not accepted yet.
    """

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
        self.last_progress = 0.0
        """When the socket last accepted bytes that had to wait, in seconds of the monotonic clock."""
        self.waiting_bytes = 0

    def send(self, chunks: Sequence[Chunk]) -> None:
        """Sends `chunks` after all earlier ones. Never blocks. Reports an error to `on_error`, which closes
        the connection.
        """
        if self._closed:
            release_files(chunks)
            return
        if not self._chunks and len(chunks) == 1 and type(chunks[0]) is bytes:  # the usual small response
            self._send_bytes(chunks[0])
            return
        self._chunks.extend(chunks)
        self.waiting_bytes += sum(map(len, chunks))
        if not self._watching and not self._reading_ahead:
            self._pump()

    def memory_bytes(self) -> int:
        """Returns the bytes that wait in memory, without those in files."""
        return memory_of(self._chunks)

    def close(self) -> None:
        """Drops the waiting chunks, releases their files and closes the duplicate of the socket."""
        self._closed = True
        self._stop_watching()
        if self._duplicate is not None:
            self._duplicate.close()
            self._duplicate = None
        if (
            self._reading_ahead
        ):  # a thread still uses the file of the first range; `_read_ahead_done` releases it
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
        """Sends until all is sent, the socket is full, pages of a file are missing, or the connection has
        sent its share of this iteration of the event loop.
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
                    if sent == 0:  # the file is shorter than the response promised, which cannot be completed
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
        """Writes the bytes before the next file range. Returns how many of them the socket accepted."""
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

    def _is_cold(self, head: FileRange) -> bool:
        """Returns whether sending the next bytes of `head` would wait for the disk. If not, moves
        `_probed_to` to the end of the bytes that can be sent.
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

    def _watch(self) -> None:
        if not self._watching:
            if self._duplicate is None:
                try:
                    self._duplicate = socket.socket(fileno=os.dup(self._fileno))
                except OSError as error:  # the process has no free file descriptor
                    self._on_error(error)
                    return
            self._loop.add_writer(self._duplicate.fileno(), self._pump)
            self._watching = True

    def _stop_watching(self) -> None:
        if self._watching and self._duplicate is not None:
            self._loop.remove_writer(self._duplicate.fileno())
        self._watching = False


def memory_of(chunks: Iterable[Chunk]) -> int:
    """Returns the bytes of chunks that are in memory and not in files."""
    return sum(len(chunk) for chunk in chunks if not isinstance(chunk, FileRange))


def release_files(chunks: Iterable[Chunk]) -> None:
    """Releases the files of chunks that will not be sent."""
    for chunk in chunks:
        if isinstance(chunk, FileRange):
            chunk.release()
