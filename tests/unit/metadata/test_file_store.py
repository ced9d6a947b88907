"""Properties of the file store only: durability, torn tails, damage, full disks, and leases of an earlier
process.
"""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.metadata import file_store as file_store_module
from tidelog.metadata.file_store import JOURNAL_NAME, CorruptJournalError, FileMetadataStore, StoreInUseError
from tidelog.metadata.store import Delete, KeyValue, Operation, Put, StoreUnavailableError

FRAME_HEADER_BYTES = 12


def _with_store(
    directory: Path,
    scenario: Callable[[FileMetadataStore], Awaitable[None]],
    snapshot_tail_bytes: int = 1 << 20,
) -> None:
    async def run() -> None:
        store = FileMetadataStore.open(
            directory, monotonic_ms=lambda: 0, snapshot_tail_bytes=snapshot_tail_bytes
        )
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(run())


def _content(directory: Path) -> tuple[int, tuple[KeyValue, ...]]:
    found: list[tuple[int, tuple[KeyValue, ...]]] = []

    async def scenario(store: FileMetadataStore) -> None:
        found.append(await store.list_prefix("/"))

    _with_store(directory, scenario)
    return found[0]


def _generation_and_size(path: Path) -> tuple[bytes, int]:
    """Returns the start of the snapshot, which contains its CRC, and the size of the file in bytes."""
    content = path.read_bytes()
    return content[:40], len(content)


def test_a_snapshot_is_written_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk_bytes, value = 1000, bytes(100)
    sizes: list[int] = []
    write_all, crc32c = file_store_module._write_all, file_store_module.crc32c

    def counted_write(descriptor: int, data: bytes) -> None:
        sizes.append(len(data))
        write_all(descriptor, data)

    def counted_crc(data: bytes, value: int = 0) -> int:
        sizes.append(len(data))
        return crc32c(data, value)

    async def scenario(store: FileMetadataStore) -> None:
        for number in range(200):
            await store.txn((), [Put(f"/{number}", value)])

    _with_store(tmp_path, scenario)
    before, (_, size_bytes) = _content(tmp_path), _generation_and_size(tmp_path / JOURNAL_NAME)
    monkeypatch.setattr(file_store_module, "CHUNK_BYTES", chunk_bytes, raising=False)
    monkeypatch.setattr(file_store_module, "_write_all", counted_write)
    monkeypatch.setattr(file_store_module, "crc32c", counted_crc)
    descriptor, written = file_store_module.write_snapshot(tmp_path / JOURNAL_NAME, *before)
    os.close(descriptor)
    assert max(sizes) < chunk_bytes + 2 * len(value)
    assert written == (tmp_path / JOURNAL_NAME).stat().st_size < size_bytes
    monkeypatch.undo()
    assert _content(tmp_path) == before


@given(st.lists(st.integers(0, 50), max_size=10), st.integers(1, 60))
def test_a_snapshot_is_read_as_it_was_written(sizes: list[int], chunk_bytes: int) -> None:
    items = [KeyValue(f"/{number}", bytes(size), 1, 2, 3, 4) for number, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as directory:
        patched.setattr(file_store_module, "CHUNK_BYTES", chunk_bytes)
        path = Path(directory) / JOURNAL_NAME
        descriptor, size_bytes = file_store_module.write_snapshot(path, 9, items)
        os.close(descriptor)
        contents, good_bytes, snapshot_bytes = file_store_module.read_journal(path.read_bytes(), "journal")
    assert contents == (9, items, [])
    assert size_bytes == good_bytes == snapshot_bytes


_KEYS = st.sampled_from(["/a", "/b", "/c"])
_TRANSACTIONS = st.lists(
    st.lists(
        st.one_of(st.builds(Put, _KEYS, st.binary(max_size=4), st.just(0)), st.builds(Delete, _KEYS)),
        min_size=1,
        max_size=3,
        unique_by=lambda operation: operation.key,
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(_TRANSACTIONS, st.booleans(), st.integers(0, 1000))
def test_a_cut_journal_restores_an_earlier_state(
    transactions: list[list[Operation]], with_snapshots: bool, per_mille: int
) -> None:
    """Everything that was acknowledged before the cut is there. After an earlier cut there is an earlier
    state.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        path = directory / JOURNAL_NAME
        states: list[tuple[int, tuple[KeyValue, ...]]] = []
        # (start of the snapshot, size of the file) when each state was acknowledged
        sizes: list[tuple[bytes, int]] = []

        async def scenario(store: FileMetadataStore) -> None:
            for operations in [[], *transactions]:
                await store.txn([], operations)
                states.append(await store.list_prefix("/"))
                sizes.append(_generation_and_size(path))

        _with_store(directory, scenario, 100 if with_snapshots else 1 << 20)
        assert _content(directory) == states[-1]
        current, whole = _generation_and_size(path)
        smallest = min(size for generation, size in sizes if generation == current)
        cut = smallest + (whole - smallest) * per_mille // 1000
        os.truncate(path, cut)
        expected = max(
            i for i, (generation, size) in enumerate(sizes) if generation == current and size <= cut
        )
        assert _content(directory) == states[expected]
        assert _content(directory) == states[expected]


def _write(directory: Path, count: int) -> None:
    async def scenario(store: FileMetadataStore) -> None:
        for number in range(count):
            await store.txn([], [Put("/key", b"value %d" % number)])

    _with_store(directory, scenario)


@pytest.mark.parametrize("which", range(3))
def test_damage_before_intact_frames_is_refused(tmp_path: Path, which: int) -> None:
    _write(tmp_path, 4)
    path = tmp_path / JOURNAL_NAME
    content = bytearray(path.read_bytes())
    starts = [start for start in range(len(content)) if content.startswith(b"TdJf", start)]
    content[starts[which] + FRAME_HEADER_BYTES + 3] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(CorruptJournalError, match=JOURNAL_NAME):
        _content(tmp_path)
    assert path.read_bytes() == content


def test_zeros_at_the_end_are_a_torn_tail(tmp_path: Path) -> None:
    _write(tmp_path, 3)
    before = _content(tmp_path)
    with (tmp_path / JOURNAL_NAME).open("ab") as file:
        file.write(bytes(5000))
    assert _content(tmp_path) == before


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_NAME).write_bytes(b"something else altogether")
    with pytest.raises(CorruptJournalError):
        _content(tmp_path)


def test_an_unfinished_replacement_is_ignored(tmp_path: Path) -> None:
    _write(tmp_path, 2)
    before = _content(tmp_path)
    (tmp_path / (JOURNAL_NAME + ".new")).write_bytes(b"half a snapsh")
    assert _content(tmp_path) == before


def test_the_directory_has_one_owner(tmp_path: Path) -> None:
    async def scenario(store: FileMetadataStore) -> None:
        with pytest.raises(StoreInUseError, match="in use by another process"):
            FileMetadataStore.open(tmp_path, monotonic_ms=lambda: 0)
        await store.txn([], [Put("/a", b"")])

    _with_store(tmp_path, scenario)
    assert len(_content(tmp_path)[1]) == 1


def test_leased_keys_of_an_earlier_process_are_gone_at_open(tmp_path: Path) -> None:
    created: list[int] = []

    async def earlier(store: FileMetadataStore) -> None:
        lease = await store.grant_lease(60_000)
        created.append((await store.txn([], [Put("/live", b"", lease), Put("/kept", b"")])).revision)

    async def later(store: FileMetadataStore) -> None:
        assert await store.get("/live") is None
        assert await store.get("/kept") is not None
        lease = await store.grant_lease(60_000)
        again = (await store.txn([], [Put("/live", b"", lease)])).revision
        assert again > created[0] + 1

    _with_store(tmp_path, earlier)
    _with_store(tmp_path, later)


def test_snapshots_bound_the_file(tmp_path: Path) -> None:
    async def scenario(store: FileMetadataStore) -> None:
        for number in range(300):
            await store.txn([], [Put(f"/key/{number % 10}", b"%100d" % number)])
            assert (tmp_path / JOURNAL_NAME).stat().st_size < 10_000

    _with_store(tmp_path, scenario, snapshot_tail_bytes=4000)
    revision, items = _content(tmp_path)
    assert len(items) == 10
    assert max(item.mod_revision for item in items) == revision


@pytest.mark.parametrize("snapshot_tail_bytes", [0, 1 << 20])
@pytest.mark.parametrize("fails", ["write", "fsync", "fdatasync"])
def test_a_full_disk_fails_writes_and_undoes_no_acknowledged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, snapshot_tail_bytes: int
) -> None:
    real_write = os.write

    def full(descriptor: int, data: bytes = b"") -> int:
        if data:
            real_write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario(store: FileMetadataStore) -> None:
        for number in range(3):
            await store.txn([], [Put("/a", b"%d" % number)])
        before = await store.list_prefix("/")
        watch = store.watch("/", before.revision + 1)
        with monkeypatch.context() as patch:
            patch.setattr(file_store_module.os, fails, full)
            results = await asyncio.gather(
                *(store.txn([], [Put("/a", b"lost")]) for _ in range(3)), return_exceptions=True
            )
        if all(isinstance(result, StoreUnavailableError) for result in results):
            usable = await store.txn([], [Put("/b", b"later")])
            assert usable.revision == before.revision + 1
            assert (await store.get("/a")) == before.items[0]
            assert (await anext(watch)).revision == usable.revision
        else:  # this kind of write does not use the call that fails
            assert all(not isinstance(result, BaseException) for result in results)
        await watch.aclose()

    try:
        _with_store(tmp_path, scenario, snapshot_tail_bytes)
    except StoreUnavailableError:
        # fsync also failed in `undo`, so the store refuses everything until it is opened again
        assert fails == "fsync"
    _, items = _content(tmp_path)
    assert items[0].value in {b"2", b"lost"}


def test_parallel_transactions_share_flushes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushes = 0
    real = os.fdatasync

    def counting(descriptor: int) -> None:
        nonlocal flushes
        flushes += 1
        real(descriptor)

    async def scenario(store: FileMetadataStore) -> None:
        monkeypatch.setattr(file_store_module.os, "fdatasync", counting)
        await asyncio.gather(*(store.txn([], [Put(f"/{number}", b"")]) for number in range(100)))

    _with_store(tmp_path, scenario)
    assert 1 <= flushes <= 3
    assert len(_content(tmp_path)[1]) == 100


_WRITER = """
import asyncio, sys
from pathlib import Path
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.metadata.store import Put

async def main():
    store = FileMetadataStore.open(
        Path(sys.argv[1]), monotonic_ms=lambda: 0, snapshot_tail_bytes=int(sys.argv[2])
    )
    start = len((await store.list_prefix("/key/")).items)
    for number in range(start, start + 100_000):
        await store.txn([], [Put(f"/key/{number:09d}", b"x" * 50)])
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.integration
def test_sigkill_undoes_no_acknowledged_write(tmp_path: Path) -> None:
    """A real process is killed repeatedly while it writes. All acknowledged writes are there."""
    for life in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path), str(2000 if life % 2 else 1 << 20)],
            stdout=subprocess.PIPE,
            text=True,
        ) as writer:
            assert writer.stdout is not None
            answered = [int(writer.stdout.readline()) for _ in range(40 + 7 * life)]
            writer.kill()
            answered += [
                int(line) for line in writer.stdout.read().splitlines(keepends=True) if line[-1:] == "\n"
            ]
        _, items = _content(tmp_path)
        assert len(items) >= answered[-1] + 1
        assert [item.key for item in items] == [f"/key/{number:09d}" for number in range(len(items))]
