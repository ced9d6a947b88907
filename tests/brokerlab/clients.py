"""Short functions for what most tests do with librdkafka."""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tidelog.sasl.jaas import parse_jaas

CLIENT_TIMEOUT_S = 30.0
_security: dict[str, dict[str, Any]] = {}
"""The settings of TLS and SASL by bootstrap servers."""


def secure(bootstrap: str, settings: Mapping[str, Any]) -> None:
    """Lets all clients of these brokers that this process starts use the settings of TLS and SASL."""
    _security[bootstrap] = dict(settings)


def connection(bootstrap: str) -> dict[str, Any]:
    """Returns librdkafka's settings to connect to these brokers."""
    return {"bootstrap.servers": bootstrap, **_security.get(bootstrap, {})}


@functools.lru_cache(maxsize=4)
def admin_client(bootstrap: str) -> AdminClient:
    """Returns one client for each broker and keeps it, because futures of a garbage-collected client never
    end.
    """
    return AdminClient({**connection(bootstrap), "log_level": 0})


def librdkafka_settings(bootstrap: str, properties: Mapping[str, str]) -> dict[str, Any]:
    """Returns the settings of librdkafka for a file of Kafka's Java settings with TLS and a password."""
    login = parse_jaas(properties["sasl.jaas.config"]).options
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": properties["security.protocol"],
        "sasl.mechanism": properties["sasl.mechanism"],
        "sasl.username": login["username"],
        "sasl.password": login["password"],
        "ssl.ca.location": properties["ssl.truststore.location"],
        "log_level": 0,
    }


def create_topic(
    bootstrap: str,
    name: str,
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
    replication_factor: int = 1,
) -> None:
    """Creates a topic and waits until every partition has a leader."""
    admin = admin_client(bootstrap)
    new = NewTopic(
        name, num_partitions=partitions, replication_factor=replication_factor, config=dict(configs or {})
    )
    admin.create_topics([new])[name].result(CLIENT_TIMEOUT_S)
    deadline = time.monotonic() + CLIENT_TIMEOUT_S
    while time.monotonic() < deadline:
        # The code does not call list_topics(name), because librdkafka repeats the query later and would
        # create the topic again.
        described = admin.describe_topics(TopicCollection([name]))[name]
        if described.exception(CLIENT_TIMEOUT_S) is None:
            found = described.result().partitions
            if len(found) == partitions and all(p.leader is not None and p.leader.id >= 0 for p in found):
                return
        time.sleep(0.02)
    raise TimeoutError(f"topic {name} has no leaders")


def new_producer(bootstrap: str, **settings: Any) -> Producer:
    """Returns a producer. `_` in the name of a setting means `.`."""
    return Producer({**connection(bootstrap), **{k.replace("_", "."): v for k, v in settings.items()}})


def new_consumer(bootstrap: str, **settings: Any) -> Consumer:
    """Returns a consumer for assign(), whose group id is never used."""
    return Consumer(
        {
            **connection(bootstrap),
            "group.id": f"unused-{uuid.uuid4().hex[:8]}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            **{k.replace("_", "."): v for k, v in settings.items()},
        }
    )


def produce_values(
    bootstrap: str, topic: str, values: Iterable[bytes], partition: int = 0, **settings: Any
) -> list[Message]:
    """Produces in order, waits for all, and returns the messages with their offsets. Raises an error if any
    message fails.
    """
    delivered: list[Message] = []
    failed: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is None:
            delivered.append(message)
        else:
            failed.append(error)

    producer = new_producer(bootstrap, **settings)
    for value in values:
        while True:
            try:
                producer.produce(topic, value, partition=partition, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    left = producer.flush(CLIENT_TIMEOUT_S)
    assert left == 0, f"{left} messages were neither delivered nor failed in {CLIENT_TIMEOUT_S} s"
    assert not failed, f"{len(failed)} messages failed, first: {failed[0]}"
    return delivered


def consume_messages(
    bootstrap: str,
    topic: str,
    count: int,
    partitions: Iterable[int] = (0,),
    offset: int = OFFSET_BEGINNING,
    timeout_s: float = CLIENT_TIMEOUT_S,
    **settings: Any,
) -> list[Message]:
    """Returns at least `count` messages, including others that came with the last one. Raises
    TimeoutError.
    """
    consumer = new_consumer(bootstrap, **settings)
    try:
        consumer.assign([TopicPartition(topic, p, offset) for p in partitions])
        return poll_messages(consumer, count, timeout_s)
    finally:
        consumer.close()


def poll_messages(consumer: Consumer, count: int, timeout_s: float = CLIENT_TIMEOUT_S) -> list[Message]:
    messages: list[Message] = []
    deadline = time.monotonic() + timeout_s
    while len(messages) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(messages)} of {count} messages in {timeout_s} s")
        for message in consumer.consume(max(1, count - len(messages)), 0.2):
            error = message.error()
            assert error is None, error
            messages.append(message)
    return messages


def end_offset(bootstrap: str, topic: str, partition: int = 0) -> int:
    consumer = new_consumer(bootstrap)
    try:
        end: int = consumer.get_watermark_offsets(TopicPartition(topic, partition), CLIENT_TIMEOUT_S)[1]
        return end
    finally:
        consumer.close()
