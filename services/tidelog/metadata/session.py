"""Leases, and the membership of a service in the cluster: a key under a lease.

A keeper holds one lease for a service and renews it, from the event loop or from a thread. If a process is
suspended for longer than the TTL of its lease, its key is deleted, and another process may create the key.
The process then takes a new lease and writes the key again. It gets a new epoch, which is the key's
create_revision. The process must end only if another process holds the key and does not release it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, runtime_checkable

import structlog

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

# The defaults of broker.session.timeout.ms and broker.heartbeat.interval.ms.
DEFAULT_SESSION_TIMEOUT_MS: Final = 6000
DEFAULT_HEARTBEAT_INTERVAL_MS: Final = 2000
# The event loop reports that it is alive this many times during the TTL of a lease. A thread that withholds a
# renewal checks the loop equally often.
_TICKS_IN_SESSION: Final = 8
_CLOSE_TIMEOUT_S: Final = 5.0


class KeptLease(Protocol):
    """The interface of both kinds of keepers."""

    lease: int
    renewed_s: float
    """The instant at which the lease was granted or last renewed, in seconds of the monotonic clock. Any
    thread may read it.
    """

    async def stop(self, *, revoke: bool = True) -> None: ...


class LeaseRenewer(Protocol):
    """Renews leases with blocking calls, for a thread that does not depend on the event loop."""

    def renew(self, lease: int, timeout_ms: int) -> int:
        """Returns the remaining time of the lease in ms. Raises LeaseNotFoundError and
        StoreUnavailableError.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class OffersLeaseRenewer(Protocol):
    def lease_renewer(self) -> LeaseRenewer: ...


async def start_lease_keeper(
    store: MetadataStore,
    *,
    ttl_ms: int = DEFAULT_SESSION_TIMEOUT_MS,
    interval_ms: int = DEFAULT_HEARTBEAT_INTERVAL_MS,
    on_lost: Callable[[], None] | None = None,
) -> KeptLease:
    """Starts a keeper: with a thread if the store offers a LeaseRenewer (etcd), else on the event loop.

    Raises StoreUnavailableError.
    """
    if isinstance(store, OffersLeaseRenewer):
        return await ThreadLeaseKeeper.start(
            store, store.lease_renewer(), ttl_ms=ttl_ms, interval_ms=interval_ms, on_lost=on_lost
        )
    return await LeaseKeeper.start(store, ttl_ms=ttl_ms, interval_ms=interval_ms, on_lost=on_lost)


class LeaseKeeper:
    """A keeper that renews on the event loop. `on_lost` is called once if the lease expires.

    While the store is unavailable, the keeper retries, because the lease may still exist afterwards.
    """

    def __init__(
        self, store: MetadataStore, lease: int, interval_ms: int, on_lost: Callable[[], None] | None
    ) -> None:
        self.lease = lease
        self.renewed_s = time.monotonic()
        self._store = store
        self._interval_ms = interval_ms
        self._on_lost = on_lost
        self._task = asyncio.create_task(self._renew(), name="lease-keeper")

    @classmethod
    async def start(
        cls,
        store: MetadataStore,
        *,
        ttl_ms: int = DEFAULT_SESSION_TIMEOUT_MS,
        interval_ms: int = DEFAULT_HEARTBEAT_INTERVAL_MS,
        on_lost: Callable[[], None] | None = None,
    ) -> LeaseKeeper:
        """Raises StoreUnavailableError."""
        return cls(store, await store.grant_lease(ttl_ms), interval_ms, on_lost)

    async def stop(self, *, revoke: bool = True) -> None:
        """Stops the renewals. With `revoke`, also ends the lease, unless the store is unavailable."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if revoke:
            await _revoke(self._store, self.lease)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            try:
                await self._store.keep_alive(self.lease)
                self.renewed_s = time.monotonic()
            except StoreUnavailableError:
                continue
            except LeaseNotFoundError:
                if self._on_lost is not None:
                    self._on_lost()
                return


class ThreadLeaseKeeper:
    """A keeper that renews in a thread, so that an event loop that is busy for a second or two does not lose
    its lease.

    If the event loop stalls for half of the TTL, the thread withholds renewals, because the process no longer
    serves requests. The lease then expires. `on_lost` is called on the event loop.
    """

    def __init__(
        self,
        store: MetadataStore,
        renewer: LeaseRenewer,
        lease: int,
        ttl_ms: int,
        interval_ms: int,
        on_lost: Callable[[], None] | None,
    ) -> None:
        self.lease = lease
        self.renewed_s = time.monotonic()
        self._store = store
        self._renewer = renewer
        self._ttl_ms = ttl_ms
        self._interval_ms = interval_ms
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self._ticked_s = time.monotonic()
        self._tick_handle = self._loop.call_soon(self._tick)
        self._thread = threading.Thread(target=self._renew_until_stopped, name="lease-keeper", daemon=True)
        self._thread.start()

    @classmethod
    async def start(
        cls,
        store: MetadataStore,
        renewer: LeaseRenewer,
        *,
        ttl_ms: int = DEFAULT_SESSION_TIMEOUT_MS,
        interval_ms: int = DEFAULT_HEARTBEAT_INTERVAL_MS,
        on_lost: Callable[[], None] | None = None,
    ) -> ThreadLeaseKeeper:
        """Raises StoreUnavailableError."""
        return cls(store, renewer, await store.grant_lease(ttl_ms), ttl_ms, interval_ms, on_lost)

    async def stop(self, *, revoke: bool = True) -> None:
        """See LeaseKeeper.stop."""
        self._tick_handle.cancel()
        self._stopping.set()
        self._renewer.close()
        await asyncio.to_thread(self._thread.join, _CLOSE_TIMEOUT_S)
        if revoke:
            await _revoke(self._store, self.lease)

    def _tick(self) -> None:
        self._ticked_s = time.monotonic()
        self._tick_handle = self._loop.call_later(self._ttl_ms / 1000 / _TICKS_IN_SESSION, self._tick)

    def _loop_stands_still(self) -> bool:
        return time.monotonic() - self._ticked_s > self._ttl_ms / 1000 / 2

    def _renew_until_stopped(self) -> None:
        pause_s = self._interval_ms / 1000
        while not self._stopping.wait(pause_s):
            # The thread waits less than the interval, because the loop may recover in time.
            pause_s = min(self._interval_ms, self._ttl_ms / _TICKS_IN_SESSION) / 1000
            if self._loop_stands_still():
                continue
            try:
                self._renewer.renew(self.lease, self._interval_ms)
                self.renewed_s = time.monotonic()
            except StoreUnavailableError:
                continue
            except LeaseNotFoundError:
                self._report_lost()
                return
            pause_s = self._interval_ms / 1000

    def _report_lost(self) -> None:
        if self._on_lost is None or self._stopping.is_set():
            return
        try:
            self._loop.call_soon_threadsafe(self._on_lost)
        except RuntimeError:
            return  # the event loop is closed


async def _revoke(store: MetadataStore, lease: int) -> None:
    with suppress(LeaseNotFoundError, StoreUnavailableError):  # the lease expires by itself
        await store.revoke_lease(lease)


HELD_KEY_POLL_MS: Final = 200
STORE_RETRY_MS: Final = 500
GIVE_UP_TIMEOUT_MS: Final = 2_000
"""Time in ms for which `stop` tries to end the lease while the store is unavailable."""

_log = structlog.get_logger(__name__)


class KeyHeldError(StoreError):
    """Another live process held the key for the whole time for which this process was willing to wait."""

    def __init__(self, holder: KeyValue) -> None:
        super().__init__(f"{holder.key} is held by another live process")
        self.holder = holder


class OtherStoreError(StoreError):
    """A guard of the claim failed: the store is not the one that this process expects."""


class Claim(NamedTuple):
    """The key to hold. `value` returns the value for a registration; its argument is True for the first of
    the process.
    """

    key: str
    value: Callable[[bool], bytes]
    guards: tuple[Compare, ...] = ()
    """Further conditions for writing the key, such as the expected cluster id."""


class Session:
    """A key that this process holds from `start` to `stop`. `epoch` is the epoch of the current registration.

    - `on_lease` is awaited with each new lease, before the key is written.
    - `on_taken` is awaited with the epoch of each registration.
    - `on_failed` is called at most once, with the error that keeps this process from registering again.
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
        """Takes the key and returns the epoch. `previous_lease` is a lease of an earlier process that has
        certainly ended; it is revoked, which deletes its keys.

        Raises KeyHeldError after `max_wait_ms`, OtherStoreError and StoreUnavailableError.
        """
        if previous_lease:
            with contextlib.suppress(LeaseNotFoundError):  # the lease has expired
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
        """The instant of the last renewal, in seconds of the monotonic clock. Any thread may read it."""
        keeper = self._keeper
        return None if keeper is None else keeper.renewed_s

    async def stop(self) -> None:
        """Releases the key. If the store is unavailable, the lease expires by itself."""
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.wait([self._returning])
        try:
            async with asyncio.timeout(GIVE_UP_TIMEOUT_MS / 1000):
                await self._drop_keeper()
        except TimeoutError:
            _log.warning("could not end the lease; it expires by itself", key=self._claim.key)

    async def _take_first(self) -> None:
        while True:
            try:
                return await self._take(is_first=True)
            except LeaseNotFoundError as error:  # the process was suspended, or etcd was slow
                _log.warning(
                    "the lease expired during the start; taking a new one",
                    key=self._claim.key,
                    reason=str(error),
                )
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
                raise OtherStoreError(f"{key} can't be written: this is not the store of the same cluster")
            if holder.lease == lease:  # an earlier attempt, whose outcome was unknown, wrote the key
                return holder.create_revision
            if waited_ms >= self._max_wait_ms:
                raise KeyHeldError(holder)
            if not waited_ms:
                _log.warning(
                    "another process holds the key; waiting until it releases the key",
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
            _log.warning("the lease was lost; taking the key again", key=self._claim.key)
            try:
                await self._drop_keeper()
                await self._take(is_first=False)
                _log.info("the key is held again", key=self._claim.key, epoch=self.epoch)
            except (StoreUnavailableError, LeaseNotFoundError, OSError) as error:
                # An OSError means that `on_lease` or `on_taken` could not write to the disk.
                _log.warning("could not take the key; retrying", key=self._claim.key, reason=str(error))
                self._lost.set()
                await asyncio.sleep(STORE_RETRY_MS / 1000)
            except StoreError as error:
                _log.error("could not take the key again", key=self._claim.key, reason=str(error))
                if self._on_failed is not None:
                    self._on_failed(error)
                return
