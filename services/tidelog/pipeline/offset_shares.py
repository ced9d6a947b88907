"""Divides the size limit of a batch among the partitions that have waiting records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

P = TypeVar("P")


def offset_shares(waiting: Mapping[P, int], limit: int | None) -> dict[P, int]:
    """Returns each partition's share of `limit` offsets, in proportion to its waiting offsets. A limit of
    None means all.

    As in Spark's Kafka connector, each partition with waiting records gets at least one offset, so that a
    small partition cannot starve. The sum of the shares may therefore exceed `limit`.
    """
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return dict(waiting)
    return {place: min(count, max(1, count * limit // total)) for place, count in waiting.items()}
