"""Holds one lease for a service and renews it until told otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidelog.metadata.store import LeaseNotFoundError, MetadataStore, StoreUnavailableError

# Kafka's broker.session.timeout.ms and broker.heartbeat.interval.ms.
DEFAULT_SESSION_TIMEOUT_MS: Final = 6000
DEFAULT_HEARTBEAT_INTERVAL_MS: Final = 2000


class LeaseKeeper:
    """`await LeaseKeeper.start(...)`, then `.lease`; `on_lost` is called once if the lease ends by itself.

    While the store can't be reached it goes on trying: the lease may still be there afterwards.
    """

    def __init__(
        self, store: MetadataStore, lease: int, interval_ms: int, on_lost: Callable[[], None] | None
    ) -> None:
        self.lease = lease
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
        """No more renewals; with `revoke` the lease's keys go at once. Never raises for a store that is
        away.
        """
        self._task.cancel()
        await asyncio.wait([self._task])
        if not revoke:
            return
        try:
            await self._store.revoke_lease(self.lease)
        except (LeaseNotFoundError, StoreUnavailableError):
            return  # it ends by itself

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            try:
                await self._store.keep_alive(self.lease)
            except StoreUnavailableError:
                continue
            except LeaseNotFoundError:
                if self._on_lost is not None:
                    self._on_lost()
                return
