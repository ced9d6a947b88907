"""The metadata store's contract: a small key space with etcd's semantics.

Keys are text, values bytes. Every transaction that changes something gets the next revision, one for the
whole store. A key remembers the revision that made it (`create_revision`), the last that wrote it
(`mod_revision`) and how often it was written (`version`); a deleted key starts afresh. The names and rules
are those of etcd's KV, Watch and Lease services (v3), so that etcd itself can stand behind this contract;
`tests/unit/metadata` holds the one suite every store must pass.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

# etcd's own limit (--max-txn-ops); compares, success and failure operations are counted each for themselves.
MAX_TXN_OPERATIONS: Final = 128
# Kept below etcd's --max-request-bytes (1.5 MiB).
MAX_TXN_BYTES: Final = 1024 * 1024
NO_LEASE: Final = 0


class StoreError(Exception):
    """Base of what a store raises."""


class StoreUnavailableError(StoreError):
    """The store can't be reached or can't write. A transaction that raises this has an unknown outcome:
    neither done nor undone until it is read again.
    """


class InvalidTxnError(StoreError):
    """A transaction that no store takes: too many operations, too large, one key written twice."""


class LeaseNotFoundError(StoreError):
    """The lease has ended (or never was); the keys bound to it are gone."""


class CompactedError(StoreError):
    """A watch asks for revisions that are no longer kept: list again, then watch from the listing's
    revision + 1.
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
    """One condition. A key that isn't there has version and revisions 0, and fails every compare of its
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
    """Of a key that isn't there: no change, no error."""

    key: str


class Get(NamedTuple):
    key: str


Operation = Put | Delete | Get


class TxnResult(NamedTuple):
    """`revision` is that of the store after the transaction (the changed keys' mod_revision, if it changed
    any); `reads` are the answers to the branch's Gets, in their order.
    """

    succeeded: bool
    revision: int
    reads: tuple[KeyValue | None, ...] = ()


class Event(NamedTuple):
    """A key was put, or deleted (`value` None; `create_revision`, `lease` are 0 then)."""

    key: str
    value: bytes | None
    mod_revision: int
    create_revision: int = 0
    lease: int = NO_LEASE


class WatchBatch(NamedTuple):
    """All events of one revision (never split) that lie under the watched prefix."""

    revision: int
    events: tuple[Event, ...]


class Listing(NamedTuple):
    """Keys in byte order, as they stood at `revision`."""

    revision: int
    items: tuple[KeyValue, ...]


class MetadataStore(Protocol):
    """Every answer shows durable state only: nothing that was answered or watched is ever taken back."""

    async def get(self, key: str) -> KeyValue | None: ...

    async def list_prefix(self, prefix: str) -> Listing: ...

    async def txn(
        self,
        compares: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
    ) -> TxnResult:
        """If all compares hold, do `success`, else `failure`; all of it at one revision or nothing.

        Raises InvalidTxnError, LeaseNotFoundError (a Put names an ended lease), StoreUnavailableError.
        """
        ...

    def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Changes under `prefix` from `start_revision` (> 0) on, in revision order, none left out, none
        twice.

        Goes on until it is closed; reconnects by itself. Raises CompactedError when it can't go on without
        a gap, StoreUnavailableError when the store is closed.
        """
        ...

    async def grant_lease(self, ttl_ms: int) -> int:
        """A lease id (> 0). A store may round the time up to whole seconds."""
        ...

    async def keep_alive(self, lease: int) -> int:
        """Renew for the lease's whole time; answers what is left, in ms. Raises LeaseNotFoundError."""
        ...

    async def revoke_lease(self, lease: int) -> None:
        """End it; its keys go in one revision. Raises LeaseNotFoundError."""
        ...

    async def close(self) -> None: ...
