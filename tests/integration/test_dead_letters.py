"""Dead letters of share groups (KIP-1191) with librdkafka's share consumer, on one broker."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    AcknowledgeType,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import admin_client, connection

pytestmark = pytest.mark.integration
TIMEOUT_S = 60.0
AUTO_CREATE = {"errors.deadletterqueue.auto.create.topics.enable": "true"}
REJECTED = b"Offset rejected by client."
TOO_OFTEN = b"Offset delivery count exceeded the threshold."


def set_group(bootstrap: str, group: str, **settings: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    for future in admin_client(bootstrap).incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_S)


def share(
    bootstrap: str, topic: str, group: str, acknowledge: Callable[[Message], AcknowledgeType], count: int
) -> list[tuple[bytes | None, int | None]]:
    """Acknowledges `count` deliveries as told. Returns their values and delivery counts."""
    seen: list[tuple[bytes | None, int | None]] = []
    settings = {**connection(bootstrap), "group.id": group, "share.acknowledgement.mode": "explicit"}
    with ShareConsumer(settings) as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + TIMEOUT_S
        while len(seen) < count and time.monotonic() < deadline:
            for message in consumer.poll(1.0):
                seen.append((message.value(), message.delivery_count()))
                consumer.acknowledge(message, acknowledge(message))
            consumer.commit_sync(TIMEOUT_S)
    return seen


def read(bootstrap: str, topic: str, count: int, timeout_s: float = TIMEOUT_S) -> list[Message]:
    """Returns the first records of a topic's partition 0, which may be created meanwhile."""
    found: list[Message] = []
    consumer = Consumer({**connection(bootstrap), "group.id": "reader", "enable.auto.commit": False})
    deadline = time.monotonic() + timeout_s
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append(message)
        elif error.code() not in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            raise KafkaException(error)
        else:
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    consumer.close()
    return found


def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer(connection(bootstrap))
    for value in values:
        producer.produce(topic, value, key=b"key of " + value, headers=[("h", b"1"), ("h", None)])
    assert producer.flush(TIMEOUT_S) == 0


def headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    return [(str(name), value) for name, value in message.headers() or []]


def test_rejected_records_are_in_the_dead_letter_topic(start_broker: Callable[..., BrokerProcess]) -> None:
    broker = start_broker(AUTO_CREATE)
    bootstrap, topic, group = broker.bootstrap, "orders", "sharers"
    settings = {"share_auto_offset_reset": "earliest", "errors_deadletterqueue_topic_name": "dlq.orders"}
    set_group(bootstrap, group, **settings, errors_deadletterqueue_copy_record_enable="true")
    produce(bootstrap, topic, [b"good", b"bad", b"worse"])
    kinds = {b"good": AcknowledgeType.ACCEPT}
    seen = share(bootstrap, topic, group, lambda m: kinds.get(m.value() or b"", AcknowledgeType.REJECT), 3)
    assert seen == [(b"good", 1), (b"bad", 1), (b"worse", 1)]
    dead = read(bootstrap, "dlq.orders", 2)
    assert [(message.key(), message.value()) for message in dead] == [
        (b"key of bad", b"bad"),
        (b"key of worse", b"worse"),
    ]
    assert headers_of(dead[1]) == [
        ("h", b"1"),
        ("h", None),
        ("__dlq.errors.topic", b"orders"),
        ("__dlq.errors.partition", b"0"),
        ("__dlq.errors.offset", b"2"),
        ("__dlq.errors.group", b"sharers"),
        ("__dlq.errors.delivery.count", b"1"),
        ("__dlq.errors.message", REJECTED),
    ]
    assert abs(dead[0].timestamp()[1] / 1000 - time.time()) < TIMEOUT_S
