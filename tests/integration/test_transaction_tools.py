"""Kafka's own tools for transactions: kafka-transactions.sh (list, describe, find-hanging, abort), the
performance producer with transactions, and the formatter of `__transaction_state`.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from brokerlab.batches import build_batch
from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import consume_messages, create_topic
from brokerlab.kafka_jars import JavaTools
from brokerlab.raw_client import RawClient

pytestmark = [pytest.mark.integration, pytest.mark.java, pytest.mark.slow]
TOOL = "TransactionsCommand"
TRANSACTIONAL = 0x10


def table(said: str) -> list[dict[str, str]]:
    """Parses the tool's output: names and values that tabs separate."""
    header, *rows = [[cell.strip() for cell in line.split("\t")] for line in said.splitlines() if line]
    return [dict(zip(header, row, strict=False)) for row in rows]


@pytest.fixture(scope="module")
def name() -> str:
    return f"open-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def open_transaction(bootstrap: str, topic: str, name: str) -> Iterator[str]:
    """Returns a topic in which a producer has an open transaction."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(10)
    yield topic
    producer.abort_transaction(30)


def test_open_transaction_is_listed_and_described(
    java: JavaTools, bootstrap: str, open_transaction: str, name: str
) -> None:
    server = ("--bootstrap-server", bootstrap)
    listed = {row["TransactionalId"]: row for row in table(java.check(TOOL, *server, "list"))}
    assert listed[name]["TransactionState"] == "Ongoing"
    (described,) = table(java.check(TOOL, *server, "describe", "--transactional-id", name))
    assert described["TransactionState"] == "Ongoing"
    assert described["TopicPartitions"] == f"{open_transaction}-0"
    assert described["ProducerId"] == listed[name]["ProducerId"]
    (active,) = table(
        java.check(TOOL, *server, "describe-producers", "--topic", open_transaction, "--partition", "0")
    )
    assert (active["ProducerId"], active["CurrentTransactionStartOffset"]) == (described["ProducerId"], "0")


def test_producer_of_java_in_transactions(java: JavaTools, bootstrap: str, topic: str) -> None:
    """A KIP-890 client uses a new epoch for each transaction."""
    count, transactional_id = 5_000, f"perf-{uuid.uuid4().hex[:8]}"
    java.check(
        "ProducerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(count)),
        *("--record-size", "100", "--throughput", "-1"),
        *("--transactional-id", transactional_id, "--transaction-duration-ms", "50"),
    )
    server = ("--bootstrap-server", bootstrap)
    (described,) = table(java.check(TOOL, *server, "describe", "--transactional-id", transactional_id))
    assert described["TransactionState"] == "CompleteCommit"
    assert int(described["ProducerEpoch"]) > 1
    messages = consume_messages(bootstrap, topic, count, isolation_level="read_committed")
    assert len(messages) == count


def test_hanging_transaction_is_found_and_aborted(
    java: JavaTools, start_broker: Callable[..., BrokerProcess]
) -> None:
    """The coordinator does not know the transaction. A late batch can cause this where leaders
    do not verify.
    """
    broker = start_broker({"transaction.partition.verification.enable": "false"})
    server = ("--bootstrap-server", broker.bootstrap)
    create_topic(broker.bootstrap, "hung", 1)
    batch = build_batch(
        [b"late"],
        producer_id=4_000,
        producer_epoch=3,
        base_sequence=0,
        attributes=TRANSACTIONAL,
        timestamps_ms=[round(time.time() * 1000) - 3_600_000],
    )
    with RawClient(broker.bootstrap) as client:
        assert client.produce("hung", batch, transactional_id="nobody").error_code == 0
    (found,) = table(java.check(TOOL, *server, "find-hanging", "--broker-id", "1"))
    assert (found["Topic"], found["ProducerId"], found["StartOffset"]) == ("hung", "4000", "0")
    java.check(TOOL, *server, "abort", "--topic", "hung", "--partition", "0", "--start-offset", "0")
    assert table(java.check(TOOL, *server, "find-hanging", "--broker-id", "1")) == []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("hung", b"after")
    assert producer.flush(10) == 0
    messages = consume_messages(broker.bootstrap, "hung", 1, isolation_level="read_committed")
    assert [message.value() for message in messages] == [b"after"]


def test_log_of_transactions_is_read_by_kafkas_formatter(
    java: JavaTools, bootstrap: str, open_transaction: str, name: str
) -> None:
    said = java.check(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", "__transaction_state", "--from-beginning"),
        *("--formatter", "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"),
        *("--timeout-ms", "8000"),
        timeout_s=90,
    )
    assert f'"transactionalId":"{name}"' in said
    assert f'"topic":"{open_transaction}"' in said


def test_log_of_offsets_is_read_by_kafkas_formatter(java: JavaTools, bootstrap: str, topic: str) -> None:
    """Covers plain commits and those of a transaction."""
    group = f"g-{uuid.uuid4().hex[:8]}"
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, 0, 41)], asynchronous=False)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": group})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [TopicPartition(topic, 0, 42)], consumer.consumer_group_metadata(), 30
    )
    producer.commit_transaction(30)
    consumer.close()
    said = java.check(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", "__consumer_offsets", "--from-beginning"),
        *("--formatter", "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"),
        *("--isolation-level", "read_committed", "--timeout-ms", "8000"),
        timeout_s=90,
    )
    written = re.findall(rf'"group":"{group}","topic":"{topic}","partition":0}}}}.*?"offset":(\d+)', said)
    assert written == ["41", "42"]
