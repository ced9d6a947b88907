"""Keys, revisions and history in memory: etcd's rules without any I/O.

The file-backed store and the simulator's store both decide here.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from tidelog.metadata.store import (
    MAX_TXN_BYTES,
    MAX_TXN_OPERATIONS,
    NO_LEASE,
    CompactedError,
    Compare,
    CompareOperator,
    CompareTarget,
    Delete,
    Event,
    Get,
    InvalidTxnError,
    KeyValue,
    LeaseNotFoundError,
    Operation,
    Put,
    TxnResult,
    WatchBatch,
)

# An empty etcd stands at revision 1; the first change is revision 2.
FIRST_REVISION: Final = 1
# Events kept for watches that lag; beyond it they must list again. About 10 MB at the size of partition
# states.
DEFAULT_HISTORY_EVENTS: Final = 50_000

Change = Put | Delete


class Outcome(NamedTuple):
    """`changes` are what took effect, to be written down; empty if nothing changed."""

    result: TxnResult
    changes: tuple[Change, ...]


class KeySpace:
    """`transact` decides and applies one transaction; `replay` applies one that was decided earlier."""

    def __init__(self, history_events: int = DEFAULT_HISTORY_EVENTS) -> None:
        self.revision = FIRST_REVISION
        self.compact_revision = FIRST_REVISION
        self._items: dict[str, KeyValue] = {}
        self._sorted_keys: list[str] | None = []
        self._keys_of_lease: dict[int, set[str]] = {}
        self._history: deque[WatchBatch] = deque()
        self._history_length = 0
        self._history_limit = history_events

    def get(self, key: str) -> KeyValue | None:
        return self._items.get(key)

    def items(self) -> list[KeyValue]:
        """All keys, in no order: the content of a snapshot."""
        return list(self._items.values())

    def list_prefix(self, prefix: str) -> tuple[KeyValue, ...]:
        keys = self._sorted_keys
        if keys is None:
            keys = self._sorted_keys = sorted(self._items)
        items = self._items
        found = []
        for index in range(bisect_left(keys, prefix), len(keys)):
            key = keys[index]
            if not key.startswith(prefix):
                break
            found.append(items[key])
        return tuple(found)

    def keys_of_lease(self, lease: int) -> tuple[str, ...]:
        return tuple(sorted(self._keys_of_lease.get(lease, ())))

    def leases(self) -> tuple[int, ...]:
        """Those that have keys."""
        return tuple(self._keys_of_lease)

    def leased_keys(self) -> tuple[str, ...]:
        return tuple(sorted(key for keys in self._keys_of_lease.values() for key in keys))

    def transact(
        self,
        compares: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation],
        lease_exists: Callable[[int], bool],
    ) -> Outcome:
        """Raises InvalidTxnError or LeaseNotFoundError, then with nothing changed."""
        check_txn(compares, success, failure)
        succeeded = all(self._holds(compare) for compare in compares)
        branch = success if succeeded else failure
        for operation in branch:
            if (
                isinstance(operation, Put)
                and operation.lease != NO_LEASE
                and not lease_exists(operation.lease)
            ):
                raise LeaseNotFoundError(f"lease {operation.lease:x} does not exist")
        reads: list[KeyValue | None] = []
        changes: list[Change] = []
        events: list[Event] = []
        revision = self.revision + 1
        for operation in branch:
            if isinstance(operation, Get):
                reads.append(self._items.get(operation.key))
            elif isinstance(operation, Put):
                changes.append(operation)
                events.append(self._put(operation, revision))
            elif operation.key in self._items:
                changes.append(operation)
                events.append(self._delete(operation.key, revision))
        if changes:
            self.revision = revision
            self._remember(WatchBatch(revision, tuple(events)))
        return Outcome(TxnResult(succeeded, self.revision, tuple(reads)), tuple(changes))

    def delete_keys(self, keys: Iterable[str]) -> Outcome:
        """All of them at one revision, however many (a lease that ends): not bound by a transaction's
        limits.
        """
        revision = self.revision + 1
        present = [key for key in keys if key in self._items]
        if present:
            events = tuple(self._delete(key, revision) for key in present)
            self.revision = revision
            self._remember(WatchBatch(revision, events))
        return Outcome(TxnResult(True, self.revision), tuple(Delete(key) for key in present))

    def restore(self, revision: int, items: Iterable[KeyValue]) -> None:
        """Become the snapshot's state. History starts here."""
        self.revision = self.compact_revision = revision
        self._items = {item.key: item for item in items}
        self._sorted_keys = None
        self._keys_of_lease.clear()
        for item in self._items.values():
            if item.lease != NO_LEASE:
                self._keys_of_lease.setdefault(item.lease, set()).add(item.key)
        self._history.clear()
        self._history_length = 0

    def replay(self, revision: int, changes: Iterable[Change]) -> None:
        """Apply what `transact` once decided; keeps no history (nobody watched)."""
        self._sorted_keys = None
        for change in changes:
            if isinstance(change, Put):
                self._put(change, revision)
            elif change.key in self._items:
                self._delete(change.key, revision)
        self.revision = self.compact_revision = revision

    def batches_from(self, prefix: str, start_revision: int, up_to_revision: int) -> list[WatchBatch]:
        """What a watch has to be shown; raises CompactedError if part of it is no longer kept."""
        if start_revision <= self.compact_revision:
            raise CompactedError(self.compact_revision)
        found: list[WatchBatch] = []
        for batch in reversed(self._history):
            if batch.revision < start_revision:
                break
            if batch.revision > up_to_revision:
                continue
            events = tuple(event for event in batch.events if event.key.startswith(prefix))
            if events:
                found.append(WatchBatch(batch.revision, events))
        found.reverse()
        return found

    def _holds(self, compare: Compare) -> bool:
        item = self._items.get(compare.key)
        actual: int | bytes
        if compare.target is CompareTarget.VALUE:
            if item is None:
                return False
            actual = item.value
        elif item is None:
            actual = 0
        elif compare.target is CompareTarget.MOD_REVISION:
            actual = item.mod_revision
        elif compare.target is CompareTarget.CREATE_REVISION:
            actual = item.create_revision
        else:
            actual = item.version
        return _compare(actual, compare.operator, compare.operand)

    def _put(self, put: Put, revision: int) -> Event:
        before = self._items.get(put.key)
        if before is None:
            item = KeyValue(put.key, put.value, revision, revision, 1, put.lease)
            if self._sorted_keys is not None:
                insort(self._sorted_keys, put.key)
        else:
            item = KeyValue(
                put.key, put.value, before.create_revision, revision, before.version + 1, put.lease
            )
            self._unbind(before)
        self._items[put.key] = item
        if put.lease != NO_LEASE:
            self._keys_of_lease.setdefault(put.lease, set()).add(put.key)
        return Event(put.key, put.value, revision, item.create_revision, put.lease)

    def _delete(self, key: str, revision: int) -> Event:
        self._unbind(self._items.pop(key))
        if self._sorted_keys is not None:
            del self._sorted_keys[bisect_left(self._sorted_keys, key)]
        return Event(key, None, revision)

    def _unbind(self, item: KeyValue) -> None:
        if item.lease == NO_LEASE:
            return
        keys = self._keys_of_lease[item.lease]
        keys.discard(item.key)
        if not keys:
            del self._keys_of_lease[item.lease]

    def _remember(self, batch: WatchBatch) -> None:
        self._history.append(batch)
        self._history_length += len(batch.events)
        while self._history_length > self._history_limit:
            forgotten = self._history.popleft()
            self._history_length -= len(forgotten.events)
            self.compact_revision = forgotten.revision


def check_txn(
    compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]
) -> None:
    """etcd's limits; raises InvalidTxnError."""
    if max(len(compares), len(success), len(failure)) > MAX_TXN_OPERATIONS:
        raise InvalidTxnError(f"more than {MAX_TXN_OPERATIONS} operations in a transaction")
    size_bytes = 0
    for branch in (success, failure):
        written: set[str] = set()
        for operation in branch:
            size_bytes += len(operation.key)
            if isinstance(operation, Get):
                continue
            if operation.key in written:
                raise InvalidTxnError(f"{operation.key} is written twice in one transaction")
            written.add(operation.key)
            if isinstance(operation, Put):
                size_bytes += len(operation.value)
    if size_bytes > MAX_TXN_BYTES:
        raise InvalidTxnError(f"a transaction of {size_bytes} bytes is larger than {MAX_TXN_BYTES}")


def _compare(actual: int | bytes, operator: CompareOperator, operand: int | bytes) -> bool:
    if operator is CompareOperator.EQUAL:
        return actual == operand
    if operator is CompareOperator.NOT_EQUAL:
        return actual != operand
    if isinstance(actual, int) and isinstance(operand, int):
        return actual > operand if operator is CompareOperator.GREATER else actual < operand
    if isinstance(actual, bytes) and isinstance(operand, bytes):
        return actual > operand if operator is CompareOperator.GREATER else actual < operand
    raise InvalidTxnError(f"can't compare {type(actual).__name__} with {type(operand).__name__}")
