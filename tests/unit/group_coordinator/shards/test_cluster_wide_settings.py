"""A coordinator follows the cluster-wide settings in the metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from tidelog.group_coordinator.groups.group_core import GroupCore
from tidelog.group_coordinator.shards.store_copies import FollowedSettings
from tidelog.metadata.entries import BrokerConfigEntry
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.metadata.store import Delete, Put
from tidelog.settings.broker_settings import BrokerSettings

NAME = "group.streams.assignment.interval.ms"
ITERATIONS = 1_000


async def put(store: FileMetadataStore, entity: str, configs: dict[str, str]) -> None:
    entry = BrokerConfigEntry(entity, configs)
    await store.txn([], [Put(entry.key, entry.encode())])


async def until(condition: Callable[[], bool]) -> None:
    """The watch delivers a change within a few iterations of the loop."""
    for _ in range(ITERATIONS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the change did not arrive")


def test_groups_get_a_changed_assignment_interval(tmp_path: Path) -> None:
    async def test() -> None:
        store = FileMetadataStore.open(tmp_path, monotonic_ms=lambda: 0)
        settings = BrokerSettings.parse({NAME: "2000"})
        followed = FollowedSettings(store, settings)
        core = GroupCore(settings, lambda: "id", lambda group: {}, lambda: followed.current)

        def interval_ms() -> int:
            return core.groups.group_settings.for_group("g").streams_assignment_interval_ms

        await put(store, "", {NAME: "3000"})
        await followed.start()
        assert interval_ms() == 3_000
        await put(store, "1", {"log.cleaner.threads": "2"})  # the settings of one broker
        await put(store, "", {NAME: "4000"})
        await until(lambda: interval_ms() == 4_000)
        await put(store, "", {NAME: "a text that is no number"})
        await put(store, "", {NAME: "5000"})
        await until(lambda: interval_ms() == 5_000)
        await store.txn([], [Delete(BrokerConfigEntry("", {}).key)])
        await until(lambda: interval_ms() == 2_000)
        await followed.stop()
        await store.close()

    asyncio.run(test())


def test_a_value_that_is_not_valid_leaves_the_settings_as_they_are(tmp_path: Path) -> None:
    async def test() -> None:
        store = FileMetadataStore.open(tmp_path, monotonic_ms=lambda: 0)
        await put(store, "", {NAME: "-1"})
        followed = FollowedSettings(store, BrokerSettings.parse({NAME: "2000"}))
        await followed.start()
        assert followed.current.group_streams_assignment_interval_ms == 2_000
        await followed.stop()
        await store.close()

    asyncio.run(test())
