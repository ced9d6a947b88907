"""The process-wide arrangements that a service makes before it has a state: files that only its user can
read, and short pauses by Python's garbage collector.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path
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
PRIVATE_UMASK: Final = 0o077
"""The rights that new files lack: all of the group and of others."""
PRIVATE_DIRECTORY: Final = 0o700
"""The mode of a directory that only its owner can list."""


class Freezer:
    """A callback of Python's garbage collector, which freezes what survives a full collection.

    A full collection visits every object that may be part of a cycle of references, and stops all threads
    meanwhile. A broker keeps some hundred thousand such objects, so it stood still for 80 ms every few
    seconds. Here, the objects that survive a full collection are frozen, and later collections do not visit
    them. Python still frees a frozen object when its last reference ends, unless it is part of a cycle.
    """

    def __init__(self) -> None:
        self._visits_all = True  # the collection that runs next
        self._thaw_at_blocks = 0

    def __call__(self, phase: Literal["start", "stop"], info: dict[str, int]) -> None:
        """Freezes what survived a full collection.

        If much memory was allocated since the last thaw, it thaws all objects instead, so that the next full
        collection visits them.
        """
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


def keep_files_private(data_dir: Path | None = None) -> None:
    """Makes this process and its children create files with mode 0600 and directories with mode 0700, and
    closes an existing `data_dir` to other users: files hold records, keys and the metadata store.
    """
    os.umask(PRIVATE_UMASK)
    if data_dir is not None:
        # A volume may belong to another user, such as Kubernetes' root; its group then decides.
        with suppress(FileNotFoundError, PermissionError):
            data_dir.chmod(PRIVATE_DIRECTORY)
