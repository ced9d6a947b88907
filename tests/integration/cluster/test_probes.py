"""The responses of the three services to Kubernetes' probes."""

from __future__ import annotations

import contextlib
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from brokerlab.broker_process import tidelog_command
from brokerlab.clients import create_topic
from chaoslab.scrutiny import loaded
from clusterlab.load import LoadPlan
from clusterlab.metrics import METRICS_LISTENER, metrics_url
from clusterlab.tidelog_cluster import TidelogCluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]
READY_TIMEOUT_S = 20.0
CAUGHT_UP_LIMIT_S = 4.0
"""The time from a killed broker's `ready:` line to its readiness, without the 5 s that a leader waits before
it reports an ISR change.
"""


def probe(url: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url.replace("/metrics", path), timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:  # a busy machine
        return 0, str(error)


def until_ready(url: str) -> None:
    last = (0, "")
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline_s:
        last = probe(url, "/readyz")
        if last[0] == 200:
            return
        time.sleep(0.1)
    raise AssertionError(last)


@pytest.fixture
def cluster(new_cluster: Callable[..., TidelogCluster]) -> TidelogCluster:
    return new_cluster(settings=METRICS_LISTENER)


def test_all_services_are_ready(cluster: TidelogCluster) -> None:
    create_topic(cluster.bootstrap, "t", 3, {}, replication_factor=3)
    for name, pid in cluster.pids().items():
        if not name.startswith("etcd"):
            url = metrics_url(pid)
            assert probe(url, "/livez") == (200, "alive\n")
            until_ready(url)


def test_broker_that_was_killed_is_ready_as_soon_as_it_has_caught_up(
    cluster: TidelogCluster, tell: Callable[..., None]
) -> None:
    create_topic(cluster.bootstrap, "t", 6, {"min.insync.replicas": "2"}, replication_factor=3)
    with loaded(cluster, LoadPlan("t", 6, records_per_s=300)):
        for _ in range(2):
            cluster.kill("broker-2")
            time.sleep(1)
            began_s = time.monotonic()
            cluster.start("broker-2")
            started_s = time.monotonic() - began_s
            until_ready(metrics_url(cluster.pid("broker-2")))
            took_s = time.monotonic() - began_s
            tell("command returned", started_s)
            tell("start to ready", took_s)
            in_sync = [
                2 in item.json["isr"]
                for item in (cluster.etcd().get(f"/brokers/topics/t/partitions/{p}/state") for p in range(6))
                if item is not None
            ]
            assert in_sync == [True] * 6
            assert took_s - started_s < CAUGHT_UP_LIMIT_S


def test_broker_without_a_controller_is_alive_and_not_ready(cluster: TidelogCluster) -> None:
    for name in ("broker-3", "controller-1", "controller-2"):
        cluster.kill(name)
    config = cluster.data_dir / "config" / "broker-3.properties"
    with _process(["broker", "--config", str(config)]) as process:
        url = metrics_url(process.pid)
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        reason = ""
        while reason != "registered, waiting for a controller\n" and time.monotonic() < deadline_s:
            assert probe(url, "/livez")[0] == 200
            status, reason = probe(url, "/readyz")
            assert status == 503
            time.sleep(0.05)
        assert reason == "registered, waiting for a controller\n"


@contextlib.contextmanager
def _process(arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(
        [*tidelog_command(), *arguments], stdin=nothing, stdout=nothing, stderr=nothing
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
