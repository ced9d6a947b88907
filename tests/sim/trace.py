"""The events of a run, for readers of a failure, and a hash of all events, which shows that a seed gives the
same run again.
"""

from __future__ import annotations

import zlib
from collections import Counter, deque
from typing import Any, Final

EVENTS_KEPT: Final = 400


class Trace:
    """Records each event with `add` and keeps the last ones."""

    def __init__(self) -> None:
        self.kept: deque[tuple[float, tuple[Any, ...]]] = deque(maxlen=EVENTS_KEPT)
        self.counts: Counter[str] = Counter()
        self.hash = 0

    def add(self, now: float, kind: str, *details: Any) -> None:
        self.counts[kind] += 1
        self.kept.append((now, (kind, *details)))
        self.hash = zlib.crc32(repr((now, kind, details)).encode(), self.hash)

    @property
    def event_count(self) -> int:
        return sum(self.counts.values())

    def lines(self, count: int = EVENTS_KEPT) -> list[str]:
        return [f"{now:10.4f}  {' '.join(map(str, event))}" for now, event in list(self.kept)[-count:]]
