"""The CPU time of a piece of work, without what else the process does meanwhile."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

ATTEMPTS = 3


def cpu_s(work: Callable[[], object]) -> float:
    """Returns the CPU time of one call, without collections of garbage: these take the longer the more tests
    ran before in this process.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        begun = time.process_time()
        work()
        return time.process_time() - begun
    finally:
        if was_enabled:
            gc.enable()


def least_cpu_s(work: Callable[[], object]) -> float:
    """Returns the shortest CPU time of some calls."""
    return min(cpu_s(work) for _ in range(ATTEMPTS))
