"""Server-sent events, by which pages are updated."""

from __future__ import annotations

from typing import Final


def event(name: str, data: str) -> str:
    """Returns an event as text/event-stream."""
    return f"event: {name}\n" + "".join(f"data: {line}\n" for line in data.splitlines()) + "\n"


ENDED: Final = event("ended", "The session has ended.")
"""Tells a page to load itself again, which leads to the login."""
