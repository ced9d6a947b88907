"""Members of a real etcd that lose their data join again by themselves, and no write is lost."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Generator
from pathlib import Path

import grpc.aio
import pytest
from click.testing import CliRunner, Result

from brokerlab.etcd_process import EtcdProcess, etcd_cluster
from tidelog.cli.local_cluster.processes import EtcdBinary
from tidelog.cli.main import main
from tidelog.metadata.etcd.connection import EtcdOptions
from tidelog.metadata.etcd.etcd_store import EtcdMetadataStore
from tidelog.metadata.etcd.generated import rpc_pb2 as pb
from tidelog.metadata.etcd.generated import rpc_pb2_grpc as stubs
from tidelog.metadata.etcd.rejoining import Member, NextStep, Step, next_step
from tidelog.metadata.store import Put, StoreUnavailableError

URL, OTHER_URL = "http://me:2380", "http://other:2380"
OTHER = Member(1, "other", frozenset({OTHER_URL}), has_client_urls=True)


def me(member_id: int, *, name: str = "me", has_client_urls: bool) -> Member:
    return Member(member_id, name, frozenset({URL}), has_client_urls)


NOT_STARTED = me(2, has_client_urls=False)
STARTED = me(2, has_client_urls=True)
ADDED = me(3, name="", has_client_urls=False)
STARTED_AGAIN = me(3, has_client_urls=True)


@pytest.mark.parametrize(
    ("views", "decision"),
    [
        ([], NextStep(Step.START_NEW)),
        ([[OTHER, NOT_STARTED]], NextStep(Step.START_NEW)),
        ([[OTHER, STARTED]], NextStep(Step.REMOVE, 2)),
        ([[OTHER]], NextStep(Step.ADD)),
        ([[OTHER, ADDED]], NextStep(Step.START_EXISTING)),
        ([[OTHER, NOT_STARTED], [OTHER, STARTED]], NextStep(Step.REMOVE, 2)),
        ([[OTHER, STARTED], [OTHER]], NextStep(Step.REMOVE, 2)),
        ([[OTHER, STARTED], [OTHER, ADDED]], NextStep(Step.START_EXISTING)),
        ([[OTHER, ADDED], [OTHER, STARTED_AGAIN]], NextStep(Step.REMOVE, 3)),
    ],
    ids=[
        "no other member answers: the first start of the cluster",
        "the others were faster",
        "it had started: its data is lost",
        "removed",
        "removed and added",
        "one has not seen it start",
        "one has not seen it go",
        "one has not seen it go and come",
        "lost once more before all have seen its second start",
    ],
)
def test_next_step(views: list[list[Member]], decision: NextStep) -> None:
    assert next_step(views, URL) == decision


async def until_all_have_started(client_port: int) -> None:
    """Returns the members as this member lists them. Its port must be open."""
    async with asyncio.timeout(60), grpc.aio.insecure_channel(f"127.0.0.1:{client_port}") as channel:
        cluster = stubs.ClusterStub(channel)
        while True:
            answer = await cluster.MemberList(pb.MemberListRequest(), wait_for_ready=True)
            if all(member.clientURLs for member in answer.members):
                return
            await asyncio.sleep(0.05)


@pytest.fixture
def members(tmp_path: Path, any_etcd_binary: EtcdBinary) -> Generator[list[EtcdProcess]]:
    processes = etcd_cluster(tmp_path, 3, binary=any_etcd_binary)
    for process in processes:
        asyncio.run(until_all_have_started(process.client_port))
    yield processes
    for process in processes:
        process.kill()


def join(member: EtcdProcess, others: list[EtcdProcess], directory: Path, timeout_s: int = 20) -> Result:
    """Does not change the state on the member's command line."""
    config = {
        "name": member.name,
        "data-dir": str(member.data_dir),
        "initial-advertise-peer-urls": member.peer_url,
        "initial-cluster": ",".join(f"{it.name}={it.peer_url}" for it in [member, *others]),
        "initial-cluster-state": "new",
    }
    source, output = directory / "in.json", directory / "out.json"
    source.write_text(json.dumps(config))
    endpoints = ",".join(other.endpoint for other in [member, *others])
    arguments = ["etcd", "join", "--member-config", str(source), "--output", str(output)]
    arguments += ["--timeout-s", str(timeout_s), "--set", f"tidelog.etcd.endpoints={endpoints}"]
    result = CliRunner().invoke(main, arguments)
    if result.exit_code == 0:
        state = json.loads(output.read_text())["initial-cluster-state"]
        member.arguments = [f"--initial-cluster-state={state}"]
    return result


def put(endpoints: tuple[str, ...], key: str, value: bytes) -> None:
    """Retries a write, because an election may delay it."""

    async def write() -> None:
        store = EtcdMetadataStore(EtcdOptions(endpoints))
        async with asyncio.timeout(60):
            while True:
                try:
                    await store.txn([], [Put(key, value)])
                    break
                except StoreUnavailableError:
                    continue
        await store.close()

    asyncio.run(write())


def get(endpoints: tuple[str, ...], key: str) -> bytes | None:
    async def read() -> bytes | None:
        store = EtcdMetadataStore(EtcdOptions(endpoints, operation_timeout_ms=40_000))
        found = await store.get(key)
        await store.close()
        return None if found is None else found.value

    return asyncio.run(read())


@pytest.mark.integration
@pytest.mark.slow
def test_a_member_that_lost_its_data_joins_again(members: list[EtcdProcess], tmp_path: Path) -> None:
    lost, *others = members
    put(others[0].endpoints, "/before", b"1")
    lost.kill()
    put((others[0].endpoint, others[1].endpoint), "/meanwhile", b"2")
    shutil.rmtree(lost.data_dir)
    for _ in range(2):  # the second attempt has the state after a pod was killed right after the first one
        result = join(lost, others, tmp_path)
        assert result.exit_code == 0, result.output
        assert lost.arguments == ["--initial-cluster-state=existing"]
    lost.start()
    assert get((lost.endpoint,), "/meanwhile") == b"2"
    # The member votes again: without one of the others there is still a majority.
    others[0].kill()
    put((lost.endpoint, others[1].endpoint), "/after", b"3")
    assert get((lost.endpoint,), "/after") == b"3"


@pytest.mark.integration
def test_a_member_with_data_starts_without_changes(members: list[EtcdProcess], tmp_path: Path) -> None:
    member, *others = members
    for other in others:
        other.kill()
    member.kill()
    result = join(member, others, tmp_path)
    assert result.exit_code == 0
    assert result.output == "etcd-1: has data; starts as the member that it was\n"
    assert member.arguments == ["--initial-cluster-state=new"]


@pytest.mark.integration
def test_a_first_start_while_another_member_waits_for_a_majority(
    tmp_path: Path, any_etcd_binary: EtcdBinary
) -> None:
    members = [
        EtcdProcess(tmp_path / f"data-{n}", tmp_path / f"log-{n}", binary=any_etcd_binary, name=f"etcd-{n}")
        for n in range(3)
    ]
    for member in members:
        member.members = members
    try:
        for member in members:
            result = join(member, [other for other in members if other is not member], tmp_path)
            assert result.exit_code == 0, result.output
            assert member.arguments == ["--initial-cluster-state=new"]
            member.spawn()
            # The member listens, but it answers clients only after the next member has started.
            member.wait_until_up()
        put(members[0].endpoints, "/k", b"1")
    finally:
        for member in members:
            member.kill()


@pytest.mark.integration
@pytest.mark.slow
def test_a_member_waits_for_a_majority_of_the_others(members: list[EtcdProcess], tmp_path: Path) -> None:
    lost, gone, there = members
    lost.kill()
    gone.kill()
    shutil.rmtree(lost.data_dir)
    result = join(lost, [gone, there], tmp_path, timeout_s=3)
    assert result.exit_code == 1
    assert "the cluster did not add this member again within 3 s: " in result.output


def test_an_invalid_config_is_reported(tmp_path: Path) -> None:
    source = tmp_path / "in.json"
    source.write_text('{"name": "etcd-0"}')
    result = CliRunner().invoke(
        main, ["etcd", "join", "--member-config", str(source), "--output", str(tmp_path / "out")]
    )
    assert result.exit_code == 1
    assert (
        "expected an object with name, data-dir, initial-advertise-peer-urls, initial-cluster"
        in result.output
    )
