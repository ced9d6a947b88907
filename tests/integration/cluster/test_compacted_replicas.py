"""Three replicas compact independently. A replica that lost its disk copies the rest of a compacted log."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from brokerlab.clients import create_topic, new_consumer, new_producer
from clusterlab.tidelog_cluster import TidelogCluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(240)]
KEYS = 100
LIMIT_S = 90.0
TOPIC = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "100",
    "min.insync.replicas": "2",
}


def write(bootstrap: str, first: int, count: int) -> None:
    producer = new_producer(bootstrap, acks="all", linger_ms=5)
    for number in range(first, first + count):
        producer.produce("t", b"%d" % number + bytes(500), b"key-%d" % (number % KEYS))
        if number % 500 == 0:
            producer.poll(0.01)
    assert producer.flush(LIMIT_S) == 0


def read(bootstrap: str) -> list[tuple[int, bytes, int]]:
    consumer = new_consumer(bootstrap, enable_partition_eof=True)
    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    found: list[tuple[int, bytes, int]] = []
    began = time.monotonic()
    while time.monotonic() - began < LIMIT_S:
        for message in consumer.consume(10_000, 0.5):
            if message.error() is None:
                found.append((message.offset(), message.key(), int(message.value().rstrip(b"\0"))))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                consumer.close()
                return found
    raise AssertionError("no end")


def leader_and_isr(bootstrap: str) -> tuple[int, set[int]]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partition = admin.describe_topics(TopicCollection(["t"]))["t"].result(30).partitions[0]
    return partition.leader.id if partition.leader else -1, {node.id for node in partition.isr}


def log_bytes(directory: Path) -> int:
    """Returns the size of a partition's segments. The cleaner may delete a segment between list and stat."""
    total = 0
    for path in directory.glob("*.log"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def until(holds: Callable[[], bool], what: str) -> None:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < LIMIT_S, what
        time.sleep(0.1)


def test_a_replica_copies_a_compacted_log_and_leads_it(
    new_cluster: Callable[..., TidelogCluster],
) -> None:
    cluster = new_cluster(settings={"log.cleaner.backoff.ms": "100"})
    create_topic(cluster.bootstrap, "t", configs=TOPIC, replication_factor=3)
    write(cluster.bootstrap, 0, 20_000)
    write(cluster.bootstrap, 20_000, 10)
    directories = [cluster.log_dir(broker) / "t-0" for broker in (1, 2, 3)]

    def is_small() -> bool:
        return all(log_bytes(directory) < 2_500_000 for directory in directories)

    until(is_small, "each replica compacts")
    expected = {b"key-%d" % (number % KEYS): number for number in range(20_010)}
    assert {key: value for _, key, value in read(cluster.bootstrap)} == expected
    leader, _ = leader_and_isr(cluster.bootstrap)
    follower = next(broker for broker in (1, 2, 3) if broker != leader)
    directory = cluster.log_dir(follower)
    cluster.kill(f"broker-{follower}")
    shutil.rmtree(directory / "t-0")
    cluster.start(f"broker-{follower}")
    until(lambda: follower in leader_and_isr(cluster.bootstrap)[1], "it is in sync again")
    write(cluster.bootstrap, 20_010, 10)
    for broker in (1, 2, 3):
        if broker != follower:
            cluster.kill(f"broker-{broker}")
    other = next(broker for broker in (1, 2, 3) if broker not in (follower, leader))
    cluster.start(f"broker-{other}")
    until(lambda: leader_and_isr(cluster.address(follower))[0] in (follower, other), "another leads")
    found = read(f"{cluster.address(follower)},{cluster.address(other)}")
    newest = {key: value for _, key, value in found}
    assert newest == {b"key-%d" % (number % KEYS): number for number in range(20_020)}
    assert [offset for offset, _, value in found if offset != value] == [], "the offsets are unchanged"
