"""The file behind the embedded metadata store: one snapshot, then every transaction since, appended.

Layout: the 12-byte file header, then frames. A frame is `magic uint32, payload_length uint32, crc32c
uint32` (the CRC covers the length and the payload) and its payload. The first frame holds a snapshot, each
later one the transactions of one flush. As a flush starts only after the one before it is on disk, a bad
frame at the end is a torn write nobody was told of and is cut off, but a bad frame *before* a good one is
damage to what was acknowledged: that is refused, not skipped. All functions here are synchronous; the store
calls them in its own thread.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog.metadata.key_space import Change
from tidelog.metadata.store import Delete, KeyValue, Put, StoreError

JOURNAL_NAME: Final = "metadata.journal"
_REPLACEMENT_SUFFIX: Final = ".new"
_FILE_HEADER: Final = struct.pack(">8sI", b"TIDEMETA", 1)
_FRAME_MAGIC: Final = b"TdJf"
_FRAME = struct.Struct(">4sII")
_LENGTH = struct.Struct(">I")
_SNAPSHOT = struct.Struct(">BqI")
_ITEM = struct.Struct(">qqqqII")
_TXN = struct.Struct(">qI")
_CHANGE = struct.Struct(">BqII")
_KIND_SNAPSHOT = 1
_KIND_TXNS = 2
_CHANGE_PUT = 1
_CHANGE_DELETE = 2


class CorruptJournalError(StoreError):
    """The journal is damaged in a place that was once safely on disk."""


class Transaction(NamedTuple):
    revision: int
    changes: tuple[Change, ...]


class Contents(NamedTuple):
    """What a journal says: the state at `snapshot_revision` and what came after it."""

    snapshot_revision: int
    items: list[KeyValue]
    transactions: list[Transaction]


class Journal:
    """The open file. Every method that writes returns only once the bytes are on disk."""

    def __init__(self, path: Path, descriptor: int, size_bytes: int, snapshot_bytes: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self.size_bytes = size_bytes
        self.snapshot_bytes = snapshot_bytes

    @property
    def tail_bytes(self) -> int:
        """Bytes written since the snapshot."""
        return self.size_bytes - self.snapshot_bytes

    @classmethod
    def open(cls, directory: Path, first_revision: int) -> tuple[Journal, Contents]:
        """Open or make it in `directory`; a torn tail is cut. Raises CorruptJournalError, OSError."""
        path = directory / JOURNAL_NAME
        path.with_name(JOURNAL_NAME + _REPLACEMENT_SUFFIX).unlink(missing_ok=True)
        if not path.exists():
            os.close(write_snapshot(path, first_revision, ())[0])
            _sync_directory(directory)
        data = path.read_bytes()
        contents, good_bytes, snapshot_bytes = read_journal(data, str(path))
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        if good_bytes < len(data):
            os.ftruncate(descriptor, good_bytes)
            os.fsync(descriptor)
        return cls(path, descriptor, good_bytes, snapshot_bytes), contents

    def append(self, transactions: Sequence[Transaction]) -> None:
        """One frame, on disk when this returns. After an OSError the file may end in part of it: see
        `undo`.
        """
        frame = encode_frame(encode_transactions(transactions))
        _write_all(self._descriptor, frame)
        os.fdatasync(self._descriptor)
        self.size_bytes += len(frame)

    def undo(self) -> Contents:
        """Drop what a failed `append` left behind and read anew what stands. Raises OSError."""
        os.ftruncate(self._descriptor, self.size_bytes)
        os.fsync(self._descriptor)
        contents, _, _ = read_journal(self._path.read_bytes(), str(self._path))
        return contents

    def replace(self, revision: int, items: Sequence[KeyValue]) -> None:
        """Start afresh from this snapshot, in one step: a crash leaves either the old file or the new one."""
        descriptor, size_bytes = write_snapshot(self._path, revision, items)
        os.close(self._descriptor)
        self._descriptor = descriptor
        self.size_bytes = self.snapshot_bytes = size_bytes
        _sync_directory(self._path.parent)

    def close(self) -> None:
        os.close(self._descriptor)


def write_snapshot(path: Path, revision: int, items: Sequence[KeyValue]) -> tuple[int, int]:
    """Put a journal that holds just this snapshot in `path`'s place; answers (its open descriptor, its size
    in bytes).

    The caller syncs the directory.
    """
    data = _FILE_HEADER + encode_frame(encode_snapshot(revision, items))
    replacement = path.with_name(path.name + _REPLACEMENT_SUFFIX)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = os.open(replacement, flags, 0o644)
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
        replacement.replace(path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, len(data)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_journal(data: bytes, name: str) -> tuple[Contents, int, int]:
    """(contents, bytes up to the end of the last good frame, bytes up to the end of the snapshot)."""
    if data[: len(_FILE_HEADER)] != _FILE_HEADER:
        raise CorruptJournalError(f"{name} is not a metadata journal of this version of tidelog")
    view = memoryview(data)
    payload, position = _read_frame(view, len(_FILE_HEADER))
    if payload is None or payload[0] != _KIND_SNAPSHOT:
        raise CorruptJournalError(f"{name}: the snapshot at its beginning is damaged")
    snapshot_revision, items = decode_snapshot(payload)
    snapshot_bytes = position
    transactions: list[Transaction] = []
    while True:
        payload, next_position = _read_frame(view, position)
        if payload is None:
            break
        transactions += decode_transactions(payload)
        position = next_position
    if position < len(data) and _has_good_frame_after(data, position + 1):
        raise CorruptJournalError(
            f"{name}: damaged at byte {position}, with good transactions after it; restore it from a backup"
        )
    return Contents(snapshot_revision, items, transactions), position, snapshot_bytes


def encode_frame(payload: bytes) -> bytes:
    length = _LENGTH.pack(len(payload))
    return _FRAME.pack(_FRAME_MAGIC, len(payload), crc32c(payload, crc32c(length))) + payload


def _read_frame(view: memoryview, position: int) -> tuple[memoryview | None, int]:
    """(payload, position after the frame), or (None, position) if no good frame stands there."""
    start = position + _FRAME.size
    if start > len(view):
        return None, position
    magic, length, crc = _FRAME.unpack_from(view, position)
    end = start + length
    if magic != _FRAME_MAGIC or length == 0 or end > len(view):
        return None, position
    payload = view[start:end]
    if crc32c(payload, crc32c(_LENGTH.pack(length))) != crc:
        return None, position
    return payload, end


def _has_good_frame_after(data: bytes, position: int) -> bool:
    view = memoryview(data)
    while (position := data.find(_FRAME_MAGIC, position)) >= 0:
        if _read_frame(view, position)[0] is not None:
            return True
        position += 1
    return False


def encode_snapshot(revision: int, items: Iterable[KeyValue]) -> bytes:
    parts = [b""]
    count = 0
    for item in items:
        key = item.key.encode()
        parts.append(
            _ITEM.pack(
                item.create_revision, item.mod_revision, item.version, item.lease, len(key), len(item.value)
            )
        )
        parts.append(key)
        parts.append(item.value)
        count += 1
    parts[0] = _SNAPSHOT.pack(_KIND_SNAPSHOT, revision, count)
    return b"".join(parts)


def decode_snapshot(payload: memoryview) -> tuple[int, list[KeyValue]]:
    _, revision, count = _SNAPSHOT.unpack_from(payload, 0)
    position = _SNAPSHOT.size
    items = []
    for _ in range(count):
        created, modified, version, lease, key_length, value_length = _ITEM.unpack_from(payload, position)
        key_end = position + _ITEM.size + key_length
        key = str(payload[position + _ITEM.size : key_end], "utf-8")
        position = key_end + value_length
        items.append(KeyValue(key, bytes(payload[key_end:position]), created, modified, version, lease))
    return revision, items


def encode_transactions(transactions: Iterable[Transaction]) -> bytes:
    parts = [bytes([_KIND_TXNS])]
    for transaction in transactions:
        parts.append(_TXN.pack(transaction.revision, len(transaction.changes)))
        for change in transaction.changes:
            key = change.key.encode()
            if isinstance(change, Put):
                parts.append(_CHANGE.pack(_CHANGE_PUT, change.lease, len(key), len(change.value)))
                parts.append(key)
                parts.append(change.value)
            else:
                parts.append(_CHANGE.pack(_CHANGE_DELETE, 0, len(key), 0))
                parts.append(key)
    return b"".join(parts)


def decode_transactions(payload: memoryview) -> list[Transaction]:
    position = 1
    transactions = []
    while position < len(payload):
        revision, count = _TXN.unpack_from(payload, position)
        position += _TXN.size
        changes: list[Change] = []
        for _ in range(count):
            kind, lease, key_length, value_length = _CHANGE.unpack_from(payload, position)
            key_end = position + _CHANGE.size + key_length
            key = str(payload[position + _CHANGE.size : key_end], "utf-8")
            position = key_end + value_length
            if kind == _CHANGE_PUT:
                changes.append(Put(key, bytes(payload[key_end:position]), lease))
            else:
                changes.append(Delete(key))
        transactions.append(Transaction(revision, tuple(changes)))
    return transactions
