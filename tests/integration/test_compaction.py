"""A compacted topic under load whose broker is killed repeatedly during compaction. The newest acknowledged
value of each key survives, offsets do not change, and a transaction is visible as a whole.
"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message, TopicPartition

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import create_topic, new_consumer, new_producer

pytestmark = [pytest.mark.integration, pytest.mark.slow]
KILLS = int(os.environ.get("COMPACTION_KILLS", "4"))
KEYS = 200
MESSAGES_PER_SECOND = 3_000
DRAIN_TIMEOUT_S = 60.0
LIMIT_S = 90.0
TOPIC = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "100",
}
SETTINGS = {"log.cleaner.backoff.ms": "50", "group.initial.rebalance.delay.ms": "0"}


class KeyedLoad:
    """A thread that writes numbered values to keys in turn, with all codecs, and records the
    acknowledgements.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self.acknowledged: dict[bytes, tuple[int, int]] = {}  # key -> offset, number
        self.failures: list[str] = []
        self.sent = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self) -> None:
        self._is_over.set()
        self._thread.join(DRAIN_TIMEOUT_S + 30)
        assert not self._thread.is_alive()

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        self.acknowledged[message.key()] = (message.offset(), int(message.value()[:10]))

    def _run(self) -> None:
        producers = [
            new_producer(
                self._bootstrap,
                enable_idempotence=True,
                compression_type=codec,
                linger_ms=5,
                message_timeout_ms=int(DRAIN_TIMEOUT_S * 1000),
            )
            for codec in ("none", "gzip", "snappy", "lz4", "zstd")
        ]
        while not self._is_over.is_set():
            # One producer writes all values of a key, so they are in order.
            key = self.sent % KEYS
            producer = producers[key % len(producers)]
            value = b"%010d" % self.sent + bytes(250)
            producer.produce(self._topic, value, b"key-%d" % key, on_delivery=self._on_delivery)
            self.sent += 1
            if not self.sent % (MESSAGES_PER_SECOND // 100):
                for each in producers:
                    each.poll(0)
                time.sleep(0.01)
        for each in producers:
            assert each.flush(DRAIN_TIMEOUT_S) == 0


def read_everything(bootstrap: str, topic: str, isolation_level: str = "read_uncommitted") -> list[Message]:
    consumer = new_consumer(bootstrap, enable_partition_eof=True, isolation_level=isolation_level)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[Message] = []
    began = time.monotonic()
    while time.monotonic() - began < LIMIT_S:
        for message in consumer.consume(10_000, 0.5):
            if message.error() is None:
                found.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                consumer.close()
                return found
    raise AssertionError(f"no end of {topic} after {len(found)} messages")


def compactions(broker: BrokerProcess) -> int:
    return broker.log_text().count("log compacted")


def workers_of(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if "cleaning" in " ".join(child.cmdline())]


def test_killed_while_it_compacts(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    broker = BrokerProcess(tmp_path / "data", tmp_path / "log", SETTINGS)
    broker.start()
    try:
        create_topic(broker.bootstrap, "t", configs=TOPIC)
        load = KeyedLoad(broker.bootstrap, "t")
        for _ in range(KILLS):
            before, began = compactions(broker), time.monotonic()
            while compactions(broker) < before + 2:
                assert time.monotonic() - began < LIMIT_S, "nothing is compacted"
                time.sleep(0.02)
            time.sleep(chance.random() * 0.3)
            workers = workers_of(broker.pid)
            broker.kill()
            for worker in workers:
                worker.wait(LIMIT_S)
            broker.start()
        load.finish()
        assert not load.failures
        found = read_everything(broker.bootstrap, "t")
        offsets = [message.offset() for message in found]
        assert offsets == sorted(set(offsets))
        assert len(found) < load.sent / 2, "it was compacted"
        newest = {message.key(): (message.offset(), int(message.value()[:10])) for message in found}
        assert newest == load.acknowledged
        assert broker.stop() == 0
    finally:
        if broker.is_running():
            broker.kill()


def test_transactions_stay_whole(tmp_path: Path) -> None:
    """Each transaction writes one number to all keys, and every third transaction is aborted. After
    compaction, a read_committed reader finds the last committed number for each key.
    """
    broker = BrokerProcess(tmp_path / "data", tmp_path / "log", SETTINGS)
    broker.start()
    try:
        create_topic(broker.bootstrap, "t", configs=TOPIC | {"delete.retention.ms": "0"})
        producer = new_producer(broker.bootstrap, transactional_id="x", linger_ms=5)
        producer.init_transactions(30)
        began, number, before = time.monotonic(), 0, compactions(broker)
        while compactions(broker) < before + 3 or number % 3 == 0:
            assert time.monotonic() - began < LIMIT_S, "nothing is compacted"
            producer.begin_transaction()
            for key in range(KEYS):
                producer.produce("t", b"%010d" % number + bytes(1000), b"key-%d" % key)
            if number % 3 == 2:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
                committed = number
            number += 1
        found = read_everything(broker.bootstrap, "t", "read_committed")
        newest = {message.key(): int(message.value()[:10]) for message in found}
        assert newest == {b"key-%d" % key: committed for key in range(KEYS)}
        assert not [n for n in {int(m.value()[:10]) for m in found} if n % 3 == 2], "nothing aborted is seen"
        assert len(found) < number * KEYS / 2, "it was compacted"
    finally:
        broker.kill()
