"""A load finds faults that are planted in real processes, even though nothing is killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chaoslab import checker
from chaoslab import transaction_checks as transactional
from chaoslab.broken import planted
from chaoslab.checker import judge
from chaoslab.load import ChaosLoad, ChaosPlan
from clusterlab.tidelog_cluster import TidelogCluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(240)]
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
BEGINS_S = 60.0
LOAD_S = 8.0


@pytest.mark.parametrize("name", ["open-transactions-read", "aborted-transactions-unsaid"])
def test_a_broken_build_is_found(
    new_cluster: Callable[..., TidelogCluster], tmp_path: Path, name: str
) -> None:
    cluster = new_cluster(brokers=1, controllers=1, settings=SETTINGS, start=False)
    with planted(name, tmp_path / "planted"):
        cluster.up()
    plan = ChaosPlan(
        records_per_s=50, replicas=1, min_insync_replicas=1, transaction_pause_s=0.05, churn_s=100.0
    )
    with ChaosLoad(cluster.bootstrap, plan, tmp_path / "load") as load:
        load.await_acknowledged(BEGINS_S)
        time.sleep(LOAD_S)
    found = judge(load.history)
    assert {checker.ABORTED_READ, transactional.G1A} <= set(found.kinds), str(found)
