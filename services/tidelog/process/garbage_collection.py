"""Bounds the pauses of a service by Python's garbage collector.

A full collection visits every object that may be part of a cycle of references, and stops all threads
meanwhile. A broker keeps some hundred thousand such objects, so it stood still for 80 ms every few seconds.
Here, the objects that survive a full collection are frozen, and later collections do not visit them. Python
still frees a frozen object when its last reference ends, unless it is part of a cycle.
"""

from __future__ import annotations

import gc
import sys
from typing import Final, Literal

FULL_COLLECTION_OBJECTS: Final = 20_000
"""About the number of new objects after which a full collection is due. It takes less than 20 ms."""
YOUNG_OBJECTS: Final = 700
"""The number of new objects after which the youngest generation is collected; Python's default."""
YOUNG_COLLECTIONS: Final = 10
"""The collections of the youngest generation after which the middle one is collected; Python's default."""
MIN_THAW_BLOCKS: Final = 2_000_000
"""A frozen cycle that became garbage stays in memory. Therefore all objects are visited again when Python has
allocated twice as many blocks of memory as after the last such visit, and at least this many more. They take
about 200 MB.
"""


class Freezer:
    """A callback of Python's garbage collector, which freezes what survives a full collection."""

    def __init__(self) -> None:
        self._visits_all = True  # the collection that runs next
        self._thaw_at_blocks = 0

    def __call__(self, phase: Literal["start", "stop"], info: dict[str, int]) -> None:
        if phase == "start" or info["generation"] < 2:
            return
        gc.freeze()
        blocks = sys.getallocatedblocks()
        if self._visits_all:
            self._visits_all = False
            self._thaw_at_blocks = blocks + max(blocks, MIN_THAW_BLOCKS)
        elif blocks >= self._thaw_at_blocks:
            self._visits_all = True
            gc.unfreeze()


def bound_collection_pauses() -> None:
    """Collects garbage once, and bounds the pauses of later collections. A service calls this when its
    modules are loaded and before it has a state.
    """
    gc.set_threshold(
        YOUNG_OBJECTS, YOUNG_COLLECTIONS, FULL_COLLECTION_OBJECTS // (YOUNG_OBJECTS * YOUNG_COLLECTIONS)
    )
    gc.callbacks.append(Freezer())
    gc.collect()
