"""aiokafka: producer, consumer with assign(), admin."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import MessageSizeTooLargeError

from brokerlab.clients import produce_values

pytestmark = pytest.mark.integration
WAIT_S = 30


async def read(bootstrap: str, topic: str, count: int, partitions: int = 1, **settings: Any) -> list[Any]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", **settings)
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, p) for p in range(partitions)])
        found: list[Any] = []
        async with asyncio.timeout(WAIT_S):
            while len(found) < count:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found += records
        return found
    finally:
        await consumer.stop()


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_round_trip(bootstrap: str, topic: str, codec: str | None) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type=codec, linger_ms=20, enable_idempotence=True
        )
        await producer.start()
        futures = [
            await producer.send(
                topic,
                b"v%d" % i * 20,
                key=b"k%d" % i,
                partition=0,
                timestamp_ms=1_600_000_000_000 + i,
                headers=[("h", b"%d" % i)],
            )
            for i in range(500)
        ]
        assert [(await f).offset for f in futures] == list(range(500))
        await producer.stop()
        for i, record in enumerate(await read(bootstrap, topic, 500)):
            assert (record.offset, record.key, record.value) == (i, b"k%d" % i, b"v%d" % i * 20)
            assert (list(record.headers), record.timestamp) == ([("h", b"%d" % i)], 1_600_000_000_000 + i)

    asyncio.run(run())


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(bootstrap: str, topic: str, acks: int | str) -> None:
    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks=acks) as producer:
            for i in range(200):
                await producer.send(topic, b"%d" % i, partition=0)
        assert [r.value for r in await read(bootstrap, topic, 200)] == [b"%d" % i for i in range(200)]

    asyncio.run(run())


def test_too_large_a_message(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(max_message_bytes=1000)

    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            with pytest.raises(MessageSizeTooLargeError):
                await producer.send_and_wait(topic, b"x" * 2000, partition=0)

    asyncio.run(run())


def test_a_group_less_subscription_reads_all_partitions(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(4)
    for partition in range(4):
        produce_values(bootstrap, topic, [b"%d" % i for i in range(25)], partition=partition)

    async def run() -> None:
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        async with consumer, asyncio.timeout(WAIT_S):
            found = [await consumer.getone() for _ in range(100)]
        assert {r.partition for r in found} == {0, 1, 2, 3}

    asyncio.run(run())


def test_seek_and_offsets(bootstrap: str, topic: str) -> None:
    produce_values(bootstrap, topic, [b"%d" % i for i in range(100)])

    async def run() -> None:
        partition = TopicPartition(topic, 0)
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer, asyncio.timeout(WAIT_S):
            consumer.assign([partition])
            assert await consumer.beginning_offsets([partition]) == {partition: 0}
            assert await consumer.end_offsets([partition]) == {partition: 100}
            consumer.seek(partition, 42)
            assert (await consumer.getone()).value == b"42"
            await consumer.seek_to_end(partition)
            assert await consumer.position(partition) == 100
            await consumer.seek_to_beginning(partition)
            assert (await consumer.getone()).offset == 0

    asyncio.run(run())


def test_read_committed(bootstrap: str, topic: str) -> None:
    produce_values(bootstrap, topic, [b"%d" % i for i in range(50)])
    records = asyncio.run(read(bootstrap, topic, 50, isolation_level="read_committed"))
    assert [r.value for r in records] == [b"%d" % i for i in range(50)]


def test_fifty_concurrent_producers(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(3)

    async def one(number: int) -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            for i in range(20):
                await producer.send_and_wait(topic, b"%d-%d" % (number, i), partition=number % 3)

    async def run() -> None:
        await asyncio.gather(*(one(n) for n in range(50)))
        found = await read(bootstrap, topic, 1000, partitions=3)
        by_producer: dict[bytes, list[int]] = {}
        for record in found:
            number, i = record.value.split(b"-")
            by_producer.setdefault(number, []).append(int(i))
        assert len(by_producer) == 50
        assert all(order == list(range(20)) for order in by_producer.values())

    asyncio.run(run())


def test_admin(bootstrap: str) -> None:
    name = f"aio-{uuid.uuid4().hex[:10]}"

    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            created = await admin.create_topics(
                [NewTopic(name, 2, 1, topic_configs={"retention.ms": "9000000"})]
            )
            assert created.topic_errors[0][1] == 0
            await admin.create_partitions({name: NewPartitions(3)})
            (described,) = await admin.describe_topics([name])
            assert len(described["partitions"]) == 3
            (configs,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
            values = {entry[0]: entry[1] for entry in configs.resources[0][4]}
            assert values["retention.ms"] == "9000000"
            cluster = await admin.describe_cluster()
            assert len(cluster["brokers"]) == 1
            async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
                for _ in range(5):
                    await producer.send_and_wait(name, b"x", partition=1)
            partition = TopicPartition(name, 1)
            assert await admin.delete_records({partition: RecordsToDelete(before_offset=3)}) == {partition: 3}
            assert name in await admin.list_topics()
            deleted = await admin.delete_topics([name])
            assert deleted.topic_error_codes[0][1] == 0
        finally:
            await admin.close()

    asyncio.run(run())
