"""A stretch of a segment on its way to a reader: what `sendfile` takes."""

from __future__ import annotations

import os

from tidelog.broker.log.segment import Segment


class FileRange:
    """`length` bytes of the segment's file from `position`, whole batches. Keeps the file open, even if it is
    deleted, until `release`.
    """

    __slots__ = ("_is_released", "length", "next_offset", "position", "segment")

    def __init__(self, segment: Segment, position: int, length: int, next_offset: int) -> None:
        segment.references += 1
        self.segment = segment
        self.position = position
        self.length = length
        self.next_offset = next_offset
        self._is_released = False

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"FileRange({self.segment.path}, {self.position}, {self.length})"

    def fileno(self) -> int:
        return self.segment.fd

    def read(self) -> bytes:
        """All of it; fewer bytes only if the file was truncated meanwhile."""
        return os.pread(self.segment.fd, self.length, self.position)

    def release(self) -> None:
        """Once and for all; further calls do nothing."""
        if not self._is_released:
            self._is_released = True
            self.segment.release()
