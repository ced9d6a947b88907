"""The settings that groups override, as a copy of the metadata store's keys below `/config/groups/`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog

from tidelog.group_coordinator.shards.store_follower import StoreFollower
from tidelog.metadata.entries import (
    GROUP_CONFIG_PREFIX,
    GroupConfigEntry,
    InvalidEntryError,
    decode_entry,
    group_config_key,
)
from tidelog.metadata.store import Listing, MetadataStore, WatchBatch

_NO_OVERRIDES: Final[Mapping[str, str]] = {}

_log = structlog.get_logger(__name__)


class GroupConfigs:
    """`start` reads the keys, and a watch keeps them current until `stop`."""

    def __init__(self, store: MetadataStore) -> None:
        self._configs: dict[str, Mapping[str, str]] = {}
        self._follower = StoreFollower(
            store, GROUP_CONFIG_PREFIX, on_listing=self._listed, on_batch=self._changed
        )

    async def start(self) -> None:
        """Raises StoreUnavailableError."""
        await self._follower.start()

    async def stop(self) -> None:
        await self._follower.stop()

    def overrides_of(self, group_id: str) -> Mapping[str, str]:
        """Returns the texts of the settings that a group overrides."""
        return (
            self._configs.get(group_config_key(group_id), _NO_OVERRIDES) if self._configs else _NO_OVERRIDES
        )

    def _listed(self, listing: Listing) -> None:
        self._configs.clear()
        for item in listing.items:
            self._take(item.key, item.value)

    def _changed(self, batch: WatchBatch) -> None:
        for event in batch.events:
            self._take(event.key, event.value)

    def _take(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._configs.pop(key, None)
            return
        try:
            entry = decode_entry(key, value)
        except InvalidEntryError as error:
            _log.warning(
                "a key of the metadata store is ignored because its value is not valid", reason=str(error)
            )
            return
        if isinstance(entry, GroupConfigEntry):
            self._configs[key] = entry.configs
