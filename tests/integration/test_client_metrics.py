"""Metrics that Kafka's Java producer and librdkafka push, selected with Kafka's own tool (KIP-714)."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable

import pytest

from brokerlab.broker_process import BrokerProcess, free_port
from brokerlab.clients import create_topic
from brokerlab.kafka_jars import JavaTools

pytestmark = [pytest.mark.integration, pytest.mark.java]
WAIT_S = 60
TOOL = "ClientMetricsCommand"
RDKAFKA = """
import sys, time
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": sys.argv[1], "client.id": "rdkafka-app"})
for number in range(600):
    producer.produce("t", b"v")
    producer.poll(0.1)
"""


def _until_shown(port: int, client_id: str, metric: str) -> None:
    end = time.monotonic() + WAIT_S
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        if any(line.startswith(metric) and f'client_id="{client_id}"' in line for line in lines):
            return
        assert time.monotonic() < end, [
            line for line in lines if "client_metrics" in line or "_client_" in line
        ]
        time.sleep(0.2)


@pytest.fixture
def receiver(start_broker: Callable[..., BrokerProcess], java: JavaTools) -> tuple[str, int]:
    """Returns the addresses of a broker with a subscription: for clients and of its metrics."""
    port = free_port()
    broker = start_broker(
        {
            "tidelog.client.metrics.enable": "true",
            "tidelog.metrics.listener": f"127.0.0.1:{port}",
        }
    )
    server = ("--bootstrap-server", broker.bootstrap)
    java.check(TOOL, *server, "--alter", "--name", "all", "--metrics", "*", "--interval", "1000")
    assert java.check(TOOL, *server, "--list").split() == ["all"]
    assert "interval.ms=1000" in java.check(TOOL, *server, "--describe", "--name", "all")
    create_topic(broker.bootstrap, "t", 1, {})
    return broker.bootstrap, port


@pytest.mark.parametrize("client", ["java", "librdkafka"])
def test_a_client_pushes_its_metrics(receiver: tuple[str, int], java: JavaTools, client: str) -> None:
    bootstrap, port = receiver
    if client == "java":
        command = java.command(
            "ProducerPerformance",
            *("--topic", "t", "--num-records", "100000", "--record-size", "10", "--throughput", "100"),
            *("--producer-props", f"bootstrap.servers={bootstrap}", "client.id=java-app"),
        )
        client_id, metric = "java-app", "kafka_client_producer_record_send_total"
    else:
        command = [sys.executable, "-c", RDKAFKA, bootstrap]
        client_id, metric = "rdkafka-app", "kafka_client_producer_connection_creation_total"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _until_shown(port, client_id, metric)
    finally:
        process.kill()
        process.wait()
