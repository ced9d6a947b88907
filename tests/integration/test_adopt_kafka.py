"""`tidelog adopt` on a directory of Apache Kafka: records and settings come along, and Kafka can start again.

The records are from 2017, so each topic that keeps them shows that its settings count.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import ConfigResource

from brokerlab.broker_process import BrokerProcess, tidelog_command
from brokerlab.clients import admin_client, create_topic, end_offset, new_consumer
from brokerlab.kafka_jars import PEER, JavaTools, PeerKafka
from tidelog.embedded.kafka_metadata import METADATA_LOG

pytestmark = [
    pytest.mark.java,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("java-tools"),
]

OLD_MS = 1_500_000_000_000
KEYS = 500
RECORDS = 4000
ENDLESS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
TOPICS = {
    "endless": ENDLESS,
    "compacted": {"cleanup.policy": "compact"},
    "both": {**ENDLESS, "cleanup.policy": "compact,delete"},
    "inherits": {},
    "transactional": ENDLESS,
}
SMALL_SEGMENTS = {"segment.bytes": "1048576"}
PASSES = {
    "log.retention.check.interval.ms": "200",
    "log.cleaner.backoff.ms": "200",
    "log.segment.delete.delay.ms": "100",
}
WAIT_S = 60
Contents = dict[str, list[tuple[int, bytes | None, bytes | None]]]


SNAPSHOTS = {
    "metadata.log.max.record.bytes.between.snapshots": "1000",
    "metadata.log.max.snapshot.interval.ms": "500",
    "metadata.log.segment.ms": "1000",
    "metadata.max.retention.ms": "1000",
}
"""Settings with which Kafka keeps the end of its metadata log and the newest snapshots."""
CLEANED_S = 150
"""The time after which Kafka has deleted a part of its metadata log. It looks for such parts every minute."""


@pytest.fixture
def kafka(java: JavaTools, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PeerKafka]:
    if not (PEER / "kafka-up.sh").exists():
        pytest.skip("shared/peer is not beside the checkout")
    settings = getattr(request, "param", {"log.cleaner.backoff.ms": "3600000"})
    kafka = PeerKafka(tmp_path, "adopted", settings)
    kafka.start()
    try:
        yield kafka
    finally:
        kafka.stop()


def fill(bootstrap: str) -> None:
    for topic, configs in TOPICS.items():
        create_topic(bootstrap, topic, 1, {**SMALL_SEGMENTS, **configs})
    producer = Producer({"bootstrap.servers": bootstrap})
    for topic in TOPICS:
        if topic != "transactional":
            for number in range(RECORDS):
                value = b"%d" % number * 200
                producer.produce(
                    topic, value, b"k%d" % (number % KEYS), partition=0, timestamp=OLD_MS + number
                )
                producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    transact(bootstrap, ["one", "aborted", "two"])
    consumer = new_consumer(bootstrap, group_id="readers")
    until(lambda: has_committed(consumer, TopicPartition("endless", 0, 700)))
    consumer.close()


def has_committed(consumer: Consumer, offset: TopicPartition) -> bool:
    """Returns False while the coordinator does not know its groups yet."""
    try:
        consumer.commit(offsets=[offset], asynchronous=False)
    except KafkaException as error:
        assert error.args[0].code() == KafkaError.COORDINATOR_LOAD_IN_PROGRESS, error
        return False
    return True


def transact(bootstrap: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "of-kafka"})
    producer.init_transactions(WAIT_S)
    for value in values:
        producer.begin_transaction()
        producer.produce("transactional", value, timestamp=OLD_MS)
        producer.flush(WAIT_S)
        if value == "aborted":
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)


def contents(bootstrap: str) -> Contents:
    """Returns offset, key and value of each committed record."""
    return {topic: list(committed(bootstrap, topic)) for topic in TOPICS}


def committed(bootstrap: str, topic: str) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    end = end_offset(bootstrap, topic)
    consumer: Consumer = new_consumer(bootstrap, enable_partition_eof=True, check_crcs=True)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    limit_s = time.monotonic() + WAIT_S
    while time.monotonic() < limit_s:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is not None:
            assert message.offset() >= end, message.error()
            break
        yield message.offset(), message.key(), message.value()
    else:
        pytest.fail(f"{topic} could not be read to its end")
    consumer.close()


def newest(records: list[tuple[int, bytes | None, bytes | None]]) -> dict[bytes | None, bytes | None]:
    return {key: value for _, key, value in records}


def adopt(data_dir: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*tidelog_command(), "adopt", str(data_dir), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


def until(is_done: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    limit_s = time.monotonic() + wait_s
    while not is_done():
        assert time.monotonic() < limit_s
        time.sleep(0.1)


def files(data_dir: Path) -> dict[str, int]:
    return {
        str(path.relative_to(data_dir)): path.stat().st_size
        for path in data_dir.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def start_again(kafka: PeerKafka, expected: Contents) -> None:
    kafka.start()
    assert contents(kafka.bootstrap) == expected
    kafka.stop()


def test_everything_of_apache_kafka_comes_along(
    kafka: PeerKafka, start_broker: Callable[..., BrokerProcess]
) -> None:
    fill(kafka.bootstrap)
    before = contents(kafka.bootstrap)
    assert len(before["endless"]) == RECORDS
    assert [value for _, _, value in before["transactional"]] == [b"one", b"two"]
    kafka.stop()
    left = files(kafka.data_dir)

    shown = adopt(kafka.data_dir)
    assert shown.returncode == 0, shown.stderr
    assert "Nothing was changed" in shown.stdout
    refused = start_broker(data_dir=kafka.data_dir, start=False, settings=PASSES)
    assert refused.spawn().wait(WAIT_S) == 1
    assert f"'tidelog adopt {kafka.data_dir}'" in refused.log_text()
    assert files(kafka.data_dir) == left
    start_again(kafka, before)

    taken = adopt(kafka.data_dir, "--execute")
    assert taken.returncode == 0, taken.stderr
    assert "inherits\t" in taken.stdout
    assert "nothing until confirmed" in taken.stdout
    start_again(kafka, before)

    broker = start_broker(data_dir=kafka.data_dir, settings=PASSES)
    bootstrap = broker.bootstrap
    create_topic(bootstrap, "control", 1, {"retention.ms": "1"})
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("control", b"old", timestamp=OLD_MS)
    producer.flush(WAIT_S)
    until(lambda: low_watermark(bootstrap, "control") == 1)  # retention has run
    until(lambda: len(list(committed(bootstrap, "compacted"))) < RECORDS)  # the cleaner, too
    until(lambda: len(list(committed(bootstrap, "both"))) < RECORDS)
    after = contents(bootstrap)
    for topic in ("endless", "inherits", "transactional"):
        assert after[topic] == before[topic]
    for topic in ("compacted", "both"):
        assert newest(after[topic]) == newest(before[topic])
        assert set(after[topic]) <= set(before[topic])
    consumer = new_consumer(bootstrap, group_id="readers")
    (position,) = consumer.committed([TopicPartition("endless", 0)], WAIT_S)
    consumer.close()
    assert position.offset == 700
    transact(bootstrap, ["three"])
    assert [value for _, _, value in committed(bootstrap, "transactional")] == [b"one", b"two", b"three"]
    described = admin_client(bootstrap).list_topics(timeout=WAIT_S)
    assert {topic for topic in described.topics if not topic.startswith("__")} == {*TOPICS, "control"}


@pytest.mark.parametrize("kafka", [SNAPSHOTS], indirect=True)
def test_settings_are_read_from_a_snapshot_whose_records_are_deleted_from_the_log(
    kafka: PeerKafka, start_broker: Callable[..., BrokerProcess]
) -> None:
    for topic, configs in TOPICS.items():
        create_topic(kafka.bootstrap, topic, 1, configs)
    create_topic(kafka.bootstrap, "deleted", 1, ENDLESS)
    admin_client(kafka.bootstrap).delete_topics(["deleted"])["deleted"].result(WAIT_S)
    metadata_log = kafka.data_dir / METADATA_LOG
    first = metadata_log / f"{0:020d}.log"
    until(lambda: not first.exists(), CLEANED_S)
    create_topic(kafka.bootstrap, "newer", 1, ENDLESS)  # perhaps only in the log behind the snapshot
    kafka.stop()
    assert list(metadata_log.glob("*.checkpoint"))

    taken = adopt(kafka.data_dir, "--execute")
    assert taken.returncode == 0, taken.stderr
    broker = start_broker(data_dir=kafka.data_dir)
    admin = admin_client(broker.bootstrap)
    expected = {**TOPICS, "newer": ENDLESS}
    described = admin.list_topics(timeout=WAIT_S).topics
    assert {topic for topic in described if not topic.startswith("__")} == expected.keys()
    for topic, configs in expected.items():
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        found = admin.describe_configs([resource])[resource].result(WAIT_S)
        assert {name: found[name].value for name in configs} == configs


def low_watermark(bootstrap: str, topic: str) -> int:
    consumer = new_consumer(bootstrap)
    low: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), WAIT_S)[0]
    consumer.close()
    return low
