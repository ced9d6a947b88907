"""Bounds the file descriptors that segments hold."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidelog.broker.log.segment import Segment

DEFAULT_MAX_OPEN_SEGMENTS: Final = 8192


class OpenSegments:
    """Closes segments that nobody holds and nobody used lately (second chance) when more than `max_open`
    are open. One held by file ranges stays open, so the bound may be passed while that many are being sent.

    Segments are used, and so opened, on the event loop. What another thread works on (a log being opened,
    truncated or closed) is in an instance of its own meanwhile: see `Segment.move_to`.
    """

    __slots__ = ("_lock", "_open", "max_open")

    def __init__(self, max_open: int = DEFAULT_MAX_OPEN_SEGMENTS) -> None:
        self.max_open = max_open
        self._open: dict[Segment, None] = {}  # oldest first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, segment: Segment) -> None:
        with self._lock:
            self._open[segment] = None
            if len(self._open) > self.max_open:
                self._evict(segment)

    def forget(self, segment: Segment) -> None:
        """It was closed, or is another instance's from now on."""
        with self._lock:
            self._open.pop(segment, None)

    def _evict(self, newest: Segment) -> None:
        for segment in list(self._open):
            if len(self._open) <= self.max_open or segment is newest:
                return
            del self._open[segment]
            if segment.recently_used or segment.references:
                segment.recently_used = False
                self._open[segment] = None
            else:
                segment.close_descriptors()
