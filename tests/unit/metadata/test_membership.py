"""The cluster id, and keepers of leases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tidelog.metadata.cluster_identity import SchemaVersionError, ensure_cluster_id
from tidelog.metadata.entries import SCHEMA_VERSION_KEY
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.metadata.session import LeaseKeeper
from tidelog.metadata.store import LeaseNotFoundError, LeaseTable, Put

Scenario = Callable[[FileMetadataStore], Awaitable[None]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Scenario], None]:
    def run_scenario(scenario: Scenario) -> None:
        async def with_store() -> None:
            store = FileMetadataStore.open(tmp_path, monotonic_ms=lambda: 0)
            try:
                await scenario(store)
            finally:
                await store.close()

        asyncio.run(with_store())

    return run_scenario


def test_the_first_cluster_id_is_kept(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: FileMetadataStore) -> None:
        assert await ensure_cluster_id(store, "first") == "first"
        assert await ensure_cluster_id(store, "second") == "first"
        await store.txn([], [Put(SCHEMA_VERSION_KEY, b"99")])
        with pytest.raises(SchemaVersionError, match="99"):
            await ensure_cluster_id(store, "third")

    run(scenario)


def test_a_keeper_reports_a_lost_lease(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: FileMetadataStore) -> None:
        lost = asyncio.Event()
        keeper = await LeaseKeeper.start(store, ttl_ms=1000, interval_ms=1, on_lost=lost.set)
        await store.revoke_lease(keeper.lease)
        await asyncio.wait_for(lost.wait(), 10)
        await keeper.stop()

    run(scenario)


def test_a_stopped_keeper_revokes_its_lease(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: FileMetadataStore) -> None:
        keeper = await LeaseKeeper.start(store)
        await store.txn([], [Put("/x", b"", keeper.lease)])
        await keeper.stop()
        assert await store.get("/x") is None
        kept = await LeaseKeeper.start(store)
        await kept.stop(revoke=False)
        assert await store.keep_alive(kept.lease) > 0

    run(scenario)


def test_lease_table() -> None:
    table = LeaseTable(first_id=100)
    short, long = table.grant(10, now_ms=0), table.grant(100, now_ms=0)
    assert table.next_deadline_ms() == 10
    assert table.renew(short, now_ms=5) == 10
    assert table.expired(14) == ()
    assert table.expired(15) == (short,)
    assert set(table.expired(200)) == {short, long}
    table.renew_all(200)
    assert table.expired(209) == ()
    table.remove(short)
    assert not table.exists(short)
    for call in (lambda: table.renew(short, 0), lambda: table.remove(short)):
        with pytest.raises(LeaseNotFoundError):
            call()
    with pytest.raises(ValueError, match="0 ms"):
        table.grant(0, 0)
