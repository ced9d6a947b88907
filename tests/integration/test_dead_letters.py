"""Dead letters of share groups (KIP-1191) with librdkafka's share consumer, on one broker."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

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
from brokerlab.command_line import Tools
from tidelog.client.admin import dead_letters
from tidelog.client.admin.dead_letters import MAX_BATCH_RECORDS, Redrive, summarize
from tidelog.client.admin.groups import commit_offsets
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.threads.topic_reader import plain_record, reading, sound_records
from tidelog.model.dead_letters import HEADERS
from tidelog.records.record import Record

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


def test_the_limit_of_deliveries_and_the_way_back(start_broker: Callable[..., BrokerProcess]) -> None:
    """Dead letters without a copy. `tidelog dlq` finds their records in the source topic."""
    broker = start_broker(AUTO_CREATE | {"group.share.min.delivery.count.limit": "2"})
    bootstrap, topic, group = broker.bootstrap, "orders", "sharers"
    settings = {"share_auto_offset_reset": "earliest", "errors_deadletterqueue_topic_name": "dlq.orders"}
    set_group(bootstrap, group, **settings, share_delivery_count_limit="2")
    values = [b"released", b"rejected"]
    produce(bootstrap, topic, values)
    kinds = {b"released": AcknowledgeType.RELEASE, b"rejected": AcknowledgeType.REJECT}
    seen = share(bootstrap, topic, group, lambda message: kinds[message.value() or b""], 3)
    assert sorted(seen) == [(b"rejected", 1), (b"released", 1), (b"released", 2)]
    dead = read(bootstrap, "dlq.orders", 2)
    found = {
        (dict(headers_of(m))["__dlq.errors.offset"], dict(headers_of(m))["__dlq.errors.message"])
        for m in dead
    }
    assert found == {(b"0", TOO_OFTEN), (b"1", REJECTED)}
    assert all(message.key() is None and message.value() is None for message in dead)

    tools = Tools(bootstrap)
    rows = [line.split("\t") for line in tools.output("dlq", "list").splitlines()]
    assert rows[0] == ["group", "topic", "reason", "records", "redriven", "oldest"]
    assert [row[:5] for row in rows[1:]] == [
        [group, "dlq.orders", TOO_OFTEN.decode(), "1", "0"],
        [group, "dlq.orders", REJECTED.decode(), "1", "0"],
    ]
    dry = tools.output("dlq", "redrive", group, "--dry-run")
    assert dry == "topic\tpartition\trecords\norders\t0\t2\n"
    assert "1 record sent back" in tools.output("dlq", "redrive", group, "--limit", 1)
    assert "1 record sent back" in tools.output("dlq", "redrive", group)
    assert "0 records sent back" in tools.output("dlq", "redrive", group)
    back = read(bootstrap, topic, 4)[2:]
    offsets = [int(dict(headers_of(message))["__dlq.errors.offset"] or b"") for message in dead]
    assert [message.value() for message in back] == [values[at] for at in offsets]
    assert [message.key() for message in back] == [b"key of " + values[at] for at in offsets]
    assert all(headers_of(message) == [("h", b"1"), ("h", None)] for message in back)
    rows = [line.split("\t") for line in tools.output("dlq", "list").splitlines()]
    assert [row[3:] for row in rows[1:]] == [["1", "1", ""], ["1", "1", ""]]
    assert "has no dead letter topic" in tools.refusal("dlq", "redrive", "others")


@pytest.mark.slow
def test_records_wait_for_a_topic_that_may_be_used(start_broker: Callable[..., BrokerProcess]) -> None:
    broker = start_broker()
    bootstrap, topic, group = broker.bootstrap, "orders", "sharers"
    tools, setting = Tools(bootstrap), "errors.deadletterqueue.topic.name"
    refused = tools.refusal("config", "alter", "--group", group, "--add-config", f"{setting}=orders")
    assert "errors.deadletterqueue.topic.name.prefix" in refused
    settings = f"{setting}=dlq.orders,share.auto.offset.reset=earliest"
    copies = "errors.deadletterqueue.copy.record.enable=true"
    tools.output("config", "alter", "--group", group, "--add-config", f"{settings},{copies}")
    assert f"{setting}\tdlq.orders" in tools.output("config", "describe", "--group", group)
    produce(bootstrap, topic, [b"bad", b"good"])
    kinds = {b"bad": AcknowledgeType.REJECT}
    seen = share(bootstrap, topic, group, lambda m: kinds.get(m.value() or b"", AcknowledgeType.ACCEPT), 2)
    assert seen == [(b"bad", 1), (b"good", 1)]
    tools.output("topic", "create", "dlq.orders", "--partitions", 1)
    assert not read(bootstrap, "dlq.orders", 1, 3.0), "the topic does not allow dead letters"
    broker.kill()
    broker.start()
    tools.output(
        "config", "alter", "--topic", "dlq.orders", "--add-config", "errors.deadletterqueue.group.enable=true"
    )
    (message,) = read(bootstrap, "dlq.orders", 1)
    assert message.value() == b"bad", "the new leader continues, though no member fetches"
    produce(bootstrap, topic, [b"new"])
    assert share(bootstrap, topic, group, lambda _: AcknowledgeType.ACCEPT, 1) == [(b"new", 1)]
    assert not read(bootstrap, "dlq.orders", 2, 2.0)[1:], "it is copied once"


def dead_letter(topic: str, partition: int, offset: int, group: str) -> list[tuple[str, bytes]]:
    texts = (topic, str(partition), str(offset), group, "1", REJECTED.decode())
    return [("own", b"header"), *((name, text.encode()) for name, text in zip(HEADERS, texts, strict=True))]


def test_an_interrupted_redrive_leaves_nothing_out(
    bootstrap: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The redrive dies between the batches of a partition and the commit of their progress."""
    source, dead, group = new_topic(partitions=2), new_topic(partitions=2), f"g-{uuid.uuid4().hex[:8]}"
    producer = Producer(connection(bootstrap))
    count = 3 * MAX_BATCH_RECORDS
    for number in range(count):
        headers = dead_letter(source, number % 2, number, group)
        producer.produce(dead, b"%d" % number, b"key", partition=number % 2, headers=headers)
        producer.produce(dead, b"of another", b"key", 0, headers=dead_letter(source, 0, 0, "another"))
    producer.produce(dead, b"no dead letter", partition=1)
    assert producer.flush(TIMEOUT_S) == 0
    commits: list[int] = []

    def commit_or_die(*arguments: Any) -> None:
        if len(commits) == 1:
            raise ClientError("the redrive dies")
        commits.append(1)
        commit_offsets(*arguments)

    with Cluster(bootstrap) as cluster:
        with monkeypatch.context() as patch:
            patch.setattr(dead_letters, "commit_offsets", commit_or_die)
            first = Redrive(cluster, group, dead)
            with pytest.raises(ClientError):
                first.run(1)
        second = Redrive(cluster, group, dead)
        second.run(2)
        last = Redrive(cluster, group, dead)
        last.run(4)
        assert not last.sent
        twice = sum(first.sent.values()) + sum(second.sent.values()) - count
        assert 0 < twice <= MAX_BATCH_RECORDS
        found: dict[int, list[Record]] = {0: [], 1: []}
        with reading(cluster, source, {0: 0, 1: 0}) as reader:
            while sum(map(len, found.values())) < count + twice:
                batch = reader.poll()
                if batch is not None:
                    found[batch.partition] += map(plain_record, sound_records(batch))
        summaries = {summary.group: summary for summary in summarize(cluster, dead)}
    for partition, records in found.items():
        seen = list(dict.fromkeys(int(record.value or b"") for record in records))
        assert seen == list(range(partition, count, 2)), "every record, in order"
        assert {record.headers for record in records} == {(("own", b"header"),)}
    assert (summaries[group].records, summaries[group].redriven) == (count, count)
    assert (summaries["another"].redriven, summaries[""].reason) == (0, "not a dead letter")
