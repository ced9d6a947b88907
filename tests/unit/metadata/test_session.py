"""A key under a lease: taken at the start, respected by others, and taken again after a loss."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tidelog.metadata.file_store import FileMetadataStore
from tidelog.metadata.session import Claim, KeyHeldError, OtherStoreError, Session
from tidelog.metadata.store import Compare, KeyValue, MetadataStore, Put, StoreError

KEY = "/brokers/ids/1"
TTL_MS = 60_000


def session(store: MetadataStore, *, max_wait_ms: int = 0, guard: Compare | None = None) -> Session:
    claim = Claim(KEY, lambda is_first: b"first" if is_first else b"again", (guard,) if guard else ())
    return Session(store, claim, ttl_ms=TTL_MS, interval_ms=10, max_wait_ms=max_wait_ms)


async def held(store: MetadataStore) -> KeyValue:
    found = await store.get(KEY)
    assert found is not None
    return found


def run(tmp_path: Path, scenario: object) -> None:
    async def main() -> None:
        store = FileMetadataStore.open(tmp_path / "metadata", monotonic_ms=lambda: 0)
        try:
            await scenario(store)  # type: ignore[operator]
        finally:
            await store.close()

    asyncio.run(main())


def test_the_key_is_held_until_the_stop(tmp_path: Path) -> None:
    async def scenario(store: FileMetadataStore) -> None:
        mine = session(store)
        epoch = await mine.start()
        item = await held(store)
        assert (item.value, item.create_revision) == (b"first", epoch)
        await mine.stop()
        assert await store.get(KEY) is None

    run(tmp_path, scenario)


def test_the_key_of_another_live_process_is_not_taken(tmp_path: Path) -> None:
    async def scenario(store: FileMetadataStore) -> None:
        other = session(store)
        await other.start()
        with pytest.raises(KeyHeldError, match=KEY):
            await session(store).start()
        assert (await held(store)).create_revision == other.epoch
        waiting = asyncio.create_task(session(store, max_wait_ms=10_000).start())
        await asyncio.sleep(0)
        await other.stop()
        assert await waiting > other.epoch

    run(tmp_path, scenario)


def test_a_key_written_under_the_own_lease_is_held(tmp_path: Path) -> None:
    """An attempt whose outcome was unknown may have written the key."""

    async def scenario(store: FileMetadataStore) -> None:
        async def write(lease: int) -> None:
            await store.txn([], [Put(KEY, b"first", lease)])

        claim = Claim(KEY, lambda is_first: b"first")
        mine = Session(store, claim, ttl_ms=TTL_MS, interval_ms=10, max_wait_ms=0, on_lease=write)
        epoch = await mine.start()
        item = await held(store)
        assert (item.create_revision, item.version) == (epoch, 1)
        await mine.stop()
        assert await store.get(KEY) is None

    run(tmp_path, scenario)


def test_the_lease_of_an_earlier_process_is_revoked(tmp_path: Path) -> None:
    async def scenario(store: FileMetadataStore) -> None:
        lease = await store.grant_lease(TTL_MS)
        await store.txn([], [Put(KEY, b"killed", lease)])
        epoch = await session(store).start(previous_lease=lease)
        assert (await held(store)).create_revision == epoch

    run(tmp_path, scenario)


def test_a_lost_key_is_taken_again_with_a_new_epoch(tmp_path: Path) -> None:
    async def scenario(store: FileMetadataStore) -> None:
        leases: list[int] = []
        taken: asyncio.Queue[int] = asyncio.Queue()

        async def on_lease(lease: int) -> None:
            leases.append(lease)

        claim = Claim(KEY, lambda is_first: b"first" if is_first else b"again")
        mine = Session(
            store,
            claim,
            ttl_ms=TTL_MS,
            interval_ms=10,
            max_wait_ms=0,
            on_lease=on_lease,
            on_taken=taken.put,
        )
        first = await mine.start()
        await store.revoke_lease(leases[0])
        assert await taken.get() == first
        second = await taken.get()
        item = await held(store)
        assert (item.value, item.create_revision, item.lease) == (b"again", second, leases[1])
        assert second > first
        await mine.stop()

    run(tmp_path, scenario)


def test_a_full_disk_delays_taking_the_key_again(tmp_path: Path) -> None:
    async def scenario(store: FileMetadataStore) -> None:
        leases: list[int] = []
        taken: asyncio.Queue[int] = asyncio.Queue()

        async def on_lease(lease: int) -> None:
            leases.append(lease)
            if len(leases) == 2:
                raise OSError("No space left on device")

        mine = Session(
            store,
            Claim(KEY, lambda is_first: b"mine"),
            ttl_ms=TTL_MS,
            interval_ms=10,
            max_wait_ms=0,
            on_lease=on_lease,
            on_taken=taken.put,
        )
        first = await mine.start()
        assert await taken.get() == first
        await store.revoke_lease(leases[0])
        second = await asyncio.wait_for(taken.get(), 5)
        item = await held(store)
        assert (item.create_revision, item.lease) == (second, leases[2])
        await mine.stop()

    run(tmp_path, scenario)


def test_the_session_fails_if_another_process_holds_the_key(tmp_path: Path) -> None:
    async def scenario(store: FileMetadataStore) -> None:
        failed: asyncio.Future[StoreError] = asyncio.get_running_loop().create_future()
        claim = Claim(KEY, lambda is_first: b"mine")
        mine = Session(
            store, claim, ttl_ms=TTL_MS, interval_ms=10, max_wait_ms=0, on_failed=failed.set_result
        )
        await mine.start()
        stolen = await store.grant_lease(TTL_MS)
        await store.txn([], [Put(KEY, b"other", stolen)])
        await store.revoke_lease((await held(store)).lease - 1)
        assert isinstance(await failed, KeyHeldError)
        assert (await held(store)).value == b"other"
        await mine.stop()
        assert (await held(store)).value == b"other"

    run(tmp_path, scenario)


def test_the_store_of_another_cluster_is_not_written(tmp_path: Path) -> None:
    async def scenario(store: FileMetadataStore) -> None:
        with pytest.raises(OtherStoreError, match="not the store of the same cluster"):
            await session(store, guard=Compare.create_revision("/cluster/id", 17)).start()
        assert await store.get(KEY) is None

    run(tmp_path, scenario)
