"""Long work that can pause: a generator that yields wherever it may be interrupted, mostly after an element.

A step should take microseconds. Pure cores make such work, and `slices.py` runs it on an event loop.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]


def all_at_once(steps: Steps[T]) -> T:
    """Does all the work without a pause, if it is short or in a thread beside the event loop."""
    try:
        while True:
            next(steps)
    except StopIteration as ended:
        result: T = ended.value
        return result
