"""The metadata store of embedded mode: a key space in memory and a journal on disk, in one process.

The store decides a transaction in memory at once, so transactions are ordered by their calls. It answers when
the journal frame of the transaction is on disk. Transactions that arrive during a flush share the next flush.
Reads and watches wait too, so that they never show changes that a crash could undo. If a write fails, for
example because the disk is full, the store drops all changes that are not on disk from the file and from
memory. The callers that waited for them get StoreUnavailableError, and the store remains usable.

Leases end with the process. `open` deletes the keys of all leases at once, because the lock of the directory
proves that the earlier process has ended.

The journal starts with a file header of 12 bytes, followed by frames. A frame is `magic uint32,
payload_length uint32, crc32c uint32` and its payload. The CRC covers the length and the payload. The first
frame holds a snapshot, and each later frame holds the transactions of one flush. A flush starts only after
the previous flush is on disk. A damaged frame at the end is therefore a torn write that was never
acknowledged, and `Journal.open` removes it. A damaged frame before an intact one means that acknowledged
changes are lost, so `Journal.open` refuses the file.
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

from tidelog.kernel.instants import MonotonicMs
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

# The journal is replaced by a snapshot when its tail is larger than this and larger than the snapshot. This
# bounds the time of a start.
DEFAULT_SNAPSHOT_TAIL_BYTES: Final = 4 * 1024 * 1024
# If an expiry timer is this late, the whole process has stalled, and with it the holders of the leases.
STALL_MS: Final = 500
# Time after a failed write until the store retries to delete the keys of an expired lease.
RETRY_MS: Final = 1000
# A snapshot is joined, checksummed and written in chunks of this size, or of one item that is larger.
CHUNK_BYTES: Final = 1024 * 1024
_LOCK_NAME: Final = "metadata.lock"

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
    """Another process has opened the directory."""


class FileMetadataStore:
    """A MetadataStore in a directory. `open` creates it; it belongs to the running event loop."""

    def __init__(
        self,
        directory: Path,
        lock: int,
        journal: Journal,
        space: KeySpace,
        *,
        monotonic_ms: Callable[[], MonotonicMs],
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
        # Futures of the callers that wait for the next flush and for the flush in progress.
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
        monotonic_ms: Callable[[], MonotonicMs],
        history_events: int = DEFAULT_HISTORY_EVENTS,
        snapshot_tail_bytes: int = DEFAULT_SNAPSHOT_TAIL_BYTES,
    ) -> FileMetadataStore:
        """Opens the store. An event loop must be running. The call blocks for a few milliseconds per MB of
        journal.

        Raises StoreInUseError, CorruptJournalError and OSError.
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
        """Ends the leases whose deadline has passed on the clock given to `open`. A timer of the event loop
        calls this.
        """
        for lease in self._leases.expired(self._monotonic_ms()):
            self._leases.remove(lease)
        for lease in self._ended_leases():
            self._enqueue(self._space.delete_keys(self._space.keys_of_lease(lease)))

    def _ended_leases(self) -> list[int]:
        """Returns the leases that have ended but still have keys, because they have just expired or a write
        failed.
        """
        return [lease for lease in self._space.leases() if not self._leases.exists(lease)]

    async def close(self) -> None:
        """Writes the pending transactions and releases the directory. A second call does nothing."""
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
            assert flushed is not None, "no flush is pending that makes the revision durable"
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
                await self._undo_failed_flush(error, flushed)
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

    async def _undo_failed_flush(self, error: OSError, flushed: asyncio.Future[None]) -> None:
        """Restores the state on disk. All later decisions fail, including those made while the write ran."""
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
            # marks the exception as retrieved: the deletion of an expired lease's keys has no waiter
            future.exception()
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
        raise StoreInUseError(f"the metadata directory {directory} is in use by another process") from error
    return descriptor


class CorruptJournalError(StoreError):
    """The journal is damaged in a part that was already on disk."""


class Transaction(NamedTuple):
    revision: int
    changes: tuple[Change, ...]


class Contents(NamedTuple):
    """The contents of a journal: the state at `snapshot_revision` and the transactions after it."""

    snapshot_revision: int
    items: list[KeyValue]
    transactions: list[Transaction]


class Journal:
    """The open journal file. Its methods block; the store calls them in its own thread.

    Methods that write return when the bytes are on disk.
    """

    def __init__(self, path: Path, descriptor: int, size_bytes: int, snapshot_bytes: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self.size_bytes = size_bytes
        self.snapshot_bytes = snapshot_bytes

    @property
    def tail_bytes(self) -> int:
        """Number of bytes written since the snapshot."""
        return self.size_bytes - self.snapshot_bytes

    @classmethod
    def open(cls, directory: Path, first_revision: int) -> tuple[Journal, Contents]:
        """Opens the journal in `directory` or creates it, and removes a torn tail.

        Raises CorruptJournalError and OSError.
        """
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
        """Appends one frame. After an OSError the file may end with a part of the frame, and the caller must
        call `undo`.
        """
        frame = encode_frame(encode_transactions(transactions))
        _write_all(self._descriptor, frame)
        os.fdatasync(self._descriptor)
        self.size_bytes += len(frame)

    def undo(self) -> Contents:
        """Removes the remains of a failed `append` and reads the journal again. Raises OSError."""
        os.ftruncate(self._descriptor, self.size_bytes)
        os.fsync(self._descriptor)
        contents, _, _ = read_journal(self._path.read_bytes(), str(self._path))
        return contents

    def replace(self, revision: int, items: Sequence[KeyValue]) -> None:
        """Replaces the journal by a snapshot. A crash leaves either the old file or the new one."""
        descriptor, size_bytes = write_snapshot(self._path, revision, items)
        os.close(self._descriptor)
        self._descriptor = descriptor
        self.size_bytes = self.snapshot_bytes = size_bytes
        _sync_directory(self._path.parent)

    def close(self) -> None:
        os.close(self._descriptor)


def write_snapshot(path: Path, revision: int, items: Sequence[KeyValue]) -> tuple[int, int]:
    """Replaces the journal at `path` by one that contains only a snapshot.

    Returns the open descriptor of the new file and its size in bytes. The caller must sync the directory.
    """
    chunks = snapshot_chunks(revision, items)
    payload_bytes = sum(map(len, chunks))
    crc = crc32c(_LENGTH.pack(payload_bytes))
    for chunk in chunks:
        crc = crc32c(chunk, crc)
    chunks.insert(0, _FILE_HEADER + _FRAME.pack(_FRAME_MAGIC, payload_bytes, crc))
    replacement = path.with_name(path.name + _REPLACEMENT_SUFFIX)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = os.open(replacement, flags, 0o644)
    try:
        for chunk in chunks:
            _write_all(descriptor, chunk)
        os.fsync(descriptor)
        replacement.replace(path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, sum(map(len, chunks))


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
    """Returns the contents, the end of the last intact frame and the end of the snapshot, both in bytes.

    Raises CorruptJournalError.
    """
    if data[: len(_FILE_HEADER)] != _FILE_HEADER:
        raise CorruptJournalError(f"{name} is not a metadata journal of this version of tidelog")
    view = memoryview(data)
    payload, position = _read_frame(view, len(_FILE_HEADER))
    if payload is None or payload[0] != _KIND_SNAPSHOT:
        raise CorruptJournalError(f"{name}: the snapshot at its start is damaged; restore it from a backup")
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
            f"{name}: damaged at byte {position}, before intact transactions; restore it from a backup"
        )
    return Contents(snapshot_revision, items, transactions), position, snapshot_bytes


def encode_frame(payload: bytes) -> bytes:
    length = _LENGTH.pack(len(payload))
    return _FRAME.pack(_FRAME_MAGIC, len(payload), crc32c(payload, crc32c(length))) + payload


def _read_frame(view: memoryview, position: int) -> tuple[memoryview | None, int]:
    """Returns the payload of the frame at `position` and the position after it, or None and `position` if the
    frame is damaged.
    """
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


def snapshot_chunks(revision: int, items: Sequence[KeyValue]) -> list[bytes]:
    """Returns the payload of a snapshot in chunks of about CHUNK_BYTES. Work on one large bytes object would
    keep the event loop from running, although it is done in another thread.
    """
    chunks: list[bytes] = []
    parts = [_SNAPSHOT.pack(_KIND_SNAPSHOT, revision, len(items))]
    size_bytes = 0
    for item in items:
        key = item.key.encode()
        parts.append(
            _ITEM.pack(
                item.create_revision, item.mod_revision, item.version, item.lease, len(key), len(item.value)
            )
        )
        parts.append(key)
        parts.append(item.value)
        size_bytes += _ITEM.size + len(key) + len(item.value)
        if size_bytes >= CHUNK_BYTES:
            chunks.append(b"".join(parts))
            parts.clear()
            size_bytes = 0
    chunks.append(b"".join(parts))
    return chunks


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
