"""The transaction index of a segment, `.txnindex`: the aborted transactions whose marker is in the segment.

An entry has 34 bytes; entries are in the order of the markers. A file without entries does not exist. An
entry is written at once, because few transactions are aborted. If the disk refuses it, the next flush or roll
writes it. Only one thread (the event loop) appends and looks up. Source: Kafka's `AbortedTxn`,
`TransactionIndex`.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.broker.log.partition_directory import TRANSACTION_INDEX_SUFFIX, PartitionDirectory
from tidelog.broker.partition.producer_state import CompletedTransaction

_ENTRY: Final = struct.Struct(">hqqqq")
_LAST_OFFSET: Final = struct.Struct(">18xq8x")
_VERSION: Final = 0
_UNKNOWN: Final = -1


class AbortedTransaction(NamedTuple):
    """An entry of the index. `last_offset` is the offset of the marker.

    Every transaction that began below `last_stable_offset` had ended when the marker was written.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def aborted_transaction(completed: CompletedTransaction) -> AbortedTransaction:
    return AbortedTransaction(
        completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset
    )


class CorruptTransactionIndexError(ValueError):
    """The bytes are not a transaction index; the message gives the reason."""


def encode_aborted_transactions(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


def decode_aborted_transactions(data: bytes | bytearray, base_offset: int = 0) -> list[AbortedTransaction]:
    """Raises CorruptTransactionIndexError if an entry is incomplete, of another version or out of order."""
    if len(data) % _ENTRY.size:
        raise CorruptTransactionIndexError(f"transaction index of {len(data)} bytes")
    entries, previous = [], base_offset - 1
    for version, *fields in _ENTRY.iter_unpack(data):
        entry = AbortedTransaction._make(fields)
        if version != _VERSION or entry.last_offset <= previous or entry.first_offset > entry.last_offset:
            raise CorruptTransactionIndexError(f"transaction index holds {entry} of version {version}")
        previous = entry.last_offset
        entries.append(entry)
    return entries


class TransactionIndex:
    """The index of one segment. Methods raise OSError if the disk fails."""

    __slots__ = ("_base_offset", "_directory", "_entries", "_persisted_bytes")

    def __init__(self, directory: PartitionDirectory, base_offset: int) -> None:
        self._directory = directory
        self._base_offset = base_offset
        self._entries: bytearray | None = None  # the contents of the file, read at the first use
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
            del entries[len(entries) - len(entries) % _ENTRY.size :]
            self._entries, self._persisted_bytes = entries, len(entries)
        return entries

    def opened_with(self, content: bytes) -> None:
        """Sets the contents of a file that may have another name for now."""
        self._entries, self._persisted_bytes = bytearray(content), len(content)

    def check(self) -> bool:
        """Returns whether the file is valid. A file that does not exist is valid."""
        self.close()
        try:
            decode_aborted_transactions(Path(self.path).read_bytes(), self._base_offset)
        except FileNotFoundError:
            return True
        except CorruptTransactionIndexError:
            return False
        return True

    # -- reading

    def __iter__(self) -> Iterator[AbortedTransaction]:
        for _, *fields in _ENTRY.iter_unpack(bytes(self._loaded())):
            yield AbortedTransaction._make(fields)

    def collect(self, from_offset: int, upper_offset: int, found: list[AbortedTransaction]) -> bool:
        """Adds the transactions with records in the range to `found`.

        Returns True if no later segment can have another one.
        """
        entries = self._loaded()
        for at in range(self._first_at_or_after(from_offset), len(entries), _ENTRY.size):
            entry = AbortedTransaction._make(_ENTRY.unpack_from(entries, at)[1:])
            if entry.first_offset < upper_offset:
                found.append(entry)
            if entry.last_stable_offset >= upper_offset:
                return True
        return False

    def _first_at_or_after(self, offset: int) -> int:
        """Returns the position of the first entry whose marker is at or above `offset`."""
        entries = self._loaded()

        def last_offset(slot: int) -> int:
            found: int = _LAST_OFFSET.unpack_from(entries, slot * _ENTRY.size)[0]
            return found

        slots = range(len(entries) // _ENTRY.size)
        return bisect_left(slots, offset, key=last_offset) * _ENTRY.size

    # -- writing

    def append(self, entry: AbortedTransaction) -> None:
        entries = self._loaded()
        entries += _ENTRY.pack(_VERSION, *entry)
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
            if end < self._persisted_bytes:
                os.truncate(self.path, end)
                self._persisted_bytes = end

    def reset(self) -> None:
        """Removes all entries and the file."""
        with self._directory.lock:
            with suppress(FileNotFoundError):
                os.unlink(self.path)
            self._entries, self._persisted_bytes = bytearray(), 0

    def close(self) -> None:
        """Frees the memory if the file has all entries; the next use reads the file again."""
        if self._entries is not None and self._persisted_bytes == len(self._entries):
            self._entries, self._persisted_bytes = None, _UNKNOWN
