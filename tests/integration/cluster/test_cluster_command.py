"""`tidelog cluster`: the processes that it starts and stops, its output, and its errors."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerlab.broker_process import tidelog_command
from brokerlab.clients import create_topic
from brokerlab.raw_client import RawClient
from clusterlab import processes
from clusterlab.processes import PortRange
from clusterlab.tidelog_cluster import ClusterCommandError, TidelogCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
NAMES = {"etcd-1", "controller-1", "controller-2", "coordinator-1", "broker-1", "broker-2", "broker-3"}
SESSION_S = 6.0


def brokers_of(address: str) -> dict[int, tuple[str, str | None]]:
    """Returns the brokers that a broker reports to clients: id -> (address, rack)."""
    with RawClient(address) as client:
        answer = client.call(
            "metadata",
            12,
            topics=[],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
    return {broker.node_id: (f"{broker.host}:{broker.port}", broker.rack) for broker in answer.brokers}


def status(cluster: TidelogCluster) -> dict[str, list[str]]:
    """Returns the rows of the status by name: pid, alive, address, role."""
    lines = cluster.command("status").split("\n\n")[0].splitlines()
    assert lines[0] == "name\tpid\talive\taddress\trole"
    return {cells[0]: cells[1:] for cells in (line.split("\t") for line in lines[1:])}


def await_status(
    cluster: TidelogCluster, holds: Callable[[dict[str, list[str]]], bool], timeout_s: float
) -> dict[str, list[str]]:
    deadline_s = time.monotonic() + timeout_s
    while not holds(rows := status(cluster)):
        assert time.monotonic() < deadline_s, rows
        time.sleep(0.2)
    return rows


def test_processes_are_separate_and_recorded(tidelog_cluster: TidelogCluster) -> None:
    cluster = tidelog_cluster
    pids = cluster.pids()
    assert set(pids) == NAMES
    assert all(processes.is_alive(pid) for pid in pids.values())
    assert len({os.getsid(pid) for pid in pids.values()}) == len(pids), "each process has its own session"
    for address in cluster.addresses.values():
        assert sorted(brokers_of(address)) == [1, 2, 3]
    assert {path.stem for path in (cluster.data_dir / "logs").iterdir()} == {*NAMES, "renewals"}


def test_status_names_roles(tidelog_cluster: TidelogCluster) -> None:
    rows = status(tidelog_cluster)
    assert {name: int(row[0]) for name, row in rows.items()} == tidelog_cluster.pids()
    assert {row[1] for row in rows.values()} == {"yes"}
    controllers = sorted(row[3].split(",")[0] for name, row in rows.items() if name.startswith("controller"))
    assert controllers == ["active", "standby"]
    assert rows["coordinator-1"][3] == "registered"
    assert re.fullmatch(r"leads \d+, follows \d+", rows["broker-2"][3])
    coordinator = tidelog_cluster.etcd().get("/coordinators/group/ids/1")
    assert coordinator is not None and coordinator.json["version"] == 1


def test_kill_shows_and_start_brings_back(tidelog_cluster: TidelogCluster) -> None:
    cluster = tidelog_cluster
    cluster.command("kill", "broker-3")
    assert status(cluster)["broker-3"][:2] == ["", "no"]
    with pytest.raises(ClusterCommandError, match="broker-3 is not running"):
        cluster.command("kill", "broker-3")
    before = cluster.etcd().get("/brokers/ids/3")
    began_s = time.monotonic()
    assert cluster.command("start", "broker-3").startswith(f"ready: {cluster.address(3)}")
    assert time.monotonic() - began_s < SESSION_S, "the start does not wait for the killed broker's lease"
    after = cluster.etcd().get("/brokers/ids/3")
    assert before is not None and after is not None
    assert after.create_revision > before.create_revision, "another life"
    with pytest.raises(ClusterCommandError, match="is already running"):
        cluster.command("start", "broker-3")
    with pytest.raises(ClusterCommandError, match="has no process broker-9"):
        cluster.command("kill", "broker-9")
    with pytest.raises(ClusterCommandError, match="unknown signal"):
        cluster.command("kill", "broker-3", "--signal", "NONSENSE")


@pytest.mark.slow
def test_a_broker_that_was_frozen_for_long_registers_again(tidelog_cluster: TidelogCluster) -> None:
    cluster = tidelog_cluster
    before = cluster.etcd().get("/brokers/ids/2")
    cluster.command("kill", "broker-2", "--signal", "STOP")
    assert status(cluster)["broker-2"][1] == "stopped (SIGSTOP)"
    await_status(cluster, lambda rows: rows["broker-2"][3] == "not registered", 2 * SESSION_S)
    cluster.command("kill", "broker-2", "--signal", "CONT")
    rows = await_status(cluster, lambda rows: rows["broker-2"][3].startswith("leads"), 2 * SESSION_S)
    assert rows["broker-2"][0] == str(cluster.pid("broker-2")), "the same process"
    after = cluster.etcd().get("/brokers/ids/2")
    assert before is not None and after is not None
    assert after.create_revision > before.create_revision


def test_the_directory_of_a_live_broker_is_refused(tidelog_cluster: TidelogCluster) -> None:
    cluster = tidelog_cluster
    command = [*tidelog_command(), "broker", "--config", str(cluster.data_dir / "config/broker-1.properties")]
    for setting in (
        "listeners=PLAINTEXT://127.0.0.1:0",
        "broker.session.timeout.ms=1000",
        "broker.heartbeat.interval.ms=300",
    ):
        command += ["--set", setting]
    began_s = time.monotonic()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TIDELOG_LOG_FORMAT": "text"},
        check=False,
    )
    assert done.returncode == 1
    assert time.monotonic() - began_s >= 6, "session time-out and 5 s more"
    assert "waiting for the data directory" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("tidelog: The data directory")


def test_advertised_ports_racks_ids_and_settings(new_cluster: Callable[..., TidelogCluster]) -> None:
    advertised = PortRange()
    try:
        options = ["--first-id", "11", "--advertised-base-port", str(advertised.base), "--rack-prefix", "az"]
        cluster = new_cluster(brokers=2, controllers=1, options=options, settings={"num.partitions": "5"})
        told = brokers_of(next(iter(cluster.addresses.values())))
        assert told == {
            11: (f"127.0.0.1:{advertised.base}", "az11"),
            12: (f"127.0.0.1:{advertised.base + 1}", "az12"),
        }
        registered = cluster.etcd().get("/brokers/ids/11")
        assert registered is not None
        listeners = {e["listener"]: e["port"] for e in registered.json["endpoints"]}
        assert listeners["PLAINTEXT"] == advertised.base
        assert listeners["REPLICATION"] != advertised.base
        assert "num.partitions=5" in (cluster.data_dir / "config/broker-11.properties").read_text()
    finally:
        advertised.release()


def test_up_continues_after_down(new_cluster: Callable[..., TidelogCluster]) -> None:
    cluster = new_cluster(brokers=2, controllers=1)
    pids = cluster.pids()
    cluster.signal("broker-2", signal.SIGSTOP)  # even that one
    cluster.command("down")
    assert not any(processes.is_alive(pid) for pid in pids.values())
    assert not (cluster.data_dir / "pids.json").exists()
    assert (cluster.data_dir / "broker-1" / ".kafka_cleanshutdown").exists()
    said = cluster.command("up")
    assert said.splitlines()[-1] == f"ready: {cluster.bootstrap}", (
        "options that are not given keep their values"
    )
    assert sorted(brokers_of(cluster.address(1))) == [1, 2]
    with pytest.raises(ClusterCommandError, match="a cluster is already running there"):
        cluster.command("up")


def test_up_fails_at_once_with_the_log_of_the_dead_process(
    new_cluster: Callable[..., TidelogCluster],
) -> None:
    cluster = new_cluster(brokers=2, controllers=1, start=False)
    foreign = cluster.data_dir / "broker-2"
    foreign.mkdir(parents=True)
    (foreign / "meta.properties").write_text("version=1\ncluster.id=another\nnode.id=9\n")
    began_s = time.monotonic()
    with pytest.raises(ClusterCommandError, match="broker-2 ended instead of starting") as caught:
        cluster.up()
    assert time.monotonic() - began_s < 30
    assert "meta.properties" in str(caught.value) or "another" in str(caught.value)
    assert not (cluster.data_dir / "pids.json").exists(), "nothing is left running"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "nod.id=1"], "did you mean node.id"),
        (["--set", "num.partitions=x"], "num.partitions"),
        (["--base-port", "65535", "--brokers", "2"], "would exceed 65535"),
    ],
)
def test_wrong_arguments_are_reported_at_once(tmp_path: Path, options: list[str], message: str) -> None:
    done = subprocess.run(
        [*tidelog_command(), "cluster", "up", "--data-dir", str(tmp_path / "c"), *options],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "c" / "pids.json").exists()


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*tidelog_command(), "cluster", "up", "--data-dir", str(tmp_path), "--base-port", str(port)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.returncode == 1
    assert f"127.0.0.1:{port} is in use" in done.stderr


@pytest.mark.parametrize("name", ["broker", "controller", "group-coordinator"])
@pytest.mark.slow
def test_each_service_waits_for_etcd_and_stops_at_once(name: str, tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(f"node.id=1\nlog.dirs={tmp_path / 'data'}\nlisteners=PLAINTEXT://127.0.0.1:0\n")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # no process listens here, so connections are refused
        environment = {"TIDELOG_ETCD_ENDPOINTS": f"http://127.0.0.1:{nobody.getsockname()[1]}"}
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                [*tidelog_command(), name, "--config", str(config)],
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
            )
        try:
            deadline_s = time.monotonic() + 20
            while b"waiting for the metadata store" not in (tmp_path / "log").read_bytes():
                assert process.poll() is None and time.monotonic() < deadline_s
                time.sleep(0.05)
            process.terminate()
            assert process.wait(10) == 0
        finally:
            process.kill()
            process.wait()


def test_a_wrong_setting_is_one_line_naming_it(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("# mine\nnode.id=one\n")
    done = subprocess.run(
        [*tidelog_command(), "broker", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"tidelog: {config}, line 2: Invalid value one for configuration node.id: Not a number of type INT\n"
    )


def test_pids_file_is_as_documented(tidelog_cluster: TidelogCluster) -> None:
    found = json.loads((tidelog_cluster.data_dir / "pids.json").read_text())
    assert all(isinstance(pid, int) for pid in found.values())


@pytest.mark.slow
def test_brokers_keep_their_partitions_if_etcd_was_emptied(
    new_cluster: Callable[..., TidelogCluster],
) -> None:
    """A controller with an empty etcd knows no topics and would have the brokers set all partitions aside."""
    cluster = new_cluster(brokers=2, controllers=1)
    create_topic(cluster.bootstrap, "kept", 2, replication_factor=2)
    cluster.kill("etcd-1")
    shutil.rmtree(cluster.data_dir / "etcd-1")
    cluster.start("etcd-1")
    for name in ("broker-1", "broker-2"):
        processes.await_end(cluster.pid(name), 60)
        assert "etcd no longer holds this cluster" in (cluster.data_dir / f"logs/{name}.log").read_text()
    assert not list(cluster.data_dir.glob("broker-*/*-stray"))
    cluster.command("down")
    shutil.rmtree(cluster.data_dir / "etcd-1")
    cluster.command("recover")
    cluster.command("up")
    with RawClient(cluster.address(1)) as client:
        answer = client.call(
            "metadata",
            12,
            topics=None,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
    assert [(t.name, len(t.partitions)) for t in answer.topics] == [("kept", 2)]


@pytest.mark.slow
def test_a_broker_with_data_does_not_create_a_cluster_in_an_empty_etcd(
    new_cluster: Callable[..., TidelogCluster],
) -> None:
    cluster = new_cluster(brokers=1, controllers=1)
    cluster.command("down")
    shutil.rmtree(cluster.data_dir / "etcd-1")
    with pytest.raises(ClusterCommandError, match="broker-1 ended instead of starting") as caught:
        cluster.command("up")
    # Either the controller creates a new cluster or the broker restores its own: the broker does not serve.
    said = str(caught.value)
    assert re.search(
        r"belongs to cluster \S+, but etcd holds no cluster|has cluster\.id=\S+ in its meta\.properties", said
    )
