"""A sparse index beside a segment: fixed-size entries, both columns rising, appended only.

The newest entries are also in memory (a window of at most 2 x SPILL_ENTRIES), older ones are searched in
the file, so an index costs a few KB however large its segment is. The file lags behind by up to
SPILL_ENTRIES: after a crash it is made anew from the segment.

One thread (the event loop) appends, looks up and truncates. `spill` and `reader` may also be called in
another.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from typing import ClassVar, Final, Self

from tidelog.broker.log.partition_directory import PartitionDirectory

SPILL_ENTRIES: Final = 512
_NOT_OPEN: Final = -1


class IndexFile:
    """Slots of entries are counted from 0. Raises OSError where the disk refuses."""

    ENTRY: ClassVar[struct.Struct]
    SUFFIX: ClassVar[str]
    __slots__ = ("_base_offset", "_directory", "_fd", "_persisted", "_window", "entry_count")

    def __init__(self, directory: PartitionDirectory, base_offset: int) -> None:
        self._directory = directory
        self._base_offset = base_offset
        self._fd = _NOT_OPEN
        self._persisted = 0
        self._window: tuple[int, bytearray] = (0, bytearray())  # slot of its first entry, packed entries
        self.entry_count = 0

    @property
    def path(self) -> str:
        return self._directory.file(self._base_offset, self.SUFFIX)

    def create(self) -> None:
        """An empty file, whatever was there."""
        os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))

    def opened_with(self, entry_count: int) -> None:
        """The file holds that many entries."""
        self._persisted = self.entry_count = entry_count
        self._window = (entry_count, bytearray())

    # -- reading

    def entry(self, slot: int) -> tuple[int, int]:
        start, window = self._window
        size = self.ENTRY.size
        if slot >= start:
            first, second = self.ENTRY.unpack_from(window, (slot - start) * size)
        else:
            first, second = self.ENTRY.unpack(os.pread(self._open(), size, slot * size))
        return first, second

    def packed(self, slot: int, count: int) -> bytes:
        """Up to `count` entries from `slot` on as they are in the file; fewer where the file's part ends."""
        start, window = self._window
        size = self.ENTRY.size
        if slot >= start:
            return bytes(window[(slot - start) * size : (slot - start + count) * size])
        return os.pread(self._open(), min(count, start - slot) * size, slot * size)

    def _first_column(self, slot: int) -> int:
        return self.entry(slot)[0]

    def _second_column(self, slot: int) -> int:
        return self.entry(slot)[1]

    def slot_at_or_below(self, value: int) -> int:
        """The last slot whose first column is at most `value`, -1 if there is none."""
        start = self._window[0]
        count = self.entry_count
        if start < count and self._first_column(start) <= value:
            return bisect_right(range(count), value, lo=start, key=self._first_column) - 1
        return bisect_right(range(min(start, count)), value, key=self._first_column) - 1

    def last_two_rise(self) -> bool:
        """Zeros that a crash left at the end of a file do not."""
        count = self.entry_count
        return count < 2 or self._first_column(count - 1) > self._first_column(count - 2)

    def reader(self) -> Self:
        """The entries as of now with a descriptor of its own, for lookups in another thread; to be closed."""
        copy = type(self)(self._directory, self._base_offset)
        copy.entry_count = (
            self.entry_count
        )  # before the window: what a newer window leaves out is in the file
        copy._window = self._window
        with self._directory.lock:
            if self._fd != _NOT_OPEN:  # by its name it may be another's file by now, after a cleaning
                copy._fd = os.dup(self._fd)
        return copy

    def opened_at(self, path: str, entry_count: int) -> None:
        """The file, complete, lies at `path` for now; it stays open under whatever name."""
        self.opened_with(entry_count)
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _open(self) -> int:
        if self._fd == _NOT_OPEN:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        return self._fd

    def close(self) -> None:
        """Free the file descriptor; it is opened again when needed."""
        if self._fd != _NOT_OPEN:
            os.close(self._fd)
            self._fd = _NOT_OPEN

    # -- writing

    def _append(self, first: int, second: int) -> None:
        start, window = self._window
        window += self.ENTRY.pack(first, second)
        self.entry_count = count = self.entry_count + 1
        if count - start >= 2 * SPILL_ENTRIES and count % SPILL_ENTRIES == 0:
            try:
                self.spill()
            except OSError:
                return  # a full disk: the entries stay in memory; the next flush or roll reports it
            self._window = (count - SPILL_ENTRIES, window[-SPILL_ENTRIES * self.ENTRY.size :])

    def spill(self) -> None:
        """Write what the file lacks."""
        with self._directory.lock:
            start, window = self._window
            first, count = self._persisted, self.entry_count
            if first == count:
                return
            size = self.ENTRY.size
            entries = bytes(window[(first - start) * size : (count - start) * size])
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                written = os.pwrite(fd, entries, first * size)
            finally:
                os.close(fd)
            self._persisted = first + written // size
            if written != len(entries):
                raise OSError(f"{self.path}: {written} of {len(entries)} bytes written")

    def keep(self, entry_count: int) -> None:
        """Drop the entries from slot `entry_count` on."""
        with self._directory.lock:
            start, window = self._window
            if entry_count >= self.entry_count:
                return
            if entry_count < self._persisted:
                os.truncate(self.path, entry_count * self.ENTRY.size)
                self._persisted = entry_count
            if entry_count <= start:
                self._window = (entry_count, bytearray())
            else:
                self._window = (start, window[: (entry_count - start) * self.ENTRY.size])
            self.entry_count = entry_count

    def keep_below(self, value: int) -> None:
        """Drop the entries whose first column is `value` or more."""
        self.keep(bisect_left(range(self.entry_count), value, key=self._first_column))

    def reset(self) -> None:
        """Drop all entries and make the file anew (recovery)."""
        with self._directory.lock:
            self.create()
            self._persisted, self._window, self.entry_count = 0, (0, bytearray()), 0
