"""Pods are killed under load, and every acknowledged record must be there, once and in order.

The short run kills a leader, the active controller and a coordinator. The full run kills every pod in turn,
and finally all of them at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from brokerlab.clients import create_topic
from clusterlab.history import judge
from clusterlab.load import Load, LoadPlan, read_all
from e2e.outcome import Outcome
from e2e.release import Release

PARTITIONS = 4
PRODUCERS = 2
KEYS = 8
RECORDS_PER_S = 300
CALM_S = 3.0
WRITES_AGAIN_S = 45.0
WHOLE_S = 90.0
COMPONENTS = ("broker", "controller", "group-coordinator", "etcd")


def _loaded_kills(
    release: Release, outcome: Outcome, slowness: float, topic: str, victims: list[Callable[[], list[str]]]
) -> None:
    create_topic(release.bootstrap, topic, PARTITIONS, {"min.insync.replicas": "2"}, replication_factor=3)
    plan = LoadPlan(topic, PARTITIONS, PRODUCERS, KEYS, RECORDS_PER_S)
    kills = 0
    with Load(release.bootstrap, plan) as load:
        load.await_acknowledged(range(PARTITIONS), WRITES_AGAIN_S * slowness)
        began_s = time.monotonic()
        for choose in victims:
            pods = choose()
            killed_s = time.monotonic()
            release.kubectl.kill(*pods)
            load.await_acknowledged(range(PARTITIONS), WRITES_AGAIN_S * slowness)
            writes_s = time.monotonic() - killed_s
            release.await_whole(topic, 3, WHOLE_S * slowness)
            whole_s = time.monotonic() - killed_s
            release.kubectl.await_ready(release.name, WHOLE_S * slowness)
            ready_s = time.monotonic() - killed_s
            kills += len(pods)
            print(
                f"killed {', '.join(pods)}: all partitions write after {writes_s:.1f} s, ISR whole after "
                f"{whole_s:.1f} s, ready after {ready_s:.1f} s"
            )
            time.sleep(CALM_S)
        ended_s = time.monotonic()
    load.history.final = read_all(release.bootstrap, topic, PARTITIONS)
    verdict = judge(load.history)
    gap_s = max(load.longest_silence_s(partition, began_s, ended_s) for partition in range(PARTITIONS))
    print(f"{verdict}; longest gap {gap_s:.1f} s; client errors: {dict(load.errors())}")
    outcome.add(kills=kills, anomalies=len(verdict.anomalies) + len(load.complaints), longest_gap_s=gap_s)
    assert not load.complaints
    assert verdict.is_sound, str(verdict)
    assert verdict.acknowledged > 0


def test_three_pods_killed_under_load(release: Release, outcome: Outcome, slowness: float) -> None:
    """The victims are the leader of a partition, the active controller and a coordinator."""
    topic = "three-kills"
    _loaded_kills(
        release,
        outcome,
        slowness,
        topic,
        [
            lambda: [release.pod_of(release.view(topic)[0].leader)],
            lambda: [release.controller_pod()],
            lambda: release.kubectl.pods("group-coordinator", release.name)[:1],
        ],
    )


def test_data_is_there_after_every_pod_was_killed(
    release: Release, outcome: Outcome, slowness: float
) -> None:
    """The pods are killed one after the other, then all of them at the same moment."""

    def one(component: str, place: int) -> Callable[[], list[str]]:
        return lambda: [release.kubectl.pods(component, release.name)[place]]

    def all_of_them() -> list[str]:
        return [pod for component in COMPONENTS for pod in release.kubectl.pods(component, release.name)]

    victims = [
        one(component, place)
        for component in COMPONENTS
        for place in range(len(release.kubectl.pods(component, release.name)))
    ]
    _loaded_kills(release, outcome, slowness, "every-pod", [*victims, all_of_them])
