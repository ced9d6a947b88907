"""helm upgrade from the previous version and helm rollback to it, under a load that must not notice."""

from __future__ import annotations

import os
import time
from pathlib import Path

from brokerlab.clients import create_topic
from clusterlab.history import judge
from clusterlab.load import Load, LoadPlan, read_all
from e2e.outcome import Outcome
from e2e.release import ROOT, Release
from e2e.settings import PREVIOUS_ROOT, PREVIOUS_TAG, TAG

PARTITIONS = 4
UPGRADE_TIMEOUT_S = 300.0
WRITES_S = 45.0
CALM_S = 3.0
COMPONENTS = ("broker", "controller", "group-coordinator")


def _images(release: Release) -> set[str]:
    return {
        container["image"].rpartition(":")[2]
        for component in COMPONENTS
        for pod in release.kubectl.get(
            "pods",
            "-l",
            f"app.kubernetes.io/instance={release.name},app.kubernetes.io/component={component}",
        )
        for container in pod["spec"]["containers"]
    }


def test_an_upgrade_and_a_rollback_that_no_producer_notices(
    release: Release, outcome: Outcome, slowness: float
) -> None:
    """The release is installed from the previous chart and image and ends at the current ones, after three
    rolls.
    """
    topic, previous, current = "upgrade", os.environ[PREVIOUS_TAG], os.environ[TAG]
    before = Path(os.environ[PREVIOUS_ROOT])
    create_topic(release.bootstrap, topic, PARTITIONS, {"min.insync.replicas": "2"}, replication_factor=3)
    timeout_s = UPGRADE_TIMEOUT_S * slowness
    with Load(release.bootstrap, LoadPlan(topic, PARTITIONS, producers=2, keys=8, records_per_s=300)) as load:
        load.await_acknowledged(range(PARTITIONS), WRITES_S * slowness)
        began_s = time.monotonic()
        for name, roll, tag in (
            ("upgrade", lambda: release.upgrade(current, ROOT, timeout_s), current),
            ("rollback", lambda: release.rollback(previous, before, timeout_s), previous),
            ("upgrade again", lambda: release.upgrade(current, ROOT, timeout_s), current),
        ):
            took_s = roll()
            release.kubectl.await_ready(release.name, timeout_s)
            release.await_whole(topic, 3, timeout_s)
            print(f"{name}: {took_s:.1f} s")
            outcome.figures[f"{name}, s"] = took_s
            assert _images(release) == {tag}
            time.sleep(CALM_S)
        ended_s = time.monotonic()
    load.history.final = read_all(release.bootstrap, topic, PARTITIONS)
    verdict = judge(load.history)
    gap_s = max(load.longest_silence_s(partition, began_s, ended_s) for partition in range(PARTITIONS))
    print(f"{verdict}; longest gap {gap_s:.1f} s; client errors: {dict(load.errors())}")
    outcome.add(kills=0, anomalies=len(verdict.anomalies) + len(load.complaints), longest_gap_s=gap_s)
    assert not load.complaints
    assert not load.errors(), "a producer got an error"
    assert verdict.is_sound, str(verdict)
