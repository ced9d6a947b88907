"""`.timeindex`: the greatest timestamp so far and the last offset (less the segment's base) of the batch that
has it. 12 bytes an entry.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from typing import ClassVar

from tidelog.broker.log.index_file import IndexFile
from tidelog.broker.log.partition_directory import TIME_INDEX_SUFFIX, PartitionDirectory
from tidelog.records.batch import NO_TIMESTAMP


class TimeIndex(IndexFile):
    """Takes and gives absolute offsets; timestamps are milliseconds."""

    ENTRY: ClassVar[struct.Struct] = struct.Struct(">qi")
    SUFFIX: ClassVar[str] = TIME_INDEX_SUFFIX
    __slots__ = ("last_timestamp",)

    def __init__(self, directory: PartitionDirectory, base_offset: int) -> None:
        super().__init__(directory, base_offset)
        self.last_timestamp = NO_TIMESTAMP  # of the last entry; see `load_last`

    def append_if_later(self, timestamp: int, offset: int) -> bool:
        """An entry is added, and True returned, only if the greatest timestamp has risen since the last."""
        if timestamp <= self.last_timestamp:
            return False
        self._append(timestamp, offset - self._base_offset)
        self.last_timestamp = timestamp
        return True

    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry, (-1, base offset) without entries."""
        if not self.entry_count:
            return NO_TIMESTAMP, self._base_offset
        timestamp, relative_offset = self.entry(self.entry_count - 1)
        return timestamp, self._base_offset + relative_offset

    def load_last(self) -> None:
        """Before the first append to an index that was not empty when opened."""
        self.last_timestamp = self.last()[0]

    def offset_for(self, timestamp: int) -> int:
        """All batches before this offset are older than `timestamp`: the offset of the last entry at or below
        it.
        """
        slot = self.slot_at_or_below(timestamp)
        return self._base_offset + (self.entry(slot)[1] if slot >= 0 else 0)

    def keep_offsets_below(self, offset: int) -> None:
        self.keep(bisect_left(range(self.entry_count), offset - self._base_offset, key=self._second_column))
        self.load_last()

    def reset(self) -> None:
        super().reset()
        self.last_timestamp = NO_TIMESTAMP
