"""`tidelog transactions find-hanging`, `abort` and `force-terminate`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException, Producer

from brokerlab.batches import build_batch
from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import CLIENT_TIMEOUT_S, create_topic
from brokerlab.command_line import InProcessTools
from brokerlab.raw_client import RawClient

pytestmark = pytest.mark.integration
TRANSACTIONAL = 0x10
HOUR_MS = 3_600_000


def test_a_hanging_transaction_is_found_and_aborted(start_broker: Callable[..., BrokerProcess]) -> None:
    """The coordinator knows the second transaction, and not the first."""
    broker = start_broker({"transaction.partition.verification.enable": "false"})
    tools = InProcessTools(broker.bootstrap)
    create_topic(broker.bootstrap, "hung", 1)
    now_ms = time.time_ns() // 1_000_000
    batch = build_batch(
        [b"late"],
        producer_id=4_000,
        producer_epoch=3,
        base_sequence=0,
        attributes=TRANSACTIONAL,
        timestamps_ms=[now_ms - HOUR_MS],
    )
    with RawClient(broker.bootstrap) as client:
        assert client.produce("hung", batch, transactional_id="nobody").error_code == 0
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "known"})
    producer.init_transactions(CLIENT_TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("hung", b"open", partition=0, timestamp=now_ms - HOUR_MS)
    assert producer.flush(CLIENT_TIMEOUT_S) == 0

    shown = tools.rows("transactions", "describe-producers", "hung", "--partition", 0)
    assert len(shown) == 3
    assert ["4000", "3", "0"] in [[row[0], row[1], row[5]] for row in shown]
    (found,) = tools.rows("transactions", "find-hanging")[1:]
    assert (found[:4], found[5], found[7]) == (["hung", "0", "4000", "3"], "0", "60")
    assert tools.rows("transactions", "find-hanging", "--broker-id", 1)[1:] == [found]
    assert tools.rows("transactions", "find-hanging", "--max-transaction-timeout", 61)[1:] == []
    start = ("transactions", "abort", "hung", "--partition", 0, "--start-offset")
    assert "no open transaction of hung-0 starts at offset 5" in tools.refusal(*start, 5)
    assert "producer 4000 in hung-0 was aborted" in tools.output(*start, 0)
    assert tools.rows("transactions", "find-hanging", "--topic", "hung")[1:] == []
    assert "no open transaction" in tools.refusal(*start, 0)
    producer.commit_transaction(CLIENT_TIMEOUT_S)


def test_an_open_transaction_is_terminated_and_its_producer_fenced(bootstrap: str, topic: str) -> None:
    tools = InProcessTools(bootstrap)
    name = f"writer of {topic}"
    terminate = ("transactions", "force-terminate")
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(CLIENT_TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(CLIENT_TIMEOUT_S) == 0

    said = json.loads(tools.output(*terminate, name, "--format", "json"))
    assert (said["transactional_id"], said["partitions"]) == (name, [f"{topic}-0"])
    (described,) = json.loads(tools.output("transactions", "describe", name, "--format", "json"))
    assert (described["state"], described["timeout_ms"]) == ("Empty", 60_000)
    with pytest.raises(KafkaException, match=r"(?i)fenced|epoch"):
        producer.commit_transaction(CLIENT_TIMEOUT_S)
    refused = tools.refusal(*terminate, "--transactional-id", name)
    assert f"transactional id '{name}' has no transaction to abort: it is in Empty" in refused
    absent = tools.refusal(*terminate, "no-such-writer")
    assert "transactional id 'no-such-writer': it does not exist" in absent
    assert tools.run(*terminate).exit_code == 2
