"""Our own producer against real brokers, on asyncio and in threads."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from brokerlab.broker_process import BrokerProcess, free_port
from brokerlab.clients import consume_messages
from tidelog.aio import Admin, Consumer, Producer
from tidelog.client import Producer as ThreadProducer
from tidelog.client.exceptions import (
    BufferFullError,
    DeliveryTimeoutError,
    MetadataTimeoutError,
    RecordTooLargeError,
    UnreachableError,
)
from tidelog.client.partitioners import HotDataPartitioner, RoundRobin
from tidelog.client.serializers import json_serializer, text_serializer
from tidelog.client.shell.producing.delivery import Delivery, StoredRange

pytestmark = pytest.mark.integration


def values_of(bootstrap: str, topic: str, partition: int, count: int) -> list[bytes]:
    return [message.value() for message in consume_messages(bootstrap, topic, count, [partition])]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_arrive_in_order(served: str, served_topic: Callable[..., str], compression: str) -> None:
    topic = served_topic(2)

    async def produce() -> list[int]:
        async with Producer[bytes, bytes](served, {"compression.type": compression}) as producer:
            sent = [await producer.send(topic, b"%d" % number, partition=1) for number in range(2_000)]
            return [(await delivery).offset for delivery in sent]

    assert asyncio.run(produce()) == list(range(2_000))
    assert values_of(served, topic, 1, 2_000) == [b"%d" % number for number in range(2_000)]


def test_a_batch_of_values_keeps_its_order(served: str, served_topic: Callable[..., str]) -> None:
    topic = served_topic(2)
    values = [b"%d" % number for number in range(5_000)]

    async def produce() -> list[StoredRange]:
        async with Producer[bytes, bytes](served, {"batch.size": 4_096}) as producer:
            first = await producer.send_batch(topic, values[:3_000], partition=1)
            await producer.send(topic, values[3_000], partition=1)
            second = await producer.send_batch(topic, values[3_001:], partition=1)
            assert len(first) == 3_000
            return [*(await first), *(await second)]

    ranges = asyncio.run(produce())
    offsets = [
        offset
        for stored in ranges
        for offset in range(stored.first_offset, stored.first_offset + stored.record_count)
    ]
    assert offsets == [number for number in range(5_000) if number != 3_000]
    assert values_of(served, topic, 1, 5_000) == values


def test_a_batch_with_keys_goes_to_the_partitions_of_the_keys(
    served: str, served_topic: Callable[..., str]
) -> None:
    topic = served_topic(3)
    keys = ["a", "b", "hot_data", "c"] * 10
    with ThreadProducer[str, str](
        served,
        key_serializer=text_serializer,
        value_serializer=text_serializer,
        partitioner=HotDataPartitioner(),
    ) as producer:
        delivery = producer.send_batch(topic, [f"v{number}" for number in range(40)], keys=keys)
        stored = delivery.result(60)
        with pytest.raises(ValueError, match="1 keys for 2 values"):
            producer.send_batch(topic, ["a", "b"], keys=["k"])
    assert sum(each.record_count for each in stored) == 40
    hot = [each for each in stored if each.partition == 2]
    assert [each.record_count for each in hot] == [1] * 10
    assert values_of(served, topic, 2, 10) == [b"v%d" % number for number in range(2, 40, 4)]


def test_a_batch_with_headers(served: str, served_topic: Callable[..., str]) -> None:
    topic = served_topic()
    headers = [[("h", b"1"), ("i", None)], [], [("h", b"3")]]
    with ThreadProducer[bytes, bytes](served) as producer:
        producer.send_batch(topic, [b"a", b"b", b"c"], headers=headers).result(60)
        with pytest.raises(ValueError, match="headers of 1 records for 2 values"):
            producer.send_batch(topic, [b"a", b"b"], headers=[[]])
    found = consume_messages(served, topic, 3)
    assert [(message.value(), message.headers() or []) for message in found] == [
        (b"a", headers[0]),
        (b"b", []),
        (b"c", headers[2]),
    ]


def test_the_records_before_an_error_of_a_batch_are_sent(
    served: str, served_topic: Callable[..., str]
) -> None:
    topic = served_topic()
    with ThreadProducer[bytes, bytes](served) as producer:
        with pytest.raises(RecordTooLargeError):
            producer.send_batch(topic, [b"a", b"b", b"x" * 2_000_000, b"c"])
        producer.send(topic, b"d")
    assert values_of(served, topic, 0, 3) == [b"a", b"b", b"d"]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(served: str, served_topic: Callable[..., str], acks: str) -> None:
    topic = served_topic()

    async def produce() -> int:
        settings = {"acks": acks, "enable.idempotence": acks == "all"}
        async with Producer[bytes, bytes](served, settings) as producer:
            return (await producer.send_and_wait(topic, b"v")).offset

    assert asyncio.run(produce()) == (-1 if acks == "0" else 0)
    assert values_of(served, topic, 0, 1) == [b"v"]


def test_a_callback_gets_the_delivery_that_send_returns(
    served: str, served_topic: Callable[..., str]
) -> None:
    """The first record of a topic waits for its partitions, and the second does not."""
    topic, seen = served_topic(), list[Delivery]()
    with ThreadProducer[bytes, bytes](served) as producer:
        sent = [producer.send(topic, b"v", on_delivery=seen.append) for _ in range(2)]
    assert [id(delivery) for delivery in seen] == [id(delivery) for delivery in sent]

    async def produce() -> None:
        async with Producer[bytes, bytes](served) as aio_producer:
            got: list[Delivery] = []
            returned = [await aio_producer.send(topic, b"v", on_delivery=got.append) for _ in range(2)]
            await aio_producer.flush()
            assert [id(delivery) for delivery in got] == [id(delivery) for delivery in returned]

    asyncio.run(produce())


def test_threads_share_a_producer(served: str, served_topic: Callable[..., str]) -> None:
    topic = served_topic()
    acknowledged: list[Delivery] = []
    with ThreadProducer[bytes, bytes](served) as producer:

        def work(name: int) -> None:
            for number in range(500):
                producer.send(topic, b"%d-%d" % (name, number), on_delivery=acknowledged.append)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        assert producer.partitions_for(topic) == [0]
    assert sorted(delivery.metadata().offset for delivery in acknowledged) == list(range(2_000))
    stored = values_of(served, topic, 0, 2_000)
    for name in range(4):
        mine = [value for value in stored if value.startswith(b"%d-" % name)]
        assert mine == [b"%d-%d" % (name, number) for number in range(500)]


def test_partitioners_serializers_and_interceptors(served: str, served_topic: Callable[..., str]) -> None:
    topic = served_topic(4)
    outcomes: list[Delivery] = []

    class Marking:
        def on_send(self, topic: str, key: Any, value: Any, headers: Any, /) -> tuple[Any, Any]:
            return key, {**value, "marked": True}

        def on_acknowledgement(self, delivery: Delivery, /) -> None:
            outcomes.append(delivery)

    async def produce() -> list[int]:
        async with Producer[str, dict[str, object]](
            served,
            key_serializer=text_serializer,
            value_serializer=json_serializer,
            partitioner=HotDataPartitioner(),
            interceptors=[Marking()],
        ) as producer:
            keys = ["hot_data-1", "a", "b", "c", "x-hot_data"]
            return [(await producer.send_and_wait(topic, {"n": 1}, key=key)).partition for key in keys]

    partitions = asyncio.run(produce())
    assert partitions[0] == partitions[4] == 3
    assert all(partition < 3 for partition in partitions[1:4])
    assert len(outcomes) == 5
    assert values_of(served, topic, 3, 2) == [b'{"n":1,"marked":true}'] * 2

    async def in_turn() -> list[int]:
        async with Producer[bytes, bytes](served, partitioner=RoundRobin()) as producer:
            return [(await producer.send_and_wait(topic, b"v", key=b"k")).partition for _ in range(6)]

    assert asyncio.run(in_turn()) == [0, 1, 2, 3, 0, 1]


def test_a_record_that_is_too_large_is_refused(bootstrap: str, topic: str) -> None:
    async def produce() -> None:
        async with Producer[bytes, bytes](bootstrap, {"max.request.size": 10_000}) as producer:
            await producer.send_and_wait(topic, b"x" * 9_000)
            await producer.send(topic, b"x" * 20_000)

    with pytest.raises(RecordTooLargeError, match=r"exceeds max\.request\.size"):
        asyncio.run(produce())


def test_no_broker_at_the_start() -> None:
    async def produce() -> None:
        async with Producer[bytes, bytes](f"127.0.0.1:{free_port()}"):
            pass

    with pytest.raises(UnreachableError):
        asyncio.run(produce())


def test_full_buffer_blocks_and_then_raises(own_broker: BrokerProcess) -> None:
    settings = {
        "buffer.memory": 40_000,
        "max.block.ms": 500,
        "request.timeout.ms": 1_000,
        "delivery.timeout.ms": 60_000,
    }

    async def produce() -> None:
        async with Producer[bytes, bytes](own_broker.bootstrap, settings) as producer:
            await producer.send_and_wait("t", b"first")
            own_broker.kill()
            try:
                with pytest.raises(BufferFullError, match=r"buffer\.memory"):
                    for _ in range(1_000):
                        await producer.send("t", b"x" * 1_000)
                with pytest.raises(MetadataTimeoutError, match="topic 'other'"):
                    await producer.send("other", b"x")
            finally:
                own_broker.start()

    asyncio.run(produce())


def test_a_delivery_that_takes_too_long_is_raised_to_its_caller(own_broker: BrokerProcess) -> None:
    settings = {"request.timeout.ms": 300, "delivery.timeout.ms": 1_000, "linger.ms": 0}

    async def produce() -> None:
        async with Producer[bytes, bytes](own_broker.bootstrap, settings) as producer:
            await producer.send_and_wait("t", b"first")
            own_broker.kill()
            delivery = await producer.send("t", b"second")
            try:
                with pytest.raises(DeliveryTimeoutError):
                    await delivery
            finally:
                own_broker.start()
            assert (await producer.send_and_wait("t", b"third")).offset == 1

    asyncio.run(produce())


def test_requests_to_a_frozen_broker_time_out_and_are_repeated(own_broker: BrokerProcess) -> None:
    settings = {
        "request.timeout.ms": 500,
        "delivery.timeout.ms": 60_000,
        "socket.connection.setup.timeout.ms": 60_000,
    }

    async def produce() -> None:
        async with Producer[bytes, bytes](own_broker.bootstrap, settings) as producer:
            await producer.send_and_wait("t", b"first")
            os.kill(own_broker.pid, signal.SIGSTOP)
            try:
                delivery = await producer.send("t", b"second")
                deadline = time.monotonic() + 30
                while not producer.metrics()["record-retry-total"]:
                    assert time.monotonic() < deadline, "the request did not time out"
                    await asyncio.sleep(0.05)
            finally:
                os.kill(own_broker.pid, signal.SIGCONT)
            assert (await delivery).offset == 1
            assert (await producer.send_and_wait("t", b"third")).offset == 2

    asyncio.run(produce())


def test_a_batch_that_is_larger_than_the_topic_permits_is_split(
    served: str, served_topic: Callable[..., str]
) -> None:
    topic = served_topic()

    async def produce() -> None:
        async with Admin(served) as admin:
            await admin.alter_topic_configs(topic, {"max.message.bytes": "2000"})
        async with Producer[bytes, bytes](served, {"linger.ms": 1_000}) as producer:
            deliveries = [await producer.send(topic, b"%03d" % number + bytes(97)) for number in range(100)]
            await producer.flush()
            assert [(await delivery).offset for delivery in deliveries] == list(range(100))
            assert producer.metrics()["batch-split-total"] > 0
            with pytest.raises(RecordTooLargeError):
                await producer.send_and_wait(topic, bytes(3_000))
        async with Consumer[bytes, bytes](served, {"auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([(topic, 0)])
            values: list[bytes] = []
            while len(values) < 100:
                values += [record.value[:3] for record in await consumer.poll(5)]
        assert values == [b"%03d" % number for number in range(100)]

    asyncio.run(produce())
