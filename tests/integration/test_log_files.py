"""Log files have Kafka's format: DumpLogSegments reads tidelog's files, and tidelog serves Apache Kafka's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType

from brokerlab.broker_process import BrokerProcess, tidelog_command
from brokerlab.clients import admin_client, consume_messages, create_topic, end_offset, produce_values
from brokerlab.kafka_jars import PEER, JavaTools, PeerKafka

pytestmark = [
    pytest.mark.integration,
    pytest.mark.java,
    pytest.mark.slow,
]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COMPLAINTS = (
    "Found timestamp mismatch",
    "Mismatches in",
    "Exception",
    "isvalid: false",
    "isValid: false",
    "out of order",
)


def fill(bootstrap: str, topic: str) -> int:
    """Writes batches of all codecs, with and without a producer id, in several segments; returns the message
    count.
    """
    count = 0
    for round_number in range(6):
        for codec in CODECS:
            values = [os.urandom(700) for _ in range(200)]
            produce_values(
                bootstrap,
                topic,
                values,
                compression_type=codec,
                enable_idempotence=round_number % 2 == 0,
                batch_num_messages=25,
                linger_ms=20,
            )
            count += len(values)
    return count


def dump(java: JavaTools, files: list[Path], *options: str) -> str:
    done = java.run("DumpLogSegments", *options, "--files", ",".join(str(f) for f in files), timeout_s=120)
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr  # the tool reports faults on standard error
    for complaint in COMPLAINTS:
        assert complaint not in said, said[said.find(complaint) - 300 : said.find(complaint) + 600]
    return said


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_dump_log_segments_reads_our_files(java: JavaTools, own_broker: BrokerProcess, ending: str) -> None:
    create_topic(own_broker.bootstrap, "t", 1, {"segment.bytes": "1048576", "index.interval.bytes": "4096"})
    create_topic(own_broker.bootstrap, "stamped", 1, {"message.timestamp.type": "LogAppendTime"})
    count = fill(own_broker.bootstrap, "t")
    produce_values(own_broker.bootstrap, "stamped", [b"x"] * 100, compression_type="lz4", linger_ms=20)
    if ending == "stop":
        own_broker.stop()
    else:
        own_broker.kill()
        own_broker.start()
        own_broker.stop()
    (directory,) = own_broker.data_dir.rglob("t-0")
    logs = sorted(directory.glob("*.log"))
    assert len(logs) > 2
    said = dump(java, logs, "--deep-iteration", "--print-data-log")
    assert said.count("| offset:") == count
    indexes = sorted(directory.glob("*.index")) + sorted(directory.glob("*.timeindex"))
    dump(java, indexes)
    dump(java, sorted(directory.glob("*.index")), "--index-sanity-check")
    snapshots = sorted(directory.glob("*.snapshot"))
    assert snapshots
    assert "producerId" in dump(java, snapshots)
    dump(java, sorted(directory.parent.glob("stamped-0/*.log")), "--deep-iteration")


def test_dump_log_segments_reads_while_we_write(java: JavaTools, own_broker: BrokerProcess) -> None:
    create_topic(own_broker.bootstrap, "t")
    produce_values(own_broker.bootstrap, "t", [b"%d" % i for i in range(1000)])
    (log,) = own_broker.data_dir.rglob("t-0/*.log")
    assert dump(java, [log], "--deep-iteration").count("| offset:") == 1000


@pytest.fixture
def peer_kafka(kafka_jars: Path, tmp_path: Path) -> Iterator[PeerKafka]:
    if not (PEER / "kafka-up.sh").exists():
        pytest.skip("shared/peer is not beside the checkout")
    kafka = PeerKafka(tmp_path)
    yield kafka
    kafka.stop()


def test_a_directory_that_apache_kafka_wrote_is_served(
    peer_kafka: PeerKafka, java: JavaTools, start_broker: Callable[..., BrokerProcess]
) -> None:
    peer_kafka.start()
    create_topic(peer_kafka.bootstrap, "t", 2, {"segment.bytes": "1048576"})
    create_topic(peer_kafka.bootstrap, "trimmed")
    create_topic(peer_kafka.bootstrap, "empty")
    count = fill(peer_kafka.bootstrap, "t")
    expected = [
        (m.offset(), m.value(), m.timestamp()) for m in consume_messages(peer_kafka.bootstrap, "t", count)
    ]
    produce_values(peer_kafka.bootstrap, "trimmed", [b"%d" % i for i in range(10)])
    trim = TopicPartition("trimmed", 0, 4)
    admin_client(peer_kafka.bootstrap).delete_records([trim])[trim].result(30)
    peer_kafka.stop()

    adopt = [*tidelog_command(), "adopt", str(peer_kafka.data_dir), "--execute"]
    subprocess.run(adopt, check=True, timeout=60, stdout=subprocess.DEVNULL)
    broker = start_broker(data_dir=peer_kafka.data_dir)
    topics = admin_client(broker.bootstrap).list_topics(timeout=30).topics
    assert {"t", "trimmed", "empty"} <= set(topics)
    assert len(topics["t"].partitions) == 2
    found = consume_messages(broker.bootstrap, "t", count, check_crcs=True)
    assert [(m.offset(), m.value(), m.timestamp()) for m in found] == expected
    assert [m.offset() for m in consume_messages(broker.bootstrap, "trimmed", 6)] == list(range(4, 10))
    assert end_offset(broker.bootstrap, "empty") == 0
    delivered = produce_values(broker.bootstrap, "t", [b"ours"], enable_idempotence=True)
    assert [m.offset() for m in delivered] == [count]
    resource = ConfigResource(ResourceType.TOPIC, "t")
    configs = admin_client(broker.bootstrap).describe_configs([resource])[resource].result(30)
    assert configs["segment.bytes"].value == "1048576"
    broker.stop()
    dump(java, sorted(broker.data_dir.rglob("t-0/*.log")), "--deep-iteration")
