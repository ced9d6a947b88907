"""Client quotas hold real clients to their rates, and leave other clients alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import create_topic, new_producer
from brokerlab.kafka_jars import JavaTools
from brokerlab.raw_client import RawClient, set_quota

pytestmark = [pytest.mark.integration, pytest.mark.slow]
TOLERANCE = 0.2
WINDOW = {"quota.window.num": "3", "quota.window.size.seconds": "1"}
"""A short window, so that a burst of a full window takes only two seconds."""
BURST_S = 2.0
QUOTA_EXCEEDED = 89


def produce_for(bootstrap: str, topic: str, duration_s: float, client_id: str) -> tuple[float, list[float]]:
    """Produces as fast as the broker accepts. Returns bytes per second, and the throttle times in s."""
    throttles: list[float] = []
    acknowledged, is_over = 0, False

    def delivered(error: object, message: Any) -> None:
        nonlocal acknowledged
        if is_over:  # purged
            return
        assert error is None
        acknowledged += len(message.value())

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "linger.ms": 5,
            "batch.size": 16_384,
            "queue.buffering.max.kbytes": 256,
            "throttle_cb": lambda event: throttles.append(event.throttle_time),
        }
    )
    started = time.monotonic()
    while time.monotonic() - started < duration_s:
        try:
            producer.produce(topic, bytes(1000), on_delivery=delivered)
            producer.poll(0)
        except BufferError:
            producer.poll(0.05)
    elapsed = time.monotonic() - started
    rate, is_over = acknowledged / elapsed, True
    producer.purge()
    producer.flush(1)
    return rate, throttles


def test_a_producer_is_held_to_its_quota(start_broker: Callable[..., BrokerProcess]) -> None:
    broker = start_broker(settings=WINDOW)
    create_topic(broker.bootstrap, "held")
    limit, duration_s = 200_000, 8.0
    set_quota(broker.bootstrap, {"client-id": "held"}, producer_byte_rate=limit)
    rate, throttles = produce_for(broker.bootstrap, "held", duration_s, client_id="held")
    allowed = limit * (duration_s + BURST_S) / duration_s
    assert limit * (1 - TOLERANCE) <= rate <= allowed * (1 + TOLERANCE)
    assert max(throttles) > 0.1
    free, unthrottled = produce_for(broker.bootstrap, "held", 2.0, client_id="free")
    assert free > 10 * limit
    assert not any(unthrottled)
    set_quota(broker.bootstrap, {"client-id": "held"}, producer_byte_rate=None)
    released, _ = produce_for(broker.bootstrap, "held", 3.0, client_id="held")
    assert released > 5 * limit


def test_a_consumer_is_held_to_its_quota(start_broker: Callable[..., BrokerProcess]) -> None:
    broker = start_broker(settings=WINDOW)
    create_topic(broker.bootstrap, "held")
    producer = new_producer(broker.bootstrap, batch_size=16_384)
    for _ in range(20_000):
        producer.produce("held", bytes(1000), partition=0)
        producer.poll(0)
    assert producer.flush(30) == 0
    limit, duration_s = 500_000, 8.0
    set_quota(broker.bootstrap, {"user": "ANONYMOUS"}, consumer_byte_rate=limit)
    throttles: list[float] = []
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "held",
            "enable.auto.commit": False,
            "max.partition.fetch.bytes": 100_000,
            "queued.max.messages.kbytes": 200,
            "throttle_cb": lambda event: throttles.append(event.throttle_time),
        }
    )
    consumer.assign([TopicPartition("held", 0, 0)])
    received, started = 0, time.monotonic()
    while time.monotonic() - started < duration_s:
        for message in consumer.consume(100, 0.1):
            assert message.error() is None
            received += len(message.value())
    consumer.close()
    allowed = limit * (duration_s + BURST_S) / duration_s
    assert limit * (1 - TOLERANCE) <= received / duration_s <= allowed * (1 + TOLERANCE)
    assert throttles


def test_request_time_is_limited(start_broker: Callable[..., BrokerProcess]) -> None:
    broker = start_broker(settings=WINDOW)
    set_quota(broker.bootstrap, {"client-id": "raw-client"}, request_percentage=0.5)

    def longest_throttle_ms() -> float:
        with RawClient(broker.bootstrap) as raw:
            longest, ends_at = 0.0, time.monotonic() + 3
            while time.monotonic() < ends_at and not longest:
                answer = raw.call("describe_cluster", 1, include_cluster_authorized_operations=False)
                longest = max(longest, answer.throttle_time.total_seconds() * 1000)
            began = time.monotonic()
            raw.call("describe_cluster", 1, include_cluster_authorized_operations=False)
            waited_ms = (time.monotonic() - began) * 1000
        assert waited_ms >= longest * (1 - TOLERANCE) - 5, "the connection is muted for the throttle time"
        return longest

    assert longest_throttle_ms() > 0
    set_quota(broker.bootstrap, {"client-id": "raw-client"}, request_percentage=None)
    with RawClient(broker.bootstrap) as raw:
        throttles = [
            raw.call("describe_cluster", 1, include_cluster_authorized_operations=False).throttle_time
            for _ in range(300)
        ]
    assert not any(throttles)


def test_changes_of_topics_are_limited(start_broker: Callable[..., BrokerProcess]) -> None:
    settings = {"controller.quota.window.num": "2", "controller.quota.window.size.seconds": "1"}
    broker = start_broker(settings={**settings, "auto.create.topics.enable": "true"})
    set_quota(broker.bootstrap, {"client-id": "raw-client"}, controller_mutation_rate=5)
    with RawClient(broker.bootstrap) as raw:

        def create(*names: str, version: int = 7) -> tuple[list[int], float]:
            topics = [
                {
                    "name": name,
                    "num_partitions": 8,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [],
                }
                for name in names
            ]
            answer = raw.call("create_topics", version, topics=topics, timeout=10_000, validate_only=False)
            codes = {topic.name: int(topic.error_code) for topic in answer.topics}
            return [codes[name] for name in names], answer.throttle_time.total_seconds()

        codes, throttle_s = create("a", "b", "c")
        assert codes == [0, 0, QUOTA_EXCEEDED], "8 and 8 partitions exceed the burst of 10 of 5 per second"
        assert 0.5 < throttle_s <= 1.2
        began = time.monotonic()
        codes, throttle_s = create("c")
        assert time.monotonic() - began >= 0.5, "the connection was muted"
        assert codes == [0]
        codes, throttle_s = create("d", "e", version=5)
        assert codes == [0, 0], "clients of older versions do not know the error"
        assert throttle_s > 1
        deleted = raw.call("delete_topics", 6, topics=[{"name": "a", "topic_id": None}], timeout=10_000)
        assert [int(topic.error_code) for topic in deleted.responses] == [0]


@pytest.mark.java
def test_kafkas_config_command_sets_the_quota_of_a_running_client(
    start_broker: Callable[..., BrokerProcess], java: JavaTools
) -> None:
    broker = start_broker(settings=WINDOW)
    with RawClient(broker.bootstrap) as raw:

        def is_throttled() -> bool:
            answers = [
                raw.call("describe_cluster", 1, include_cluster_authorized_operations=False)
                for _ in range(300)
            ]
            return any(answer.throttle_time for answer in answers)

        assert not is_throttled()
        entity = ("--entity-type", "clients", "--entity-name", "raw-client")
        command = ("kafka.admin.ConfigCommand", "--bootstrap-server", broker.bootstrap, "--alter", *entity)
        java.check(*command, "--add-config", "request_percentage=0.05")
        # The burst of one window takes thousands of requests on a fast machine with a compiled build.
        assert any(is_throttled() for _ in range(20))
        java.check(*command, "--delete-config", "request_percentage")
        time.sleep(BURST_S)  # the last throttle ends
        assert not is_throttled()
