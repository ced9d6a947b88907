"""A coordinator's broker settings with the cluster-wide dynamic ones, as a copy of the metadata store's key
`/config/brokers/<default>`.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from tidelog.group_coordinator.shards.store_follower import StoreFollower
from tidelog.metadata.entries import (
    BROKER_CONFIG_PREFIX,
    BrokerConfigEntry,
    InvalidEntryError,
    broker_config_key,
    decode_entry,
)
from tidelog.metadata.store import Listing, MetadataStore, WatchBatch
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.setting import SettingError

_DEFAULT_KEY = broker_config_key("")

_log = structlog.get_logger(__name__)


class ClusterWideSettings:
    """`start` reads the key, and a watch keeps `current` up to date until `stop`.

    The settings of single brokers do not concern a coordinator. Only settings of groups follow changes; the
    coordinator reads the others when it starts.
    """

    def __init__(self, store: MetadataStore, settings: BrokerSettings) -> None:
        self.current = settings
        self._follower = StoreFollower(
            store, BROKER_CONFIG_PREFIX, on_listing=self._listed, on_batch=self._changed
        )

    async def start(self) -> None:
        """Raises StoreUnavailableError."""
        await self._follower.start()

    async def stop(self) -> None:
        await self._follower.stop()

    def _listed(self, listing: Listing) -> None:
        values = {item.key: item.value for item in listing.items}
        self._take(values.get(_DEFAULT_KEY))

    def _changed(self, batch: WatchBatch) -> None:
        for event in batch.events:
            if event.key == _DEFAULT_KEY:
                self._take(event.value)

    def _take(self, value: bytes | None) -> None:
        configs: Mapping[str, str] = {}
        try:
            if value is not None:
                entry = decode_entry(_DEFAULT_KEY, value)
                if isinstance(entry, BrokerConfigEntry):
                    configs = entry.configs
            self.current = self.current.with_dynamic(dynamic_default=configs, dynamic={})
        except (InvalidEntryError, SettingError) as error:
            _log.error("cluster-wide settings are not applied", reason=str(error))
