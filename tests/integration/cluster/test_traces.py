"""A trace across the services of a cluster: the wait for followers, the work of controller and
coordinator.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from brokerlab.clients import CLIENT_TIMEOUT_S, create_topic, new_producer
from clusterlab.otlp_collector import CollectedSpan, OtlpCollector
from clusterlab.tidelog_cluster import TidelogCluster

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TidelogCluster, OtlpCollector]]:
    directory: Path = tmp_path_factory.mktemp("traces")
    with OtlpCollector() as collector:
        settings = {
            "tidelog.tracing.otlp.endpoint": collector.endpoint,
            "tidelog.tracing.sampling.ratio": "1",
            "tidelog.tracing.max.traces.per.second": "100000",
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.num.partitions": "3",
        }
        cluster = TidelogCluster(directory / "cluster", settings=settings)
        try:
            yield cluster.up(), collector
            cluster.down()
        finally:
            cluster.destroy()


def bootstrap(cluster: TidelogCluster) -> str:
    return ",".join(cluster.addresses.values())


def with_children(collector: OtlpCollector, name: str, *wanted: str) -> list[CollectedSpan]:
    """Returns the children of a root span of this name that include all of `wanted`."""

    def look(_: list[CollectedSpan]) -> list[CollectedSpan] | None:
        for root in collector.roots(name):
            children = collector.children(root)
            if {child.name for child in children} >= set(wanted):
                return children
        return None

    found: list[CollectedSpan] = collector.until(look)
    return found


def test_a_trace_goes_from_service_to_service(traced: tuple[TidelogCluster, OtlpCollector]) -> None:
    cluster, collector = traced
    address, topic = bootstrap(cluster), f"t{uuid.uuid4().hex[:8]}"
    for number in range(2):
        create_topic(address, f"{topic}-{number}", replication_factor=3)
    producer = new_producer(address, acks="all")
    for number in range(5):
        producer.produce(f"{topic}-0", str(number))
        assert producer.flush(CLIENT_TIMEOUT_S) == 0
    consumer = Consumer({"bootstrap.servers": address, "group.id": topic, "enable.auto.commit": False})
    for offset in (1, 2, 3):
        consumer.commit(offsets=[TopicPartition(f"{topic}-0", 0, offset)], asynchronous=False)
    consumer.close()

    produced = with_children(collector, "Produce", "replication wait")
    assert [child.name for child in produced] == ["queue", "append", "replication wait", "response"]
    waited = produced[2]
    assert waited.began_ns >= produced[1].ended_ns
    assert waited.service == "tidelog-broker"

    commit = with_children(collector, "OffsetCommit", "coordinator OffsetCommit", "response")
    decided = next(child for child in commit if child.name == "coordinator OffsetCommit")
    around = next(child for child in commit if child.name == "coordinator")
    assert decided.service == "tidelog-group-coordinator"
    assert around.ended_ns >= decided.ended_ns, "the answer waits until the commit is replicated"

    created = with_children(collector, "CreateTopics", "controller CreateTopics", "response")
    by_controller = next(child for child in created if child.name == "controller CreateTopics")
    assert by_controller.service == "tidelog-controller"
    assert by_controller.attributes["rpc.system"] == "grpc"
    assert [step.name for step in collector.children(by_controller)] == ["decide and write"]
    assert not [
        root for root in collector.roots("Fetch") if root.attributes.get("messaging.client.id") == "broker"
    ]
