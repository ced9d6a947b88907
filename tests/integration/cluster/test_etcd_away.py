"""etcd is killed, frozen or stopped for a minute: the brokers continue with their in-sync replicas. Nothing
changes until etcd is back, and then all changes are made.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from chaoslab.scrutiny import loaded
from clusterlab.load import LoadPlan
from clusterlab.tidelog_cluster import TidelogCluster
from clusterlab.topic_view import await_view, topic_view

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]
Tell = Callable[..., None]
PARTITIONS = 6
AWAY_S = float(os.environ.get("ETCD_AWAY_S", "20"))
MOST_SILENCE_S = 2.0
GO_ON_S = 30.0


@pytest.fixture
def topic(tidelog_cluster: TidelogCluster, new_replicated_topic: Callable[..., str]) -> str:
    return new_replicated_topic(tidelog_cluster, PARTITIONS)


def states(cluster: TidelogCluster, topic: str) -> dict[str, tuple[object, ...]]:
    """Returns leader, epoch and in-sync replicas in etcd, without the controller's epoch."""
    return {
        found.key: (found.json["leader"], found.json["leader_epoch"], sorted(found.json["isr"]))
        for found in cluster.etcd().keys(f"/brokers/topics/{topic}/partitions/")
    }


def test_etcd_killed_and_back_soon(tidelog_cluster: TidelogCluster, topic: str, tell: Tell) -> None:
    """etcd is back within the session, so no lease ends and nothing changes."""
    before = states(tidelog_cluster, topic)
    with loaded(tidelog_cluster, LoadPlan(topic, PARTITIONS)) as load:
        time.sleep(1)
        killed_s = tidelog_cluster.kill("etcd-1")
        time.sleep(2)
        tidelog_cluster.start("etcd-1")
        time.sleep(8)
        silences = [load.longest_silence_s(p, killed_s, time.monotonic()) for p in range(PARTITIONS)]
        tell("etcd killed for 2 s: longest silence of a partition", max(silences))
    assert max(silences) < MOST_SILENCE_S
    assert states(tidelog_cluster, topic) == before


def test_etcd_frozen_longer_than_every_session(
    tidelog_cluster: TidelogCluster, topic: str, tell: Tell
) -> None:
    with loaded(tidelog_cluster, LoadPlan(topic, PARTITIONS)) as load:
        time.sleep(1)
        frozen_s = tidelog_cluster.signal("etcd-1", signal.SIGSTOP)
        time.sleep(10)
        silences = [load.longest_silence_s(p, frozen_s, time.monotonic()) for p in range(PARTITIONS)]
        tell("etcd frozen for 10 s: longest silence of a partition", max(silences))
        tidelog_cluster.signal("etcd-1", signal.SIGCONT)
        load.await_acknowledged(range(PARTITIONS), GO_ON_S)
    assert max(silences) < MOST_SILENCE_S


def test_etcd_away_for_long(tidelog_cluster: TidelogCluster, topic: str, tell: Tell) -> None:
    """Writes and reads continue; no in-sync replica leaves, and no leader changes."""
    cluster = tidelog_cluster
    before = states(cluster, topic)
    view_before = topic_view(cluster.bootstrap.split(",")[0], topic)
    with loaded(cluster, LoadPlan(topic, PARTITIONS, records_per_s=400)) as load:
        time.sleep(1)
        gone_s = cluster.kill("etcd-1")
        time.sleep(AWAY_S)
        silences = [load.longest_silence_s(p, gone_s, time.monotonic()) for p in range(PARTITIONS)]
        tell(f"etcd away for {AWAY_S:.0f} s: longest silence of a partition", max(silences))
        for address in cluster.addresses.values():
            assert topic_view(address, topic) == view_before
        cluster.start("etcd-1")
        assert states(cluster, topic) == before, "nothing changed before the brokers were back"
        back_s = time.monotonic()
        load.await_acknowledged(range(PARTITIONS), GO_ON_S)
        time.sleep(5)
        silences = [load.longest_silence_s(p, back_s, time.monotonic()) for p in range(PARTITIONS)]
        tell("after its return: longest silence of a partition", max(silences))
    await_view(
        cluster.addresses.values(), topic, lambda view: all(len(p.isr) == 3 for p in view.values()), GO_ON_S
    )
    assert max(silences) < MOST_SILENCE_S


def test_broker_that_dies_while_etcd_is_away(tidelog_cluster: TidelogCluster, topic: str, tell: Tell) -> None:
    """acks=all waits because the dead follower cannot leave the ISR, until etcd returns."""
    cluster = tidelog_cluster
    victim = topic_view(cluster.bootstrap.split(",")[0], topic)[0].leader
    with loaded(cluster, LoadPlan(topic, PARTITIONS, records_per_s=300)) as load:
        time.sleep(1)
        cluster.kill("etcd-1")
        killed_s = cluster.kill(f"broker-{victim}")
        time.sleep(8)
        refused = [load.acknowledgements_s(p, killed_s + 1) for p in range(PARTITIONS)]
        for address in cluster.live_addresses():
            assert all(len(state.isr) == 3 for state in topic_view(address, topic).values())
        cluster.start("etcd-1")
        back_s = time.monotonic()
        load.await_acknowledged(range(PARTITIONS), GO_ON_S)
        tell("broker died while etcd was away: writes again after etcd's return", time.monotonic() - back_s)
        cluster.start(f"broker-{victim}")
        load.await_acknowledged(range(PARTITIONS), GO_ON_S)
    assert not any(refused), "a record was acknowledged without a replica in the ISR"
