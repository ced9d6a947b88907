"""More brokers, fewer brokers and larger volumes, by values alone and under a load that must not notice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from brokerlab.clients import create_topic
from clusterlab.history import judge
from clusterlab.load import Load, LoadPlan, read_all
from e2e.outcome import Outcome
from e2e.release import HelmError, Release
from tidelog.cli.main import main

PARTITIONS = 6
UPGRADE_TIMEOUT_S = 300.0
WRITES_S = 45.0
GROWN = "2Gi"


@pytest.fixture
def timeout_s(slowness: float) -> float:
    return UPGRADE_TIMEOUT_S * slowness


@pytest.fixture
def as_before(release: Release, timeout_s: float) -> Iterator[None]:
    """Restores the three brokers for the following suites."""
    yield
    release.change({"brokers.replicas": "3", "scaleIn.drain": "true"}, timeout_s)


def replicas_by_broker(release: Release, topic: str) -> Counter[int]:
    return Counter(replica for view in release.view(topic).values() for replica in view.replicas)


def prepare_said(release: Release) -> str:
    jobs = [job["metadata"]["name"] for job in release.kubectl.get("jobs")]
    (name,) = (job for job in jobs if job.endswith("-prepare"))
    return release.kubectl.run("logs", f"job/{name}")


@pytest.mark.usefixtures("as_before")
def test_scaling_out_and_in(release: Release, outcome: Outcome, timeout_s: float, slowness: float) -> None:
    topic = "scaling"
    create_topic(release.bootstrap, topic, PARTITIONS, {"min.insync.replicas": "2"}, replication_factor=3)
    with Load(release.bootstrap, LoadPlan(topic, PARTITIONS, producers=2, keys=8, records_per_s=300)) as load:
        load.await_acknowledged(range(PARTITIONS), WRITES_S * slowness)
        began_s = time.monotonic()
        outcome.figures["3 to 5 brokers, s"] = release.change({"brokers.replicas": "5"}, timeout_s)
        arguments = ["rebalance", "--execute", "--bootstrap-server", release.bootstrap]
        rebalanced = CliRunner().invoke(main, arguments)
        assert rebalanced.exit_code == 0, rebalanced.output
        assert set(replicas_by_broker(release, topic).values()) <= {3, 4}, "18 replicas on 5 brokers"

        with pytest.raises(HelmError, match="pre-upgrade hooks failed"):
            release.change({"brokers.replicas": "3", "scaleIn.drain": "false"}, timeout_s)
        assert "tidelog rebalance --without 3,4 --execute" in prepare_said(release)
        assert len(release.kubectl.pods("broker", release.name)) == 5

        drained = {"brokers.replicas": "3", "scaleIn.drain": "true"}
        outcome.figures["5 to 3 brokers, drained, s"] = release.change(drained, timeout_s)
        assert replicas_by_broker(release, topic) == {0: PARTITIONS, 1: PARTITIONS, 2: PARTITIONS}
        release.await_whole(topic, 3, timeout_s)
        load.await_acknowledged(range(PARTITIONS), WRITES_S * slowness)
        ended_s = time.monotonic()
    load.history.final = read_all(release.bootstrap, topic, PARTITIONS)
    verdict = judge(load.history)
    gap_s = max(load.longest_silence_s(partition, began_s, ended_s) for partition in range(PARTITIONS))
    print(f"{verdict}; longest gap {gap_s:.1f} s; client errors: {dict(load.errors())}")
    outcome.add(kills=0, anomalies=len(verdict.anomalies) + len(load.complaints), longest_gap_s=gap_s)
    assert not load.errors(), "a producer got an error"
    assert verdict.is_sound, str(verdict)


def test_volumes_that_cannot_grow_are_refused_with_the_reason(release: Release, timeout_s: float) -> None:
    """The storage class of the lab, like kind's, cannot grow volumes."""
    classes = [found for found in release.kubectl.get("storageclasses") if found.get("allowVolumeExpansion")]
    if classes:
        pytest.skip("the storage classes here can grow volumes")
    with pytest.raises(HelmError, match="pre-upgrade hooks failed"):
        release.change({"brokers.storage.size": GROWN}, timeout_s)
    assert "the storageclass that provisions the pvc must support resize" in prepare_said(release)
