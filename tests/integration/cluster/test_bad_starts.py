"""Processes that must not start, have to wait or find damage: each reports the reason and causes no harm."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from brokerlab.broker_process import tidelog_command
from brokerlab.clients import create_topic
from chaoslab.scrutiny import loaded
from clusterlab import processes
from clusterlab.history import judge
from clusterlab.load import Load, LoadPlan, read_all
from clusterlab.tidelog_cluster import TidelogCluster
from clusterlab.topic_view import await_view

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]
PARTITIONS = 3
SESSION_S = 6.0
# A start whose id is held waits for the session time-out + 5 s. Only then is it refused.
REFUSAL_LIMIT_S = SESSION_S + 5.0 + 6.0


def config_path(cluster: TidelogCluster, name: str) -> Path:
    return cluster.data_dir / "config" / f"{name}.properties"


@contextlib.contextmanager
def service(
    command: list[str], config: Path, changes: Mapping[str, str | None], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `command` with the configuration `config` and these `changes`. A change to None
    removes the line.
    """
    lines = [line for line in config.read_text().splitlines() if line.split("=")[0] not in changes]
    changed = log.with_suffix(".properties")
    lines += [f"{name}={value}" for name, value in changes.items() if value is not None]
    changed.write_text("\n".join(lines) + "\n")
    arguments = [str(changed) if part == str(config) else part for part in command]
    assert str(changed) in arguments, f"{config} isn't in {command}"
    with log.open("wb") as file:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_id_of_a_live_broker(
    tidelog_cluster: TidelogCluster, new_replicated_topic: Callable[..., str], tmp_path: Path
) -> None:
    cluster = tidelog_cluster
    topic = new_replicated_topic(cluster, PARTITIONS)
    registration = cluster.etcd().get("/brokers/ids/2")
    command = processes.command_line(cluster.pid("broker-2"))
    log = tmp_path / "second.log"
    changes = {
        "log.dirs": str(tmp_path / "second"),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "advertised.listeners": None,
    }
    with (
        loaded(cluster, LoadPlan(topic, PARTITIONS, records_per_s=200)),
        service(command, config_path(cluster, "broker-2"), changes, log) as second,
    ):
        began_s = time.monotonic()
        code = second.wait(REFUSAL_LIMIT_S)
        waited_s = time.monotonic() - began_s
    said = log.read_text()
    assert code != 0, said
    assert waited_s >= SESSION_S, (
        f"refused after {waited_s:.1f} s: the lease may have been that of the previous process\n{said}"
    )
    assert "waiting" in said.lower(), said
    assert "2" in said.splitlines()[-1] and "Traceback" not in said, said
    assert cluster.etcd().get("/brokers/ids/2") == registration, "the live broker was not affected"


@pytest.mark.parametrize("name, value", [("cluster.id", "AAAAAAAAAAAAAAAAAAAAAA"), ("node.id", "7")])
def test_data_directory_of_another_cluster_or_broker(
    tidelog_cluster: TidelogCluster, tmp_path: Path, name: str, value: str
) -> None:
    cluster = tidelog_cluster
    meta = cluster.log_dir(3) / "meta.properties"
    lines = meta.read_text().splitlines()
    assert any(line.startswith(f"{name}=") for line in lines), lines
    directory = tmp_path / "foreign"
    directory.mkdir()
    changed = [f"{name}={value}" if line.startswith(f"{name}=") else line for line in lines]
    (directory / "meta.properties").write_text("\n".join(changed) + "\n")
    command = processes.command_line(cluster.pid("broker-3"))
    log = tmp_path / "foreign.log"
    changes = {
        "log.dirs": str(directory),
        "node.id": "4",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "advertised.listeners": None,
    }
    if name == "cluster.id":
        own = directory / "meta.properties"
        own.write_text(own.read_text().replace("id=3", "id=4"))
    with service(command, config_path(cluster, "broker-3"), changes, log) as process:
        code = process.wait(30)
    said = log.read_text()
    assert code != 0, said
    assert value in said and "Traceback" not in said, said
    assert cluster.etcd().get("/brokers/ids/4") is None
    after = (directory / "meta.properties").read_text()
    assert value in after, "the existing data was not changed"


def test_etcd_unreachable_at_the_start(tidelog_cluster: TidelogCluster) -> None:
    """A broker and a controller wait, report the reason, and serve once etcd is available."""
    cluster = tidelog_cluster
    cluster.signal("broker-3", signal.SIGTERM)
    processes.await_end(cluster.pid("broker-3"))
    cluster.signal("controller-2", signal.SIGTERM)
    processes.await_end(cluster.pid("controller-2"))
    names = ("broker-3", "controller-2")
    logs = [cluster.data_dir / "logs" / f"{name}.log" for name in names]
    sizes = [path.stat().st_size for path in logs]
    cluster.kill("etcd-1")
    try:
        waiting = [start_apart(cluster, name) for name in names]
        for path, size in zip(logs, sizes, strict=True):
            await_text_after(path, size, "etcd", 15)
        time.sleep(2)
        assert all(starter.poll() is None for starter in waiting), "they wait"
    finally:
        cluster.start("etcd-1")
    for starter in waiting:
        assert starter.wait(60) == 0, cluster.log_tails()
    assert cluster.etcd().get("/brokers/ids/3") is not None


def start_apart(cluster: TidelogCluster, name: str) -> subprocess.Popen[bytes]:
    """Runs `tidelog cluster start NAME` without waiting for it."""
    return subprocess.Popen(
        [*tidelog_command(), "cluster", "start", name, "--data-dir", str(cluster.data_dir)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def await_text_after(path: Path, size: int, text: str, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while text not in (said := path.read_bytes()[size:].decode(errors="replace")):
        assert time.monotonic() < deadline_s, f"no {text!r} in {timeout_s} s:\n{said}"
        time.sleep(0.05)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL], ids=["clean", "killed"])
def test_corrupt_checkpoints_are_rebuilt(
    tidelog_cluster: TidelogCluster, new_replicated_topic: Callable[..., str], stop: signal.Signals
) -> None:
    cluster = tidelog_cluster
    topic = new_replicated_topic(cluster, PARTITIONS)
    directory = cluster.log_dir(3)
    with loaded(cluster, LoadPlan(topic, PARTITIONS)) as load:
        time.sleep(1)
        cluster.signal("broker-3", stop)
        processes.await_end(cluster.pid("broker-3"))
        for name in (
            "replication-offset-checkpoint",
            "recovery-point-offset-checkpoint",
            "log-start-offset-checkpoint",
        ):
            (directory / name).write_bytes(b"\0garbage\xff\n17 of them\n")
        for partition in range(PARTITIONS):
            (directory / f"{topic}-{partition}" / "leader-epoch-checkpoint").write_bytes(
                b"0\n9\nnot numbers\n"
            )
        cluster.start("broker-3")
        load.await_acknowledged(range(PARTITIONS), 30)


def test_recover_without_etcd(
    new_cluster: Callable[..., TidelogCluster], new_replicated_topic: Callable[..., str]
) -> None:
    """etcd's data is lost, and all logs exist: topics and records come back."""
    cluster = new_cluster(controllers=1)
    create_topic(cluster.bootstrap, "kept", PARTITIONS, {"min.insync.replicas": "2"}, replication_factor=3)
    with Load(cluster.bootstrap, LoadPlan("kept", PARTITIONS)) as load:
        load.await_acknowledged(range(PARTITIONS), 20)
        time.sleep(1)
    cluster_id = cluster_id_of(cluster.log_dir(1))
    ids = topic_ids(cluster.log_dir(1))
    cluster.down()
    shutil.rmtree(cluster.data_dir / "etcd-1")
    cluster.command("recover")
    cluster.up()
    view = await_view(
        cluster.addresses.values(),
        "kept",
        lambda view: len(view) == PARTITIONS and all(len(p.isr) == 3 for p in view.values()),
        30,
    )
    assert all(sorted(state.replicas) == [1, 2, 3] for state in view.values())
    load.history.final = read_all(cluster.bootstrap, "kept", PARTITIONS)
    found = judge(load.history)
    assert found.is_sound and found.acknowledged > 0, str(found)
    assert cluster_id_of(cluster.log_dir(1)) == cluster_id
    assert topic_ids(cluster.log_dir(1)) == ids
    with loaded(cluster, LoadPlan(new_replicated_topic(cluster, PARTITIONS), PARTITIONS)):
        time.sleep(1)


def cluster_id_of(log_dir: Path) -> str:
    lines = (log_dir / "meta.properties").read_text().splitlines()
    return next(line for line in lines if line.startswith("cluster.id="))


def topic_ids(log_dir: Path) -> dict[str, str]:
    return {
        path.parent.name: next(line for line in path.read_text().splitlines() if line.startswith("topic_id"))
        for path in log_dir.glob("*/partition.metadata")
    }
