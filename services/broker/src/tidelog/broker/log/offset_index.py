"""`.index`: for some batches, the offset of the last record (less the segment's base) and the position of the
batch. 8 bytes an entry.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import ClassVar, Final

from tidelog.broker.log.index_file import IndexFile
from tidelog.broker.log.partition_directory import OFFSET_INDEX_SUFFIX

_SLOTS_TRIED_FROM_HINT: Final = 1024


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
        count = self.entry_count
        low = hint_slot if 0 <= hint_slot < count else 0
        high = min(count, low + _SLOTS_TRIED_FROM_HINT)
        if high < count and self.entry(high)[1] <= position:
            low, high = high, count
        elif low and self.entry(low)[1] > position:
            low, high = 0, low
        slot = bisect_right(range(high), position, lo=low, key=self._second_column) - 1
        return (slot, self.entry(slot)[1]) if slot >= 0 else (-1, 0)

    def last_position(self) -> int:
        """Position of the last entry's batch, 0 without entries."""
        return self.entry(self.entry_count - 1)[1] if self.entry_count else 0
