"""Retry delays, delivery times and the order of keys, while the leader and the coordinators are killed."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import AcknowledgeType, KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from clusterlab.tidelog_cluster import TidelogCluster
from clusterlab.topic_view import view_of_any

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

GROUP = "sharers"
BACKOFF_S = 25.0
DELIVER_AFTER_S = 40.0
WAIT_S = 180.0
ORDERED = [b"k%d" % number for number in range(8)]
SETTINGS = {
    "offsets.topic.num.partitions": "8",
    "share.coordinator.state.topic.num.partitions": "8",
    "group.share.record.lock.duration.ms": "15000",
    "group.share.delivery.count.limit": "10",
}
GROUP_SETTINGS = {
    "share.auto.offset.reset": "earliest",
    "tidelog.share.retry.backoff.ms": str(int(BACKOFF_S * 1_000)),
    "tidelog.share.deliver.at.enable": "true",
    "tidelog.share.order": "key",
}


@pytest.fixture
def coordinated(new_cluster: Callable[..., TidelogCluster]) -> TidelogCluster:
    return new_cluster(controllers=1, options=["--coordinators", "2"], settings=SETTINGS)


@pytest.fixture
def topic(coordinated: TidelogCluster, new_replicated_topic: Callable[..., str]) -> str:
    return new_replicated_topic(coordinated, 1)


def set_group(bootstrap: str) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in GROUP_SETTINGS.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=entries)
    client = AdminClient({"bootstrap.servers": bootstrap})
    (done,) = client.incremental_alter_configs([resource]).values()
    done.result(WAIT_S)


def test_waits_and_order_survive_the_leader_and_the_coordinators(
    coordinated: TidelogCluster, topic: str
) -> None:
    set_group(coordinated.bootstrap)
    producer = Producer({"bootstrap.servers": coordinated.bootstrap, "acks": "all"})
    deliver_at = time.time() + DELIVER_AFTER_S
    producer.produce(topic, b"late", headers=[("tidelog-deliver-at", str(int(deliver_at * 1_000)))])
    producer.produce(topic, b"released")
    for value in ORDERED:
        producer.produce(topic, value, key=b"key")
    assert producer.flush(WAIT_S) == 0
    victims = [f"broker-{view_of_any(coordinated.live_addresses(), topic)[0].leader}"]
    victims += ["coordinator-1", "coordinator-2"]
    times: dict[bytes, list[float]] = {}
    released_at = 0.0
    accepted: list[bytes] = []
    settings = {
        "bootstrap.servers": coordinated.bootstrap,
        "group.id": GROUP,
        "share.acknowledgement.mode": "explicit",
        "log_level": 0,
    }
    deadline = time.monotonic() + WAIT_S
    with ShareConsumer(settings) as consumer:
        consumer.subscribe([topic])
        while len(set(accepted)) < len(ORDERED) + 2 and time.monotonic() < deadline:
            values = []
            for message in consumer.poll(0.5):
                if message.error() is not None:
                    continue
                value = message.value() or b""
                times.setdefault(value, []).append(time.time())
                is_released = value == b"released" and not released_at
                released_at = time.time() if is_released else released_at
                consumer.acknowledge(
                    message, AcknowledgeType.RELEASE if is_released else AcknowledgeType.ACCEPT
                )
                values += [] if is_released else [value]
            try:
                results = consumer.commit_sync(30.0)
            except KafkaException:
                continue
            if not any(results.values()):
                accepted += values
            # The release is stored by now, and a few records of the key are accepted.
            if released_at and len(accepted) >= 2 and victims:
                name = victims.pop(0)
                coordinated.kill(name)
                coordinated.start(name)
    print({value: [round(at - deliver_at, 1) for at in found] for value, found in times.items()})
    assert set(accepted) == {*ORDERED, b"late", b"released"}
    assert not victims, "all were killed"
    assert times[b"late"][0] >= deliver_at, "a new leader keeps the delivery time"
    assert times[b"released"][1] >= released_at + BACKOFF_S, "a new leader keeps the backoff"
    ordered = [value for value in accepted if value in ORDERED]
    assert ordered == sorted(ordered), "the records of the key are accepted in order"
