"""Carries a decision's records into the metadata store and, once they are there, into the state.

A transaction that was refused shows what stands there instead; that is taken in, and the decision is made
anew. One whose outcome nobody knows is neither success nor failure. Writing the controller's own key again
decides it: every transaction compares that key, so from then on none of the earlier ones can still take
effect, and what is read together with it tells which of them did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog
from tidelog.controller.core.batches import Batch, key_of, pack_records
from tidelog.controller.core.changes import ChangeSet
from tidelog.controller.core.records import NoteShutdown, Record, Write
from tidelog.controller.core.state import ClusterState
from tidelog.controller.election import Office
from tidelog.metadata import keys
from tidelog.metadata.entries import decode_entry
from tidelog.metadata.store import (
    Compare,
    Get,
    KeyValue,
    LeaseNotFoundError,
    MetadataStore,
    StoreError,
    StoreUnavailableError,
    TxnResult,
)

# How many transactions of one decision are under way at a time, where their order doesn't matter.
MAX_TXNS_IN_FLIGHT: Final = 4
# How long after a store that didn't answer it is asked again.
RETRY_MS: Final = 200

OnUnknown = Callable[[StoreUnavailableError], None]

_log = structlog.get_logger(__name__)


class DeposedError(StoreError):
    """Another one is the controller, or nobody is."""


class RecordWriter:
    """Of one term. `is_over` is asked while the store is away; `on_written` is shown each record before it
    is applied.
    """

    def __init__(
        self,
        store: MetadataStore,
        office: Office,
        state: ClusterState,
        *,
        is_over: Callable[[], bool],
        on_written: Callable[[Write], None],
    ) -> None:
        self._store = store
        self._office = office
        self._state = state
        self._is_over = is_over
        self._on_written = on_written
        self._office_revision = office.mod_revision
        self.maybe_written = 0
        """Transactions that took effect, or may have for all that is known."""

    async def write(
        self, records: Iterable[Record], changes: ChangeSet, on_unknown: OnUnknown | None = None
    ) -> bool:
        """False: something wasn't as expected; it has been read and applied, so decide again.

        Lasts until it is known what became of every transaction. `on_unknown` is told when the store leaves
        that open; with it, a decision of which nothing was written then is dropped, and that is raised as
        StoreUnavailableError. Raises DeposedError.
        """
        stored: list[Record] = []
        for record in records:
            if isinstance(record, NoteShutdown):
                self._state.note_shutdown(record.broker_id, record.broker_epoch, changes)
            else:
                stored.append(record)
        is_begun = on_unknown is None
        for group in pack_records(stored, self._state):
            for start in range(0, len(group), MAX_TXNS_IN_FLIGHT):
                together = group[start : start + MAX_TXNS_IN_FLIGHT]
                if not await self._write_together(together, changes, on_unknown, is_begun=is_begun):
                    return False
                is_begun = True
        return True

    async def _write_together(
        self, batches: Sequence[Batch], changes: ChangeSet, on_unknown: OnUnknown | None, *, is_begun: bool
    ) -> bool:
        self.maybe_written += len(batches)
        outcomes = await asyncio.gather(*map(self._send, batches), return_exceptions=True)
        self.maybe_written -= sum(isinstance(o, TxnResult) and not o.succeeded for o in outcomes)
        has_conflict = False
        missing: list[tuple[Batch, StoreUnavailableError]] = []
        for batch, outcome in zip(batches, outcomes, strict=True):
            if isinstance(outcome, TxnResult):
                is_written = self._take_in(batch, outcome, changes)
                has_conflict = has_conflict or not is_written
            elif isinstance(outcome, StoreUnavailableError):
                _log.warning("the outcome of a transaction is unknown", reason=str(outcome))
                if on_unknown is not None:
                    on_unknown(outcome)
                is_written = await self._took_effect(batch, changes)
                if not is_written:
                    self.maybe_written -= 1
                    missing.append((batch, outcome))
            else:
                raise outcome
            is_begun = is_begun or is_written
        for batch, error in missing:
            if not is_begun:
                raise error
            has_conflict = not await self._write_at_last(batch, changes) or has_conflict
        return not has_conflict

    async def _write_at_last(self, batch: Batch, changes: ChangeSet) -> bool:
        """However often it takes; False if it is refused."""
        self.maybe_written += 1
        while True:
            try:
                return self._take_in(batch, await self._send(batch), changes)
            except StoreUnavailableError:
                if await self._took_effect(batch, changes):
                    return True

    async def _send(self, batch: Batch) -> TxnResult:
        guard = Compare.mod_revision(keys.CONTROLLER, self._office_revision)
        return await self._store.txn(
            [guard, *batch.compares.values()], batch.operations, [Get(keys.CONTROLLER), *batch.reads]
        )

    def _take_in(self, batch: Batch, result: TxnResult, changes: ChangeSet) -> bool:
        if not result.succeeded:
            own_key, *reads = result.reads
            if own_key is None or own_key.create_revision != self._office.create_revision:
                raise DeposedError("the controller's key is no longer its own")
            self._office_revision = own_key.mod_revision
            self._apply_read(batch, reads, result.revision, changes)
            return False
        for record in batch.records:
            if isinstance(record, Write):
                self._on_written(record)
                # The create_revision matters for brokers' registrations only, which the controller doesn't
                # write.
                revision = result.revision
                self._state.apply(record.entry, revision, revision, changes, is_own=True)
            else:
                self._state.apply_removal(record.key, result.revision, changes)
        return True

    async def _took_effect(self, batch: Batch, changes: ChangeSet) -> bool:
        """Whether `batch`, of unknown outcome, was written. By one of its values, or by all being gone that
        it erased; a partition's leader may have written over some of it since.
        """
        result = await self._void_what_is_under_way(batch.reads)
        found = dict(zip(batch.keys, result.reads, strict=True))
        written: list[tuple[Write, KeyValue]] = []
        for record in batch.records:
            item = found[key_of(record)]
            if not isinstance(record, Write) or item is None:
                continue
            is_news = item.mod_revision > self._state.revision_of(item.key)
            if is_news and item.value == record.entry.encode():
                written.append((record, item))
        only_erases = not any(isinstance(record, Write) for record in batch.records)
        if not written and not (only_erases and all(found[key_of(r)] is None for r in batch.records)):
            return False
        for record, item in written:
            self._on_written(record)
            self._state.apply(record.entry, item.create_revision, item.mod_revision, changes, is_own=True)
        self._apply_read(batch, result.reads, result.revision, changes)
        return True

    async def _void_what_is_under_way(self, reads: Sequence[Get]) -> TxnResult:
        while not self._is_over():
            try:
                result = await self._store.txn(
                    [self._office.is_held], [self._office.key, *reads], [Get(keys.CONTROLLER)]
                )
            except LeaseNotFoundError as error:
                raise DeposedError("the controller's lease has ended") from error
            except StoreUnavailableError:
                await asyncio.sleep(RETRY_MS / 1000)
                continue
            if not result.succeeded:
                raise DeposedError("the controller's key is no longer its own")
            self._office_revision = result.revision
            return result
        raise DeposedError("the term is over")

    def _apply_read(
        self, batch: Batch, reads: Iterable[KeyValue | None], revision: int, changes: ChangeSet
    ) -> None:
        for key, item in zip(batch.keys, reads, strict=True):
            if item is None:
                self._state.apply_removal(key, revision, changes)
                continue
            entry = decode_entry(item.key, item.value)
            if entry is not None:
                self._state.apply(entry, item.create_revision, item.mod_revision, changes)
