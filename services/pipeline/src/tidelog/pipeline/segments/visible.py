"""Which offsets of which files may be read: never past the high watermark, nor the last stable offset."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tidelog.pipeline.segments.layout import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    AbortedRange,
    OffsetsMissingError,
    PartitionLog,
    SegmentFile,
)
from tidelog.pipeline.segments.storage import Storage

__all__ = [
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "AbortedRange",
    "OffsetsMissingError",
    "PartitionLog",
    "SegmentFile",
    "visible_logs",
]


def visible_logs(
    storage: Storage,
    roots: Sequence[str],
    topics: Collection[str] | None = None,
    isolation_level: str = READ_COMMITTED,
) -> list[PartitionLog]:
    raise NotImplementedError
