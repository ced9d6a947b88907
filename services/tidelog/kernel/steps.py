"""The steps of long work: a generator yields wherever the work may be interrupted, mostly after an element.

A step should take microseconds. Pure cores make the steps, and `slices.py` takes them on an event loop.
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
