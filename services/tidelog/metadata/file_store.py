"""The metadata store of the embedded mode: a key space in memory, a journal on disk, one process.

A transaction is decided in memory at once, so order is the order of calls, and is answered when its journal
frame is on disk. Transactions that come while a flush runs share the next one. Reads and watches wait
likewise, so that nobody is shown what a crash could take back. If a write fails (a full disk), what wasn't
on disk is dropped from file and memory alike, those who waited get StoreUnavailableError, and the store
goes on.

Leases end with the process: at open, the keys of the earlier process's leases are deleted at once, for the
directory's lock proves that it is gone.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog.metadata.store import (
    DEFAULT_HISTORY_EVENTS,
    FIRST_REVISION,
    Change,
    Compare,
    Delete,
    KeySpace,
    KeyValue,
    LeaseTable,
    Listing,
    Operation,
    Outcome,
    Put,
    StoreError,
    StoreUnavailableError,
    TxnResult,
    WatchBatch,
)

# The journal is rewritten as a snapshot once its tail outgrows both this and the snapshot: start-up stays
# fast.
DEFAULT_SNAPSHOT_TAIL_BYTES: Final = 4 * 1024 * 1024
# An expiry timer that comes this late means that the whole process stood still, lease holders too.
STALL_MS: Final = 500
# How long after a failed write the deletion of an ended lease's keys is tried again.
RETRY_MS: Final = 1000
_LOCK_NAME: Final = ".lock"

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


class StoreInUseError(StoreError):
    """Another process has this directory open."""


class FileMetadataStore:
    """Made by `open`; belongs to the event loop it was opened on."""

    def __init__(
        self,
        directory: Path,
        lock: int,
        journal: Journal,
        space: KeySpace,
        *,
        monotonic_ms: Callable[[], int],
        snapshot_tail_bytes: int,
    ) -> None:
        self._directory = directory
        self._lock = lock
        self._journal = journal
        self._space = space
        self._durable_revision = space.revision
        self._monotonic_ms = monotonic_ms
        self._snapshot_tail_bytes = snapshot_tail_bytes
        self._leases = LeaseTable(first_id=space.revision << 24)
        self._expiry: asyncio.TimerHandle | None = None
        self._pending: list[Transaction] = []
        # What waits for the next flush, and for the one under way.
        self._flushed: asyncio.Future[None] | None = None
        self._in_flight: asyncio.Future[None] | None = None
        self._flusher: asyncio.Task[None] | None = None
        self._watch_wakeup: asyncio.Event = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metadata-journal")
        self._failure: OSError | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        monotonic_ms: Callable[[], int],
        history_events: int = DEFAULT_HISTORY_EVENTS,
        snapshot_tail_bytes: int = DEFAULT_SNAPSHOT_TAIL_BYTES,
    ) -> FileMetadataStore:
        """Synchronous (milliseconds: a few thousand topics are some MB); to be called with the loop running.

        Raises StoreInUseError, CorruptJournalError, OSError.
        """
        directory.mkdir(parents=True, exist_ok=True)
        lock = _lock_directory(directory)
        try:
            journal, contents = Journal.open(directory, FIRST_REVISION)
        except (StoreError, OSError):
            os.close(lock)
            raise
        space = KeySpace(history_events)
        _restore(space, contents)
        store = cls(
            directory,
            lock,
            journal,
            space,
            monotonic_ms=monotonic_ms,
            snapshot_tail_bytes=snapshot_tail_bytes,
        )
        store._enqueue(space.delete_keys(space.leased_keys()))
        return store

    async def get(self, key: str) -> KeyValue | None:
        self._check_usable()
        item = self._space.get(key)
        await self._until_durable(self._space.revision)
        return item

    async def list_prefix(self, prefix: str) -> Listing:
        self._check_usable()
        listing = Listing(self._space.revision, self._space.list_prefix(prefix))
        await self._until_durable(listing.revision)
        return listing

    async def txn(
        self,
        compares: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
    ) -> TxnResult:
        self._check_usable()
        outcome = self._space.transact(compares, success, failure, self._leases.exists)
        self._enqueue(outcome)
        await self._until_durable(outcome.result.revision)
        return outcome.result

    async def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        next_revision = start_revision
        while True:
            self._check_usable()
            up_to = self._durable_revision
            if next_revision <= up_to:
                for batch in self._space.batches_from(prefix, next_revision, up_to):
                    yield batch
                next_revision = up_to + 1
            else:
                await self._watch_wakeup.wait()

    async def grant_lease(self, ttl_ms: int) -> int:
        self._check_usable()
        lease = self._leases.grant(ttl_ms, self._monotonic_ms())
        self._schedule_expiry()
        return lease

    async def keep_alive(self, lease: int) -> int:
        self._check_usable()
        return self._leases.renew(lease, self._monotonic_ms())

    async def revoke_lease(self, lease: int) -> None:
        self._check_usable()
        self._leases.remove(lease)
        outcome = self._space.delete_keys(self._space.keys_of_lease(lease))
        self._enqueue(outcome)
        await self._until_durable(outcome.result.revision)

    def expire_leases(self) -> None:
        """End the leases whose time is up by the clock given to `open`; the loop's timer calls this."""
        for lease in self._leases.expired(self._monotonic_ms()):
            self._leases.remove(lease)
        for lease in self._ended_leases():
            self._enqueue(self._space.delete_keys(self._space.keys_of_lease(lease)))

    def _ended_leases(self) -> list[int]:
        """Leases whose keys still stand: just expired, or their deletion couldn't be written."""
        return [lease for lease in self._space.leases() if not self._leases.exists(lease)]

    async def close(self) -> None:
        """Write what is pending, then let go of the directory. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        if self._flusher is not None:
            await self._flusher
        self._wake_watches()
        self._thread.shutdown()
        self._journal.close()
        os.close(self._lock)

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreUnavailableError("the metadata store is closed")
        if self._failure is not None:
            raise StoreUnavailableError(f"the metadata journal can't be written: {self._failure}")

    def _enqueue(self, outcome: Outcome) -> None:
        if not outcome.changes:
            return
        self._pending.append(Transaction(outcome.result.revision, outcome.changes))
        if self._flushed is None:
            self._flushed = asyncio.get_running_loop().create_future()
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush_pending(), name="metadata-journal")

    async def _until_durable(self, revision: int) -> None:
        while revision > self._durable_revision:
            flushed = self._flushed or self._in_flight
            assert flushed is not None, "a revision that no flush brings"
            await asyncio.shield(flushed)

    async def _flush_pending(self) -> None:
        loop = asyncio.get_running_loop()
        while self._flushed is not None:
            transactions, self._pending = self._pending, []
            flushed, self._flushed = self._flushed, None
            self._in_flight = flushed
            revision = self._space.revision
            items: list[KeyValue] | None = None
            if self._journal.tail_bytes > max(self._snapshot_tail_bytes, self._journal.snapshot_bytes):
                items = self._space.items()
            try:
                await loop.run_in_executor(self._thread, self._write, transactions, revision, items)
            except OSError as error:
                await self._give_up(error, flushed)
                continue
            self._durable_revision = revision
            flushed.set_result(None)
            self._wake_watches()
        self._flusher = None

    def _write(
        self, transactions: Sequence[Transaction], revision: int, items: list[KeyValue] | None
    ) -> None:
        if items is None:
            self._journal.append(transactions)
        else:
            self._journal.replace(revision, items)

    async def _give_up(self, error: OSError, flushed: asyncio.Future[None]) -> None:
        """Back to what is on disk; everything decided since, also while the write ran, is refused."""
        loop = asyncio.get_running_loop()
        refused = [flushed]
        try:
            contents = await loop.run_in_executor(self._thread, self._journal.undo)
        except OSError as second_error:
            self._failure = second_error
        else:
            _restore(self._space, contents)
            self._durable_revision = self._space.revision
            self._schedule_expiry()
        self._pending.clear()
        if self._flushed is not None:
            refused.append(self._flushed)
            self._flushed = None
        for future in refused:
            future.set_exception(StoreUnavailableError(f"the metadata journal can't be written: {error}"))
            future.exception()  # nobody may be waiting (an expired lease's deletion)
        self._wake_watches()

    def _wake_watches(self) -> None:
        self._watch_wakeup.set()
        self._watch_wakeup = asyncio.Event()

    def _schedule_expiry(self) -> None:
        if self._expiry is not None or self._closed:
            return
        deadline_ms = self._leases.next_deadline_ms()
        if self._ended_leases():
            delay_ms = RETRY_MS
        elif deadline_ms is None:
            return
        else:
            delay_ms = max(1, deadline_ms - self._monotonic_ms())
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_ms / 1000
        self._expiry = loop.call_at(due, self._on_expiry_timer, due)

    def _on_expiry_timer(self, due: float) -> None:
        self._expiry = None
        late_ms = (asyncio.get_running_loop().time() - due) * 1000
        if late_ms > STALL_MS:
            self._leases.renew_all(self._monotonic_ms())
        self.expire_leases()
        self._schedule_expiry()


def _restore(space: KeySpace, contents: Contents) -> None:
    space.restore(contents.snapshot_revision, contents.items)
    for transaction in contents.transactions:
        changes: tuple[Change, ...] = transaction.changes
        space.replay(transaction.revision, changes)


def _lock_directory(directory: Path) -> int:
    descriptor = os.open(directory / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StoreInUseError(f"metadata directory {directory} is in use by another process") from error
    return descriptor


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
