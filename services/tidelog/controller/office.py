"""The office of the active controller: the election, and the writes that only the holder of the office makes.

The first controller that creates the key `/controller` is elected. `RecordWriter` writes a decision's records
to the metadata store and, once they are written, applies them to the state.

`pack_records` packs records into transactions of at most 128 operations and 1 MiB, in the records' order. A
record that fits into no transaction fails its request before anything is written. If the store refuses a
transaction, its response shows the current values. They are applied, and the decision is made again. A
transaction whose outcome is unknown is neither a success nor a failure. Writing the controller's own key
again settles it: every transaction compares that key, so none of the earlier ones can take effect any more,
and the values read in the same transaction show which of them did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from time import monotonic
from typing import Final, TypeGuard

import structlog

from tidelog.controller.core.decision import (
    ABSENT,
    MAX_SIZED_BYTES,
    SIZED_PREFIXES,
    Erase,
    NoteShutdown,
    Record,
    Write,
)
from tidelog.controller.core.state import ChangeSet, ClusterState
from tidelog.kernel.slices import Seconds, run_in_slices
from tidelog.kernel.steps import Steps
from tidelog.metadata.entries import (
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    CandidateEntry,
    ControllerEntry,
    ControllerEpochEntry,
    PartitionStateEntry,
    broker_key,
    decode_entry,
    parse_partition_state_key,
)
from tidelog.metadata.store import (
    MAX_TXN_BYTES,
    MAX_TXN_OPERATIONS,
    CompactedError,
    Compare,
    Delete,
    Get,
    InvalidTxnError,
    KeyValue,
    LeaseNotFoundError,
    MetadataStore,
    Put,
    StoreError,
    StoreUnavailableError,
    TxnResult,
)
from tidelog.model.errors import ErrorCode, KafkaError

StoredRecord = Write | Erase

# One operation is reserved for the controller's own key.
MAX_KEYS: Final = MAX_TXN_OPERATIONS - 1
# Every transaction compares the controller's own key and reads it if it is refused.
_GUARD_BYTES: Final = 2 * len(CONTROLLER_KEY)
MAX_BATCH_BYTES: Final = MAX_TXN_BYTES - _GUARD_BYTES
"""The bytes of the records of a transaction."""
MAX_SHOWN_KEY_CHARS: Final = 200
"""The part of a key that an error message shows."""
# The most transactions of one decision that are in flight at a time if their order does not matter.
MAX_TXNS_IN_FLIGHT: Final = 4
# The pause before the next attempt after the store did not answer.
RETRY_MS: Final = 200

OnUnknown = Callable[[StoreUnavailableError], None]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Office:
    """Proof that this process is the active controller, valid while `/controller` has this create_revision.

    Every transaction of the controller compares the key's mod_revision. If the controller writes the key
    again (`key`: the same value and lease), every earlier transaction without a known outcome becomes void,
    and the controller stays active.
    """

    controller_epoch: int
    create_revision: int
    mod_revision: int
    key: Put

    @property
    def is_held(self) -> Compare:
        return Compare.create_revision(CONTROLLER_KEY, self.create_revision)


async def take_office(
    store: MetadataStore, controller_id: int, lease: int, rpc_address: str = ""
) -> Office | KeyValue:
    """Tries once to become the active controller. Returns the office, or the key of the active controller.

    `/controller` and the next `/controller_epoch` are written in one transaction, so each term has its own
    epoch. If this lease already holds the key, because the outcome of an attempt was unknown or a term broke
    off, the existing office is returned. Raises LeaseNotFoundError, StoreUnavailableError.
    """
    while True:
        epoch_item = await store.get(CONTROLLER_EPOCH_KEY)
        epoch = int(epoch_item.value) if epoch_item is not None else 0
        controller, next_epoch = ControllerEntry(controller_id, rpc_address), ControllerEpochEntry(epoch + 1)
        put = Put(controller.key, controller.encode(), lease)
        result = await store.txn(
            [
                Compare.absent(CONTROLLER_KEY),
                Compare.mod_revision(CONTROLLER_EPOCH_KEY, epoch_item.mod_revision if epoch_item else 0),
            ],
            [put, Put(next_epoch.key, next_epoch.encode())],
            [Get(CONTROLLER_KEY), Get(CONTROLLER_EPOCH_KEY)],
        )
        if result.succeeded:
            return Office(next_epoch.controller_epoch, result.revision, result.revision, put)
        holder, current = result.reads
        if holder is None:
            continue  # another controller took and lost the office in between
        if holder.lease == lease and current is not None:
            return Office(int(current.value), holder.create_revision, holder.mod_revision, put)
        return holder


async def stand(store: MetadataStore, controller_id: int, lease: int) -> None:
    """Registers a controller that takes part in elections, for DescribeQuorum. The election itself does not
    depend on it. Raises LeaseNotFoundError, StoreUnavailableError.
    """
    candidate = CandidateEntry(controller_id)
    await store.txn([], [Put(candidate.key, candidate.encode(), lease)])


async def resign(store: MetadataStore, office: Office) -> None:
    """Deletes the key `/controller` if this office still holds it. Raises StoreUnavailableError."""
    await store.txn([office.is_held], [Delete(CONTROLLER_KEY)])


async def until_office_is_vacant(store: MetadataStore, holder: KeyValue) -> None:
    """Returns once `holder`'s key may be gone. Raises StoreUnavailableError."""
    watch = store.watch(CONTROLLER_KEY, holder.mod_revision + 1)
    try:
        async for batch in watch:
            if any(event.key == CONTROLLER_KEY and event.value is None for event in batch.events):
                return
    except CompactedError:
        return
    finally:
        await watch.aclose()


@dataclass(slots=True)
class Batch:
    """One transaction. `keys` are the keys that it compares or writes; if the store refuses it, or if its
    outcome is unknown, their current values decide.
    """

    compares: dict[str, Compare] = field(default_factory=dict)
    keys: dict[str, None] = field(default_factory=dict)
    records: list[StoredRecord] = field(default_factory=list)
    operations: list[Put | Delete] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def reads(self) -> list[Get]:
        return [Get(key) for key in self.keys]


def pack_records(records: Iterable[Record], state: ClusterState) -> Steps[list[list[Batch]]]:
    """Makes groups of batches. The batches of a group may be written in parallel; the groups are written
    one after the other. Raises KafkaError(POLICY_VIOLATION) if a record fits into no transaction.

    Each batch compares the revisions that its records expect. A new state of an existing partition also
    compares the registration of its leader: see `settle_partitions`.
    """
    stored = [record for record in records if not isinstance(record, NoteShutdown)]
    groups: list[list[Batch]] = []
    for is_unordered, run in groupby(stored, key=_is_partition_state):
        batches = yield from _packed(run, state)
        if is_unordered and len(batches) > 1:
            groups.append(batches)
            continue
        for batch in batches:
            # The order within one transaction does not matter.
            if not (groups and len(groups[-1]) == 1 and _joined(groups[-1][0], batch)):
                groups.append([batch])
    return groups


def _check_sizes(groups: Iterable[Sequence[Batch]], state: ClusterState) -> Steps[None]:
    """Raises KafkaError(POLICY_VIOLATION) if the entries that every broker receives would have too many
    bytes. Changes that need no more bytes than before are always possible.
    """
    after: dict[str, int | None] = {}
    for group in groups:
        for batch in group:
            yield
            for operation in batch.operations:
                if operation.key.startswith(SIZED_PREFIXES):
                    after[operation.key] = len(operation.value) if isinstance(operation, Put) else None
    growth = state.entry_sizes.growth(after)
    total = state.entry_sizes.total_bytes + growth
    if growth > 0 and total > MAX_SIZED_BYTES:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            "The ACLs, quotas, credentials, tokens and settings of the cluster would have "
            f"{total} bytes, more than {MAX_SIZED_BYTES}.",
        )


def key_of(record: StoredRecord) -> str:
    return record.entry.key if isinstance(record, Write) else record.key


def _is_partition_state(record: StoredRecord) -> bool:
    return parse_partition_state_key(key_of(record)) is not None


def _packed(records: Iterable[StoredRecord], state: ClusterState) -> Steps[list[Batch]]:
    batches: list[Batch] = []
    for record in records:
        yield
        single = _batch_of(record, state)
        if not (batches and _joined(batches[-1], single)):
            batches.append(single)
    return batches


def _batch_of(record: StoredRecord, state: ClusterState) -> Batch:
    compares = _compares_of(record, state)
    operation: Put | Delete
    value_bytes = 0
    if isinstance(record, Write):
        operation = Put(record.entry.key, record.entry.encode())
        value_bytes = len(operation.value)
    else:
        operation = Delete(record.key)
    keys = dict.fromkeys([operation.key, *compares])
    # The failure branch reads each key.
    size_bytes = value_bytes + _bytes_of([operation.key]) + _bytes_of(compares) + _bytes_of(keys)
    if size_bytes > MAX_BATCH_BYTES:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"The entry {operation.key[:MAX_SHOWN_KEY_CHARS]} needs {size_bytes} bytes in a transaction of "
            f"the metadata store, which may have {MAX_BATCH_BYTES} bytes.",
        )
    return Batch(compares, keys, [record], [operation], size_bytes)


def _bytes_of(keys: Iterable[str]) -> int:
    return sum(len(key.encode()) for key in keys)


def _joined(batch: Batch, other: Batch) -> bool:
    """Adds `other` to `batch` if it fits. Returns whether it did."""
    if len(batch.keys) + sum(key not in batch.keys for key in other.keys) > MAX_KEYS:
        return False
    if batch.size_bytes + other.size_bytes > MAX_BATCH_BYTES:
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


class DeposedError(StoreError):
    """This process is no longer the active controller."""


class NotWrittenError(StoreError):
    """An unexpected error, of which it is certain that nothing was written."""


def _is_unknown(outcome: BaseException) -> TypeGuard[Exception]:
    """Returns whether a transaction that raised `outcome` may have been written: the store did not answer, or
    raised an error that it should not raise.
    """
    if isinstance(outcome, StoreError):
        return isinstance(outcome, StoreUnavailableError)
    return isinstance(outcome, Exception)


def _not_written(error: Exception) -> StoreError:
    """Returns the error of a transaction that is known not to be written."""
    if isinstance(error, StoreUnavailableError):
        return error
    unexpected = NotWrittenError(repr(error))
    unexpected.__cause__ = error  # for its traceback
    return unexpected


class RecordWriter:
    """The writer of one term. It calls `is_over` while the store is unavailable, and `on_written` with each
    record before it applies the record.
    """

    def __init__(
        self,
        store: MetadataStore,
        office: Office,
        state: ClusterState,
        *,
        is_over: Callable[[], bool],
        on_written: Callable[[Write], None],
        seconds: Seconds = monotonic,
    ) -> None:
        self._store = store
        self._office = office
        self._state = state
        self._is_over = is_over
        self._on_written = on_written
        self._seconds = seconds
        self._office_revision = office.mod_revision
        self.maybe_written = 0
        """The number of transactions that took effect or may have taken effect."""

    async def write(
        self, records: Iterable[Record], changes: ChangeSet, on_unknown: OnUnknown | None = None
    ) -> bool:
        """Writes the records and returns True. If the store's values differ from the expected ones, applies
        the current values and returns False: the caller must decide again.

        The call lasts until the outcome of every transaction is known. `on_unknown` is called as soon as an
        outcome is unknown. If it is given and nothing was written, the decision is dropped and
        StoreUnavailableError or NotWrittenError is raised. Raises DeposedError, and
        KafkaError(POLICY_VIOLATION) before anything is written.
        """
        stored: list[Record] = []
        for record in records:
            if isinstance(record, NoteShutdown):
                self._state.note_shutdown(record.broker_id, record.broker_epoch, changes)
            else:
                stored.append(record)
        is_begun = on_unknown is None
        for group in await self._packed(stored):
            for start in range(0, len(group), MAX_TXNS_IN_FLIGHT):
                together = group[start : start + MAX_TXNS_IN_FLIGHT]
                if not await self._write_together(together, changes, on_unknown, is_begun=is_begun):
                    return False
                is_begun = True
        return True

    async def _packed(self, records: Sequence[Record]) -> list[list[Batch]]:
        try:
            groups = await run_in_slices(pack_records(records, self._state), self._seconds)
            await run_in_slices(_check_sizes(groups, self._state), self._seconds)
            return groups
        except KafkaError:
            raise
        except Exception as error:
            raise NotWrittenError(f"records cannot be packed: {error!r}") from error

    async def _write_together(
        self, batches: Sequence[Batch], changes: ChangeSet, on_unknown: OnUnknown | None, *, is_begun: bool
    ) -> bool:
        self.maybe_written += len(batches)
        outcomes = await asyncio.gather(*map(self._send, batches), return_exceptions=True)
        self.maybe_written -= sum(isinstance(o, TxnResult) and not o.succeeded for o in outcomes)
        has_conflict = False
        missing: list[tuple[Batch, StoreError]] = []
        for batch, outcome in zip(batches, outcomes, strict=True):
            if isinstance(outcome, TxnResult):
                is_written = self._take_in(batch, outcome, changes)
                has_conflict = has_conflict or not is_written
            elif isinstance(outcome, InvalidTxnError):
                # The store checks a transaction before it writes, and would refuse to read its keys, too.
                is_written = False
                self.maybe_written -= 1
                missing.append((batch, _not_written(outcome)))
            elif _is_unknown(outcome):
                _log.warning("the outcome of a transaction is unknown", reason=repr(outcome))
                if on_unknown is not None and isinstance(outcome, StoreUnavailableError):
                    on_unknown(outcome)
                is_written = await self._took_effect(batch, changes)
                if not is_written:
                    self.maybe_written -= 1
                    missing.append((batch, _not_written(outcome)))
            else:
                raise outcome
            is_begun = is_begun or is_written
        for batch, error in missing:
            if not is_begun:
                raise error
            has_conflict = not await self._write_at_last(batch, changes) or has_conflict
        return not has_conflict

    async def _write_at_last(self, batch: Batch, changes: ChangeSet) -> bool:
        """Retries until the batch is written (True) or refused (False)."""
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
                raise DeposedError("the key /controller no longer belongs to this controller")
            self._office_revision = own_key.mod_revision
            self._apply_read(batch, reads, result.revision, changes)
            return False
        for record in batch.records:
            if isinstance(record, Write):
                self._on_written(record)
                # The create_revision matters only for registrations of brokers, which the controller does not
                # write.
                revision = result.revision
                self._state.apply(record.entry, revision, revision, changes, is_own=True)
            else:
                self._state.apply_removal(record.key, result.revision, changes)
        return True

    async def _took_effect(self, batch: Batch, changes: ChangeSet) -> bool:
        """Returns whether `batch`, whose outcome was unknown, was written: one of its values is in the store,
        or it only deletes keys and all of them are gone. A leader may have overwritten some values since.
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
                raise DeposedError("the key /controller no longer belongs to this controller")
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
