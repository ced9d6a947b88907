"""Share groups and the states of their share partitions while coordinators and a broker are killed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from brokerlab.clients import create_topic
from clusterlab.tidelog_cluster import TidelogCluster
from grouplab.share_group_client import ShareGroupClient

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC = "shared"
GROUP = "sharers"
PARTITIONS = 8
"""The share partitions, whose states are in several shards of both coordinators."""


def test_no_acknowledged_start_offset_is_lost(
    new_cluster: Callable[..., TidelogCluster], tell: Callable[..., None]
) -> None:
    cluster = new_cluster(
        controllers=1,
        options=["--coordinators", "2"],
        settings={"offsets.topic.num.partitions": "4", "share.coordinator.state.topic.num.partitions": "8"},
    )
    create_topic(cluster.bootstrap, TOPIC, PARTITIONS, replication_factor=3)
    client = ShareGroupClient(cluster.bootstrap, GROUP, TOPIC, PARTITIONS)
    client.until(lambda: client.beat() and len(client.partitions) == PARTITIONS)
    client.epoch = -1
    client.until(client.beat)
    expected = dict.fromkeys(range(PARTITIONS), -1)
    for number, victim in enumerate(("coordinator-1", "coordinator-2", "broker-2"), 1):
        cluster.kill(victim)
        silence_s = client.until(lambda: client.start_offsets() is not None)
        tell(f"SIGKILL {victim}: start offsets are available again", silence_s)
        assert client.known_start_offsets() == expected
        offset = 1_000 * number
        client.until(partial(client.reset, offset))
        expected = {partition: offset + partition for partition in range(PARTITIONS)}
        assert client.known_start_offsets() == expected
        cluster.start(victim)
    client.epoch = 0
    client.until(lambda: client.beat() and len(client.partitions) == PARTITIONS)
