"""A follower that stops fetching leaves the ISR and comes back: in etcd, in Metadata and in metrics, and
notification keys are written and removed.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping

import pytest

from chaoslab.scrutiny import loaded
from clusterlab.etcd_gateway import EtcdChange, EtcdWatch
from clusterlab.load import LoadPlan
from clusterlab.metrics import EXPANDS, METRICS_LISTENER, SHRINKS, UNDER_REPLICATED, metrics_url, unlabelled
from clusterlab.tidelog_cluster import TidelogCluster
from clusterlab.topic_view import await_view, topic_view
from tidelog.model.topics import GROUP_METADATA_TOPIC

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]
PARTITIONS = 3
LAG_TIME_MAX_S = 2.0
# Long, since the leader has to detect the frozen follower before its session ends.
SESSION_S = 30
# The second check, after half of the time each, detects it; a busy machine needs longer.
SHRINK_LIMIT_S = 1.5 * LAG_TIME_MAX_S + 3.0
# A tick every 2.5 s, and no publication for 5 s or 60 s before.
PROPAGATION_LIMIT_S = 15.0
REMOVAL_S = 1.0
NOTIFICATIONS = "/isr_change_notification/isr_change_"


def isr_in_etcd(cluster: TidelogCluster, topic: str) -> dict[int, set[int]]:
    return {
        int(found.key.split("/")[-2]): set(found.json["isr"])
        for found in cluster.etcd().keys(f"/brokers/topics/{topic}/partitions/")
    }


def await_isr_in_etcd(
    cluster: TidelogCluster, topic: str, wanted: Mapping[int, set[int]], timeout_s: float
) -> float:
    began_s = time.monotonic()
    while (found := isr_in_etcd(cluster, topic)) != wanted:
        assert time.monotonic() - began_s < timeout_s, f"{found}, not {wanted}, after {timeout_s} s"
        time.sleep(0.05)
    return time.monotonic() - began_s


def await_group_topic(cluster: TidelogCluster, timeout_s: float) -> None:
    """Waits until the load's readers have created the group topic, so that no partition appears between two
    readings of the counters.
    """
    deadline_s = time.monotonic() + timeout_s
    while not cluster.etcd().keys(f"/brokers/topics/{GROUP_METADATA_TOPIC}/partitions/"):
        assert time.monotonic() < deadline_s, f"no {GROUP_METADATA_TOPIC} after {timeout_s} s"
        time.sleep(0.05)


def partitions_without(cluster: TidelogCluster, follower: int) -> int:
    """Returns the partitions of all topics whose ISR lacks the broker. A partition of the group topic loses
    it only after an append, since a follower of an idle leader stays in sync.
    """
    states = [found.json for found in cluster.etcd().keys("/brokers/topics/") if found.key.endswith("/state")]
    return sum(follower not in state["isr"] for state in states)


def notified_partitions(changes: list[EtcdChange]) -> set[tuple[str, int]]:
    return {
        (place["topic"], place["partition"])
        for change in changes
        if change.value is not None
        for place in json.loads(change.value)["partitions"]
    }


def await_notified(watch: EtcdWatch, partitions: set[tuple[str, int]], since: int) -> float:
    """Waits until notifications after the first `since` changes name all of them, and returns the time."""
    deadline_s = time.monotonic() + PROPAGATION_LIMIT_S
    while not partitions <= notified_partitions(watch.changes[since:]):
        assert time.monotonic() < deadline_s, f"{partitions} not among {watch.changes[since:]}"
        time.sleep(0.05)
    return time.monotonic()


def counters(urls: Mapping[int, str], broker_ids: set[int], name: str) -> float:
    return sum(unlabelled(urls[broker_id])[name] for broker_id in broker_ids)


def await_counter(
    urls: Mapping[int, str], broker_ids: set[int], name: str, wanted: Callable[[], float]
) -> None:
    """Waits for a counter. Both it and the wanted value may still change, as one partition
    follows another.
    """
    deadline_s = time.monotonic() + SHRINK_LIMIT_S
    while (found := counters(urls, broker_ids, name)) != (goal := wanted()):
        assert time.monotonic() < deadline_s, f"{name}: {found}, not {goal}"
        time.sleep(0.05)


def test_frozen_follower_leaves_and_comes_back(
    new_cluster: Callable[..., TidelogCluster],
    new_replicated_topic: Callable[..., str],
    tell: Callable[..., None],
) -> None:
    cluster = new_cluster(
        controllers=1,
        settings={
            "replica.lag.time.max.ms": str(int(LAG_TIME_MAX_S * 1000)),
            "broker.session.timeout.ms": str(SESSION_S * 1000),
            "offsets.topic.num.partitions": "3",
            **METRICS_LISTENER,
        },
    )
    topic = new_replicated_topic(cluster, PARTITIONS)
    view = topic_view(cluster.address(1), topic)
    frozen = view[0].replicas[-1]
    others = {1, 2, 3} - {frozen}
    followed = {partition for partition, state in view.items() if state.leader != frozen}
    without = {p: others if p in followed else {1, 2, 3} for p in range(PARTITIONS)}
    everyone = {p: {1, 2, 3} for p in range(PARTITIONS)}
    urls = {broker_id: metrics_url(cluster.pid(f"broker-{broker_id}")) for broker_id in others}
    live = [cluster.address(broker_id) for broker_id in others]
    with (
        cluster.etcd().watch(NOTIFICATIONS) as watch,
        loaded(cluster, LoadPlan(topic, PARTITIONS, records_per_s=200)) as load,
    ):
        load.await_acknowledged(range(PARTITIONS), 15)
        await_group_topic(cluster, PROPAGATION_LIMIT_S)
        before = {name: counters(urls, others, name) for name in (SHRINKS, EXPANDS)}
        frozen_at_s = cluster.signal(f"broker-{frozen}", signal.SIGSTOP)
        tell("shrink written to etcd after", await_isr_in_etcd(cluster, topic, without, SHRINK_LIMIT_S))
        load.await_acknowledged(followed, 15)
        began_s = time.monotonic()
        await_view(
            live, topic, lambda view: {p: set(view[p].isr) for p in view} == without, PROPAGATION_LIMIT_S
        )
        tell("... and shown by both other brokers after another", time.monotonic() - began_s)
        assert partitions_without(cluster, frozen) >= len(followed)
        await_counter(urls, others, SHRINKS, lambda: before[SHRINKS] + partitions_without(cluster, frozen))
        await_counter(urls, others, UNDER_REPLICATED, lambda: partitions_without(cluster, frozen))
        shrunk = {(topic, partition) for partition in followed}
        notified_s = await_notified(watch, shrunk, 0)
        tell("shrink published by notification keys after", notified_s - frozen_at_s)
        before_expansion = len(watch.changes)

        cluster.signal(f"broker-{frozen}", signal.SIGCONT)
        tell("expansion written to etcd after", await_isr_in_etcd(cluster, topic, everyone, 20))
        await_view(
            live, topic, lambda view: {p: set(view[p].isr) for p in view} == everyone, PROPAGATION_LIMIT_S
        )
        await_counter(urls, others, UNDER_REPLICATED, lambda: 0)
        went = counters(urls, others, SHRINKS) - before[SHRINKS]
        await_counter(urls, others, EXPANDS, lambda: before[EXPANDS] + went)
        await_notified(watch, shrunk, before_expansion)
        time.sleep(REMOVAL_S)

    written = [change for change in watch.changes if change.value is not None]
    removed = [change for change in watch.changes if change.value is None]
    assert [change.key for change in written] == sorted({change.key for change in written}), (
        "numbered in order"
    )
    assert {change.key for change in removed} == {change.key for change in written}, "each is deleted"
    assert cluster.etcd().keys(NOTIFICATIONS) == []
    epochs = {
        found.json["leader_epoch"] for found in cluster.etcd().keys(f"/brokers/topics/{topic}/partitions/")
    }
    assert epochs == {state.leader_epoch for state in view.values()}, "an ISR change is not an election"
