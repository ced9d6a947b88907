"""The indexes of a segment: `.index` (by offset), `.timeindex` (by timestamp) and `.txnindex` (transactions).

The offset index and the time index are sparse. Their entries have a fixed size, both columns rise, and
entries are only appended. The newest entries are also in memory (a window of at most 2 x SPILL_ENTRIES);
older ones are searched in the file. So an index costs a few KB, however large its segment is. The file can
lack up to SPILL_ENTRIES entries; after a crash, recovery builds it from the segment.

The transaction index has the aborted transactions whose marker is in the segment (Kafka's `AbortedTxn`,
`TransactionIndex`). A file without entries does not exist. An entry is written at once, because few
transactions are aborted. If the disk refuses it, the next flush or roll writes it.

One thread (the event loop) appends, looks up and truncates. Other threads may call `spill` and `reader`.
"""

from __future__ import annotations

import os
import struct
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import ClassVar, Final, Self

from tidelog.broker.log.directory_files import PartitionDirectory
from tidelog.broker.partition.producer_state import CompletedTransaction
from tidelog.log_format.directory import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    CorruptFileError,
)
from tidelog.log_format.entries import (
    ABORTED_ENTRY,
    ABORTED_VERSION,
    OFFSET_ENTRY,
    TIME_ENTRY,
    decode_aborted_transactions,
)
from tidelog.records.aborted import AbortedTransaction
from tidelog.records.batch import NO_TIMESTAMP

SPILL_ENTRIES: Final = 512
_NOT_OPEN: Final = -1
_SLOTS_TRIED_FROM_HINT: Final = 512
_ROWS: Final = range(_SLOTS_TRIED_FROM_HINT)
_POSITION: Final = struct.Struct(">4xi")
_LAST_OFFSET: Final = struct.Struct(">18xq8x")
_BLOCK_ENTRIES: Final = 256
"""The entries of the transaction index that a search skips at once if all of them began behind its range."""
_UNKNOWN: Final = -1


class IndexFile:
    """The common part of both indexes. A slot is the number of an entry, counted from 0.

    Methods raise OSError if the disk fails.
    """

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
        """The path of the index file."""
        return self._directory.file(self._base_offset, self.SUFFIX)

    def create(self) -> None:
        """Creates an empty file, or empties the one that exists."""
        os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))

    def opened_with(self, entry_count: int) -> None:
        """Takes the file as it is; `entry_count` is the number of its entries."""
        self._persisted = self.entry_count = entry_count
        self._window = (entry_count, bytearray())

    # -- reading

    def entry(self, slot: int) -> tuple[int, int]:
        """Returns both columns of an entry."""
        start, window = self._window
        size = self.ENTRY.size
        if slot >= start:
            first, second = self.ENTRY.unpack_from(window, (slot - start) * size)
        else:
            first, second = self.ENTRY.unpack(os.pread(self._open(), size, slot * size))
        return first, second

    def packed(self, slot: int, count: int) -> bytes:
        """Returns up to `count` entries from `slot` in the file's format.

        The result has fewer if the entries are partly in the file and partly in memory.
        """
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
        """Returns the last slot whose first column is at most `value`, -1 if there is none."""
        start = self._window[0]
        count = self.entry_count
        if start < count and self._first_column(start) <= value:
            return bisect_right(range(count), value, lo=start, key=self._first_column) - 1
        return bisect_right(range(min(start, count)), value, key=self._first_column) - 1

    def last_two_rise(self) -> bool:
        """Returns False if the last two entries are not in order, as zeros after a crash are not."""
        count = self.entry_count
        return count < 2 or self._first_column(count - 1) > self._first_column(count - 2)

    def reader(self) -> Self:
        """Returns a copy of the present entries, with a separate descriptor, for lookups in another thread.

        The caller closes it.
        """
        copy = type(self)(self._directory, self._base_offset)
        # Read the count before the window: entries that a newer window lacks are in the file.
        copy.entry_count = self.entry_count
        copy._window = self._window
        with self._directory.lock:
            if self._fd != _NOT_OPEN:  # after a cleaning, the name may belong to another file
                copy._fd = os.dup(self._fd)
        return copy

    def opened_at(self, path: str, entry_count: int) -> None:
        """Opens a complete file that has the name `path` for now. It stays open when it is renamed."""
        self.opened_with(entry_count)
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _open(self) -> int:
        if self._fd == _NOT_OPEN:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        return self._fd

    def close(self) -> None:
        """Closes the file descriptor; the next lookup that needs the file opens it again."""
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
                return  # the disk is full: the entries stay in memory, and the next flush or roll reports it
            self._window = (count - SPILL_ENTRIES, window[-SPILL_ENTRIES * self.ENTRY.size :])

    def spill(self) -> None:
        """Writes the entries that the file does not have yet."""
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
        """Removes the entries from slot `entry_count` to the end."""
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
        """Removes the entries whose first column is at least `value`."""
        self.keep(bisect_left(range(self.entry_count), value, key=self._first_column))

    def reset(self) -> None:
        """Removes all entries and empties the file (recovery)."""
        with self._directory.lock:
            self.create()
            self._persisted, self._window, self.entry_count = 0, (0, bytearray()), 0


class OffsetIndex(IndexFile):
    """`.index`: for some batches, the offset of the last record and the position of the batch.

    An entry has 8 bytes: the offset less the segment's base offset, and the position. Methods take and
    return absolute offsets.
    """

    ENTRY: ClassVar[struct.Struct] = OFFSET_ENTRY
    SUFFIX: ClassVar[str] = OFFSET_INDEX_SUFFIX
    __slots__ = ()

    def append(self, last_offset: int, position: int) -> None:
        """Adds the entry of the batch at `position`."""
        self._append(last_offset - self._base_offset, position)

    def position_for(self, offset: int) -> tuple[int, int]:
        """Returns (slot, position) of the greatest entry at or below `offset`; (-1, 0) if there is none."""
        slot = self.slot_at_or_below(offset - self._base_offset)
        return (slot, self.entry(slot)[1]) if slot >= 0 else (-1, 0)

    def place_at_or_below(self, position: int, hint_slot: int) -> tuple[int, int]:
        """Returns (slot, position) of the last entry whose position is at most `position`, (-1, 0) if none.

        The search is short if the entry is near `hint_slot`, where a sequential reader was last.
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
        """Returns the position in the last entry, 0 without entries."""
        return self.entry(self.entry_count - 1)[1] if self.entry_count else 0


def _position_in(block: bytes, row: int) -> int:
    position: int = _POSITION.unpack_from(block, row * 8)[0]
    return position


class TimeIndex(IndexFile):
    """`.timeindex`: the greatest timestamp so far and the last offset of the batch that has it.

    An entry has 12 bytes: the timestamp in milliseconds, and the offset less the segment's base offset.
    Methods take and return absolute offsets.
    """

    ENTRY: ClassVar[struct.Struct] = TIME_ENTRY
    SUFFIX: ClassVar[str] = TIME_INDEX_SUFFIX
    __slots__ = ("last_timestamp",)

    def __init__(self, directory: PartitionDirectory, base_offset: int) -> None:
        super().__init__(directory, base_offset)
        self.last_timestamp = NO_TIMESTAMP  # of the last entry; see `load_last`

    def append_if_later(self, timestamp: int, offset: int) -> bool:
        """Adds an entry, and returns True, if `timestamp` is greater than that of the last entry."""
        if timestamp <= self.last_timestamp:
            return False
        self._append(timestamp, offset - self._base_offset)
        self.last_timestamp = timestamp
        return True

    def last(self) -> tuple[int, int]:
        """Returns (timestamp, offset) of the last entry, (-1, base offset) without entries."""
        if not self.entry_count:
            return NO_TIMESTAMP, self._base_offset
        timestamp, relative_offset = self.entry(self.entry_count - 1)
        return timestamp, self._base_offset + relative_offset

    def load_last(self) -> None:
        """Reads the last timestamp. Needed before the first append to an index that had entries."""
        self.last_timestamp = self.last()[0]

    def offset_for(self, timestamp: int) -> int:
        """Returns the offset of the last entry at or below `timestamp`.

        All batches before this offset are older than `timestamp`.
        """
        slot = self.slot_at_or_below(timestamp)
        return self._base_offset + (self.entry(slot)[1] if slot >= 0 else 0)

    def keep_offsets_below(self, offset: int) -> None:
        """Removes the entries of batches at or above `offset`."""
        self.keep(bisect_left(range(self.entry_count), offset - self._base_offset, key=self._second_column))
        self.load_last()

    def reset(self) -> None:
        """Removes all entries and empties the file (recovery)."""
        super().reset()
        self.last_timestamp = NO_TIMESTAMP


def aborted_transaction(completed: CompletedTransaction) -> AbortedTransaction:
    return AbortedTransaction(
        completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset
    )


class AbortedSearch:
    """Collects the aborted transactions with records in a range, in the order of their markers.

    If there are more than `most`, `upper_offset` falls to the beginning of the first one that is left out, so
    `found` is complete for the range up to there.
    """

    __slots__ = ("_most", "found", "from_offset", "upper_offset")

    def __init__(self, from_offset: int, upper_offset: int, most: int = sys.maxsize) -> None:
        self._most = most
        self.from_offset = from_offset
        self.upper_offset = upper_offset
        self.found: list[AbortedTransaction] = []

    def add(self, entry: AbortedTransaction) -> None:
        self.found.append(entry)
        if len(self.found) // 2 > self._most:  # not at each entry, because it sorts them
            self._shorten()

    def end(self) -> None:
        """Ends the search, after all entries that may belong to the range."""
        self._shorten()
        self.found.sort(key=_BY_MARKER)

    def _shorten(self) -> None:
        found = self.found
        if len(found) > self._most:
            found.sort(key=_BY_BEGIN)
            self.upper_offset = found[self._most].first_offset
            del found[self._most :]


_BY_BEGIN: Final = attrgetter("first_offset")
_BY_MARKER: Final = attrgetter("last_offset")


class TransactionIndex:
    """The index of one segment. Methods raise OSError if the disk fails."""

    __slots__ = ("_base_offset", "_begins_of_blocks", "_directory", "_entries", "_persisted_bytes")

    def __init__(self, directory: PartitionDirectory, base_offset: int) -> None:
        self._directory = directory
        self._base_offset = base_offset
        self._entries: bytearray | None = None  # the contents of the file, read at the first use
        # the least first offset of each full block of entries, as far as searches have needed it
        self._begins_of_blocks: dict[int, int] = {}
        self._persisted_bytes = _UNKNOWN

    @property
    def path(self) -> str:
        return self._directory.file(self._base_offset, TRANSACTION_INDEX_SUFFIX)

    def _loaded(self) -> bytearray:
        entries = self._entries
        if entries is None:
            entries = bytearray()
            with suppress(FileNotFoundError):
                entries += Path(self.path).read_bytes()
            del entries[len(entries) - len(entries) % ABORTED_ENTRY.size :]
            self._entries, self._persisted_bytes = entries, len(entries)
        return entries

    def opened_with(self, content: bytes) -> None:
        """Sets the contents of a file that may have another name for now."""
        self._entries, self._persisted_bytes = bytearray(content), len(content)
        self._begins_of_blocks.clear()

    def check(self) -> bool:
        """Returns whether the file is valid. A file that does not exist is valid."""
        self.close()
        self._begins_of_blocks.clear()
        try:
            decode_aborted_transactions(Path(self.path).read_bytes(), self._base_offset)
        except FileNotFoundError:
            return True
        except CorruptFileError:
            return False
        return True

    # -- reading

    def __iter__(self) -> Iterator[AbortedTransaction]:
        for _, *fields in ABORTED_ENTRY.iter_unpack(bytes(self._loaded())):
            yield AbortedTransaction._make(fields)

    def collect(self, search: AbortedSearch) -> bool:
        """Adds the transactions with records in the range of the search.

        Returns True if no later segment can have another one.
        """
        entries = self._loaded()
        slot, end = (
            self._first_at_or_after(search.from_offset) // ABORTED_ENTRY.size,
            len(entries) // ABORTED_ENTRY.size,
        )
        while slot < end:
            # A transaction that stays open for long has a late marker, so a search for it may pass over many
            # entries of transactions that began behind the range.
            is_full_block = slot % _BLOCK_ENTRIES == 0 and slot + _BLOCK_ENTRIES <= end
            if is_full_block and self._begin_of_block(entries, slot) >= search.upper_offset:
                slot += _BLOCK_ENTRIES
                last_stable_offset = ABORTED_ENTRY.unpack_from(entries, (slot - 1) * ABORTED_ENTRY.size)[4]
            else:
                _, *fields = ABORTED_ENTRY.unpack_from(entries, slot * ABORTED_ENTRY.size)
                slot += 1
                if fields[1] < search.upper_offset:
                    search.add(AbortedTransaction._make(fields))
                last_stable_offset = fields[3]
            if last_stable_offset >= search.upper_offset:
                return True
        return False

    def _begin_of_block(self, entries: bytearray, slot: int) -> int:
        begin = self._begins_of_blocks.get(slot)
        if begin is None:
            block = bytes(entries[slot * ABORTED_ENTRY.size : (slot + _BLOCK_ENTRIES) * ABORTED_ENTRY.size])
            begin = min(fields[2] for fields in ABORTED_ENTRY.iter_unpack(block))
            self._begins_of_blocks[slot] = begin
        return begin

    def _first_at_or_after(self, offset: int) -> int:
        """Returns the position of the first entry whose marker is at or above `offset`."""
        entries = self._loaded()
        slots = range(len(entries) // ABORTED_ENTRY.size)
        return bisect_left(slots, offset, key=partial(_last_offset_in, entries)) * ABORTED_ENTRY.size

    # -- writing

    def append(self, entry: AbortedTransaction) -> None:
        entries = self._loaded()
        entries += ABORTED_ENTRY.pack(ABORTED_VERSION, *entry)
        with suppress(OSError):  # the disk is full: the next flush or roll reports it
            self.spill()

    def spill(self) -> None:
        """Writes the entries that the file does not have yet. Any thread may call it."""
        with self._directory.lock:
            entries, persisted = self._entries, self._persisted_bytes
            if entries is None or persisted == len(entries):
                return
            missing = bytes(entries[persisted:])
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                written = os.pwrite(fd, missing, persisted)
            finally:
                os.close(fd)
            self._persisted_bytes = persisted + written
            if written != len(missing):
                raise OSError(f"{self.path}: {written} of {len(missing)} bytes written")

    def keep_below(self, offset: int) -> None:
        """Removes the entries whose marker is at or above `offset`."""
        end = self._first_at_or_after(offset)
        entries = self._loaded()
        with self._directory.lock:
            if end == len(entries):
                return
            del entries[end:]
            self._begins_of_blocks.clear()
            if end < self._persisted_bytes:
                os.truncate(self.path, end)
                self._persisted_bytes = end

    def reset(self) -> None:
        """Removes all entries and the file."""
        with self._directory.lock:
            with suppress(FileNotFoundError):
                os.unlink(self.path)
            self._entries, self._persisted_bytes = bytearray(), 0
            self._begins_of_blocks.clear()

    def close(self) -> None:
        """Frees the memory if the file has all entries; the next use reads the file again."""
        if self._entries is not None and self._persisted_bytes == len(self._entries):
            self._entries, self._persisted_bytes = None, _UNKNOWN


def _last_offset_in(entries: bytearray, slot: int) -> int:
    last_offset: int = _LAST_OFFSET.unpack_from(entries, slot * ABORTED_ENTRY.size)[0]
    return last_offset
