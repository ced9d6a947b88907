"""Reassignments of replicas: wrong targets receive Kafka's errors, and correct ones are
completed under load.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence

import pytest

from brokerlab.clients import create_topic
from brokerlab.raw_client import RawClient
from chaoslab.scrutiny import loaded
from clusterlab.kafka_cluster import KafkaCluster
from clusterlab.load import LoadPlan
from clusterlab.tidelog_cluster import TidelogCluster
from clusterlab.topic_view import await_view

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]
Cluster = TidelogCluster | KafkaCluster
NONE, UNKNOWN_TOPIC_OR_PARTITION = 0, 3
INVALID_REPLICA_ASSIGNMENT = 39
NO_REASSIGNMENT_IN_PROGRESS = 85
TIMEOUT_MS = 30_000


def reassign(
    cluster: Cluster, topic: str, targets: dict[int, Sequence[int] | None]
) -> tuple[int, dict[int, int]]:
    """Returns the error of the request and the error of each partition. A target of None cancels."""
    with RawClient(cluster.address(1)) as client:
        answer = client.call(
            "alter_partition_reassignments",
            0,
            timeout=TIMEOUT_MS,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": p, "replicas": None if ids is None else list(ids)}
                        for p, ids in targets.items()
                    ],
                }
            ],
        )
    errors = {p.partition_index: int(p.error_code) for t in answer.responses for p in t.partitions}
    return int(answer.error_code), errors


@pytest.mark.parametrize(
    "partition, target, error",
    [
        (0, [1, 2, 9], INVALID_REPLICA_ASSIGNMENT),
        (0, [1, 2, 2], INVALID_REPLICA_ASSIGNMENT),
        (0, [1, -2], INVALID_REPLICA_ASSIGNMENT),
        (0, [], INVALID_REPLICA_ASSIGNMENT),
        (7, [1, 2, 3], UNKNOWN_TOPIC_OR_PARTITION),
        (0, None, NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_wrong_target(cluster: Cluster, partition: int, target: Sequence[int] | None, error: int) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.bootstrap, topic, replication_factor=2)
    assert reassign(cluster, topic, {partition: target}) == (NONE, {partition: error})
    assert reassign(cluster, "no-such-topic", {0: [1, 2]}) == (NONE, {0: UNKNOWN_TOPIC_OR_PARTITION})


def test_replicas_move_under_load(cluster: Cluster, tell: Callable[..., None]) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.bootstrap, topic, 3, {"min.insync.replicas": "1"}, replication_factor=2)
    before = await_view(cluster.addresses.values(), topic, lambda view: len(view) == 3, 10)
    targets = {p: tuple(sorted({1, 2, 3} - {state.replicas[0]})) for p, state in before.items()}
    with loaded(cluster, LoadPlan(topic, 3)) as load:
        time.sleep(1)
        began_s = time.monotonic()
        assert reassign(cluster, topic, targets) == (NONE, dict.fromkeys(targets, NONE))
        await_view(
            cluster.addresses.values(),
            topic,
            lambda view: all(
                state.replicas == targets[p]
                and set(state.isr) == set(targets[p])
                and state.leader in targets[p]
                for p, state in view.items()
            ),
            40,
        )
        tell("three partitions moved one replica each, the leader", time.monotonic() - began_s)
        load.await_acknowledged(range(3), 20)
