"""Keepers of leases: each holds one lease for a service and renews it, from the event loop or from a
thread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, runtime_checkable

from tidelog.metadata.store import LeaseNotFoundError, MetadataStore, StoreUnavailableError

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
