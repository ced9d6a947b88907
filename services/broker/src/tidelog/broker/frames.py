"""Bytes from a socket, cut into request frames, with as few copies as can be.

Every connection reads into one buffer that all share, for the event loop hands a connection its bytes
before it reads for another. Only what a frame leaves unfinished is copied, into a buffer of the
connection's own. A connection that sends large frames reads straight into such a buffer. So an idle
connection holds no memory, and a large Produce request lies in one piece from socket to log.
"""

from __future__ import annotations

import struct
from typing import Final

from tidelog.wire.headers import SIZE_BYTES

SHARED_BUFFER_BYTES: Final = 256 * 1024
FIRST_READ_BYTES: Final = 64 * 1024
"""What a connection known for large frames reads before it knows the next frame's size."""
LARGE_FRAME_BYTES: Final = 128 * 1024
FIRST_ALLOCATION_BYTES: Final = 1024 * 1024 + 64 * 1024
"""A frame may claim any size up to the limit; memory is given as its bytes arrive, doubling from here."""
POOLED_BYTES: Final = 8 * 1024 * 1024

_unpack_size = struct.Struct(">i").unpack_from


class InvalidFrameSizeError(ValueError):
    """A frame's length that is negative or over `socket.request.max.bytes`."""


class BufferPool:
    """Receive buffers shared by the connections of one event loop; keeps at most POOLED_BYTES for reuse."""

    __slots__ = ("_free", "_free_bytes", "shared")

    def __init__(self) -> None:
        self.shared = memoryview(bytearray(SHARED_BUFFER_BYTES))
        self._free: list[bytearray] = []
        self._free_bytes = 0

    def take(self, size_bytes: int) -> bytearray:
        """A buffer of at least `size_bytes`, its contents arbitrary."""
        for index in range(len(self._free) - 1, -1, -1):
            if len(self._free[index]) >= size_bytes:
                buffer = self._free.pop(index)
                self._free_bytes -= len(buffer)
                return buffer
        return bytearray(size_bytes)

    def give_back(self, buffer: bytearray) -> None:
        if len(buffer) >= FIRST_READ_BYTES and self._free_bytes + len(buffer) <= POOLED_BYTES:
            self._free.append(buffer)
            self._free_bytes += len(buffer)


class FrameReader:
    """The receiving half of one connection: `buffer()` to read into, then `received(n)`, then
    `next_frame()` until None.

    A frame is given without its length prefix and is valid until the next call of any method but
    `next_frame`.
    """

    __slots__ = (
        "_data",
        "_end",
        "_expects_large",
        "_max_frame_bytes",
        "_own",
        "_own_filled",
        "_own_frame_end",
        "_pool",
        "_start",
    )

    def __init__(self, pool: BufferPool, max_frame_bytes: int) -> None:
        self._pool = pool
        self._max_frame_bytes = max_frame_bytes
        self._own: bytearray | None = None
        self._own_filled = 0
        self._own_frame_end = 0  # 0: the size is not known yet
        self._expects_large = False
        self._data = pool.shared
        self._start = self._end = 0

    def buffer(self) -> memoryview:
        """Where the next bytes from the socket go."""
        if self._own is None:
            if not self._expects_large:
                return self._pool.shared
            self._own, self._own_filled, self._own_frame_end = self._pool.take(FIRST_ALLOCATION_BYTES), 0, 0
        if self._own_frame_end:
            return memoryview(self._own)[self._own_filled : min(self._own_frame_end, len(self._own))]
        if self._own_filled:  # fewer than 4 bytes: nothing beyond the size, so that no frame has to move
            return memoryview(self._own)[self._own_filled : SIZE_BYTES]
        return memoryview(self._own)[:FIRST_READ_BYTES]

    def received(self, size_bytes: int) -> None:
        """`size_bytes` were read into `buffer()`. Raises InvalidFrameSizeError."""
        if self._own is None:
            self._data, self._start, self._end = self._pool.shared, 0, size_bytes
            return
        self._own_filled += size_bytes
        if not self._own_frame_end and self._own_filled >= SIZE_BYTES:
            self._own_frame_end = SIZE_BYTES + self._checked_size(self._own, 0)
        if self._own_frame_end > len(self._own) and self._own_filled == len(self._own):
            self._grow(min(self._own_frame_end, 2 * len(self._own)))
        if self._own_frame_end and self._own_filled >= self._own_frame_end:
            self._data, self._start, self._end = memoryview(self._own), 0, self._own_filled

    def next_frame(self) -> memoryview | None:
        """The next whole frame, or None; what is left over is then kept for later. Raises
        InvalidFrameSizeError.
        """
        start, left = self._start, self._end - self._start
        if left >= SIZE_BYTES:
            (size,) = _unpack_size(self._data, start)  # _checked_size, without the call: once a request
            if not 0 <= size <= self._max_frame_bytes:
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

    def keep_unread(self) -> None:
        """Stop in the middle: the bytes not yet given out move to a buffer of this connection's own, if
        they are not there.
        """
        if self._start < self._end and self._own is None:
            self._own = self._pool.take(max(self._end - self._start, FIRST_READ_BYTES))
            self._own_filled = self._end - self._start
            self._own[: self._own_filled] = self._data[self._start : self._end]
            self._own_frame_end = 0
            self._data, self._start, self._end = memoryview(self._own), 0, self._own_filled

    def close(self) -> None:
        if self._own is not None:
            self._data, self._start, self._end = self._pool.shared, 0, 0
            self._pool.give_back(self._own)
            self._own = None

    def _checked_size(self, data: bytearray | memoryview, position: int) -> int:
        size: int = _unpack_size(data, position)[0]
        if not 0 <= size <= self._max_frame_bytes:
            raise self._invalid_size(size)
        return size

    def _invalid_size(self, size: int) -> InvalidFrameSizeError:
        return InvalidFrameSizeError(
            f"a request of {size} bytes; socket.request.max.bytes is {self._max_frame_bytes}"
        )

    def _keep_rest(self) -> None:
        """All whole frames are given out: free the buffer, or move the beginning of the next frame to its
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
            if keep is None or len(keep) < min(frame_bytes, FIRST_ALLOCATION_BYTES):
                keep = self._pool.take(max(min(frame_bytes, FIRST_ALLOCATION_BYTES), SIZE_BYTES, left))
            memoryview(keep)[:left] = data[start : start + left]
            self._own, self._own_filled, self._own_frame_end = keep, left, frame_bytes
            if old is not None and old is not keep:
                self._pool.give_back(old)
        elif self._own is not None:
            self._pool.give_back(self._own)
            self._own = None

    def _grow(self, size_bytes: int) -> None:
        old = self._own
        assert old is not None
        grown = self._pool.take(size_bytes)
        grown[: len(old)] = old
        self._pool.give_back(old)
        self._own = grown
