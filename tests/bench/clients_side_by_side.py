"""Compares our own Python client with other clients on one broker: `python -m bench.clients_side_by_side`.

Each client produces the same records to a topic of its own with one partition and reads them back, one client
after the other in one process. The table shows records per second and the client's CPU time for each record,
which depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import create_topic
from tidelog.aio import Consumer, Producer
from tidelog.client import Consumer as ThreadConsumer
from tidelog.client import Producer as ThreadProducer

BATCH_BYTES = 65_536
LINGER_MS = 5
POLL_S = 5.0
Work = Callable[[str, str, bytes, int], None]
"""Gets the bootstrap address, the topic, the value of each record, and the number of records."""


def produce_tidelog_aio(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    async def run() -> None:
        settings = {"batch.size": BATCH_BYTES, "linger.ms": LINGER_MS}
        async with Producer[bytes, bytes](bootstrap, settings) as producer:
            for _ in range(count):
                await producer.send(topic, value)

    asyncio.run(run())


def produce_tidelog_threads(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    settings = {"batch.size": BATCH_BYTES, "linger.ms": LINGER_MS}
    with ThreadProducer[bytes, bytes](bootstrap, settings) as producer:
        for _ in range(count):
            producer.send(topic, value)


def produce_aiokafka(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            max_batch_size=BATCH_BYTES,
            linger_ms=LINGER_MS,
            enable_idempotence=True,
        )
        await producer.start()
        for _ in range(count):
            await producer.send(topic, value)
        await producer.stop()

    asyncio.run(run())


def produce_kafka_python(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, batch_size=BATCH_BYTES, linger_ms=LINGER_MS, acks="all"
    )
    for _ in range(count):
        producer.send(topic, value)
    producer.close()


def produce_confluent(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "batch.size": BATCH_BYTES,
            "linger.ms": LINGER_MS,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for _ in range(count):
        producer.produce(topic, value)
    producer.flush()


def consume_tidelog_aio(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    async def run() -> None:
        seen = 0
        async with Consumer[bytes, bytes](bootstrap, {"auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([(topic, 0)])
            while seen < count:
                seen += len(await consumer.poll(POLL_S))

    asyncio.run(run())


def consume_tidelog_threads(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    seen = 0
    with ThreadConsumer[bytes, bytes](bootstrap, {"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(topic, 0)])
        while seen < count:
            seen += len(consumer.poll(POLL_S))


def consume_aiokafka(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    async def run() -> None:
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        seen = 0
        while seen < count:
            found = await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=500)
            seen += sum(map(len, found.values()))
        await consumer.stop()

    asyncio.run(run())


def consume_kafka_python(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    consumer.assign([KafkaPythonPartition(topic, 0)])
    seen = 0
    while seen < count:
        seen += sum(map(len, consumer.poll(int(POLL_S * 1000), max_records=500).values()))
    consumer.close()


def consume_confluent(bootstrap: str, topic: str, value: bytes, count: int) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    seen = 0
    while seen < count:
        seen += len(consumer.consume(500, POLL_S))
    consumer.close()


CLIENTS: dict[str, tuple[Work, Work]] = {
    "tidelog.aio": (produce_tidelog_aio, consume_tidelog_aio),
    "tidelog.client": (produce_tidelog_threads, consume_tidelog_threads),
    "aiokafka": (produce_aiokafka, consume_aiokafka),
    "kafka-python": (produce_kafka_python, consume_kafka_python),
    "confluent-kafka": (produce_confluent, consume_confluent),
}


def measure(work: Work, bootstrap: str, topic: str, value: bytes, count: int) -> tuple[float, float]:
    """Returns records per second, and microseconds of CPU time for each record."""
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    work(bootstrap, topic, value, count)
    return count / (time.perf_counter() - wall_s), (time.process_time() - cpu_s) / count * 1e6


def compare(bootstrap: str, count: int, rounds: int) -> None:
    for size in (100, 1_000):
        print(f"\n{count} records of {size} B, best of {rounds}")
        print(f"{'client':16}{'produce/s':>12}{'CPU us':>8}{'consume/s':>12}{'CPU us':>8}")
        for name, works in CLIENTS.items():
            topic = f"bench-{uuid.uuid4().hex[:8]}"
            create_topic(bootstrap, topic, 1)
            row = f"{name:16}"
            for work in works:
                results = [measure(work, bootstrap, topic, b"x" * size, count) for _ in range(rounds)]
                row += f"{max(rate for rate, _ in results):12.0f}{min(cpu for _, cpu in results):8.2f}"
            print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", help="a running broker; by default the benchmark starts tidelog")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.bootstrap:
        compare(arguments.bootstrap, arguments.count, arguments.rounds)
        return
    with tempfile.TemporaryDirectory() as directory:
        broker = BrokerProcess(Path(directory) / "data", Path(directory) / "broker.log").start()
        try:
            compare(broker.bootstrap, arguments.count, arguments.rounds)
        finally:
            broker.kill()


if __name__ == "__main__":
    main()
