"""Brokers, a controller and etcd are killed and frozen at random, several at a time, under load.

FAULT_SEED and FAULT_SECONDS change the run. A failure names its seed and the faults. Processes and clients
have their own timing, so a seed repeats the faults but not their outcome.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from chaoslab.scrutiny import loaded
from clusterlab.load import LoadPlan
from clusterlab.random_faults import RandomFaults
from clusterlab.tidelog_cluster import TidelogCluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]
PARTITIONS = 6
SEED = int(os.environ.get("FAULT_SEED", "20240607"))
SECONDS = float(os.environ.get("FAULT_SECONDS", "20"))
GO_ON_S = 60.0


def test_random_faults_lose_no_record(
    tidelog_cluster: TidelogCluster, new_replicated_topic: Callable[..., str]
) -> None:
    topic = new_replicated_topic(tidelog_cluster, PARTITIONS)
    faults = RandomFaults(tidelog_cluster, random.Random(SEED))
    try:
        with loaded(tidelog_cluster, LoadPlan(topic, PARTITIONS)) as load:
            faults.run(SECONDS)
            load.await_acknowledged(range(PARTITIONS), GO_ON_S)
    finally:
        print(f"seed {SEED}: {', '.join(faults.done)}")
