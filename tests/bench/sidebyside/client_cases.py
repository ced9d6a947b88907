"""Runs one case of the librdkafka client in a process: `python client_cases.py '{"case": ..., ...}'`.

Prints the measurements as one line of JSON. The process measures the client's CPU; the caller measures the
broker's. Payloads are half random hexadecimal digits, half constant.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

PAYLOADS = 64
FLUSH_S = 60.0
CONSUME_LIMIT_S = 60.0
CONSUME_AT_ONCE = 2000
LATENCY_WARM_UP_S = 1
NO_SEND_TIME = 0.0
Connection = dict[str, Any]
"""The settings of librdkafka with which clients connect: bootstrap.servers, and those of TLS."""


def payloads(size: int) -> list[bytes]:
    halves = [os.urandom((size + 3) // 4).hex().encode()[: size // 2] for _ in range(PAYLOADS)]
    return [(half + b"x" * size)[:size] for half in halves]


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def client_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def produce(
    connection: Connection, topic: str, size: int, limit_s: float, limit_bytes: int, settings: dict[str, Any]
) -> dict[str, float]:
    """Produces at full speed until `limit_bytes` or `limit_s`. The time lasts until everything is
    acknowledged.
    """
    failed: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            **connection,
            "acks": "all",
            "enable.idempotence": False,
            "linger.ms": 5,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 262_144,
            "delivery.report.only.error": True,
            **settings,
        }
    )
    producer.list_topics(topic, timeout=10)
    values = payloads(size)
    sent, most = 0, limit_bytes // size
    cpu, began = client_cpu_s(), time.perf_counter()
    while sent < most and time.perf_counter() - began < limit_s:
        done = 0
        try:
            for value in values:
                producer.produce(topic, value, on_delivery=on_delivery)
                done += 1
        except BufferError:
            producer.poll(0.01)
        sent += done
    left = producer.flush(FLUSH_S)
    seconds = time.perf_counter() - began
    if left or failed:
        raise RuntimeError(f"{left} messages left, {len(failed)} failed: {failed[:1]}")
    return {
        "messages": sent,
        "bytes": sent * size,
        "seconds": seconds,
        "mb_per_s": sent * size / seconds / 1e6,
        "client_cpu": (client_cpu_s() - cpu) / seconds,
    }


def consume(connection: Connection, topic: str, partitions: int, messages: int) -> dict[str, float]:
    """Reads all `messages` once. The rate counts from the first message on, because connecting takes
    librdkafka half a second.
    """
    consumer = Consumer(
        {
            **connection,
            "group.id": f"bench-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": 262_144,
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 1,
            "fetch.message.max.bytes": 4_194_304,
            "check.crcs": False,
        }
    )
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
    started = time.perf_counter()
    count = size = first_count = 0
    began, cpu = started, client_cpu_s()
    while count < messages:
        if time.perf_counter() - started > CONSUME_LIMIT_S:
            raise RuntimeError(f"{count} of {messages} messages in {CONSUME_LIMIT_S} s")
        # The call asks only for the remaining messages; otherwise it would wait for its whole timeout at the
        # end.
        found = consumer.consume(min(CONSUME_AT_ONCE, messages - count), 0.5)
        if found and not first_count:
            began, cpu, first_count = time.perf_counter(), client_cpu_s(), len(found)
        for message in found:
            error = message.error()
            if error is not None:
                raise RuntimeError(str(error))
            count += 1
            size += len(message)
    seconds = max(time.perf_counter() - began, 0.001)
    client_cpu = (client_cpu_s() - cpu) / seconds
    consumer.close()
    counted_bytes = size * (count - first_count) / count
    return {
        "messages": count,
        "bytes": size,
        "seconds": seconds,
        "mb_per_s": counted_bytes / seconds / 1e6,
        "client_cpu": client_cpu,
    }


def _consume_latencies(
    connection: Connection, topic: str, total: int, ready: threading.Event, latencies_ms: list[float]
) -> None:
    consumer = Consumer(
        {
            **connection,
            "group.id": f"bench-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
            "fetch.min.bytes": 1,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    quiet_since = time.perf_counter()
    while len(latencies_ms) < total and time.perf_counter() - quiet_since < 15:
        message = consumer.poll(0.2)
        if message is None or message.error():
            continue
        quiet_since = now = time.perf_counter()
        (sent_at,) = struct.unpack_from(">d", message.value())
        if sent_at == NO_SEND_TIME:
            ready.set()
        else:
            latencies_ms.append((now - sent_at) * 1000)
    consumer.close()


def latency(connection: Connection, topic: str, rate: int, seconds: float, size: int) -> dict[str, float]:
    """Sends `rate` messages a second at even intervals, and measures the time from produce() to the
    consumer's poll() without the first second.
    """
    total = int(rate * seconds)
    latencies_ms: list[float] = []
    ready, is_over = threading.Event(), threading.Event()
    reader = threading.Thread(target=_consume_latencies, args=(connection, topic, total, ready, latencies_ms))
    reader.start()
    producer = Producer({**connection, "acks": "all", "linger.ms": 0, "enable.idempotence": False})

    def poll() -> None:
        while not is_over.is_set():
            producer.poll(0.05)

    threading.Thread(target=poll, daemon=True).start()
    padding = b"x" * (size - 8)
    producer.produce(topic, struct.pack(">d", NO_SEND_TIME) + padding, partition=0)
    producer.flush(10)
    if not ready.wait(15):
        raise RuntimeError("the consumer saw no message")
    began = time.perf_counter()
    for i in range(total):
        while (wait_s := began + i / rate - time.perf_counter()) > 0:
            time.sleep(wait_s)
        producer.produce(topic, struct.pack(">d", time.perf_counter()) + padding, partition=0)
    producer.flush(20)
    reader.join()
    is_over.set()
    if len(latencies_ms) < total:
        raise RuntimeError(f"{len(latencies_ms)} of {total} messages came")
    counted = latencies_ms[rate * LATENCY_WARM_UP_S :]
    return {
        "messages": total,
        "bytes": total * size,
        "seconds": time.perf_counter() - began,
        "p50_ms": percentile(counted, 50),
        "p99_ms": percentile(counted, 99),
    }


def one_at_a_time(
    connection: Connection, topic: str, clients: int, seconds: float, size: int
) -> dict[str, float]:
    """Each client sends one message, waits for its acknowledgement, and so on."""
    settings = {**connection, "acks": "all", "linger.ms": 0, "enable.idempotence": False}
    counts = [0] * clients
    start = threading.Barrier(clients + 1)

    def one(number: int) -> None:
        producer = Producer(settings)
        value = b"x" * size
        producer.produce(topic, value)
        producer.flush(10)
        start.wait()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            producer.produce(topic, value)
            producer.flush(10)
            counts[number] += 1

    threads = [threading.Thread(target=one, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - began
    return {
        "messages": sum(counts),
        "bytes": sum(counts) * size,
        "seconds": elapsed,
        "per_s": sum(counts) / elapsed,
    }


CASES: dict[str, Callable[..., dict[str, float]]] = {
    "produce": produce,
    "consume": consume,
    "latency": latency,
    "one_at_a_time": one_at_a_time,
}


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    print(json.dumps(CASES[arguments.pop("case")](**arguments)))
