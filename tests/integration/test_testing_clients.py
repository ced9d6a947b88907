"""`tidelog.testing`: each Python client writes to a cluster in this process and reads from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import uuid4

import pytest

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
