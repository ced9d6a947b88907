"""The contract of the metadata store, a small key space with etcd's semantics, and its rules in memory.

Keys are text, and values are bytes. Every transaction that changes something gets the next revision of the
store. A key has the revision that created it (`create_revision`), the revision that last wrote it
(`mod_revision`) and the number of its writes (`version`). A key that is deleted and created again starts with
new ones. The names and rules are those of etcd's KV, Watch and Lease services (v3), so that etcd itself can
implement this contract. The tests in `tests/unit/metadata/test_store_contract.py` check every store.

`KeySpace` and `LeaseTable` implement the rules without I/O, for the file store and the simulator's store.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from tidelog.kernel.instants import MonotonicMs

# etcd's limit (--max-txn-ops). Compares, success operations and failure operations are counted separately.
MAX_TXN_OPERATIONS: Final = 128
# This is less than etcd's --max-request-bytes (1.5 MiB).
MAX_TXN_BYTES: Final = 1024 * 1024
NO_LEASE: Final = 0
# The revision of an empty store, as in etcd. The first change gets revision 2.
FIRST_REVISION: Final = 1
# Number of events that are kept for watches that lag behind; a watch that needs older events must list again.
# They take about 10 MB if all are partition states.
DEFAULT_HISTORY_EVENTS: Final = 50_000
MAX_HISTORY_BYTES: Final = 64 * 1024 * 1024
"""The values of the events that are kept for watches. One value may have almost MAX_TXN_BYTES."""


class StoreError(Exception):
    """Base class of the errors that a store raises."""


class StoreUnavailableError(StoreError):
    """The store can't be reached or can't write.

    The outcome of a transaction that raises this error is unknown until its keys are read again.
    """


class InvalidTxnError(StoreError):
    """A transaction that no store accepts: it has too many operations, is too large, or writes a key
    twice.
    """


class LeaseNotFoundError(StoreError):
    """The lease has ended or never existed. Its keys are deleted."""


class CompactedError(StoreError):
    """A watch needs revisions that are no longer kept.

    The caller must list the keys again and watch from the revision of the listing + 1.
    """

    def __init__(self, compact_revision: int) -> None:
        super().__init__(f"revisions up to {compact_revision} are compacted")
        self.compact_revision = compact_revision


class KeyValue(NamedTuple):
    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = NO_LEASE


class CompareTarget(Enum):
    VERSION = "version"
    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"
    VALUE = "value"


class CompareOperator(Enum):
    EQUAL = "="
    NOT_EQUAL = "!="
    GREATER = ">"
    LESS = "<"


class Compare(NamedTuple):
    """A condition. A key that does not exist has version and revisions 0 and fails every comparison of its
    value.
    """

    key: str
    target: CompareTarget
    operand: int | bytes
    operator: CompareOperator = CompareOperator.EQUAL

    @staticmethod
    def absent(key: str) -> Compare:
        return Compare(key, CompareTarget.CREATE_REVISION, 0)

    @staticmethod
    def create_revision(key: str, revision: int) -> Compare:
        return Compare(key, CompareTarget.CREATE_REVISION, revision)

    @staticmethod
    def mod_revision(key: str, revision: int) -> Compare:
        return Compare(key, CompareTarget.MOD_REVISION, revision)

    @staticmethod
    def value(key: str, value: bytes) -> Compare:
        return Compare(key, CompareTarget.VALUE, value)


class Put(NamedTuple):
    key: str
    value: bytes
    lease: int = NO_LEASE


class Delete(NamedTuple):
    """Deletes a key. It does nothing if the key does not exist."""

    key: str


class Get(NamedTuple):
    key: str


Operation = Put | Delete | Get


class TxnResult(NamedTuple):
    """The result of a transaction.

    `revision` is the revision of the store after the transaction, which is the mod_revision of the keys that
    it changed. `reads` are the results of the Gets of the executed branch, in their order.
    """

    succeeded: bool
    revision: int
    reads: tuple[KeyValue | None, ...] = ()


class Event(NamedTuple):
    """The put or the deletion of a key. A deletion has the value None, and its `create_revision` and `lease`
    are 0.
    """

    key: str
    value: bytes | None
    mod_revision: int
    create_revision: int = 0
    lease: int = NO_LEASE


class WatchBatch(NamedTuple):
    """All events of one revision under the watched prefix. A revision is never split."""

    revision: int
    events: tuple[Event, ...]


class Listing(NamedTuple):
    """Keys in byte order, as of `revision`."""

    revision: int
    items: tuple[KeyValue, ...]


class MetadataStore(Protocol):
    """A metadata store. Results and watches show only durable state, which is never undone."""

    async def get(self, key: str) -> KeyValue | None: ...

    async def list_prefix(self, prefix: str) -> Listing: ...

    async def txn(
        self,
        compares: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
    ) -> TxnResult:
        """Executes `success` if all compares hold, else `failure`: all operations at one revision, or none.

        Raises InvalidTxnError, LeaseNotFoundError (if the lease of a Put has ended) and
        StoreUnavailableError.
        """
        ...

    def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Yields the changes under `prefix` from `start_revision` (> 0) on: each exactly once, in the order
        of revisions.

        The watch runs until the caller closes it, and reconnects by itself. Raises CompactedError if it can't
        continue without a gap, and StoreUnavailableError when the store is closed.
        """
        ...

    async def grant_lease(self, ttl_ms: int) -> int:
        """Returns a new lease id (> 0). A store may round the TTL up to whole seconds."""
        ...

    async def keep_alive(self, lease: int) -> int:
        """Renews the lease for its whole TTL and returns the remaining time in ms. Raises
        LeaseNotFoundError.
        """
        ...

    async def revoke_lease(self, lease: int) -> None:
        """Ends the lease and deletes its keys at one revision. Raises LeaseNotFoundError."""
        ...

    async def close(self) -> None: ...


Change = Put | Delete


class Outcome(NamedTuple):
    """The result of a transaction, and the changes that it made. `changes` is empty if nothing changed."""

    result: TxnResult
    changes: tuple[Change, ...]


class KeySpace:
    """Keys, revisions and history in memory.

    `transact` decides and applies a transaction; `replay` applies one that was decided earlier.
    """

    def __init__(self, history_events: int = DEFAULT_HISTORY_EVENTS) -> None:
        self.revision = FIRST_REVISION
        self.compact_revision = FIRST_REVISION
        self._items: dict[str, KeyValue] = {}
        self._sorted_keys: list[str] | None = []
        self._keys_of_lease: dict[int, set[str]] = {}
        self._history: deque[WatchBatch] = deque()
        self._history_length = 0
        self._history_bytes = 0
        self._history_limit = history_events

    def get(self, key: str) -> KeyValue | None:
        return self._items.get(key)

    def items(self) -> list[KeyValue]:
        """Returns all keys in any order, for a snapshot."""
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
        """Returns the leases that have keys."""
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
        """Raises InvalidTxnError or LeaseNotFoundError, and then changes nothing."""
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
        """Deletes any number of keys at one revision, as the end of a lease does. The limits of transactions
        do not apply.
        """
        revision = self.revision + 1
        present = [key for key in keys if key in self._items]
        if present:
            events = tuple(self._delete(key, revision) for key in present)
            self.revision = revision
            self._remember(WatchBatch(revision, events))
        return Outcome(TxnResult(True, self.revision), tuple(Delete(key) for key in present))

    def restore(self, revision: int, items: Iterable[KeyValue]) -> None:
        """Replaces the state by a snapshot. The history starts at its revision."""
        self.revision = self.compact_revision = revision
        self._items = {item.key: item for item in items}
        self._sorted_keys = None
        self._keys_of_lease.clear()
        for item in self._items.values():
            if item.lease != NO_LEASE:
                self._keys_of_lease.setdefault(item.lease, set()).add(item.key)
        self._history.clear()
        self._history_length = self._history_bytes = 0

    def replay(self, revision: int, changes: Iterable[Change]) -> None:
        """Applies changes that an earlier `transact` decided. They are not added to the history."""
        self._sorted_keys = None
        for change in changes:
            if isinstance(change, Put):
                self._put(change, revision)
            elif change.key in self._items:
                self._delete(change.key, revision)
        self.revision = self.compact_revision = revision

    def batches_from(self, prefix: str, start_revision: int, up_to_revision: int) -> list[WatchBatch]:
        """Returns the batches that a watch must deliver. Raises CompactedError if some of them are no longer
        kept.
        """
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
        self._history_bytes += _value_bytes(batch)
        while self._history_length > self._history_limit or self._history_bytes > MAX_HISTORY_BYTES:
            forgotten = self._history.popleft()
            self._history_length -= len(forgotten.events)
            self._history_bytes -= _value_bytes(forgotten)
            self.compact_revision = forgotten.revision


def _value_bytes(batch: WatchBatch) -> int:
    return sum(len(event.value or b"") for event in batch.events)


def check_txn(
    compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]
) -> None:
    """Checks the limits of a transaction. Raises InvalidTxnError."""
    if max(len(compares), len(success), len(failure)) > MAX_TXN_OPERATIONS:
        raise InvalidTxnError(f"a transaction has more than {MAX_TXN_OPERATIONS} operations")
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
        raise InvalidTxnError(f"a transaction has {size_bytes} bytes, more than {MAX_TXN_BYTES}")


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


class LeaseTable:
    """The deadlines of leases. There are only a few leases, so a scan for the earliest deadline is cheap."""

    def __init__(self, first_id: int) -> None:
        self._next_id = first_id + 1
        self._ttl_ms: dict[int, int] = {}
        self._deadline_ms: dict[int, MonotonicMs] = {}

    def grant(self, ttl_ms: int, now_ms: MonotonicMs) -> int:
        if ttl_ms <= 0:
            raise ValueError(f"the TTL of a lease must be positive, not {ttl_ms} ms")
        lease = self._next_id
        self._next_id += 1
        self._ttl_ms[lease] = ttl_ms
        self._deadline_ms[lease] = MonotonicMs(now_ms + ttl_ms)
        return lease

    def exists(self, lease: int) -> bool:
        return lease in self._ttl_ms

    def renew(self, lease: int, now_ms: MonotonicMs) -> int:
        """Returns the ms that the lease now lasts. Raises LeaseNotFoundError."""
        ttl_ms = self._ttl_ms.get(lease)
        if ttl_ms is None:
            raise LeaseNotFoundError(f"lease {lease:x} does not exist")
        self._deadline_ms[lease] = MonotonicMs(now_ms + ttl_ms)
        return ttl_ms

    def renew_all(self, now_ms: MonotonicMs) -> None:
        for lease in self._ttl_ms:
            self.renew(lease, now_ms)

    def remove(self, lease: int) -> None:
        """Raises LeaseNotFoundError."""
        if self._ttl_ms.pop(lease, None) is None:
            raise LeaseNotFoundError(f"lease {lease:x} does not exist")
        del self._deadline_ms[lease]

    def expired(self, now_ms: MonotonicMs) -> tuple[int, ...]:
        """Returns the leases whose deadline has passed, in any order."""
        return tuple(lease for lease, deadline_ms in self._deadline_ms.items() if deadline_ms <= now_ms)

    def next_deadline_ms(self) -> MonotonicMs | None:
        return min(self._deadline_ms.values(), default=None)
