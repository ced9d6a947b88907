"""Follows the keys below a prefix of the metadata store: lists them and then watches them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from tidelog.metadata.store import CompactedError, Listing, MetadataStore, StoreUnavailableError, WatchBatch

RETRY_MS: Final = 500

_log = structlog.get_logger(__name__)


class StoreFollower:
    """Calls `on_listing` at the start and after each gap of the watch, and `on_batch` with each later change.

    While the store is unavailable, it makes no calls.
    """

    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        *,
        on_listing: Callable[[Listing], None],
        on_batch: Callable[[WatchBatch], None],
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._on_listing = on_listing
        self._on_batch = on_batch
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns after the first listing. Raises StoreUnavailableError."""
        listing = await self._store.list_prefix(self._prefix)
        self._on_listing(listing)
        self._task = asyncio.create_task(self._follow(listing.revision), name=f"follow {self._prefix}")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _follow(self, revision: int) -> None:
        while True:
            try:
                await self._watch(revision + 1)
            except (CompactedError, StoreUnavailableError) as error:
                _log.warning(
                    "keys of the metadata store are listed again", prefix=self._prefix, reason=str(error)
                )
            except Exception:  # noqa: BLE001 - a bug must not end the task: list again
                _log.exception("following the metadata store failed and starts again", prefix=self._prefix)
            revision = await self._list_again()

    async def _list_again(self) -> int:
        """Returns the revision of a new listing."""
        while True:
            await asyncio.sleep(RETRY_MS / 1000)
            try:
                listing = await self._store.list_prefix(self._prefix)
                self._on_listing(listing)
            except StoreUnavailableError:
                continue
            except Exception:  # noqa: BLE001 - a bug must not end the task: list again
                _log.exception("a listing of the metadata store can't be applied", prefix=self._prefix)
                continue
            return listing.revision

    async def _watch(self, start_revision: int) -> None:
        watch = self._store.watch(self._prefix, start_revision)
        try:
            async for batch in watch:
                self._on_batch(batch)
        finally:
            await watch.aclose()
