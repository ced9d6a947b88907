"""Writes a decision's records to the metadata store and, once they are written, applies them to the state.

`pack_records` packs records into transactions of at most 128 operations and 1 MiB, in the records' order. If
the store refuses a transaction, its response shows the current values; they are applied, and the decision is
made again. A transaction whose outcome is unknown is neither a success nor a failure. Writing the
controller's own key again settles it: every transaction compares that key, so none of the earlier ones can
take effect any more, and the values read in the same transaction show which of them did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import structlog

from tidelog.controller.core.decision import ABSENT, Erase, NoteShutdown, Record, Write
from tidelog.controller.core.state import ChangeSet, ClusterState
from tidelog.controller.election import Office
from tidelog.metadata.entries import (
    CONTROLLER_KEY,
    PartitionStateEntry,
    broker_key,
    decode_entry,
    parse_partition_state_key,
)
from tidelog.metadata.store import (
    MAX_TXN_BYTES,
    MAX_TXN_OPERATIONS,
    Compare,
    Delete,
    Get,
    KeyValue,
    LeaseNotFoundError,
    MetadataStore,
    Put,
    StoreError,
    StoreUnavailableError,
    TxnResult,
)

StoredRecord = Write | Erase

# One key is the shell's own: that of the controller's office.
MAX_KEYS: Final = MAX_TXN_OPERATIONS - 1
# Keys of the failure branch's Gets count into the size as well.
_BYTES_PER_OPERATION: Final = 2 * 400


@dataclass(slots=True)
class Batch:
    """One transaction. `keys` are those it compares or writes: a refusal, or an outcome that nobody knows,
    is judged by what stands there.
    """

    compares: dict[str, Compare] = field(default_factory=dict)
    keys: dict[str, None] = field(default_factory=dict)
    records: list[StoredRecord] = field(default_factory=list)
    operations: list[Put | Delete] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def reads(self) -> list[Get]:
        return [Get(key) for key in self.keys]


def pack_records(records: Iterable[StoredRecord | NoteShutdown], state: ClusterState) -> list[list[Batch]]:
    """Groups of batches: a group may be written side by side, one group after the other.

    Each compares what its records expect. The new state of a partition that was already there also compares
    the registration of the leader it names: see `settle_partitions`.
    """
    stored = [record for record in records if not isinstance(record, NoteShutdown)]
    groups: list[list[Batch]] = []
    for is_unordered, run in groupby(stored, key=_is_partition_state):
        batches = list(_packed(run, state))
        if is_unordered and len(batches) > 1:
            groups.append(batches)
            continue
        for batch in batches:
            # In one transaction order is no question.
            if not (groups and len(groups[-1]) == 1 and _joined(groups[-1][0], batch)):
                groups.append([batch])
    return groups


def key_of(record: StoredRecord) -> str:
    return record.entry.key if isinstance(record, Write) else record.key


def _is_partition_state(record: StoredRecord) -> bool:
    return parse_partition_state_key(key_of(record)) is not None


def _packed(records: Iterable[StoredRecord], state: ClusterState) -> Iterator[Batch]:
    batch = Batch()
    for record in records:
        single = _batch_of(record, state)
        if not _joined(batch, single):
            if batch.records:
                yield batch
            batch = single
    if batch.records:
        yield batch


def _batch_of(record: StoredRecord, state: ClusterState) -> Batch:
    compares = _compares_of(record, state)
    operation: Put | Delete
    if isinstance(record, Write):
        operation = Put(record.entry.key, record.entry.encode())
        size_bytes = len(operation.value) + _BYTES_PER_OPERATION
    else:
        operation = Delete(record.key)
        size_bytes = _BYTES_PER_OPERATION
    return Batch(compares, dict.fromkeys([operation.key, *compares]), [record], [operation], size_bytes)


def _joined(batch: Batch, other: Batch) -> bool:
    """Whether `other` went into `batch`."""
    if len(batch.keys.keys() | other.keys.keys()) > MAX_KEYS:
        return False
    if batch.size_bytes + other.size_bytes > MAX_TXN_BYTES:
        return False
    batch.compares.update(other.compares)
    batch.keys.update(other.keys)
    batch.records += other.records
    batch.operations += other.operations
    batch.size_bytes += other.size_bytes
    return True


def _compares_of(record: StoredRecord, state: ClusterState) -> dict[str, Compare]:
    expected = record.expected_mod_revision
    if expected is None:
        return {}
    key = key_of(record)
    compares = {key: Compare.mod_revision(key, expected)}
    entry = record.entry if isinstance(record, Write) else None
    if isinstance(entry, PartitionStateEntry) and expected != ABSENT:
        leader = state.brokers.get(entry.leader)
        if leader is not None:
            leader_key = broker_key(leader.broker_id)
            compares[leader_key] = Compare.create_revision(leader_key, leader.broker_epoch)
    return compares


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
        guard = Compare.mod_revision(CONTROLLER_KEY, self._office_revision)
        return await self._store.txn(
            [guard, *batch.compares.values()], batch.operations, [Get(CONTROLLER_KEY), *batch.reads]
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
                    [self._office.is_held], [self._office.key, *reads], [Get(CONTROLLER_KEY)]
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
