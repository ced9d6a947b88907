"""MirrorMaker 2 between Apache Kafka and the system under test, in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from brokerlab.clients import connection, consume_messages, create_topic, produce_values
from brokerlab.kafka_jars import KafkaUnavailableError, find_jars
from clusterlab.java_systems import KAFKA, JavaProcess, await_true, running, write_properties

pytestmark = [pytest.mark.integration, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(400)]
MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"
RECORDS, COMMITTED, MORE = 100, 60, 10
GROUP = "readers"
WAIT_S = 120.0


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[str]:
    """Returns the address of an Apache Kafka, the other cluster."""
    try:
        find_jars()
    except KafkaUnavailableError as reason:
        pytest.skip(str(reason))
    with running(KAFKA, tmp_path / "origin") as address:
        yield address


@pytest.fixture
def mirror(jars: Path, origin: str, server: str, tmp_path: Path) -> Iterator[JavaProcess]:
    settings = {
        "clusters": "a, b",
        "a.bootstrap.servers": origin,
        "b.bootstrap.servers": server,
        "a->b.enabled": "true",
        "a->b.topics": "orders",
        "a->b.groups": GROUP,
        "b->a.enabled": "true",
        "b->a.topics": "returns",
        "tasks.max": "1",
        "plugin.discovery": "service_load",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "refresh.topics.interval.seconds": "2",
        "refresh.groups.interval.seconds": "2",
        "offset.lag.max": "0",
    }
    for name in ("", "config.storage.", "offset.storage.", "status.storage."):
        settings[f"{name}replication.factor"] = "1"
    for name in ("checkpoints", "heartbeats", "offset-syncs"):
        settings[f"{name}.topic.replication.factor"] = "1"
    file = write_properties(tmp_path / "mm2.properties", settings)
    process = JavaProcess(jars, tmp_path / "mirror", "mirror-maker", MAIN, str(file))
    yield process
    process.kill()


def values(name: str, first: int, end: int) -> list[bytes]:
    return [b"%s %d" % (name.encode(), number) for number in range(first, end)]


def group_offset(server: str, topic: str) -> int:
    """Returns the committed offset of the group, a negative number without one."""
    consumer = Consumer({**connection(server), "group.id": GROUP})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], 15)
    finally:
        consumer.close()
    return int(found.offset)


def commit(server: str, topic: str, offset: int) -> None:
    consumer = Consumer({**connection(server), "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def test_records_and_positions_arrive_in_both_directions(
    mirror: JavaProcess, origin: str, server: str
) -> None:
    create_topic(origin, "orders", 1)
    create_topic(server, "returns", 1)
    mirror.start()
    produce_values(origin, "orders", values("order", 0, RECORDS))
    produce_values(server, "returns", values("return", 0, RECORDS))
    arrived = await_mirrored(server, "a.orders", mirror)
    assert arrived == values("order", 0, RECORDS)
    assert await_mirrored(origin, "b.returns", mirror) == values("return", 0, RECORDS)

    # A group continues on the other side where it was, or a little before.
    commit(origin, "orders", COMMITTED)
    await_true(lambda: group_offset(server, "a.orders") > 0, WAIT_S, "the position arrives", mirror)
    position = group_offset(server, "a.orders")
    assert 0 < position <= COMMITTED
    left = consume_messages(server, "a.orders", RECORDS - position, offset=position)
    assert [message.value() for message in left] == values("order", position, RECORDS)

    # New records continue to arrive after the first ones.
    produce_values(origin, "orders", values("order", RECORDS, RECORDS + MORE))
    assert await_mirrored(server, "a.orders", mirror, RECORDS + MORE) == values("order", 0, RECORDS + MORE)


def await_mirrored(server: str, topic: str, mirror: JavaProcess, count: int = RECORDS) -> list[bytes]:
    """Returns the values of the topic as soon as it has `count` records."""
    found: list[bytes] = []

    def have_arrived() -> bool:
        try:
            messages = consume_messages(server, topic, count, timeout_s=5)
        except TimeoutError:
            return False
        found[:] = [bytes(message.value() or b"") for message in messages]
        return True

    await_true(have_arrived, WAIT_S, f"{topic} has {count} records", mirror)
    return found
