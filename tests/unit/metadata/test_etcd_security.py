"""TLS with client certificates, and user names with passwords, with a real etcd."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import grpc.aio
import pytest

from brokerlab.etcd_process import EtcdProcess
from tidelog.cli.local_cluster.processes import EtcdBinary
from tidelog.metadata.etcd.connection import EtcdOptions
from tidelog.metadata.etcd.etcd_store import EtcdMetadataStore
from tidelog.metadata.etcd.generated import rpc_pb2 as pb
from tidelog.metadata.etcd.generated import rpc_pb2_grpc as stubs
from tidelog.metadata.etcd.messages import StoreRefusedError
from tidelog.metadata.etcd.users import (
    ROOT,
    ROOT_ROLE,
    EtcdUser,
    KeyRange,
    Role,
    create_users,
    require_no_users,
    require_users,
)
from tidelog.metadata.store import CompactedError, Put, StoreUnavailableError

pytestmark = pytest.mark.integration

PASSWORD = "correct horse"
ADMINISTRATOR = EtcdUser(ROOT, ROOT_ROLE, PASSWORD)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


def _make_ca(directory: Path, name: str) -> tuple[Path, Path]:
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-days", "2", "-subj", f"/CN={name}", "-keyout", key, "-out", certificate),
    )
    return certificate, key


def _make_certificate(directory: Path, name: str, ca: tuple[Path, Path]) -> tuple[Path, Path]:
    certificate, key, request = (directory / f"{name}.{end}" for end in ("pem", "key", "csr"))
    extensions = directory / f"{name}.ext"
    extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    _openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-subj", f"/CN={name}", "-keyout", key, "-out", request),
    )
    _openssl(
        *("x509", "-req", "-in", request, "-CA", ca[0], "-CAkey", ca[1], "-CAcreateserial"),
        *("-days", "2", "-extfile", extensions, "-out", certificate),
    )
    return certificate, key


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """Returns a directory with ca, other-ca, server and client, as .pem and .key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    ca = _make_ca(tmp_path, "ca")
    _make_ca(tmp_path, "other-ca")
    _make_certificate(tmp_path, "server", ca)
    _make_certificate(tmp_path, "client", ca)
    return tmp_path


def test_tls_with_client_certificates(certificates: Path, any_etcd_binary: EtcdBinary) -> None:
    at = certificates
    member = EtcdProcess(
        at / "data",
        at / "log",
        binary=any_etcd_binary,
        tls=(at / "ca.pem", at / "server.pem", at / "server.key"),
    ).start()
    good = EtcdOptions(
        member.endpoints,
        ca_file=str(at / "ca.pem"),
        cert_file=str(at / "client.pem"),
        key_file=str(at / "client.key"),
        operation_timeout_ms=1500,
    )

    async def scenario() -> None:
        store = EtcdMetadataStore(good)
        revision = (await store.txn([], [Put("/k", b"1")])).revision
        watch = store.watch("/", revision)
        assert (await asyncio.wait_for(anext(watch), 10)).revision == revision
        await watch.aclose()
        lease = await store.grant_lease(5000)
        renewer = store.lease_renewer()
        assert await asyncio.to_thread(renewer.renew, lease, 2000) > 0
        renewer.close()
        await store.close()
        for bad, reason in (
            (good._replace(cert_file="", key_file=""), "etcd"),
            (good._replace(ca_file=str(at / "other-ca.pem")), "(?i)certificate|ssl|tls|handshake"),
            (good._replace(ca_file=str(at / "missing.pem")), "missing.pem"),
            (good._replace(endpoints=(member.endpoint.replace("https", "http"),)), "etcd"),
        ):
            refused = EtcdMetadataStore(bad)
            with pytest.raises(StoreUnavailableError, match=reason):
                await refused.get("/k")
            await refused.close()

    try:
        asyncio.run(scenario())
    finally:
        member.stop()


@pytest.fixture
def guarded(tmp_path: Path, any_etcd_binary: EtcdBinary) -> Generator[EtcdProcess]:
    """Yields an etcd with authentication, whose only user is root."""
    member = EtcdProcess(tmp_path / "data", tmp_path / "log", binary=any_etcd_binary).start()

    async def set_up() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{member.client_port}") as channel:
            auth = stubs.AuthStub(channel)
            await auth.UserAdd(pb.AuthUserAddRequest(name="root", password=PASSWORD), wait_for_ready=True)
            await auth.UserGrantRole(pb.AuthUserGrantRoleRequest(user="root", role="root"))
            await auth.AuthEnable(pb.AuthEnableRequest())

    asyncio.run(set_up())
    yield member
    member.stop()


def test_a_token_is_obtained_and_renewed(guarded: EtcdProcess) -> None:
    async def scenario() -> None:
        store = EtcdMetadataStore(EtcdOptions(guarded.endpoints, username="root", password=PASSWORD))
        first = (await store.txn([], [Put("/k", b"1")])).revision
        watch = store.watch("/", first)
        assert (await asyncio.wait_for(anext(watch), 10)).revision == first
        lease = await store.grant_lease(60_000)
        renewer = store.lease_renewer()
        assert await asyncio.to_thread(renewer.renew, lease, 2000) > 0
        guarded.kill()
        guarded.start()  # it has lost all tokens
        deadline = time.monotonic() + 20
        while True:
            try:
                assert await store.get("/k") is not None
                break
            except StoreUnavailableError:
                assert time.monotonic() < deadline
        second = (await store.txn([], [Put("/k", b"2")])).revision
        assert (await asyncio.wait_for(anext(watch), 10)).revision == second
        assert await store.keep_alive(lease) > 0
        assert await asyncio.to_thread(renewer.renew, lease, 5000) > 0
        renewer.close()
        await watch.aclose()
        await store.close()

    asyncio.run(scenario())


def test_wrong_and_missing_passwords_are_refused(guarded: EtcdProcess) -> None:
    async def scenario() -> None:
        for options in (
            EtcdOptions(guarded.endpoints, username="root", password="wrong"),
            EtcdOptions(guarded.endpoints, username="nobody", password=PASSWORD),
            EtcdOptions(guarded.endpoints),
        ):
            store = EtcdMetadataStore(options)
            with pytest.raises(StoreRefusedError):
                await store.get("/k")
            with pytest.raises(StoreRefusedError):
                await store.txn([], [Put("/k", b"")])
            await store.close()

    asyncio.run(scenario())


def test_a_password_is_ignored_without_authentication(tmp_path: Path, any_etcd_binary: EtcdBinary) -> None:
    member = EtcdProcess(tmp_path / "data", tmp_path / "log", binary=any_etcd_binary).start()

    async def scenario() -> None:
        store = EtcdMetadataStore(EtcdOptions(member.endpoints, username="root", password="any"))
        await store.txn([], [Put("/k", b"")])
        lease = await store.grant_lease(5000)
        renewer = store.lease_renewer()
        assert await asyncio.to_thread(renewer.renew, lease, 2000) > 0
        renewer.close()
        await store.close()

    try:
        asyncio.run(scenario())
    finally:
        member.stop()


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_running_client_continues_when_etcd_begins_to_require_its_password(
    certificates: Path, any_etcd_binary: EtcdBinary, has_tls: bool
) -> None:
    """With TLS, etcd takes a client without a token for the user that its certificate names."""
    at = certificates
    tls = (at / "ca.pem", at / "server.pem", at / "server.key") if has_tls else None
    member = EtcdProcess(at / "data", at / "log", binary=any_etcd_binary, tls=tls).start()
    options = EtcdOptions(member.endpoints, username="root", password=PASSWORD)
    if has_tls:
        files = {"ca_file": at / "ca.pem", "cert_file": at / "client.pem", "key_file": at / "client.key"}
        options = options._replace(**{name: str(path) for name, path in files.items()})

    async def scenario() -> None:
        store = EtcdMetadataStore(options)
        first = (await store.txn([], [Put("/k", b"1")])).revision
        watch = store.watch("/", first)
        assert (await asyncio.wait_for(anext(watch), 10)).revision == first
        lease = await store.grant_lease(60_000)
        renewer = store.lease_renewer()
        assert await asyncio.to_thread(renewer.renew, lease, 2000) > 0
        await require_users(options, [ADMINISTRATOR])
        await require_users(options, [ADMINISTRATOR])
        second = (await store.txn([], [Put("/k", b"2")])).revision
        assert (await asyncio.wait_for(anext(watch), 10)).revision == second
        assert await store.keep_alive(lease) > 0
        assert await asyncio.to_thread(renewer.renew, lease, 5000) > 0
        renewer.close()
        await watch.aclose()
        await store.close()
        with pytest.raises(StoreRefusedError):
            await require_users(options._replace(password="another"), [ADMINISTRATOR])
        stranger = EtcdMetadataStore(options._replace(username="", password=""))
        with pytest.raises(StoreRefusedError):
            await stranger.get("/k")
        assert await require_no_users(options)
        assert not await require_no_users(options)
        assert await stranger.get("/k") is not None
        await stranger.close()

    try:
        asyncio.run(scenario())
    finally:
        member.stop()


def test_an_interrupted_attempt_is_completed(tmp_path: Path, any_etcd_binary: EtcdBinary) -> None:
    member = EtcdProcess(tmp_path / "data", tmp_path / "log", binary=any_etcd_binary).start()
    options = EtcdOptions(member.endpoints, username="root", password=PASSWORD)

    async def scenario() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{member.client_port}") as channel:
            auth = stubs.AuthStub(channel)
            await auth.UserAdd(pb.AuthUserAddRequest(name="root", password="before"), wait_for_ready=True)
        await require_users(options, [ADMINISTRATOR])
        store = EtcdMetadataStore(options)
        assert (await store.txn([], [Put("/k", b"1")])).succeeded
        await store.close()

    try:
        asyncio.run(scenario())
    finally:
        member.stop()


def _reader(password: str, *reads: str) -> EtcdUser:
    role = Role("reader", tuple(KeyRange(key) for key in reads), (KeyRange("/own", is_prefix=False),))
    return EtcdUser("reader", role, password)


@pytest.mark.parametrize("prefix", ["", "/one"])
def test_a_user_reaches_only_the_keys_of_its_role(
    tmp_path: Path, any_etcd_binary: EtcdBinary, prefix: str
) -> None:
    member = EtcdProcess(tmp_path / "data", tmp_path / "log", binary=any_etcd_binary).start()
    root = EtcdOptions(member.endpoints, username=ROOT, password=PASSWORD, prefix=prefix)
    own = root._replace(username="reader", password="first")

    async def refused(store: EtcdMetadataStore, key: str) -> None:
        with pytest.raises(StoreRefusedError, match="permission denied"):
            await store.txn([], [Put(key, b"")])

    async def scenario() -> None:
        users = [ADMINISTRATOR, _reader("first", "/a/", "/b/")]
        await create_users(root, users)
        await require_users(root, users)
        administrator, store = EtcdMetadataStore(root), EtcdMetadataStore(own)
        await administrator.txn([], [Put("/a/1", b"1"), Put("/c/1", b"1")])
        await store.txn([], [Put("/own", b"")])
        assert await store.get("/b/1") is None
        assert [item.key for item in (await store.list_prefix("/a/")).items] == ["/a/1"]
        for key in ("/a/1", "/c/1", "/own/1", "/ow", "/owo"):
            await refused(store, key)
        for unreadable in ("/c/", "/"):
            with pytest.raises(StoreRefusedError):
                await store.list_prefix(unreadable)
        watch = store.watch("/a/", 1)
        assert (await asyncio.wait_for(anext(watch), 10)).events[0].key == "/a/1"
        await watch.aclose()
        # Until the end of an upgrade, services of the earlier version need what they had.
        await create_users(root, [ADMINISTRATOR, _reader("first", "/c/")])
        assert await store.get("/a/1") is not None
        assert await store.get("/c/1") is not None
        # The role now has other permissions, and the user another password.
        await require_users(root, [ADMINISTRATOR, _reader("second", "/c/")])
        with pytest.raises(StoreRefusedError):
            await store.get("/a/1")
        await store.close()
        later = EtcdMetadataStore(own._replace(password="second"))
        assert await later.get("/c/1") is not None
        await refused(later, "/c/1")
        await later.close()
        before = EtcdMetadataStore(own)
        with pytest.raises(StoreRefusedError, match="rejects user reader"):
            await before.get("/c/1")
        await before.close()
        await administrator.close()

    try:
        asyncio.run(scenario())
    finally:
        member.stop()


def test_a_password_that_is_right_is_not_set_again(guarded: EtcdProcess) -> None:
    """etcd forgets the tokens of a user whose password is set."""
    root = EtcdOptions(guarded.endpoints, username=ROOT, password=PASSWORD)

    async def scenario() -> None:
        await require_users(root, [ADMINISTRATOR, _reader("first", "/a/")])
        async with grpc.aio.insecure_channel(f"127.0.0.1:{guarded.client_port}") as channel:
            ask = pb.AuthenticateRequest(name="reader", password="first")
            metadata = (("token", (await stubs.AuthStub(channel).Authenticate(ask)).token),)
            read = pb.RangeRequest(key=b"/a/1")
            await require_users(root, [ADMINISTRATOR, _reader("first", "/a/")])
            await stubs.KVStub(channel).Range(read, metadata=metadata)
            await require_users(root, [ADMINISTRATOR, _reader("second", "/a/")])
            with pytest.raises(grpc.aio.AioRpcError, match="invalid auth token"):
                await stubs.KVStub(channel).Range(read, metadata=metadata)

    asyncio.run(scenario())


def test_a_watch_of_a_user_ends_if_etcd_is_restored_from_a_backup(
    guarded: EtcdProcess, tmp_path: Path
) -> None:
    """The check for an older revision reads only what the user may read."""
    root = EtcdOptions(guarded.endpoints, username=ROOT, password=PASSWORD)
    backup = tmp_path / "backup"

    async def scenario() -> None:
        await require_users(root, [ADMINISTRATOR, _reader("first", "/a/")])
        guarded.stop()
        shutil.copytree(guarded.data_dir, backup)
        guarded.start()
        administrator = EtcdMetadataStore(root)
        first = (await administrator.txn([], [Put("/a/1", b"1")])).revision
        reader = EtcdMetadataStore(root._replace(username="reader", password="first"))
        watch = reader.watch("/a/", first)
        assert (await asyncio.wait_for(anext(watch), 10)).revision == first
        guarded.kill()
        shutil.rmtree(guarded.data_dir)
        shutil.copytree(backup, guarded.data_dir)
        guarded.start()
        with pytest.raises(CompactedError):
            await asyncio.wait_for(anext(watch), 20)
        await reader.close()
        await administrator.close()

    asyncio.run(scenario())
