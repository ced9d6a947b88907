"""A segment's indexes as arrays. A file that a broker is writing may end in zeros or within an entry, so
everything after the last valid entry is ignored.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

_OFFSET_ENTRY: Final = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY: Final = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])

Longs: TypeAlias = NDArray[np.int64]


def offset_entries(data: bytes, base_offset: int, size_bytes: int) -> tuple[Longs, Longs]:
    """Reads an `.index` file: (last offset of a batch, position of that batch in the segment of
    `size_bytes`). Both rise.
    """
    entries = np.frombuffer(data, _OFFSET_ENTRY, len(data) // _OFFSET_ENTRY.itemsize)
    offsets = entries["relative_offset"].astype(np.int64)
    positions = entries["position"].astype(np.int64)
    count = min(_rising(offsets, 0), _rising(positions, 1))  # the first batch has no entry
    count = min(count, int(np.searchsorted(positions[:count], size_bytes, side="left")))
    return offsets[:count] + base_offset, positions[:count]


def time_entries(data: bytes, base_offset: int) -> tuple[Longs, Longs]:
    """Reads a `.timeindex` file: (greatest timestamp so far, last offset of its batch). Both rise. A batch
    before the first entry's batch may have the same timestamp.
    """
    entries = np.frombuffer(data, _TIME_ENTRY, len(data) // _TIME_ENTRY.itemsize)
    timestamps = entries["timestamp"].astype(np.int64)
    offsets = entries["relative_offset"].astype(np.int64)
    count = min(_rising(timestamps, 0), _rising(offsets, 0))
    return timestamps[:count], offsets[:count] + base_offset


def position_below(entries: tuple[Longs, Longs], offset: int) -> int:
    """Returns the position of a batch that begins at or before the batch with `offset`."""
    offsets, positions = entries
    slot = int(np.searchsorted(offsets, offset, side="right")) - 1
    return int(positions[slot]) if slot >= 0 else 0


def _rising(column: Longs, least: int) -> int:
    """Returns how many values from the start rise strictly, where the first must be at least `least`."""
    if not len(column) or column[0] < least:
        return 0
    stops = np.flatnonzero(np.diff(column) <= 0)
    return int(stops[0]) + 1 if len(stops) else len(column)
