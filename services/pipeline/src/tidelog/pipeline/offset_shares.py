"""A limited batch's share of what waits in each partition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

P = TypeVar("P")


def offset_shares(waiting: Mapping[P, int], limit: int | None) -> dict[P, int]:
    """Of each partition in proportion to what waits there, `limit` in all, if it isn't None.

    As the Kafka connector does it: at least one offset where any waits, so that a small partition isn't left
    for ever; the sum may be beyond `limit` by those.
    """
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return dict(waiting)
    return {place: min(count, max(1, count * limit // total)) for place, count in waiting.items()}
