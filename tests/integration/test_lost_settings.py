"""Topics of a broker whose metadata was lost: nothing is deleted whose settings are not known."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import CLIENT_TIMEOUT_S, consume_messages, create_topic, new_consumer, new_producer
from brokerlab.command_line import Tools

pytestmark = pytest.mark.integration
QUICK_DELETION = {
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "100",
    "log.cleaner.backoff.ms": "100",
}
YEARS_AGO_MS = 1_500_000_000_000
RECORDS = 20
OLD_TOPICS = {
    "endless": {"retention.ms": "-1"},
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1"},
}


def produce_old(bootstrap: str, topic: str) -> None:
    """Produces records with the same key and old times, each in a batch of its own."""
    producer = new_producer(bootstrap)
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, b"key", 0, timestamp=YEARS_AGO_MS)
        assert producer.flush(CLIENT_TIMEOUT_S) == 0


def start_offset(bootstrap: str, topic: str) -> int:
    consumer = new_consumer(bootstrap)
    try:
        low: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), CLIENT_TIMEOUT_S)[0]
        return low
    finally:
        consumer.close()


def await_deletion(bootstrap: str, topic: str) -> None:
    deadline_s = time.monotonic() + 30
    while start_offset(bootstrap, topic) < RECORDS:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_topics_without_known_settings_keep_all_records_until_confirmed(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker()  # it deletes nothing for 30 s
    for topic, configs in OLD_TOPICS.items():
        create_topic(broker.bootstrap, topic, configs=configs)
        produce_old(broker.bootstrap, topic)
    assert broker.stop() == 0
    shutil.rmtree(broker.data_dir / "metadata")
    for file in broker.data_dir.rglob("topic-settings.json"):
        file.unlink()
    broker.settings |= QUICK_DELETION
    broker.start()
    tools = Tools(broker.bootstrap)
    for _ in range(2):  # also after a restart
        create_topic(broker.bootstrap, "new")
        produce_old(broker.bootstrap, "new")
        await_deletion(broker.bootstrap, "new")
        for topic in OLD_TOPICS:
            assert len(consume_messages(broker.bootstrap, topic, RECORDS)) == RECORDS
        unconfirmed = tools.output("topic", "confirm-settings").splitlines()
        assert [line.split("\t") for line in unconfirmed[1:]] == [
            ["compacted", "delete", "604800000", "-1"],
            ["endless", "delete", "604800000", "-1"],
        ]
        tools.output("topic", "delete", "new")
        broker.stop()
        broker.start()
    said = tools.run("doctor")
    assert said.returncode == 1
    assert "topic settings\tlost, so nothing is deleted: 2 topics, compacted, endless" in said.stdout.decode()
    tools.output("config", "alter", "--topic", "endless", "retention.ms=-1")
    assert "are confirmed" in tools.output("topic", "confirm-settings", "endless")
    tools.output("topic", "confirm-settings", "--all")
    await_deletion(broker.bootstrap, "compacted")
    assert len(consume_messages(broker.bootstrap, "endless", RECORDS)) == RECORDS
    assert "topic settings\tthe settings of all topics are known" in tools.run("doctor").stdout.decode()
