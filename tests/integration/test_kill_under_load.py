"""A broker that is killed repeatedly under an idempotent producer loses no acknowledged record, repeats none
and keeps their order.
"""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import dataclass, field

import pytest
from confluent_kafka import KafkaError, Message

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import consume_messages, create_topic, end_offset, new_producer

pytestmark = pytest.mark.integration
FEW_KILLS = 3
KILLS = int(os.environ.get("KILLS", "10"))
PARTITIONS = 4
MESSAGES_PER_SECOND = 4000
VALUE_BYTES = 200
LEAST_UP_S, MOST_UP_S = 0.15, 1.2
DRAIN_TIMEOUT_S = 60.0


@dataclass
class Load:
    """A thread that produces numbered messages round robin over the partitions and records their outcome."""

    bootstrap: str
    topic: str
    sent: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    undelivered: int = -1

    def __post_init__(self) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._is_over.set()
        self._thread.join(DRAIN_TIMEOUT_S + 30)
        assert not self._thread.is_alive()

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(f"{error} for {message.value()[:20]!r}")
            return
        place = (message.partition(), message.offset())
        if place in self.acknowledged:
            self.failures.append(f"offset {place} was acknowledged twice")
        self.acknowledged[place] = message.value()

    def _run(self) -> None:
        producer = new_producer(
            self.bootstrap,
            enable_idempotence=True,
            acks="all",
            linger_ms=5,
            batch_num_messages=50,
            message_timeout_ms=180_000,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=100,
            retry_backoff_ms=20,
            queue_buffering_max_messages=200_000,
        )
        began = time.monotonic()
        total = 0
        while not self._is_over.is_set():
            allowed = int((time.monotonic() - began) * MESSAGES_PER_SECOND)
            while total < allowed and len(producer) < 50_000:
                partition = total % PARTITIONS
                value = b"%d-%d-" % (partition, self.sent[partition])
                producer.produce(
                    self.topic,
                    value.ljust(VALUE_BYTES, b"x"),
                    partition=partition,
                    on_delivery=self._on_delivery,
                )
                self.sent[partition] += 1
                total += 1
            producer.poll(0.005)
        self.undelivered = producer.flush(DRAIN_TIMEOUT_S)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kills", [pytest.param(FEW_KILLS, id="few"), pytest.param(KILLS, id="many", marks=pytest.mark.slow)]
)
def test_no_acknowledged_record_is_lost_or_repeated(own_broker: BrokerProcess, kills: int) -> None:
    create_topic(own_broker.bootstrap, "t", PARTITIONS, {"segment.bytes": "4194304"})
    chance = random.Random(20240607)
    load = Load(own_broker.bootstrap, "t")
    load.start()
    try:
        for _ in range(kills):
            time.sleep(chance.uniform(LEAST_UP_S, MOST_UP_S))
            own_broker.kill()
            own_broker.start()
            acknowledged, deadline = len(load.acknowledged), time.monotonic() + 30
            while len(load.acknowledged) == acknowledged:
                assert time.monotonic() < deadline, (
                    f"no acknowledgement since the restart: {load.failures[:3]}"
                )
                time.sleep(0.01)
    finally:
        load.finish()
    assert load.failures == []
    assert load.undelivered == 0
    assert len(load.acknowledged) == sum(load.sent)
    for partition in range(PARTITIONS):
        count = load.sent[partition]
        assert end_offset(own_broker.bootstrap, "t", partition) == count, (
            "more offsets than messages: duplicates"
        )
        messages = consume_messages(own_broker.bootstrap, "t", count, [partition], check_crcs=True)
        numbers = [int(m.value().split(b"-")[1]) for m in messages]
        assert numbers == list(range(count))
        assert all(load.acknowledged[partition, m.offset()] == m.value() for m in messages)
