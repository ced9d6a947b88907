"""The store on etcd while members die, freeze and return, connections break and history is compacted."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path

import pytest

from brokerlab.broker_process import free_port
from brokerlab.etcd_process import EtcdProcess, etcd_cluster
from brokerlab.tcp_relay import TcpRelay
from tidelog.cli.local_cluster.processes import EtcdBinary
from tidelog.metadata.etcd.connection import EtcdOptions
from tidelog.metadata.etcd.etcd_store import EtcdMetadataStore
from tidelog.metadata.store import (
    CompactedError,
    Compare,
    Delete,
    LeaseNotFoundError,
    Put,
    StoreUnavailableError,
    WatchBatch,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def member(tmp_path: Path, any_etcd_binary: EtcdBinary) -> Generator[EtcdProcess]:
    process = EtcdProcess(tmp_path / "data", tmp_path / "log", binary=any_etcd_binary)
    yield process.start()
    process.stop()


@pytest.fixture
def cluster(tmp_path: Path, any_etcd_binary: EtcdBinary) -> Generator[list[EtcdProcess]]:
    processes = etcd_cluster(tmp_path, 3, binary=any_etcd_binary)
    yield processes
    for process in processes:
        process.stop()


@contextlib.asynccontextmanager
async def _opened(*endpoints: str, **options: int) -> AsyncGenerator[EtcdMetadataStore]:
    store = EtcdMetadataStore(EtcdOptions(endpoints, **options))
    try:
        yield store
    finally:
        await store.close()


async def _write(store: EtcdMetadataStore, key: str, value: bytes, within_s: float = 20) -> int:
    """Writes the key exactly once, with as many attempts as necessary, and returns the revision."""
    deadline = time.monotonic() + within_s
    before = 0
    while True:
        try:
            item = await store.get(key)
            if item is not None and item.value == value:
                return item.mod_revision
            before = 0 if item is None else item.mod_revision
            result = await store.txn([Compare.mod_revision(key, before)], [Put(key, value)])
            if result.succeeded:
                return result.revision
        except StoreUnavailableError:
            if time.monotonic() > deadline:
                raise


async def _collect(
    watch: AsyncGenerator[WatchBatch], key: str, last: bytes
) -> list[tuple[str, bytes | None]]:
    """Returns the events until `key` is put with `last`, and checks that revisions increase."""
    seen: list[tuple[str, bytes | None]] = []
    revision = 0
    async for batch in watch:
        assert batch.revision > revision
        revision = batch.revision
        seen += [(event.key, event.value) for event in batch.events]
        if (key, last) in seen:
            break
    await watch.aclose()
    return seen


Fault = Callable[[EtcdProcess], None]


@pytest.mark.parametrize("fault", [EtcdProcess.kill, EtcdProcess.pause], ids=["killed", "frozen"])
def test_another_member_takes_over(cluster: list[EtcdProcess], fault: Fault) -> None:
    async def scenario() -> None:
        async with _opened(*cluster[0].endpoints) as store:
            watch = store.watch("/", 2)
            watching = asyncio.create_task(_collect(watch, "/k", b"29"))
            lease = await store.grant_lease(20_000)
            for number in range(30):
                if number == 10:
                    fault(cluster[0])
                    began = time.monotonic()
                await _write(store, "/k", b"%d" % number)
                if number == 10:
                    assert time.monotonic() - began < 15
            assert await store.keep_alive(lease) > 0
            assert await asyncio.wait_for(watching, 20) == [("/k", b"%d" % n) for n in range(30)]

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_member_without_a_majority_is_left(cluster: list[EtcdProcess]) -> None:
    """The member listens and answers but has no majority. The store reports this and recovers afterwards."""

    async def scenario() -> None:
        async with _opened(cluster[0].endpoint) as store:
            await _write(store, "/k", b"1")
            for process in cluster[1:]:
                process.kill()
            began = time.monotonic()
            with pytest.raises(StoreUnavailableError):
                await store.get("/k")
            with pytest.raises(StoreUnavailableError):
                await store.txn([], [Put("/k", b"2")])
            assert time.monotonic() - began < 12
            for process in cluster[1:]:
                process.start()
            await _write(store, "/k", b"3", within_s=30)

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_watch_survives_its_server(member: EtcdProcess) -> None:
    async def scenario() -> None:
        async with _opened(member.endpoint, operation_timeout_ms=1500) as store:
            await _write(store, "/k", b"first")
            watching = asyncio.create_task(_collect(store.watch("/", 2), "/k", b"last"))
            lease = await store.grant_lease(60_000)
            for round_number in range(3):
                await _write(store, "/k", b"%d" % round_number)
                member.kill()
                with pytest.raises(StoreUnavailableError):
                    await store.txn([], [Put("/k", b"never")])
                member.start()
                await _write(store, f"/{round_number}", b"")
            await store.keep_alive(lease)
            await _write(store, "/k", b"last")
            expected = [("/k", b"first")]
            for round_number in range(3):
                expected += [("/k", b"%d" % round_number), (f"/{round_number}", b"")]
            assert await asyncio.wait_for(watching, 20) == [*expected, ("/k", b"last")]

    asyncio.run(scenario())


def test_no_transaction_is_repeated(member: EtcdProcess) -> None:
    """A frozen server accepts the request without an answer. When it continues, it executes the
    request once.
    """

    async def scenario() -> None:
        async with _opened(member.endpoint, operation_timeout_ms=1000) as store:
            await _write(store, "/connected", b"")  # a read is repeated until the connection is up
            await store.txn([], [Put("/k", b"0")])
            member.pause()
            with pytest.raises(StoreUnavailableError):
                await store.txn([], [Put("/k", b"1")])
            with pytest.raises(StoreUnavailableError):
                await store.get("/k")
            member.resume()
            await asyncio.sleep(0.5)
            item = await store.get("/k")
            assert item is not None
            assert item.version <= 2

    asyncio.run(scenario())


def test_a_full_etcd_still_answers_reads_and_watches(tmp_path: Path, any_etcd_binary: EtcdBinary) -> None:
    member = EtcdProcess(
        tmp_path / "data",
        tmp_path / "log",
        binary=any_etcd_binary,
        arguments=["--quota-backend-bytes=20000000"],
    ).start()

    async def scenario() -> None:
        async with _opened(member.endpoint) as store:
            watch = store.watch("/", 2)
            lease = await store.grant_lease(60_000)
            await store.txn([], [Put("/first", b"")])
            with pytest.raises(StoreUnavailableError, match="space exceeded"):
                for number in range(100):
                    await store.txn([], [Put(f"/{number}", bytes(500_000))])
            with pytest.raises(StoreUnavailableError, match="space exceeded"):
                await store.txn([], [Put("/small", b"")])
            assert await store.get("/0") is not None
            assert [event.key for event in (await asyncio.wait_for(anext(watch), 10)).events] == ["/first"]
            assert await store.keep_alive(lease) > 0
            with pytest.raises(StoreUnavailableError, match="space exceeded"):
                await store.grant_lease(2000)
            await watch.aclose()

    try:
        asyncio.run(scenario())
    finally:
        member.stop()


def test_the_store_is_unavailable_if_no_server_runs() -> None:
    async def scenario() -> None:
        port = free_port()
        async with _opened(f"http://127.0.0.1:{port}", operation_timeout_ms=500) as store:
            began = time.monotonic()
            for call in (store.get("/k"), store.txn([], []), store.grant_lease(1000), store.keep_alive(1)):
                with pytest.raises(StoreUnavailableError, match=str(port)):
                    await call
            assert time.monotonic() - began < 5

    asyncio.run(scenario())


def test_the_error_names_a_server_that_does_not_answer() -> None:
    async def scenario() -> None:
        async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as silent:
            port = silent.sockets[0].getsockname()[1]
            limits = {"operation_timeout_ms": 500, "connect_timeout_ms": 50}
            async with _opened(f"http://127.0.0.1:{port}", **limits) as store:
                with pytest.raises(StoreUnavailableError, match=f"127.0.0.1:{port}: no connection in time"):
                    await store.get("/k")

    asyncio.run(scenario())


def test_a_watch_over_broken_connections_has_each_event_once(member: EtcdProcess) -> None:
    """Each revision has three keys, and some are so large that etcd fragments its answers."""
    revisions = 120

    async def scenario() -> None:
        async with (
            TcpRelay("127.0.0.1", member.client_port) as relay,
            _opened(member.endpoint) as writer,
            _opened(f"http://127.0.0.1:{relay.port}") as watcher,
        ):
            first = (await writer.txn([], [Put("/w/start", b"")])).revision
            watch = watcher.watch("/w/", first + 1)
            shown: list[WatchBatch] = []

            async def take() -> None:
                async for batch in watch:
                    shown.append(batch)
                    if len(shown) == revisions:
                        return

            taking = asyncio.create_task(take())
            for number in range(revisions):
                value = bytes(300_000) if number % 10 < 3 else b"x"
                await writer.txn([], [Put(f"/w/{number}/{part}", value) for part in "abc"])
                if number % 7 == 0:
                    await relay.cut()
                if number % 40 == 39:
                    await asyncio.sleep(0.3)
            await asyncio.wait_for(taking, 30)
            await watch.aclose()
            assert [batch.revision for batch in shown] == list(range(first + 1, first + 1 + revisions))
            for number, batch in enumerate(shown):
                assert [event.key for event in batch.events] == [f"/w/{number}/{part}" for part in "abc"]

    asyncio.run(scenario())


def test_a_watch_that_missed_a_compaction_fails(member: EtcdProcess) -> None:
    async def scenario() -> None:
        async with (
            TcpRelay("127.0.0.1", member.client_port) as relay,
            _opened(member.endpoint) as writer,
            _opened(f"http://127.0.0.1:{relay.port}") as watcher,
        ):
            first = (await writer.txn([], [Put("/k", b"1")])).revision
            watch = watcher.watch("/", first)
            assert (await asyncio.wait_for(anext(watch), 10)).revision == first
            await relay.refuse()
            waiting = asyncio.ensure_future(anext(watch))
            for number in range(5):
                last = (await writer.txn([], [Put("/k", b"%d" % number)])).revision
            await member.compact(last)
            await relay.accept()
            with pytest.raises(CompactedError) as raised:
                await asyncio.wait_for(waiting, 10)
            assert raised.value.compact_revision == last
            # A listing and a watch from its revision on miss nothing.
            listing = await watcher.list_prefix("/")
            watch = watcher.watch("/", listing.revision + 1)
            following = (await writer.txn([], [Put("/k", b"after")])).revision
            assert (await asyncio.wait_for(anext(watch), 10)).revision == following
            await watch.aclose()

    asyncio.run(scenario())


def test_a_deletion_at_the_compacted_revision_is_not_missed(member: EtcdProcess) -> None:
    """etcd 3.5.1 loses the deletion, but lets a watch start at its revision."""

    async def scenario() -> None:
        async with _opened(member.endpoint) as store:
            await store.txn([], [Put("/k", b"1")])
            listing = await store.list_prefix("/")
            deleted = (await store.txn([], [Delete("/k")])).revision
            assert deleted == listing.revision + 1
            await member.compact(deleted)
            with pytest.raises(CompactedError):
                await asyncio.wait_for(anext(store.watch("/", deleted)), 10)

    asyncio.run(scenario())


def test_a_watch_ends_if_etcd_is_restored_from_a_backup(tmp_path: Path, any_etcd_binary: EtcdBinary) -> None:
    """etcd is restored from an old backup while the services run."""
    ports = {"client_port": free_port(), "peer_port": free_port()}
    before, after = (
        EtcdProcess(tmp_path / name, tmp_path / "log", binary=any_etcd_binary, **ports)
        for name in ("before", "after")
    )
    before.start()

    async def scenario() -> None:
        async with _opened(before.endpoint) as store:
            for number in range(5):
                last = (await store.txn([], [Put("/k", b"%d" % number)])).revision
            watch = store.watch("/", last)
            assert (await asyncio.wait_for(anext(watch), 10)).revision == last
            before.kill()
            after.start()
            with pytest.raises(CompactedError):
                await asyncio.wait_for(anext(watch), 10)

    try:
        asyncio.run(scenario())
    finally:
        before.stop()
        after.stop()


def test_progress_protects_an_idle_watch_from_compaction(tmp_path: Path, any_etcd_binary: EtcdBinary) -> None:
    if any_etcd_binary.minor < (3, 5):
        pytest.skip("etcd 3.4 can't be told to report progress more often than every ten minutes")
    flag = "--experimental-watch-progress-notify-interval=200ms"
    member = EtcdProcess(
        tmp_path / "data", tmp_path / "log", binary=any_etcd_binary, arguments=[flag]
    ).start()

    async def scenario() -> None:
        async with (
            TcpRelay("127.0.0.1", member.client_port) as relay,
            _opened(member.endpoint) as writer,
            _opened(f"http://127.0.0.1:{relay.port}") as watcher,
        ):
            watch = watcher.watch("/quiet/", 2)
            waiting = asyncio.ensure_future(anext(watch))
            for number in range(20):
                last = (await writer.txn([], [Put("/loud", b"%d" % number)])).revision
            await asyncio.sleep(1)
            await member.compact(last)
            await relay.cut()
            written = (await writer.txn([], [Put("/quiet/k", b"")])).revision
            assert (await asyncio.wait_for(waiting, 10)).revision == written
            await watch.aclose()

    try:
        asyncio.run(scenario())
    finally:
        member.stop()


@pytest.mark.slow
def test_a_silent_network_is_detected(member: EtcdProcess) -> None:
    """The network drops all packets without an error, so only pings detect it."""

    async def scenario() -> None:
        async with (
            TcpRelay("127.0.0.1", member.client_port) as relay,
            _opened(member.endpoint) as writer,
            _opened(f"http://127.0.0.1:{relay.port}", f"http://127.0.0.1:{member.client_port}") as watcher,
        ):
            await watcher.get("/k")
            watch = watcher.watch("/", 2)
            waiting = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0.5)
            relay.swallow()
            written = (await writer.txn([], [Put("/k", b"")])).revision
            assert (await asyncio.wait_for(waiting, 30)).revision == written
            await watch.aclose()

    asyncio.run(scenario())


def test_long_listings_come_in_pages_of_one_revision(
    member: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(page_keys: int) -> None:
        monkeypatch.setattr("tidelog.metadata.etcd.etcd_store.PAGE_KEYS", page_keys)
        async with _opened(member.endpoint) as store:
            for start in range(0, 300, 100):
                await store.txn([], [Put(f"/p/{n:03}", b"x") for n in range(start, start + 100)])

            stop = asyncio.Event()

            async def write_first_and_last() -> None:
                await store.txn([], [Put("/p/000", b"y"), Put("/p/zzz", b"z")])

            async def disturb() -> None:
                while not stop.is_set():
                    await write_first_and_last()

            await write_first_and_last()
            disturbing = asyncio.create_task(disturb())
            for _ in range(5):
                listing = await store.list_prefix("/p/")
                assert [item.key for item in listing.items[:300]] == [f"/p/{n:03}" for n in range(300)]
                first, last = listing.items[0], listing.items[-1]
                assert (first.mod_revision, last.key) == (last.mod_revision, "/p/zzz")
                assert all(item.mod_revision <= listing.revision for item in listing.items)
            stop.set()
            await disturbing

    asyncio.run(scenario(7))
    asyncio.run(scenario(300))


def test_a_listing_with_large_values_is_read_in_smaller_pages(
    member: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.metadata.etcd.connection.MAX_ANSWER_BYTES", 1_200_000)

    async def scenario() -> None:
        async with _opened(member.endpoint) as store:
            for number in range(6):
                await store.txn([], [Put(f"/p/{number}", bytes(500_000))])
            assert [len(item.value) for item in (await store.list_prefix("/p/")).items] == [500_000] * 6

    asyncio.run(scenario())


@pytest.mark.slow
def test_an_ended_lease_is_not_found_after_an_outage(member: EtcdProcess) -> None:
    async def scenario() -> None:
        async with _opened(member.endpoint, operation_timeout_ms=1500) as store:
            lease = await store.grant_lease(2000)
            await store.txn([], [Put("/k", b"", lease)])
            member.kill()
            with pytest.raises(StoreUnavailableError):
                await store.keep_alive(lease)
            member.start()
            while True:
                with contextlib.suppress(StoreUnavailableError):
                    # The lease still exists, because a new leader renews every lease for its whole TTL.
                    assert await store.keep_alive(lease) > 0
                    break
            deadline = time.monotonic() + 15
            while await store.get("/k") is not None:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
            with pytest.raises(LeaseNotFoundError):
                await store.keep_alive(lease)

    asyncio.run(scenario())


def test_close_ends_calls_and_watches_at_once(member: EtcdProcess) -> None:
    async def scenario() -> None:
        relay = TcpRelay("127.0.0.1", member.client_port)
        async with relay:
            store = EtcdMetadataStore(EtcdOptions((f"http://127.0.0.1:{relay.port}",)))
            await store.get("/k")
            watch = store.watch("/", 2)
            relay.swallow()
            waiting: list[asyncio.Future[object]] = [
                asyncio.ensure_future(awaitable)
                for awaitable in (anext(watch), store.get("/k"), store.txn([], []), store.keep_alive(1))
            ]
            await asyncio.sleep(0.2)
            await asyncio.wait_for(store.close(), 1)
            done, pending = await asyncio.wait(waiting, timeout=1)
            assert not pending
            assert all(isinstance(future.exception(), StoreUnavailableError) for future in done)

    asyncio.run(scenario())
