"""The reason why a call that waits can wait in vain: it also stops the event loop of its own thread."""

from __future__ import annotations

import asyncio


def loop_advice() -> str:
    """Returns what to add to the error of a call that waited in vain: nothing outside of coroutines."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return ""
    return "; the call also stopped the event loop of its thread: call it with await asyncio.to_thread(...)"
