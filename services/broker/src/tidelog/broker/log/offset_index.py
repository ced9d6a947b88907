"""`.index`: for some batches, the offset of the last record (less the segment's base) and the position of the
batch. 8 bytes an entry.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from functools import partial
from typing import ClassVar, Final

from tidelog.broker.log.index_file import IndexFile
from tidelog.broker.log.partition_directory import OFFSET_INDEX_SUFFIX

_SLOTS_TRIED_FROM_HINT: Final = 512
_ROWS: Final = range(_SLOTS_TRIED_FROM_HINT)
_POSITION: Final = struct.Struct(">4xi")


def _position_in(block: bytes, row: int) -> int:
    position: int = _POSITION.unpack_from(block, row * 8)[0]
    return position


class OffsetIndex(IndexFile):
    """Takes and gives absolute offsets."""

    ENTRY: ClassVar[struct.Struct] = struct.Struct(">ii")
    SUFFIX: ClassVar[str] = OFFSET_INDEX_SUFFIX
    __slots__ = ()

    def append(self, last_offset: int, position: int) -> None:
        self._append(last_offset - self._base_offset, position)

    def position_for(self, offset: int) -> tuple[int, int]:
        """(slot, position) of the greatest entry at or below `offset`; (-1, 0) if there is none."""
        slot = self.slot_at_or_below(offset - self._base_offset)
        return (slot, self.entry(slot)[1]) if slot >= 0 else (-1, 0)

    def place_at_or_below(self, position: int, hint_slot: int) -> tuple[int, int]:
        """(slot, position) of the last entry whose position is at most `position`; (-1, 0) if there is none.

        Near `hint_slot`, where a sequential reader was last, the search is short.
        """
        low, high = max(0, hint_slot), self.entry_count
        block = self.packed(low, _SLOTS_TRIED_FROM_HINT)
        rows = len(block) // self.ENTRY.size
        if rows and _position_in(block, 0) <= position:
            row = bisect_right(_ROWS, position, hi=rows, key=partial(_position_in, block)) - 1
            low += row
            if row + 1 < rows or low + 1 == high:
                return low, _position_in(block, row)
        else:
            low = 0
        slot = bisect_right(range(high), position, lo=low, key=self._second_column) - 1
        return (slot, self.entry(slot)[1]) if slot >= 0 else (-1, 0)

    def last_position(self) -> int:
        """Position of the last entry's batch, 0 without entries."""
        return self.entry(self.entry_count - 1)[1] if self.entry_count else 0
