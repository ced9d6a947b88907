"""A thread renews a lease while the loop is busy, but not while the loop is stalled; also during real
outages.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from brokerlab.broker_process import free_port
from brokerlab.etcd_process import EtcdProcess, etcd_cluster
from tidelog.cli.local_cluster.processes import EtcdBinary
from tidelog.metadata.etcd.connection import EtcdOptions
from tidelog.metadata.etcd.etcd_store import EtcdMetadataStore
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.metadata.session import LeaseKeeper, ThreadLeaseKeeper, start_lease_keeper
from tidelog.metadata.store import LeaseNotFoundError, Put, StoreUnavailableError


class NotedRenewals:
    """A renewer with scripted answers, which records the instants of its calls."""

    def __init__(self) -> None:
        self.asked_s: list[float] = []
        self.error: Exception | None = None
        self.threads: set[str] = set()
        self.is_closed = False

    def renew(self, lease: int, timeout_ms: int) -> int:
        self.asked_s.append(time.monotonic())
        self.threads.add(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        return 1000

    def close(self) -> None:
        self.is_closed = True


def _stand_still(seconds: float) -> None:
    """Blocks the event loop, like a wait for a disk."""
    time.sleep(seconds)


@asynccontextmanager
async def _kept(
    directory: Path, renewals: NotedRenewals, lost: asyncio.Event, *, ttl_ms: int, interval_ms: int
) -> AsyncGenerator[ThreadLeaseKeeper]:
    store = FileMetadataStore.open(directory, monotonic_ms=lambda: 0)
    keeper = await ThreadLeaseKeeper.start(
        store, renewals, ttl_ms=ttl_ms, interval_ms=interval_ms, on_lost=lost.set
    )
    try:
        yield keeper
    finally:
        await keeper.stop()
        await store.close()


def test_a_busy_loop_keeps_its_lease_and_a_stalled_one_does_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        renewals = NotedRenewals()
        async with _kept(tmp_path, renewals, asyncio.Event(), ttl_ms=800, interval_ms=50):
            await asyncio.sleep(0.2)
            before = len(renewals.asked_s)
            began = time.monotonic()
            _stand_still(1.2)
            ended = time.monotonic()
            during = [asked - began for asked in renewals.asked_s[before:] if asked < ended]
            assert len(during) >= 2, "a loop that is busy for a moment is no reason to stop"
            # This is half of 800 ms after the last tick, which was at most 100 ms earlier.
            assert max(during) < 0.55
            await asyncio.sleep(0.4)
            assert [asked for asked in renewals.asked_s if asked > ended], "the loop is back"
        assert renewals.threads == {"lease-keeper"}

    asyncio.run(scenario())


def test_a_lost_lease_is_reported_once_on_the_loop(tmp_path: Path) -> None:
    async def scenario() -> None:
        renewals, lost = NotedRenewals(), asyncio.Event()
        renewals.error = StoreUnavailableError("away")
        async with _kept(tmp_path, renewals, lost, ttl_ms=1000, interval_ms=10):
            await asyncio.sleep(0.1)
            assert not lost.is_set()
            assert len(renewals.asked_s) > 2, "the keeper retries"
            renewals.error = LeaseNotFoundError("gone")
            await asyncio.wait_for(lost.wait(), 5)
            asked = len(renewals.asked_s)
            await asyncio.sleep(0.1)
            assert len(renewals.asked_s) == asked
        assert renewals.is_closed

    asyncio.run(scenario())


def test_the_store_determines_the_kind_of_keeper(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = FileMetadataStore.open(tmp_path, monotonic_ms=lambda: 0)
        keeper = await start_lease_keeper(store)
        assert isinstance(keeper, LeaseKeeper)
        await keeper.stop()
        await store.close()

    asyncio.run(scenario())


@pytest.mark.integration
@pytest.mark.slow
def test_the_loop_may_block_for_longer_than_the_ttl_in_total(
    tmp_path: Path, any_etcd_binary: EtcdBinary
) -> None:
    """The loop blocks for 0.9 s at a time, for longer than the TTL of 2 s in total. It could not renew in
    between.
    """
    member = EtcdProcess(tmp_path / "data", tmp_path / "log", binary=any_etcd_binary).start()

    async def scenario() -> None:
        store = EtcdMetadataStore(EtcdOptions(member.endpoints))
        lost = asyncio.Event()
        keeper = await start_lease_keeper(store, ttl_ms=2000, interval_ms=400, on_lost=lost.set)
        await store.txn([], [Put("/k", b"", keeper.lease)])
        for _ in range(5):
            _stand_still(0.9)
            await asyncio.sleep(0.01)
        assert await store.get("/k") is not None
        _stand_still(6)  # longer than the TTL, so the lease expires
        assert await store.get("/k") is None
        await asyncio.wait_for(lost.wait(), 5)
        await keeper.stop()
        await store.close()

    try:
        asyncio.run(scenario())
    finally:
        member.stop()


@pytest.mark.integration
@pytest.mark.slow
def test_renewals_move_to_another_member(tmp_path: Path, any_etcd_binary: EtcdBinary) -> None:
    members = etcd_cluster(tmp_path, 3, binary=any_etcd_binary)

    async def scenario() -> None:
        store = EtcdMetadataStore(EtcdOptions(members[0].endpoints))
        keeper = await start_lease_keeper(store, ttl_ms=9000, interval_ms=500)
        await store.txn([], [Put("/k", b"", keeper.lease)])
        await asyncio.sleep(1)
        members[0].pause()
        await asyncio.sleep(13)
        members[0].resume()
        assert await store.get("/k") is not None
        await keeper.stop()
        assert await store.get("/k") is None
        await store.close()

    try:
        asyncio.run(scenario())
    finally:
        for member in members:
            member.stop()


def test_a_renewer_fails_in_time_if_no_server_answers() -> None:
    renewer = EtcdMetadataStore(EtcdOptions((f"http://127.0.0.1:{free_port()}",))).lease_renewer()
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError):
        renewer.renew(1, timeout_ms=500)
    assert time.monotonic() - began < 2
    renewer.close()
