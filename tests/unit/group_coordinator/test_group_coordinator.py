"""A group coordinator registers its address for as long as it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tidelog.group_coordinator import server
from tidelog.group_coordinator.server import GroupCoordinator
from tidelog.metadata.coordinators import GROUP, CoordinatorEntry, coordinator_ids, decode_coordinator
from tidelog.metadata.entries import InvalidEntryError
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.model.errors import KafkaError
from tidelog.rpc.in_process import InProcessSessionConnector
from tidelog.settings.broker_settings import BrokerSettings

SETTINGS = BrokerSettings.parse(
    {"node.id": "3", "broker.session.timeout.ms": "400", "broker.heartbeat.interval.ms": "100"}
)


def test_a_coordinator_is_registered_until_it_stops(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = FileMetadataStore.open(tmp_path, monotonic_ms=lambda: 0)
        coordinator = await GroupCoordinator.start(store, SETTINGS, InProcessSessionConnector())
        (item,) = (await store.list_prefix(coordinator_ids(GROUP))).items
        assert item.key == "/coordinators/group/ids/3"
        assert decode_coordinator(item.key, item.value) == CoordinatorEntry(GROUP, 3)
        assert item.lease
        await coordinator.stop()
        assert not (await store.list_prefix(coordinator_ids(GROUP))).items
        await store.close()

    asyncio.run(scenario())


def test_the_id_of_another_process_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GRACE_MS", -SETTINGS.broker_session_timeout_ms)

    async def scenario() -> None:
        store = FileMetadataStore.open(tmp_path, monotonic_ms=lambda: 0)
        first = await GroupCoordinator.start(store, SETTINGS, InProcessSessionConnector())
        with pytest.raises(KafkaError, match=r"node\.id: another live process is group coordinator 3"):
            await GroupCoordinator.start(store, SETTINGS, InProcessSessionConnector())
        await first.stop()
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("/coordinators/group/ids/x", b'{"rpc_address":""}'),
        ("/coordinators/group/ids/1", b"{}"),
        ("/coordinators/group/ids/1", b"rubbish"),
        ("/brokers/ids/1", b'{"rpc_address":""}'),
    ],
)
def test_invalid_values_are_rejected(key: str, value: bytes) -> None:
    with pytest.raises(InvalidEntryError):
        decode_coordinator(key, value)
