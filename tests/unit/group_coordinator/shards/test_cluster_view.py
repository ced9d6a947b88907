"""The coordinator's view of the topics: what each change costs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from tidelog.group_coordinator.groups.group_core import GroupCore
from tidelog.group_coordinator.groups.offset_commits import (
    CommittedOffset,
    GroupPartition,
    offset_record,
)
from tidelog.group_coordinator.shard_core import ClusterImage, ReplayedRecord, TopicImage
from tidelog.group_coordinator.shards.runner import CoordinatorRuntime, Loop, Parts
from tidelog.group_coordinator.shards.store_copies import ClusterView
from tidelog.kernel.clock import ManualClock
from tidelog.kernel.instants import WallMs
from tidelog.metadata.entries import TOPIC_PREFIX, TopicEntry
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.metadata.store import Delete, Put, WatchBatch
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.settings.broker_settings import BrokerSettings

NOW_MS = WallMs(1_000)


class Listener:
    def __init__(self) -> None:
        self.changed = asyncio.Event()

    def cluster_listed(self) -> None: ...

    def cluster_changed(self, batch: WatchBatch) -> None:
        self.changed.set()


class CountedId(UUID):
    """An id that counts its comparisons, which are slow."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedId.comparisons += 1
        return super().__eq__(other)

    __hash__ = UUID.__hash__


def test_the_image_of_a_topic_that_has_not_changed_is_the_same_object(tmp_path: Path) -> None:
    async def run() -> None:
        store = FileMetadataStore.open(tmp_path, monotonic_ms=lambda: 0)
        view, listener = ClusterView(store), Listener()

        async def put(name: str, identity: int, partitions: int) -> ClusterImage:
            entry = TopicEntry(name, UUID(int=identity), ((1,),) * partitions)
            listener.changed.clear()
            await store.txn([], [Put(entry.key, entry.encode())])
            await listener.changed.wait()
            return view.image()

        await view.start(listener)
        await put("a", 1, 1)
        first = await put("b", 2, 1)
        grown = await put("b", 2, 3)
        recreated = await put("b", 3, 3)
        for image in (grown, recreated):
            assert image.topics["a"] is first.topics["a"]
        assert [image.topics["b"].partition_count for image in (first, grown, recreated)] == [1, 3, 3]
        assert recreated.topics["b"].topic_id == UUID(int=3)
        assert recreated.topic_names == {UUID(int=1): "a", UUID(int=3): "b"}
        assert list(first.topics) == ["a", "b"], "an earlier image does not change"
        await view.stop()
        await store.close()

    asyncio.run(run())


def test_a_shard_looks_only_at_topics_that_changed() -> None:
    def topic(name: str, identity: int) -> TopicImage:
        return TopicImage(CountedId(int=identity), name, 1, ())

    kept = {f"t{number}": topic(f"t{number}", number) for number in range(100)}
    core = GroupCore(BrokerSettings.parse({}), lambda: "id")
    for offset, name in enumerate(("t0", "gone", "again", "grown")):
        record = offset_record(GroupPartition("g", name, 0), CommittedOffset(1, -1, "", NOW_MS))
        core.replay(ReplayedRecord(*record, NOW_MS, None), offset)
    before = {"gone": topic("gone", 200), "again": topic("again", 201), "grown": topic("grown", 202)}
    core.activate(ClusterImage(1, {**kept, **before}, {}), NOW_MS)
    after = {"again": topic("again", 301), "grown": topic("grown", 202)}
    CountedId.comparisons = 0
    decision = core.image_changed(ClusterImage(2, {**kept, **after}, {}), NOW_MS)
    assert CountedId.comparisons == len(after)
    assert [record.value for record in decision.records] == [None, None]
    assert {key.topic for key, _ in core.offsets.committed_offsets()} == {"t0", "grown"}


def test_a_topic_whose_value_is_not_valid_is_not_taken_for_deleted(tmp_path: Path) -> None:
    """Otherwise a listing would delete the offsets of its groups."""

    async def run() -> None:
        store = FileMetadataStore.open(tmp_path, monotonic_ms=lambda: 0)
        view = ClusterView(store)
        topic, deleted = (TopicEntry(name, UUID(int=7), ((1,),)) for name in ("kept", "deleted"))
        await store.txn([], [Put(entry.key, entry.encode()) for entry in (topic, deleted)])
        await view.start(Listener())
        await store.txn([], [Put(topic.key, b"damaged"), Delete(deleted.key)])
        view._listed(await store.list_prefix(TOPIC_PREFIX))
        assert view.topics == {"kept": topic}
        await view.stop()
        await store.close()

    asyncio.run(run())


def test_topics_that_vanish_with_the_shards_own_topic_are_not_taken_for_deleted() -> None:
    """They vanish from a store that was emptied. The brokers still hold the groups' offsets."""
    taken: list[ShardId] = []
    shards: Any = {
        shard_id: SimpleNamespace(
            shard_id=shard_id, image_changed=lambda image, shard_id=shard_id: taken.append(shard_id)
        )
        for shard_id in (ShardId(ShardKind.GROUP, 0), ShardId(ShardKind.TRANSACTION, 0))
    }
    counts = {ShardKind.GROUP: 0, ShardKind.TRANSACTION: 50}
    unused: Any = None
    view: Any = SimpleNamespace(shard_count=counts.__getitem__, image=lambda: None)
    runtime = CoordinatorRuntime(
        1,
        {},
        Parts(view, unused, unused, unused),
        Loop(ManualClock(), unused, unused),
    )
    runtime.shards = shards
    runtime.images.send()
    assert taken == [ShardId(ShardKind.TRANSACTION, 0)]
