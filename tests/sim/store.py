"""The metadata store of the simulated cluster: tidelog's own key space behind the simulated network.

The store causes transactions of unknown outcome, outages, watches that lag or are compacted, and leases that
end early or late.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final

from sim.loop import MS_PER_S, PROCESS, SimProcess
from sim.network import Network
from sim.trace import Trace
from tidelog.metadata.store import (
    Compare,
    Delete,
    KeySpace,
    KeyValue,
    LeaseNotFoundError,
    LeaseTable,
    Listing,
    Operation,
    Put,
    StoreUnavailableError,
    TxnResult,
    WatchBatch,
)

STORE: Final = "store"
CALL_TIMEOUT_S: Final = 1.5
WATCH_POLL_S: Final = 1.0
WATCH_RETRY_S: Final = 0.05
LEASE_CHECK_S: Final = 0.05


class StoreServer:
    """The service of the process `store`. There is only one such process, because etcd's own consensus is not
    under test.
    """

    def __init__(self, process: SimProcess, trace: Trace, history_events: int) -> None:
        self.space = KeySpace(history_events)
        self.leases = LeaseTable(0)
        self._lease_clock = (0.0, 0.0, 1.0)  # time on this clock, time on the loop's clock, and rate
        self.on_change: Callable[[SimProcess | None, Sequence[Put | Delete], int], None] = lambda *_: None
        self._process = process
        self._trace = trace
        self._changed = asyncio.Event()
        process.spawn(self._end_leases())

    def now_ms(self) -> int:
        """Returns the time on the clock that ends leases."""
        begun_ms, since_s, rate = self._lease_clock
        return int(begun_ms + (self._process.loop.now - since_s) * MS_PER_S * rate)

    def run_lease_clock(self, rate: float) -> None:
        """Changes the rate of the lease clock from now on."""
        self._lease_clock = (self.now_ms(), self._process.loop.now, rate)

    def txn(
        self,
        source: SimProcess,
        compares: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation],
    ) -> TxnResult:
        outcome = self.space.transact(compares, success, failure, self.leases.exists)
        self._note(source, outcome.changes, outcome.result.revision)
        return outcome.result

    def revoke(self, lease: int) -> None:
        self.leases.remove(lease)
        self._delete_keys_of(lease)

    def expire(self, lease: int) -> None:
        """Ends a lease regardless of the clock."""
        if self.leases.exists(lease):
            self.revoke(lease)

    def _delete_keys_of(self, lease: int) -> None:
        outcome = self.space.delete_keys(self.space.keys_of_lease(lease))
        self._note(None, outcome.changes, outcome.result.revision)

    def _note(self, source: SimProcess | None, changes: Sequence[Put | Delete], revision: int) -> None:
        if not changes:
            return
        for change in changes:
            value = change.value if isinstance(change, Put) else None
            self._trace.add(self._process.loop.now, "store", source, change.key, value, revision)
        self._changed.set()
        self._changed = asyncio.Event()
        self.on_change(source, changes, revision)

    async def watch_from(self, prefix: str, revision: int) -> tuple[list[WatchBatch], int]:
        """Returns the events from `revision` on, and the next revision. It waits some time for an event."""
        if self.space.revision < revision:
            try:
                await asyncio.wait_for(self._changed.wait(), WATCH_POLL_S)
            except TimeoutError:
                return [], revision
        if self.space.revision < revision:
            return [], revision
        return self.space.batches_from(prefix, revision, self.space.revision), self.space.revision + 1

    async def _end_leases(self) -> None:
        while True:
            await asyncio.sleep(LEASE_CHECK_S)
            for lease in sorted(self.leases.expired(self.now_ms())):
                self.expire(lease)


class SimStore:
    """A `MetadataStore` for one process, over the network."""

    def __init__(self, network: Network) -> None:
        self._network = network

    async def _call(self, what: str, serve: Callable[[StoreServer], Awaitable[Any]]) -> Any:
        try:
            return await self._network.call(
                STORE,
                lambda process: serve(process.service),
                what,
                timeout_s=CALL_TIMEOUT_S,
                repeatable=False,
            )
        except ConnectionError as error:
            raise StoreUnavailableError(str(error)) from error

    async def get(self, key: str) -> KeyValue | None:
        async def serve(server: StoreServer) -> KeyValue | None:
            return server.space.get(key)

        found: KeyValue | None = await self._call(f"get {key}", serve)
        return found

    async def list_prefix(self, prefix: str) -> Listing:
        async def serve(server: StoreServer) -> Listing:
            return Listing(server.space.revision, server.space.list_prefix(prefix))

        listing: Listing = await self._call(f"list {prefix}", serve)
        return listing

    async def txn(
        self,
        compares: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
    ) -> TxnResult:
        source = PROCESS.get()
        assert source is not None

        async def serve(server: StoreServer) -> TxnResult:
            return server.txn(source, compares, success, failure)

        result: TxnResult = await self._call("txn", serve)
        return result

    async def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        revision = start_revision
        while True:

            async def serve(server: StoreServer, revision: int = revision) -> Any:
                return await server.watch_from(prefix, revision)

            try:
                batches, revision = await self._call(f"watch {prefix} {revision}", serve)
            except StoreUnavailableError:
                await asyncio.sleep(WATCH_RETRY_S)
                continue
            for batch in batches:
                yield batch

    async def grant_lease(self, ttl_ms: int) -> int:
        async def serve(server: StoreServer) -> int:
            return server.leases.grant(ttl_ms, server.now_ms())

        lease: int = await self._call("grant lease", serve)
        return lease

    async def keep_alive(self, lease: int) -> int:
        async def serve(server: StoreServer) -> int:
            return server.leases.renew(lease, server.now_ms())

        left_ms: int = await self._call("keep alive", serve)
        return left_ms

    async def revoke_lease(self, lease: int) -> None:
        async def serve(server: StoreServer) -> None:
            if not server.leases.exists(lease):
                raise LeaseNotFoundError(f"lease {lease:x} does not exist")
            server.revoke(lease)

        await self._call("revoke lease", serve)

    async def close(self) -> None:
        """Does nothing, because there is nothing to close."""
