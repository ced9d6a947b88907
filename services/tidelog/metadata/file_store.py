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
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tidelog.metadata.journal import Contents, Journal, Transaction
from tidelog.metadata.key_space import (
    DEFAULT_HISTORY_EVENTS,
    FIRST_REVISION,
    Change,
    KeySpace,
    Outcome,
)
from tidelog.metadata.lease_table import LeaseTable
from tidelog.metadata.store import (
    Compare,
    KeyValue,
    Listing,
    Operation,
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
