"""A store that answers late, not at all, or leaves open what it did: the term goes on by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import pytest

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
    """In front of a real store. `fate` is asked before each transaction what becomes of it."""

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


async def _with_flaky_store(cluster: Any) -> FlakyStore:
    """The cluster's controller starts anew, over a store that can fail."""
    await cluster.controller.stop()
    store = FlakyStore(cluster.store)
    cluster.controller = await Controller.start(
        store, cluster.channels, cluster.settings, randomness=random.Random(3)
    )
    return store


def _once(*fates: str) -> Callable[[], str]:
    """These, one after the other, then all is well."""
    remaining = list(fates)
    return lambda: remaining.pop(0) if remaining else "answered"


async def _create(cluster: Any, name: str, partitions: int = 1) -> ErrorCode:
    request = CreateTopicsRequest([CreatableTopic(name, partitions, 1)])
    reply = await cluster.call(ApiKey.CREATE_TOPICS, request)
    return ErrorCode(reply.topics[0].error_code)


@pytest.mark.parametrize("fate", ["lost answer", "away", "late"])
def test_a_request_of_unknown_outcome_is_answered_so_and_the_term_goes_on(
    run_cluster: RunCluster, fate: str
) -> None:
    async def scenario(cluster: Any) -> None:
        broker = await cluster.birth(1)
        store = await _with_flaky_store(cluster)
        epoch = cluster.controller.controller_epoch
        store.fate = _once(fate)
        with pytest.raises(KafkaError) as raised:
            await _create(cluster, "t", 3)
        assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert await _create(cluster, "after") is ErrorCode.NONE
        for late in store.late:
            assert not (await late()).succeeded, "the controller has gone on: it comes too late"
        assert await _create(cluster, "afterwards") is ErrorCode.NONE
        there = {"t"} if fate == "lost answer" else set()
        assert broker.topics.keys() == {"after", "afterwards", *there}
        assert cluster.controller.controller_epoch == epoch, "the office was held all along"
        stored = await cluster.store.list_prefix(TOPIC_PREFIX)
        assert len(stored.items) == 4 + (4 if there else 0)

    run_cluster(scenario)


def test_a_watch_that_ends_ends_the_term(run_cluster: RunCluster) -> None:
    """The next one lists anew, and hears of what came since."""

    async def scenario(cluster: Any) -> None:
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
def test_what_was_begun_is_brought_to_an_end(run_cluster: RunCluster, fate: str) -> None:
    async def scenario(cluster: Any) -> None:
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


def test_a_broker_that_dies_while_the_store_is_away_is_settled_when_it_returns(
    run_cluster: RunCluster,
) -> None:
    async def scenario(cluster: Any) -> None:
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


def test_an_office_lost_while_the_store_was_away_ends_the_term(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Any) -> None:
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


def test_a_request_cut_off_by_the_end_of_the_term_says_whether_it_may_be_repeated(
    run_cluster: RunCluster,
) -> None:
    async def scenario(cluster: Any) -> None:
        broker = await cluster.birth(1)
        store = await _with_flaky_store(cluster)
        count = 0

        async def usurped() -> None:
            nonlocal count
            count += 1
            if count == 2:  # the topic's own key is there, its partitions are not
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


def test_a_request_that_waits_too_long_for_its_turn_is_given_up(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Any) -> None:
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


def test_a_failed_decision_of_its_own_starts_the_controller_over(
    run_cluster: RunCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not sit in office and do nothing."""

    async def scenario(cluster: Any) -> None:
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
