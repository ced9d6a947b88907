"""Follows `/controller` in the metadata store to find the active controller."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import structlog

from tidelog.metadata.entries import (
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    ControllerEntry,
    ControllerEpochEntry,
    InvalidEntryError,
    decode_entry,
)
from tidelog.metadata.store import CompactedError, MetadataStore, StoreUnavailableError

RETRY_MS: Final = 500

_log = structlog.get_logger(__name__)


class ActiveController(NamedTuple):
    """An active controller. `term` is the create_revision of `/controller`."""

    controller_id: int
    rpc_address: str
    term: int


class ControllerLocation:
    """The active controller according to the store. While the store is unavailable, it is the last
    known one.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.active: ActiveController | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow(), name="controller-location")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def until_other_than(self, active: ActiveController | None) -> None:
        """Returns when another controller, or none, is active."""
        while self.active == active:
            await self._changed.wait()

    async def _follow(self) -> None:
        while True:
            try:
                await self._list_and_watch()
            except (CompactedError, StoreUnavailableError, InvalidEntryError) as error:
                _log.warning("can't follow the active controller; retrying", reason=str(error))
            await asyncio.sleep(RETRY_MS / 1000)

    async def _list_and_watch(self) -> None:
        listing = await self._store.list_prefix(CONTROLLER_KEY)
        found = next((item for item in listing.items if item.key == CONTROLLER_KEY), None)
        self._set(None if found is None else _active_controller(found.value, found.create_revision))
        watch = self._store.watch(CONTROLLER_KEY, listing.revision + 1)
        try:
            async for batch in watch:
                for event in batch.events:
                    if event.key == CONTROLLER_KEY:
                        gone = event.value is None
                        self._set(
                            None if gone else _active_controller(event.value or b"", event.create_revision)
                        )
        finally:
            await watch.aclose()

    def _set(self, active: ActiveController | None) -> None:
        if active != self.active:
            self.active = active
            self._changed.set()
            self._changed = asyncio.Event()


async def elected_controller_epoch(store: MetadataStore) -> int:
    """Returns the epoch of the last election, or -1 if there was none.

    Raises StoreError and InvalidEntryError.
    """
    found = await store.get(CONTROLLER_EPOCH_KEY)
    if found is None:
        return -1
    entry = decode_entry(found.key, found.value)
    if not isinstance(entry, ControllerEpochEntry):
        raise InvalidEntryError(f"{CONTROLLER_EPOCH_KEY} holds {found.value!r}")
    return entry.controller_epoch


def _active_controller(value: bytes, create_revision: int) -> ActiveController:
    entry = decode_entry(CONTROLLER_KEY, value)
    if not isinstance(entry, ControllerEntry):
        raise InvalidEntryError(f"{CONTROLLER_KEY} holds {value!r}")
    return ActiveController(entry.controller_id, entry.rpc_address, create_revision)
