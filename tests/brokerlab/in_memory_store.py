"""A metadata store in memory whose transactions can be made to fail, before or after they take effect."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from tidelog.metadata.store import (
    DEFAULT_HISTORY_EVENTS,
    Compare,
    KeySpace,
    KeyValue,
    Listing,
    Operation,
    Put,
    StoreUnavailableError,
    TxnResult,
    WatchBatch,
)


class InMemoryStore:
    """`failures` gives the outcome of the next writes in order: "lost" (nothing was written), "unsure"
    (written, but the answer never comes), or any other value for success. While `is_away` is set, nothing is
    answered.
    """

    def __init__(self) -> None:
        self._space = KeySpace(DEFAULT_HISTORY_EVENTS)
        self.failures: list[str] = []
        self.is_away = False
        self.writes: list[tuple[tuple[Compare, ...], tuple[Operation, ...]]] = []
        """All transactions that write something, whatever their outcome."""

    async def get(self, key: str) -> KeyValue | None:
        self._check()
        return self._space.get(key)

    async def list_prefix(self, prefix: str) -> Listing:
        self._check()
        return Listing(self._space.revision, self._space.list_prefix(prefix))

    async def txn(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TxnResult:
        self._check()
        is_write = any(isinstance(operation, Put) for operation in success)
        fate = self.failures.pop(0) if is_write and self.failures else ""
        if is_write:
            self.writes.append((tuple(compares), tuple(success)))
        if fate == "lost":
            raise StoreUnavailableError("the request was lost")
        result = self._space.transact(compares, success, failure, lambda _: True).result
        if fate == "unsure":
            raise StoreUnavailableError("the response was lost")
        return result

    def put(self, key: str, value: bytes) -> int:
        """Writes a key and returns its new mod_revision."""
        return self._space.transact([], [Put(key, value)], [], lambda _: True).result.revision

    def delete(self, key: str) -> None:
        self._space.delete_keys([key])

    def _check(self) -> None:
        if self.is_away:
            raise StoreUnavailableError("the store is away")

    def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        raise NotImplementedError

    async def grant_lease(self, ttl_ms: int) -> int:
        raise NotImplementedError

    async def keep_alive(self, lease: int) -> int:
        raise NotImplementedError

    async def revoke_lease(self, lease: int) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Does nothing, because there is nothing to close."""
