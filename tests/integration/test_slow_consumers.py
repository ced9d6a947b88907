"""A thousand slow consumers cost the broker less than 100 MB and do not slow others down."""

from __future__ import annotations

import resource
import socket
import time

import psutil
import pytest

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import consume_messages, create_topic, produce_values
from brokerlab.raw_client import encode_request

pytestmark = [pytest.mark.integration, pytest.mark.slow]
CONSUMERS = 1000
LIMIT_BYTES = 100 * 1024 * 1024
FETCH = encode_request(
    "fetch",
    12,
    1,
    {
        "replica_id": -1,
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 50 * 1024 * 1024,
        "topics": [
            {
                "topic": "t",
                "partitions": [
                    {"partition": p, "fetch_offset": 0, "partition_max_bytes": 1024 * 1024} for p in range(4)
                ],
            }
        ],
        "forgotten_topics_data": [],
    },
)


METADATA = encode_request("metadata", 1, 1, {"topics": None})
GREEDY_LIMIT_BYTES = 30 * 1024 * 1024
MOST_READ_BYTES = 40 * 1024 * 1024  # the socket buffers and a reserve


@pytest.fixture
def many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONSUMERS + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"only {hard} open files are allowed here")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connect_slowly_reading(port: int) -> socket.socket:
    consumer = socket.socket()
    consumer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    consumer.settimeout(20)
    consumer.connect(("127.0.0.1", port))
    consumer.sendall(FETCH)
    return consumer


def memory_bytes(broker: BrokerProcess) -> int:
    """Returns the private memory of the broker and its children, without unmapped page cache."""
    process = psutil.Process(broker.pid)
    return sum(p.memory_full_info().uss for p in [process, *process.children(recursive=True)])


@pytest.mark.parametrize("batch", [10, 10_000], ids=["small-batches", "large-batches"])
def test_memory_of_a_thousand_slow_consumers(own_broker: BrokerProcess, many_files: None, batch: int) -> None:
    create_topic(own_broker.bootstrap, "t", 4)
    for partition in range(4):
        produce_values(
            own_broker.bootstrap, "t", [b"x" * 1000] * 3000, partition=partition, batch_num_messages=batch
        )
    consume_messages(own_broker.bootstrap, "t", 12_000, range(4))
    idle = memory_bytes(own_broker)
    consumers = []
    try:
        consumers.extend(connect_slowly_reading(own_broker.port) for _ in range(CONSUMERS))
        for consumer in consumers:
            assert len(consumer.recv(100)) > 0
        peak = 0
        for _ in range(6):
            time.sleep(0.5)
            peak = max(peak, memory_bytes(own_broker))
            for consumer in consumers[::10]:
                consumer.recv(2000)
        assert peak - idle < LIMIT_BYTES, f"{(peak - idle) / 1e6:.0f} MB above idle"
        began = time.monotonic()
        assert len(consume_messages(own_broker.bootstrap, "t", 3000)) == 3000
        assert time.monotonic() - began < 15
    finally:
        for consumer in consumers:
            consumer.close()
    print(f"{(peak - idle) / 1e6:.1f} MB above idle {idle / 1e6:.1f} MB")


@pytest.mark.parametrize("request_bytes", [METADATA, FETCH], ids=["metadata", "fetch"])
def test_a_client_that_never_reads_is_throttled(own_broker: BrokerProcess, request_bytes: bytes) -> None:
    """The broker stops reading from the client: the client's socket fills, the broker's memory does not."""
    create_topic(own_broker.bootstrap, "t", 4)
    produce_values(own_broker.bootstrap, "t", [b"x" * 1000] * 3000)
    idle = memory_bytes(own_broker)
    with socket.create_connection(("127.0.0.1", own_broker.port)) as greedy:
        greedy.setblocking(False)
        block, sent, end = request_bytes * 500, 0, time.monotonic() + 4
        while time.monotonic() < end:
            try:
                sent += greedy.send(block)
            except BlockingIOError:
                time.sleep(0.05)
        assert memory_bytes(own_broker) - idle < GREEDY_LIMIT_BYTES
        assert sent < MOST_READ_BYTES, "the broker continued to read"
        produce_values(own_broker.bootstrap, "t", [b"others are served"])
