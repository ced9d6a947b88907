"""`tidelog.testing`: each Python client writes to a cluster in this process and reads from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import uuid4

import pytest

from tidelog.client import Consumer, TopicPartition
from tidelog.testing import Cluster

pytestmark = pytest.mark.integration

VALUES = [b"%d" % number for number in range(100)]


def _with_confluent_kafka(bootstrap: str, topic: str) -> list[bytes]:
    from confluent_kafka import Consumer, Producer

    producer = Producer({"bootstrap.servers": bootstrap})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    read = [message.value() for message in consumer.consume(len(VALUES), timeout=30)]
    consumer.close()
    return read


def _with_kafka_python(bootstrap: str, topic: str) -> list[bytes]:
    from kafka import KafkaConsumer, KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for value in VALUES:
        producer.send(topic, value)
    producer.flush(30)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id="readers",
        auto_offset_reset="earliest",
        consumer_timeout_ms=30_000,
    )
    read = [next(consumer).value for _ in VALUES]
    consumer.close()
    return read


def _with_aiokafka(bootstrap: str, topic: str) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def both() -> list[bytes]:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            for value in VALUES:
                await producer.send_and_wait(topic, value)
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id="readers", auto_offset_reset="earliest"
        )
        async with consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    return asyncio.run(both())


@pytest.mark.parametrize(
    "client",
    [_with_confluent_kafka, _with_kafka_python, _with_aiokafka],
    ids=["confluent-kafka", "kafka-python", "aiokafka"],
)
@pytest.mark.parametrize("brokers", [1, 3])
def test_a_client_writes_and_reads(
    client: Callable[[str, str], list[bytes]],
    brokers: int,
    tidelog: Cluster,
    tidelog_cluster: Callable[..., Cluster],
) -> None:
    cluster = tidelog if brokers == 1 else tidelog_cluster(brokers)
    topic = cluster.create_topic(f"topic-{uuid4()}")
    assert client(cluster.bootstrap, topic) == VALUES
    assert [record.value for record in cluster.records(topic)] == VALUES


def _rebalance_of_kafka_python(cluster: Cluster, topic: str) -> tuple[int, int]:
    from kafka import ConsumerRebalanceListener, KafkaConsumer

    class Counts(ConsumerRebalanceListener):
        assigned = revoked = 0

        def on_partitions_assigned(self, assigned: object) -> None:
            self.assigned += bool(assigned)

        def on_partitions_revoked(self, revoked: object) -> None:
            self.revoked += bool(revoked)

    counts = Counts()
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap, group_id="readers", heartbeat_interval_ms=50
    )
    consumer.subscribe([topic], listener=counts)
    while not counts.assigned:
        consumer.poll(50)
    assigned = counts.assigned
    rebalance = cluster.rebalance("readers")
    while counts.assigned == assigned:
        consumer.poll(50)
    while True:  # this thread has to poll while it waits
        consumer.poll(50)
        try:
            rebalance.wait(0.01)
            break
        except TimeoutError:
            continue
    consumer.close()
    return counts.assigned - assigned, counts.revoked


def _rebalance_of_aiokafka(cluster: Cluster, topic: str) -> tuple[int, int]:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

    class Counts(ConsumerRebalanceListener):
        def __init__(self) -> None:
            self.assigned = self.revoked = 0
            self.was_assigned = asyncio.Event()

        def on_partitions_assigned(self, assigned: object) -> None:
            self.assigned += bool(assigned)
            if assigned:
                self.was_assigned.set()

        def on_partitions_revoked(self, revoked: object) -> None:
            self.revoked += bool(revoked)

    async def run() -> tuple[int, int]:
        counts = Counts()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=cluster.bootstrap, group_id="readers", heartbeat_interval_ms=50
        )
        consumer.subscribe([topic], listener=counts)
        async with consumer:
            await counts.was_assigned.wait()
            counts.was_assigned.clear()
            assigned = counts.assigned
            rebalance = await asyncio.to_thread(cluster.rebalance, "readers")
            await asyncio.to_thread(rebalance.wait)
            await counts.was_assigned.wait()
            return counts.assigned - assigned, counts.revoked

    return asyncio.run(run())


@pytest.mark.parametrize(
    "rebalance", [_rebalance_of_kafka_python, _rebalance_of_aiokafka], ids=["kafka-python", "aiokafka"]
)
def test_a_rebalance_reaches_other_clients(
    rebalance: Callable[[Cluster, str], tuple[int, int]], tidelog: Cluster
) -> None:
    topic = tidelog.create_topic("flights", partitions=4)
    assigned, revoked = rebalance(tidelog, topic)
    assert assigned >= 1
    assert revoked >= 1


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_asks_again_for_a_topic_without_leaders(tidelog: Cluster, protocol: str) -> None:
    tidelog.produce("flights", b"1")
    fault = tidelog.fail("Metadata", "LEADER_NOT_AVAILABLE")
    settings = {"group.id": "readers", "auto.offset.reset": "earliest", "group.protocol": protocol}
    with Consumer[bytes, bytes](tidelog.bootstrap, settings) as consumer:
        consumer.subscribe(["flights"])
        assert [record.value for record in consumer.poll(30.0)] == [b"1"]
    assert fault.hits == 1


def test_a_consumer_that_waits_for_more_has_fetched_all(tidelog: Cluster) -> None:
    """In a fetch session, it does not name the end of the partition again."""
    tidelog.produce("flights", b"1", b"2")
    with Consumer[bytes, bytes](tidelog.bootstrap, {"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([("flights", 0)])
        while consumer.position(TopicPartition("flights", 0)) < 2:
            consumer.poll(0.1)
        tidelog.wait_until_fetched("flights", timeout_s=10)
        consumer.poll(1.0)
        tidelog.wait_until_fetched("flights", timeout_s=5)
