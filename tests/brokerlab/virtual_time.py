"""Time and chance of the models. Everything that happens follows from a seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable


class VirtualTime:
    """A model derives from it. Its faults happen until `is_healed` is set."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_ms = 0
        self.is_healed = False
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0

    def at(self, delay_ms: int, what: Callable[[], None]) -> None:
        """Calls `what` after a delay."""
        self._order += 1
        heapq.heappush(self._agenda, (self.now_ms + delay_ms, self._order, what))

    def run(self, until_ms: int) -> None:
        """Lets time pass, with all that happens in it."""
        while self._agenda and self._agenda[0][0] <= until_ms:
            self.now_ms, _, what = heapq.heappop(self._agenda)
            what()
        self.now_ms = until_ms

    def _happens(self, probability: float) -> bool:
        return not self.is_healed and self.chance.random() < probability
