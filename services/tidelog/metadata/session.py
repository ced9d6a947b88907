"""A service's place in the cluster: one key under a lease, taken at the start, taken anew when it was lost.

A process that was stopped for longer than its lease lives finds its key gone, or in other hands. It then
takes a new lease and writes the key again: a new life, with a new epoch (the key's create_revision). Only
when another process holds the key, and keeps it, has this one to end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import structlog

from tidelog.metadata.lease_keeper import (
    DEFAULT_HEARTBEAT_INTERVAL_MS,
    DEFAULT_SESSION_TIMEOUT_MS,
    KeptLease,
    start_lease_keeper,
)
from tidelog.metadata.store import (
    Compare,
    Get,
    KeyValue,
    LeaseNotFoundError,
    MetadataStore,
    Put,
    StoreError,
    StoreUnavailableError,
)

HELD_KEY_POLL_MS: Final = 200
STORE_RETRY_MS: Final = 500
GIVE_UP_TIMEOUT_MS: Final = 2_000
"""How long a stop tries to end the lease while the store is away."""

_log = structlog.get_logger(__name__)


class KeyHeldError(StoreError):
    """Another process that is alive holds the key, and kept it for as long as this one would wait."""

    def __init__(self, holder: KeyValue) -> None:
        super().__init__(f"{holder.key} is held by another process that is alive")
        self.holder = holder


class OtherStoreError(StoreError):
    """What the claim presupposes no longer holds."""


class Claim(NamedTuple):
    """What is written. `value` is asked for each life anew, with whether it is the process's first."""

    key: str
    value: Callable[[bool], bytes]
    guards: tuple[Compare, ...] = ()
    """What has to hold beside, such as that the store is still that of the same cluster."""


class Session:
    """`await start(...)`, then `epoch`; `await stop()`.

    `on_lease` is awaited with each new lease before the key is written under it, `on_taken` with the epoch of
    each life; `on_failed` is called once, with what keeps this process from coming back.
    """

    def __init__(
        self,
        store: MetadataStore,
        claim: Claim,
        *,
        ttl_ms: int = DEFAULT_SESSION_TIMEOUT_MS,
        interval_ms: int = DEFAULT_HEARTBEAT_INTERVAL_MS,
        max_wait_ms: int,
        on_lease: Callable[[int], Awaitable[None]] | None = None,
        on_taken: Callable[[int], Awaitable[None]] | None = None,
        on_failed: Callable[[StoreError], None] | None = None,
    ) -> None:
        self.epoch = -1
        self.leases_lost = 0
        self._store = store
        self._claim = claim
        self._ttl_ms = ttl_ms
        self._interval_ms = interval_ms
        self._max_wait_ms = max_wait_ms
        self._on_lease = on_lease
        self._on_taken = on_taken
        self._on_failed = on_failed
        self._keeper: KeptLease | None = None
        self._lost = asyncio.Event()
        self._returning: asyncio.Task[None] | None = None

    async def start(self, previous_lease: int = 0) -> int:
        """Take the key; answers the epoch. `previous_lease` is one of an earlier life that surely has ended:
        what it holds goes at once.

        Raises KeyHeldError once `max_wait_ms` are over, StoreUnavailableError.
        """
        if previous_lease:
            with contextlib.suppress(LeaseNotFoundError):  # it has ended by itself
                await self._store.revoke_lease(previous_lease)
        try:
            await self._take_first()
        except BaseException:
            await self.stop()
            raise
        self._returning = asyncio.create_task(self._return_when_lost(), name="session")
        return self.epoch

    @property
    def lease_renewed_s(self) -> float | None:
        """When the lease was last renewed, by the monotonic clock. Any thread."""
        keeper = self._keeper
        return None if keeper is None else keeper.renewed_s

    async def stop(self) -> None:
        """Give the key up. Never raises for a store that is away: the lease ends by itself then."""
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.wait([self._returning])
        try:
            async with asyncio.timeout(GIVE_UP_TIMEOUT_MS / 1000):
                await self._drop_keeper()
        except TimeoutError:
            _log.warning("the lease is left to end by itself", key=self._claim.key)

    async def _take_first(self) -> None:
        while True:
            try:
                return await self._take(is_first=True)
            except LeaseNotFoundError as error:  # this process was stopped for long, or etcd was slow
                _log.warning("the lease ended during the start", key=self._claim.key, reason=str(error))
                await self._drop_keeper()

    async def _drop_keeper(self) -> None:
        if self._keeper is not None:
            keeper, self._keeper = self._keeper, None
            await keeper.stop()

    async def _take(self, *, is_first: bool) -> None:
        self._lost.clear()
        self._keeper = await start_lease_keeper(
            self._store, ttl_ms=self._ttl_ms, interval_ms=self._interval_ms, on_lost=self._lease_lost
        )
        if self._on_lease is not None:
            await self._on_lease(self._keeper.lease)
        self.epoch = await self._write_key(self._keeper.lease, self._claim.value(is_first))
        if self._on_taken is not None:
            await self._on_taken(self.epoch)

    async def _write_key(self, lease: int, value: bytes) -> int:
        key, waited_ms = self._claim.key, 0
        while True:
            result = await self._store.txn(
                [Compare.absent(key), *self._claim.guards], [Put(key, value, lease)], [Get(key)]
            )
            if result.succeeded:
                return result.revision
            holder = result.reads[0]
            if holder is None:
                raise OtherStoreError(f"{key} can't be written: the store is not the one it was")
            if holder.lease == lease:  # written by an attempt whose outcome was unknown
                return holder.create_revision
            if waited_ms >= self._max_wait_ms:
                raise KeyHeldError(holder)
            if not waited_ms:
                _log.warning(
                    "the key is held by another process, waiting for it to go",
                    key=key,
                    holder=holder.value.decode(errors="replace"),
                    max_wait_ms=self._max_wait_ms,
                )
            await asyncio.sleep(HELD_KEY_POLL_MS / 1000)
            waited_ms += HELD_KEY_POLL_MS

    def _lease_lost(self) -> None:
        self.leases_lost += 1
        self._lost.set()

    async def _return_when_lost(self) -> None:
        while True:
            await self._lost.wait()
            _log.warning("the lease was lost, the key is taken anew", key=self._claim.key)
            try:
                await self._drop_keeper()
                await self._take(is_first=False)
                _log.info("the key is held again", key=self._claim.key, epoch=self.epoch)
            except (StoreUnavailableError, LeaseNotFoundError, OSError) as error:
                # OSError: what is to be noted of the new life finds no room on the disk.
                _log.warning("the key can't be taken yet", key=self._claim.key, reason=str(error))
                self._lost.set()
                await asyncio.sleep(STORE_RETRY_MS / 1000)
            except StoreError as error:
                _log.error("the key can't be taken again", key=self._claim.key, reason=str(error))
                if self._on_failed is not None:
                    self._on_failed(error)
                return
