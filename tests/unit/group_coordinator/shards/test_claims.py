"""Claims of shards in the metadata store: their distribution, their handover, their loss with the lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tidelog.group_coordinator.shards.claims import Claims
from tidelog.metadata.coordinators import CoordinatorEntry, shard_epoch, shard_owner
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.metadata.store import Put
from tidelog.model.coordinator_shards import ShardId, ShardKind

SHARDS = 7
GROUP_SHARDS = {ShardId(ShardKind.GROUP, number) for number in range(SHARDS)}


class Owner:
    """The claims of one coordinator, which releases surplus shards at once."""

    def __init__(self, store: FileMetadataStore, coordinator_id: int) -> None:
        self.store = store
        self.id = coordinator_id
        self.owned: dict[ShardId, int] = {}
        self.lease = 0
        self.releases: set[asyncio.Task[None]] = set()
        self.claims = Claims(
            store,
            coordinator_id,
            shard_count=lambda kind: SHARDS if kind is ShardKind.GROUP else 0,
        )

    async def start(self) -> None:
        await self.claims.start(self)
        self.lease = await self.store.grant_lease(60_000)
        await self.claims.lease_taken(self.lease)
        entry = CoordinatorEntry(ShardKind.GROUP.value, self.id)
        await self.store.txn([], [Put(entry.key, entry.encode(), self.lease)])

    def claimed(self, shard: ShardId, epoch: int) -> None:
        assert shard not in self.owned
        self.owned[shard] = epoch

    def claim_lost(self, shard: ShardId) -> None:
        del self.owned[shard]

    def surplus(self, shard: ShardId) -> None:
        self.releases.add(asyncio.create_task(self.claims.release([shard])))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - only the owners see changes of the store
            await asyncio.sleep(0.005)


@pytest.fixture
def store(tmp_path: Path) -> FileMetadataStore:
    return FileMetadataStore.open(tmp_path, monotonic_ms=lambda: 0)


def test_one_coordinator_claims_all_shards_with_their_next_epochs(store: FileMetadataStore) -> None:
    async def scenario() -> None:
        known = ShardId(ShardKind.GROUP, 3)
        await store.txn([], [Put(shard_epoch(known), b"41")])
        owner = Owner(store, 1)
        await owner.start()
        await until(lambda: len(owner.owned) == SHARDS)
        assert owner.owned == {shard: 42 if shard == known else 1 for shard in GROUP_SHARDS}
        key = await store.get(shard_owner(known))
        assert key is not None
        assert key.lease == owner.lease
        epoch = await store.get(shard_epoch(known))
        assert epoch is not None
        assert (epoch.value, epoch.lease) == (b"42", 0)
        await owner.claims.stop()
        await store.close()

    asyncio.run(scenario())


def test_a_second_coordinator_gets_half_and_then_all_shards(store: FileMetadataStore) -> None:
    async def scenario() -> None:
        first, second = Owner(store, 1), Owner(store, 2)
        await first.start()
        await until(lambda: len(first.owned) == SHARDS)
        await second.start()
        await until(lambda: len(second.owned) == SHARDS // 2)
        await until(lambda: len(first.owned) == SHARDS - SHARDS // 2)
        assert not first.owned.keys() & second.owned.keys()
        await first.claims.leave()
        assert len(first.owned) == SHARDS - SHARDS // 2, "they stay until they are released"
        await first.claims.release(list(first.owned))
        await until(lambda: len(second.owned) == SHARDS)
        assert set(second.owned.values()) == {2}
        await first.claims.stop()
        await second.claims.stop()
        await store.close()

    asyncio.run(scenario())


def test_the_claims_of_a_lease_are_lost_with_it(store: FileMetadataStore) -> None:
    async def scenario() -> None:
        first, second = Owner(store, 1), Owner(store, 2)
        await first.start()
        await second.start()
        await until(lambda: len(first.owned) + len(second.owned) == SHARDS and len(second.owned) == 3)
        await store.revoke_lease(first.lease)
        await until(lambda: len(second.owned) == SHARDS)
        assert not first.owned
        await first.claims.stop()
        await second.claims.stop()
        await store.close()

    asyncio.run(scenario())


def test_a_claim_exceeds_the_epoch_found_in_the_log(store: FileMetadataStore) -> None:
    async def scenario() -> None:
        owner, shard = Owner(store, 1), ShardId(ShardKind.GROUP, 2)
        await owner.start()
        await until(lambda: len(owner.owned) == SHARDS)
        owner.claims.outbid(shard, 17)
        await owner.claims.release([shard])
        await until(lambda: owner.owned.get(shard, 1) > 1)
        assert owner.owned[shard] == 18
        await owner.claims.stop()
        await store.close()

    asyncio.run(scenario())


def test_competing_coordinators_never_get_the_same_epoch(store: FileMetadataStore) -> None:
    async def scenario() -> None:
        owners = [Owner(store, number) for number in range(1, 5)]
        await asyncio.gather(*(owner.start() for owner in owners))
        await until(lambda: sum(len(owner.owned) for owner in owners) == SHARDS)
        seen: set[tuple[ShardId, int]] = set()
        for owner in owners:
            for claim in owner.owned.items():
                assert claim not in seen
                seen.add(claim)
        for owner in owners:
            await owner.claims.stop()
        await store.close()

    asyncio.run(scenario())
