"""Bounds the file descriptors that segments hold. Belongs to one event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidelog.broker.log.segment import Segment

DEFAULT_MAX_OPEN_SEGMENTS: Final = 8192


class OpenSegments:
    """Closes segments that nobody holds and nobody used lately (second chance) when more than `max_open` are
    open.

    A segment held by file ranges stays open, so the bound may be passed while more than that many are
    being sent.
    """

    __slots__ = ("_open", "max_open")

    def __init__(self, max_open: int = DEFAULT_MAX_OPEN_SEGMENTS) -> None:
        self.max_open = max_open
        self._open: dict[Segment, None] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, segment: Segment) -> None:
        self._open[segment] = None
        if len(self._open) > self.max_open:
            self._evict(segment)

    def closed(self, segment: Segment) -> None:
        self._open.pop(segment, None)

    def _evict(self, newest: Segment) -> None:
        for segment in list(self._open):
            if len(self._open) <= self.max_open or segment is newest:
                return
            if segment.recently_used or segment.references:
                segment.recently_used = False
                del self._open[segment]
                self._open[segment] = None
            else:
                segment.close_files()
