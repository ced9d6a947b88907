"""The loads of the comparison of clients. `python -m bench.client_loads` runs those of one client.

It prints JSON: records per second, and microseconds of CPU time for each record. A short load goes before
each, so that imports and first connections are not measured. Every consumer reads the value of each record.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.aio import ConsumerBatch

BATCH_BYTES = 65_536
LINGER_MS = 5
POLL_S = 5.0
RECORDS_A_POLL = 500
"""The default of `max.poll.records`, and of each client that has such a limit."""
ROWS_A_CALL = 1_000
WARM_UP_RECORDS = 500
PRODUCER = {"batch.size": BATCH_BYTES, "linger.ms": LINGER_MS}
FROM_START = {"auto.offset.reset": "earliest"}
Load = Callable[[str, str, bytes, int], int]
"""Gets the bootstrap address, the topic, the value of each record, and the number of records. Returns the
number of bytes of the values that it has seen, 0 for a producer.
"""


def produce_aio(bootstrap: str, topic: str, value: bytes, count: int) -> int:
    from tidelog.aio import Producer

    async def run() -> int:
        async with Producer[bytes, bytes](bootstrap, PRODUCER) as producer:
            for _ in range(count):
                await producer.send(topic, value)
        return 0

    return asyncio.run(run())


def produce_aio_batch(bootstrap: str, topic: str, value: bytes, count: int) -> int:
    from tidelog.aio import Producer

    async def run() -> int:
        async with Producer[bytes, bytes](bootstrap, PRODUCER) as producer:
            for start in range(0, count, ROWS_A_CALL):
                await producer.send_batch(topic, [value] * min(ROWS_A_CALL, count - start))
        return 0

    return asyncio.run(run())


def produce_threads(bootstrap: str, topic: str, value: bytes, count: int) -> int:
    from tidelog.client import Producer

    with Producer[bytes, bytes](bootstrap, PRODUCER) as producer:
        for _ in range(count):
            producer.send(topic, value)
    return 0


def produce_aiokafka(bootstrap: str, topic: str, value: bytes, count: int) -> int:
    from aiokafka import AIOKafkaProducer

    async def run() -> int:
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
        return 0

    return asyncio.run(run())


def produce_kafka_python(bootstrap: str, topic: str, value: bytes, count: int) -> int:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap, batch_size=BATCH_BYTES, linger_ms=LINGER_MS, acks="all"
    )
    for _ in range(count):
        producer.send(topic, value)
    producer.close()
    return 0


def produce_confluent(bootstrap: str, topic: str, value: bytes, count: int) -> int:
    import confluent_kafka

    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, **PRODUCER}
    producer = confluent_kafka.Producer({**settings, "queue.buffering.max.messages": 1_000_000})
    for _ in range(count):
        producer.produce(topic, value)
    producer.flush()
    return 0


def consume_aio(bootstrap: str, topic: str, value: bytes, count: int) -> int:
    from tidelog.aio import Consumer

    async def run() -> int:
        seen = seen_bytes = 0
        async with Consumer[bytes, bytes](bootstrap, FROM_START) as consumer:
            consumer.assign([(topic, 0)])
            while seen < count:
                for record in await consumer.poll(POLL_S):
                    seen += 1
                    seen_bytes += len(record.value)
        return seen_bytes

    return asyncio.run(run())


def consume_aio_one_by_one(bootstrap: str, topic: str, value: bytes, count: int) -> int:
    from tidelog.aio import Consumer

    async def run() -> int:
        seen = seen_bytes = 0
        async with Consumer[bytes, bytes](bootstrap, FROM_START) as consumer:
            consumer.assign([(topic, 0)])
            async for record in consumer:
                seen += 1
                seen_bytes += len(record.value)
                if seen == count:
                    break
        return seen_bytes

    return asyncio.run(run())


def _consume_batches(
    bootstrap: str, topic: str, count: int, look: Callable[[ConsumerBatch[bytes, bytes]], int]
) -> int:
    """Reads whole batches. `look` returns the number of bytes of the values of a batch."""
    from tidelog.aio import Consumer

    async def run() -> int:
        seen = seen_bytes = 0
        async with Consumer[bytes, bytes](bootstrap, FROM_START) as consumer:
            consumer.assign([(topic, 0)])
            async for batch in consumer.batches():
                seen += len(batch)
                seen_bytes += look(batch)
                if seen >= count:
                    break
        return seen_bytes

    return asyncio.run(run())


def consume_aio_batches(bootstrap: str, topic: str, value: bytes, count: int) -> int:
    return _consume_batches(
        bootstrap, topic, count, lambda batch: sum([len(record.value) for record in batch])
    )


def consume_aio_numpy(bootstrap: str, topic: str, value: bytes, count: int) -> int:
    return _consume_batches(bootstrap, topic, count, lambda batch: int(batch.to_numpy().value_lengths.sum()))


def consume_aio_arrow(bootstrap: str, topic: str, value: bytes, count: int) -> int:
    import pyarrow.compute

    def look(batch: ConsumerBatch[bytes, bytes]) -> int:
        table = batch.to_arrow(("offset", "timestamp", "key", "value"))
        lengths = pyarrow.compute.binary_length(table["value"])
        return int(pyarrow.compute.sum(lengths).as_py())

    return _consume_batches(bootstrap, topic, count, look)


def consume_threads(bootstrap: str, topic: str, value: bytes, count: int) -> int:
    from tidelog.client import Consumer

    seen = seen_bytes = 0
    with Consumer[bytes, bytes](bootstrap, FROM_START) as consumer:
        consumer.assign([(topic, 0)])
        while seen < count:
            for record in consumer.poll(POLL_S):
                seen += 1
                seen_bytes += len(record.value)
    return seen_bytes


def consume_aiokafka(bootstrap: str, topic: str, value: bytes, count: int) -> int:
    from aiokafka import AIOKafkaConsumer

    async def run() -> int:
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        seen = seen_bytes = 0
        while seen < count:
            found = await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=RECORDS_A_POLL)
            for records in found.values():
                for record in records:
                    seen += 1
                    seen_bytes += len(record.value)
        await consumer.stop()
        return seen_bytes

    return asyncio.run(run())


def consume_aiokafka_one_by_one(bootstrap: str, topic: str, value: bytes, count: int) -> int:
    from aiokafka import AIOKafkaConsumer

    async def run() -> int:
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        seen = seen_bytes = 0
        async for record in consumer:
            seen += 1
            seen_bytes += len(record.value)
            if seen == count:
                break
        await consumer.stop()
        return seen_bytes

    return asyncio.run(run())


def consume_kafka_python(bootstrap: str, topic: str, value: bytes, count: int) -> int:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0)])
    seen = seen_bytes = 0
    while seen < count:
        for records in consumer.poll(int(POLL_S * 1000), max_records=RECORDS_A_POLL).values():
            for record in records:
                seen += 1
                seen_bytes += len(record.value)
    consumer.close()
    return seen_bytes


def consume_confluent(bootstrap: str, topic: str, value: bytes, count: int) -> int:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    seen = seen_bytes = 0
    while seen < count:
        for message in consumer.consume(RECORDS_A_POLL, POLL_S):
            seen += 1
            seen_bytes += len(message.value())
    consumer.close()
    return seen_bytes


PRODUCERS: dict[str, Load] = {
    "tidelog.aio": produce_aio,
    "tidelog.aio, send_batch": produce_aio_batch,
    "tidelog.client": produce_threads,
    "aiokafka": produce_aiokafka,
    "kafka-python": produce_kafka_python,
    "confluent-kafka": produce_confluent,
}
CONSUMERS: dict[str, Load] = {
    "tidelog.aio": consume_aio,
    "tidelog.aio, async for": consume_aio_one_by_one,
    "tidelog.aio, batches": consume_aio_batches,
    "tidelog.aio, NumPy": consume_aio_numpy,
    "tidelog.aio, Arrow": consume_aio_arrow,
    "tidelog.client": consume_threads,
    "aiokafka": consume_aiokafka,
    "aiokafka, async for": consume_aiokafka_one_by_one,
    "kafka-python": consume_kafka_python,
    "confluent-kafka": consume_confluent,
}
LOADS = {"produce": PRODUCERS, "consume": CONSUMERS}
PACKAGES = {
    "aiokafka": "aiokafka",
    "kafka-python": "kafka",
    "confluent-kafka": "confluent_kafka",
    "tidelog.aio, NumPy": "numpy",
    "tidelog.aio, Arrow": "pyarrow",
}
"""The module that a client needs besides tidelog."""


def library_of(client: str) -> str:
    """Returns the client's name before the comma: `tidelog.aio, Arrow` is a use of `tidelog.aio`."""
    return client.split(",", maxsplit=1)[0]


def is_installed(client: str) -> bool:
    modules = PACKAGES.get(library_of(client)), PACKAGES.get(client)
    return all(module is None or importlib.util.find_spec(module) is not None for module in modules)


def measure(load: Load, bootstrap: str, topic: str, size: int, count: int) -> tuple[float, float, int]:
    """Returns records per second, microseconds of CPU time for each record, and the bytes of seen values."""
    value = b"x" * size
    load(bootstrap, topic, value, min(count, WARM_UP_RECORDS))
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    seen_bytes = load(bootstrap, topic, value, count)
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    return count / wall_s, cpu_s / count * 1e6, seen_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", help="a client without a comma")
    parser.add_argument("bootstrap")
    parser.add_argument("source", help="the topic to consume")
    parser.add_argument("target", help="the topic to produce to")
    parser.add_argument("size", type=int)
    parser.add_argument("count", type=int)
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    results: dict[str, dict[str, tuple[float, float]]] = {}
    for direction, loads in LOADS.items():
        topic = options.source if direction == "consume" else options.target
        for client, load in loads.items():
            if library_of(client) != options.library or not is_installed(client):
                continue
            rate, cpu_us, seen = measure(load, options.bootstrap, topic, options.size, options.count)
            if direction == "consume" and seen < options.count * options.size:
                raise SystemExit(f"{client} has seen only {seen} bytes of {options.count} records")
            results.setdefault(direction, {})[client] = rate, cpu_us
    print(json.dumps(results))


if __name__ == "__main__":
    main()
