"""Processes that stop while a service that they need is away, and a process that is frozen."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerlab.clients import create_topic
from clusterlab.tidelog_cluster import TidelogCluster
from tidelog.client.address import Address
from tidelog.client.cluster import BrokerConnection
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]
SESSION_MS = 20_000
"""The time that a broker would wait for a slow controller, far above the limits below."""
STOP_LIMIT_S = 8.0
HANGING_FSYNC = """\
import os, time
def hanging(sync):
    def hang(fd):
        time.sleep(60 if os.path.exists({flag!r}) else 0)
        sync(fd)
    return hang
os.fsync, os.fdatasync = hanging(os.fsync), hanging(os.fdatasync)
"""
FROZEN_LIMIT_S = 22.0


def until_gone(cluster: TidelogCluster, name: str, limit_s: float) -> float:
    began_s = time.monotonic()
    while cluster.is_alive(name):
        assert time.monotonic() - began_s < limit_s, cluster.log_tails()
        time.sleep(0.02)
    return time.monotonic() - began_s


def test_without_a_controller_a_broker_flushes_and_ends(
    new_cluster: Callable[..., TidelogCluster], tell: Callable[..., None]
) -> None:
    cluster = new_cluster(brokers=2, controllers=1, settings={"broker.session.timeout.ms": str(SESSION_MS)})
    create_topic(cluster.bootstrap, "t", 2, replication_factor=2)
    directory = cluster.log_dir(2)
    cluster.kill("controller-1")  # its lease keeps the office for long
    cluster.signal("broker-2", signal.SIGTERM)
    tell("SIGTERM of a broker without a controller", until_gone(cluster, "broker-2", STOP_LIMIT_S))
    assert (directory / ".kafka_cleanshutdown").exists()


def test_a_stop_that_hangs_is_ended(
    new_cluster: Callable[..., TidelogCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    cluster = new_cluster(
        brokers=1, controllers=1, settings={"tidelog.shutdown.timeout.ms": "1500"}, start=False
    )
    (site / "sitecustomize.py").write_text(HANGING_FSYNC.format(flag=str(tmp_path / "hang")))
    monkeypatch.setenv("PYTHONPATH", str(site))
    cluster.up()
    create_topic(cluster.bootstrap, "t", 1)
    (tmp_path / "hang").touch()
    cluster.signal("broker-1", signal.SIGTERM)
    until_gone(cluster, "broker-1", STOP_LIMIT_S)
    assert "the stop takes too long" in cluster.log_tails()


def test_a_request_to_a_frozen_coordinator_is_refused(
    new_cluster: Callable[..., TidelogCluster], tell: Callable[..., None]
) -> None:
    cluster = new_cluster(brokers=1, controllers=1)
    create_topic(cluster.bootstrap, "t", 1)
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup("g", topics=[OffsetFetchRequestTopics("t", partition_indexes=[0])])]
    )
    host, _, port = cluster.bootstrap.rpartition(":")
    with BrokerConnection.open(Address(host, int(port)), timeout_s=40) as connection:
        asked = FindCoordinatorRequest(coordinator_keys=["g"])
        deadline_s = time.monotonic() + 30
        while True:
            found = connection.call(asked, FindCoordinatorResponse, at_least=4).coordinators[0]
            answer = connection.call(request, OffsetFetchResponse, at_least=8, at_most=9).groups[0]
            if not found.error_code and not answer.error_code:
                break
            assert time.monotonic() < deadline_s, answer
            time.sleep(0.1)
        frozen_s = cluster.signal("coordinator-1", signal.SIGSTOP)
        try:
            answer = connection.call(request, OffsetFetchResponse, at_least=8, at_most=9).groups[0]
            refused_s = time.monotonic() - frozen_s
        finally:
            cluster.signal("coordinator-1", signal.SIGCONT)
    tell("a request to a frozen coordinator is rejected after", refused_s)
    assert answer.error_code == 14, "COORDINATOR_LOAD_IN_PROGRESS: asked again"
    assert refused_s < FROZEN_LIMIT_S
