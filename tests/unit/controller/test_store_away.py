"""A store that answers late or not at all, or whose outcome is unknown: the term continues by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import pytest

from clusterlab.controllers import Cluster
from tidelog.controller.server import Controller
from tidelog.metadata.entries import CONTROLLER_KEY, TOPIC_PREFIX
from tidelog.metadata.store import (
    Compare,
    Delete,
    KeyValue,
    Listing,
    MetadataStore,
    Operation,
    StoreUnavailableError,
    TxnResult,
    WatchBatch,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

RunCluster = Callable[..., None]


class FlakyStore:
    """A proxy of a real store. `fate` decides about the outcome of each transaction."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.fate: Callable[[], str] = lambda: "answered"
        self.before: Callable[[], Awaitable[None]] | None = None
        self.late: list[Callable[[], Awaitable[TxnResult]]] = []

    async def txn(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TxnResult:
        if self.before is not None:
            await self.before()
        match self.fate():
            case "away":
                raise StoreUnavailableError("away")
            case "lost answer":
                await self._store.txn(compares, success, failure)
                raise StoreUnavailableError("no answer")
            case "late":
                self.late.append(lambda: self._store.txn(compares, success, failure))
                raise StoreUnavailableError("no answer yet")
        return await self._store.txn(compares, success, failure)

    async def get(self, key: str) -> KeyValue | None:
        if self.fate() == "away":
            raise StoreUnavailableError("away")
        return await self._store.get(key)

    async def list_prefix(self, prefix: str) -> Listing:
        return await self._store.list_prefix(prefix)

    def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        return self._store.watch(prefix, start_revision)

    async def grant_lease(self, ttl_ms: int) -> int:
        return await self._store.grant_lease(ttl_ms)

    async def keep_alive(self, lease: int) -> int:
        return await self._store.keep_alive(lease)

    async def revoke_lease(self, lease: int) -> None:
        await self._store.revoke_lease(lease)

    async def close(self) -> None: ...


async def _with_flaky_store(cluster: Cluster) -> FlakyStore:
    """Restarts the cluster's controller over a store that can fail."""
    await cluster.controller.stop()
    store = FlakyStore(cluster.store)
    cluster.controller = await Controller.start(
        store, cluster.channels, cluster.settings, randomness=random.Random(3)
    )
    return store


def _once(*fates: str) -> Callable[[], str]:
    """Returns these outcomes one after the other, then success."""
    remaining = list(fates)
    return lambda: remaining.pop(0) if remaining else "answered"


async def _create(cluster: Cluster, name: str, partitions: int = 1) -> ErrorCode:
    request = CreateTopicsRequest([CreatableTopic(name, partitions, 1)])
    reply = await cluster.call(ApiKey.CREATE_TOPICS, request)
    return ErrorCode(reply.topics[0].error_code)


@pytest.mark.parametrize("fate", ["lost answer", "away", "late"])
def test_a_request_of_unknown_outcome_times_out_and_the_term_continues(
    run_cluster: RunCluster, fate: str
) -> None:
    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.birth(1)
        store = await _with_flaky_store(cluster)
        epoch = cluster.controller.controller_epoch
        store.fate = _once(fate)
        with pytest.raises(KafkaError) as raised:
            await _create(cluster, "t", 3)
        assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert await _create(cluster, "after") is ErrorCode.NONE
        for late in store.late:
            assert not (await late()).succeeded, "the controller has continued, so the transaction is void"
        assert await _create(cluster, "afterwards") is ErrorCode.NONE
        there = {"t"} if fate == "lost answer" else set()
        assert broker.topics.keys() == {"after", "afterwards", *there}
        assert cluster.controller.controller_epoch == epoch, "the controller was active all the time"
        stored = await cluster.store.list_prefix(TOPIC_PREFIX)
        assert len(stored.items) == 4 + (4 if there else 0)

    run_cluster(scenario)


def test_a_watch_that_ends_ends_the_term(run_cluster: RunCluster) -> None:
    """The next term reads everything again and sees the changes since."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.birth(1)
        ends = asyncio.Event()

        async def broken_watch() -> AsyncGenerator[WatchBatch, None]:
            await ends.wait()
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
            yield WatchBatch(1, ())

        store = await _with_flaky_store(cluster)
        await cluster.controller.stop()
        broken = [broken_watch()]
        sound = store.watch

        def watch(prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
            return broken.pop() if broken else sound(prefix, start_revision)

        store.watch = watch  # type: ignore[method-assign]
        cluster.controller = await Controller.start(
            store, cluster.channels, cluster.settings, randomness=random.Random(3)
        )
        epoch = cluster.controller.controller_epoch
        ends.set()
        await cluster.until(lambda: (cluster.controller.controller_epoch or 0) > epoch)
        assert await _create(cluster, "after") is ErrorCode.NONE
        assert "after" in broker.topics

    run_cluster(scenario)


@pytest.mark.parametrize("fate", ["lost answer", "away", "late"])
def test_a_partly_written_decision_is_completed(run_cluster: RunCluster, fate: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.birth(1)
        store = await _with_flaky_store(cluster)
        epoch = cluster.controller.controller_epoch
        store.fate = _once("answered", fate, "away", fate)
        with pytest.raises(KafkaError):
            await _create(cluster, "t", 1000)
        await cluster.until(lambda: "t" in broker.topics)
        assert len(broker.topics["t"].partitions) == 1000
        assert {state.leader for state in broker.topics["t"].partitions} == {1}
        store.fate = _once("answered", fate, "away", fate)
        with pytest.raises(KafkaError):
            request = DeleteTopicsRequest(topics=[DeleteTopicState("t")])
            await cluster.call(ApiKey.DELETE_TOPICS, request, 6)
        await cluster.until(lambda: not broker.topics)
        for late in store.late:
            await late()
        assert not (await cluster.store.list_prefix(TOPIC_PREFIX)).items
        assert cluster.controller.controller_epoch == epoch

    run_cluster(scenario)


def test_a_broker_failure_during_a_store_outage_is_settled_after_it(
    run_cluster: RunCluster,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        for broker_id in (1, 2, 3):
            await cluster.birth(broker_id)
        store = await _with_flaky_store(cluster)
        request = CreateTopicsRequest([CreatableTopic("t", 6, 3)])
        await cluster.call(ApiKey.CREATE_TOPICS, request)
        store.fate = lambda: "away"
        await cluster.death(1)
        other = cluster.brokers[2]
        await asyncio.sleep(0.3)
        assert cluster.controller.is_active
        assert {state.leader for state in other.topics["t"].partitions} == {1, 2, 3}
        store.fate = lambda: "answered"
        await cluster.until(lambda: {state.leader for state in other.topics["t"].partitions} == {2, 3})

    run_cluster(scenario)


def test_a_controller_key_lost_during_a_store_outage_ends_the_term(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.birth(1)
        store = await _with_flaky_store(cluster)
        epoch = cluster.controller.controller_epoch
        store.fate = lambda: "away"
        asking = asyncio.create_task(_create(cluster, "t"))
        await asyncio.sleep(0)
        await cluster.store.txn([], [Delete(CONTROLLER_KEY)])
        with pytest.raises(KafkaError):
            await asking
        await cluster.until(lambda: not cluster.controller.is_active)
        store.fate = lambda: "answered"
        await cluster.until(lambda: cluster.controller.controller_epoch == epoch + 1)
        assert await _create(cluster, "after") is ErrorCode.NONE

    run_cluster(scenario)


def test_the_error_of_an_interrupted_request_says_whether_it_may_be_repeated(
    run_cluster: RunCluster,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.birth(1)
        store = await _with_flaky_store(cluster)
        count = 0

        async def usurped() -> None:
            nonlocal count
            count += 1
            if count == 2:  # the topic's own key exists, its partitions do not
                store.before = None
                await cluster.store.txn([], [Delete(CONTROLLER_KEY)])

        store.before = usurped
        begun = asyncio.create_task(_create(cluster, "begun", 1000))
        queued = asyncio.create_task(_create(cluster, "queued"))
        for asked, code in ((begun, ErrorCode.REQUEST_TIMED_OUT), (queued, ErrorCode.NOT_CONTROLLER)):
            with pytest.raises(KafkaError) as raised:
                await asked
            assert raised.value.code is code
        await cluster.until(lambda: "begun" in broker.topics)
        assert broker.topics.keys() == {"begun"}
        assert len(broker.topics["begun"].partitions) == 1000

    run_cluster(scenario)


def test_a_request_that_waits_too_long_in_the_queue_times_out(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.birth(1)
        store = await _with_flaky_store(cluster)
        store.fate = lambda: "away"
        asked = [
            asyncio.create_task(
                cluster.call(
                    ApiKey.CREATE_TOPICS,
                    CreateTopicsRequest([CreatableTopic(f"t{number}", 1, 1)], timeout_ms=1),
                )
            )
            for number in range(3)
        ]
        for task in asked:
            with pytest.raises(KafkaError) as raised:
                await task
            assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
        store.fate = lambda: "answered"
        assert await _create(cluster, "after") is ErrorCode.NONE
        assert broker.topics.keys() == {"after"}

    run_cluster(scenario)


def test_an_unexpected_error_in_a_decision_ends_the_term(
    run_cluster: RunCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller must not stay active without doing its work."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.birth(1)
        epoch = cluster.controller.controller_epoch

        def broken(state: object, context: object) -> None:
            raise RuntimeError("a fault")

        with monkeypatch.context() as patch:
            patch.setattr("tidelog.controller.term.settle_partitions", broken)
            await cluster.death(1)
            await cluster.until(lambda: not cluster.controller.is_active)
        await cluster.until(lambda: cluster.controller.is_active)
        assert cluster.controller.controller_epoch > epoch
        await cluster.birth(1)

    run_cluster(scenario)
