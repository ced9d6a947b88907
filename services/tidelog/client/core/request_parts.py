"""Divides what a client asks for into requests that no broker refuses for their size.

A broker may limit the elements of a request, as tidelog did (ADR 0025), and it closes the connection of a
larger one. Smaller requests also let others have their turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

PARTITIONS_A_REQUEST: Final = 500
"""The partitions, or other things, of one request. Each may have a topic of its own, and name replicas."""
FETCHED_PARTITIONS: Final = 4_000
"""The partitions that one request adds to a session of fetches or takes out of it. Each request also waits
for records, so there must be few of them.
"""


def in_parts(items: Iterable[T], size: int = PARTITIONS_A_REQUEST) -> Iterator[list[T]]:
    """Yields the items in lists of at most `size`, and no list if there are none."""
    part: list[T] = []
    for item in items:
        part.append(item)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part
