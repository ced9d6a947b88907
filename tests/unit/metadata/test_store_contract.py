"""The contract of every metadata store, tested with the file store and with each release of etcd on this
machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerlab.etcd_process import EtcdProcess
from tidelog.metadata.etcd.connection import EtcdOptions
from tidelog.metadata.etcd.etcd_store import EtcdMetadataStore
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.metadata.store import (
    MAX_TXN_OPERATIONS,
    CompactedError,
    Compare,
    CompareOperator,
    CompareTarget,
    Delete,
    Get,
    InvalidTxnError,
    KeyValue,
    LeaseNotFoundError,
    MetadataStore,
    Operation,
    Put,
    StoreUnavailableError,
    WatchBatch,
)

HISTORY_EVENTS = 20


class StoreUnderTest(Protocol):
    """A store, with the additional operations that the tests need."""

    @property
    def store(self) -> MetadataStore: ...

    async def pass_time(self, duration_ms: int) -> None: ...

    async def compact(self) -> None:
        """Compacts the history, so that watches of revisions up to now are refused."""
        ...

    async def end(self) -> None: ...


class FileStoreUnderTest:
    """The file store, with its own clock."""

    def __init__(self, directory: Path) -> None:
        self.now_ms = 0
        self.store = FileMetadataStore.open(
            directory, monotonic_ms=lambda: self.now_ms, history_events=HISTORY_EVENTS
        )

    async def pass_time(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        self.store.expire_leases()

    async def compact(self) -> None:
        for number in range(HISTORY_EVENTS + 1):
            await self.store.txn([], [Put("/filler", b"%d" % number)])

    async def end(self) -> None:
        await self.store.close()


class LeaseCountingStore(EtcdMetadataStore):
    """Tracks the leases, because a remaining lease would expire and create a revision during another test."""

    def __init__(self, options: EtcdOptions) -> None:
        super().__init__(options)
        self.leases: list[int] = []

    async def grant_lease(self, ttl_ms: int) -> int:
        self.leases.append(await super().grant_lease(ttl_ms))
        return self.leases[-1]


class EtcdStoreUnderTest:
    """A key prefix in a real etcd, with real time."""

    def __init__(self, server: EtcdProcess, prefix: str) -> None:
        self._server = server
        self._options = EtcdOptions(server.endpoints, prefix=prefix)
        self.store = LeaseCountingStore(self._options)

    async def pass_time(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)

    async def compact(self) -> None:
        filler = await self.store.txn([], [Put("/filler", b"")])
        await self._server.compact(filler.revision)

    async def end(self) -> None:
        await self.store.close()
        cleaner = EtcdMetadataStore(self._options)
        for lease in self.store.leases:
            with contextlib.suppress(LeaseNotFoundError):
                await cleaner.revoke_lease(lease)
        await cleaner.close()


STORES = ["file", "etcd-3.4", "etcd-3.5"]

Scenario = Callable[[StoreUnderTest], Awaitable[None]]
_numbers = itertools.count()


@pytest.fixture(params=STORES)
def run(
    request: pytest.FixtureRequest, tmp_path: Path, etcd_server: Callable[[str], EtcdProcess]
) -> Callable[[Scenario], None]:
    """Runs a scenario on a fresh store, in its own event loop."""

    def fresh_store() -> StoreUnderTest:
        if request.param == "file":
            return FileStoreUnderTest(tmp_path / str(next(_numbers)))
        return EtcdStoreUnderTest(etcd_server(request.param), f"/{tmp_path.name}-{next(_numbers)}")

    def run_scenario(scenario: Scenario) -> None:
        async def with_store() -> None:
            under_test = fresh_store()
            try:
                await scenario(under_test)
            finally:
                await under_test.end()

        asyncio.run(with_store())

    return run_scenario


async def _put(store: MetadataStore, key: str, value: bytes, lease: int = 0) -> int:
    return (await store.txn([], [Put(key, value, lease)])).revision


async def _take(watch: AsyncGenerator[WatchBatch, None], count: int) -> list[WatchBatch]:
    return [await asyncio.wait_for(anext(watch), 10) for _ in range(count)]


def test_revisions_and_versions_of_a_key(run: Callable[[Scenario], None]) -> None:
    async def scenario(under_test: StoreUnderTest) -> None:
        store = under_test.store
        assert await store.get("/a") is None
        first = await _put(store, "/a", b"1")
        second = await _put(store, "/a", b"2")
        assert second == first + 1
        assert await store.get("/a") == KeyValue("/a", b"2", first, second, 2)
        deleted = (await store.txn([], [Delete("/a")])).revision
        assert deleted == second + 1
        again = await _put(store, "/a", b"3")
        assert await store.get("/a") == KeyValue("/a", b"3", again, again, 1)

    run(scenario)


def test_a_transaction_without_changes_has_no_revision(run: Callable[[Scenario], None]) -> None:
    async def scenario(under_test: StoreUnderTest) -> None:
        store = under_test.store
        revision = await _put(store, "/a", b"1")
        assert (await store.txn([], [Delete("/missing"), Get("/a")])).revision == revision
        assert (await store.txn([Compare.absent("/a")], [Put("/a", b"2")])).revision == revision

    run(scenario)


def test_list_is_by_prefix_in_byte_order(run: Callable[[Scenario], None]) -> None:
    async def scenario(under_test: StoreUnderTest) -> None:
        store = under_test.store
        for key in ("/b/2", "/b/10", "/b", "/c", "/a", "/b/é"):
            revision = await _put(store, key, b"x")
        listing = await store.list_prefix("/b/")
        assert [item.key for item in listing.items] == ["/b/10", "/b/2", "/b/é"]
        assert listing.revision == revision
        assert (await store.list_prefix("/nothing/")).items == ()

    run(scenario)


@pytest.mark.parametrize("operator", list(CompareOperator))
@pytest.mark.parametrize("difference", [-1, 0, 1])
@pytest.mark.parametrize(
    "target", [CompareTarget.VERSION, CompareTarget.CREATE_REVISION, CompareTarget.MOD_REVISION]
)
def test_compare_numbers(
    run: Callable[[Scenario], None], operator: CompareOperator, difference: int, target: CompareTarget
) -> None:
    async def scenario(under_test: StoreUnderTest) -> None:
        store = under_test.store
        await _put(store, "/a", b"1")
        await _put(store, "/a", b"2")
        item = await store.get("/a")
        assert item is not None
        actual: int = getattr(item, target.value)
        result = await store.txn([Compare("/a", target, actual + difference, operator)], [], [])
        expected = {
            CompareOperator.EQUAL: difference == 0,
            CompareOperator.NOT_EQUAL: difference != 0,
            CompareOperator.GREATER: difference < 0,
            CompareOperator.LESS: difference > 0,
        }
        assert result.succeeded == expected[operator]

    run(scenario)


def test_compare_of_missing_keys_and_values(run: Callable[[Scenario], None]) -> None:
    async def scenario(under_test: StoreUnderTest) -> None:
        store = under_test.store
        assert (await store.txn([Compare.absent("/a"), Compare.mod_revision("/a", 0)], [])).succeeded
        assert not (await store.txn([Compare.value("/a", b"")], [])).succeeded
        not_equal = Compare("/a", CompareTarget.VALUE, b"x", CompareOperator.NOT_EQUAL)
        assert not (await store.txn([not_equal], [])).succeeded
        await _put(store, "/a", b"y")
        assert (await store.txn([not_equal], [])).succeeded
        assert (await store.txn([Compare.value("/a", b"y")], [])).succeeded
        assert not (await store.txn([Compare.absent("/a")], [])).succeeded

    run(scenario)


def test_branches_and_reads(run: Callable[[Scenario], None]) -> None:
    async def scenario(under_test: StoreUnderTest) -> None:
        store = under_test.store
        made = await store.txn(
            [Compare.absent("/a")],
            [Put("/a", b"1"), Put("/b", b"2"), Get("/a"), Get("/c")],
            [Get("/a")],
        )
        assert made.succeeded
        assert made.reads == (KeyValue("/a", b"1", made.revision, made.revision, 1), None)
        refused = await store.txn([Compare.absent("/a")], [Put("/b", b"3")], [Get("/b"), Put("/c", b"4")])
        assert not refused.succeeded
        assert refused.reads == (KeyValue("/b", b"2", made.revision, made.revision, 1),)
        assert await store.get("/c") is not None

    run(scenario)


def test_invalid_transactions_change_nothing(run: Callable[[Scenario], None]) -> None:
    async def scenario(under_test: StoreUnderTest) -> None:
        store = under_test.store
        too_many = [Put(f"/{number}", b"") for number in range(MAX_TXN_OPERATIONS + 1)]
        for operations in ([Put("/a", b"1"), Put("/a", b"2")], too_many, [Put("/a", bytes(2_000_000))]):
            with pytest.raises(InvalidTxnError):
                await store.txn([], operations)
        with pytest.raises(LeaseNotFoundError):
            await store.txn([], [Put("/a", b"1"), Put("/b", b"1", 12345)])
        assert (await store.list_prefix("/")).items == ()
        assert (await store.txn([], too_many[:MAX_TXN_OPERATIONS])).succeeded

    run(scenario)


def test_no_concurrent_increment_is_lost(run: Callable[[Scenario], None]) -> None:
    async def scenario(under_test: StoreUnderTest) -> None:
        store = under_test.store
        await _put(store, "/counter", b"0")

        async def increment() -> None:
            while True:
                item = await store.get("/counter")
                assert item is not None
                result = await store.txn(
                    [Compare.mod_revision("/counter", item.mod_revision)],
                    [Put("/counter", b"%d" % (int(item.value) + 1))],
                )
                if result.succeeded:
                    return

        await asyncio.gather(*(increment() for _ in range(10)))
        item = await store.get("/counter")
        assert item is not None
        assert (item.value, item.version) == (b"10", 11)

    run(scenario)


def test_a_watch_has_past_and_future_events_once_in_order(run: Callable[[Scenario], None]) -> None:
    async def scenario(under_test: StoreUnderTest) -> None:
        store = under_test.store
        await _put(store, "/w/old", b"0")
        start = (await store.list_prefix("/")).revision + 1
        await store.txn([], [Put("/w/a", b"1"), Put("/other", b"1"), Put("/w/b", b"1")])
        await _put(store, "/other", b"2")
        watch = store.watch("/w/", start)
        (past,) = await _take(watch, 1)
        assert [event.key for event in past.events] == ["/w/a", "/w/b"]
        assert {event.mod_revision for event in past.events} == {past.revision} == {start}
        waiting = asyncio.ensure_future(anext(watch))
        deleted = await store.txn([], [Delete("/w/a")])
        future = await asyncio.wait_for(waiting, 10)
        assert future.revision == deleted.revision
        assert [(event.key, event.value) for event in future.events] == [("/w/a", None)]
        await watch.aclose()
        resumed = store.watch("/w/", deleted.revision + 1)
        added = await _put(store, "/w/c", b"2")
        assert [batch.revision for batch in await _take(resumed, 1)] == [added]
        await resumed.aclose()

    run(scenario)


def test_watch_of_compacted_revisions_is_refused(run: Callable[[Scenario], None]) -> None:
    async def scenario(under_test: StoreUnderTest) -> None:
        store = under_test.store
        start = await _put(store, "/a", b"1")
        await under_test.compact()
        watch = store.watch("/", start)
        with pytest.raises(CompactedError) as raised:
            await anext(watch)
        assert raised.value.compact_revision >= start
        listing = await store.list_prefix("/")
        fresh = store.watch("/", listing.revision + 1)
        added = await _put(store, "/b", b"1")
        assert [batch.revision for batch in await _take(fresh, 1)] == [added]
        await fresh.aclose()

    run(scenario)


def test_an_expired_lease_deletes_its_keys(run: Callable[[Scenario], None]) -> None:
    async def scenario(under_test: StoreUnderTest) -> None:
        store = under_test.store
        lease, other = await store.grant_lease(2000), await store.grant_lease(60_000)
        assert lease != other
        await store.txn([], [Put("/l/1", b"x", lease), Put("/l/2", b"x", lease), Put("/l/3", b"x", other)])
        bound = await store.get("/l/1")
        assert bound is not None
        assert bound.lease == lease
        await _put(store, "/l/2", b"free")
        watch = store.watch("/l/", bound.mod_revision + 2)
        await under_test.pass_time(1500)
        assert await store.keep_alive(lease) >= 2000
        await under_test.pass_time(1500)
        assert await store.get("/l/1") is not None
        await under_test.pass_time(1000)
        (ended,) = await _take(watch, 1)
        assert [(event.key, event.value) for event in ended.events] == [("/l/1", None)]
        assert [item.key for item in (await store.list_prefix("/l/")).items] == ["/l/2", "/l/3"]
        with pytest.raises(LeaseNotFoundError):
            await store.keep_alive(lease)
        await watch.aclose()

    run(scenario)


def test_a_revoked_lease_deletes_its_keys_at_one_revision(run: Callable[[Scenario], None]) -> None:
    async def scenario(under_test: StoreUnderTest) -> None:
        store = under_test.store
        lease = await store.grant_lease(60_000)
        for number in range(5):
            await _put(store, f"/l/{number}", b"x", lease)
        revision = (await store.list_prefix("/")).revision
        await store.revoke_lease(lease)
        assert (await store.list_prefix("/")) == (revision + 1, ())
        for call in (store.revoke_lease, store.keep_alive):
            with pytest.raises(LeaseNotFoundError):
                await call(lease)
        with pytest.raises(LeaseNotFoundError):
            await _put(store, "/l/x", b"x", lease)

    run(scenario)


def test_closed_store_refuses(run: Callable[[Scenario], None]) -> None:
    async def scenario(under_test: StoreUnderTest) -> None:
        store = under_test.store
        revision = await _put(store, "/a", b"1")
        watch = store.watch("/", revision + 1)
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(StoreUnavailableError):
            await waiting
        with pytest.raises(StoreUnavailableError):
            await store.get("/a")

    run(scenario)


_KEYS = st.sampled_from(["/a", "/a/1", "/a/2", "/b"])
_OPERATIONS = st.lists(
    st.one_of(st.builds(Put, _KEYS, st.binary(max_size=3), st.just(0)), st.builds(Delete, _KEYS)),
    max_size=3,
    unique_by=lambda operation: operation.key,
)
_COMPARES = st.lists(
    st.one_of(
        st.builds(Compare.absent, _KEYS),
        st.builds(Compare.mod_revision, _KEYS, st.integers(0, 6)),
        st.builds(Compare.value, _KEYS, st.binary(max_size=1)),
    ),
    max_size=1,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(_COMPARES, _OPERATIONS, _OPERATIONS), max_size=8))
def test_a_watch_gives_the_next_listing(
    run: Callable[[Scenario], None],
    transactions: list[tuple[list[Compare], list[Operation], list[Operation]]],
) -> None:
    """A listing and the events of a watch from its revision on give the next listing."""

    async def scenario(under_test: StoreUnderTest) -> None:
        store = under_test.store
        start = (await store.list_prefix("/")).revision
        for compares, success, failure in transactions:
            await store.txn(compares, success, failure)
        end = await _put(store, "/end", b"")
        rebuilt: dict[str, tuple[bytes, int, int]] = {}
        watch = store.watch("/", start + 1)
        seen = start
        while seen < end:
            (batch,) = await _take(watch, 1)
            assert batch.revision == seen + 1
            seen = batch.revision
            for event in batch.events:
                if event.value is None:
                    del rebuilt[event.key]
                else:
                    rebuilt[event.key] = (event.value, event.create_revision, event.mod_revision)
        await watch.aclose()
        listing = await store.list_prefix("/")
        assert rebuilt == {
            item.key: (item.value, item.create_revision, item.mod_revision) for item in listing.items
        }

    run(scenario)
