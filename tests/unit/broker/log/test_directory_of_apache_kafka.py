"""A data directory that Apache Kafka wrote can be read completely and appended to.

One was left by a clean stop, the other by SIGKILL.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import OffsetSpec

from brokerlab.clients import admin_client, consume_messages, create_topic, produce_values
from brokerlab.kafka_jars import PEER, JavaTools, PeerKafka
from brokerlab.logs import OwnedLog, append, make_batch, read_all
from tidelog.broker.log.directory_files import read_meta_properties
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import parse_header
from tidelog.records.record import iterate_records

pytestmark = [
    pytest.mark.java,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("java-tools"),
]

CONFIG = LogConfig(segment_bytes=1_048_576)


class Written(NamedTuple):
    data_dir: Path
    was_stopped: bool
    messages: list[tuple[int, bytes, int]]  # offset, value and timestamp that a client of Kafka received
    offsets_by_time: dict[int, int]


@pytest.fixture(scope="module", params=["stopped", "killed"])
def written(
    request: pytest.FixtureRequest, java: JavaTools, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Written]:
    if not (PEER / "kafka-up.sh").exists():
        pytest.skip("shared/peer is not beside the checkout")
    kafka = PeerKafka(tmp_path_factory.mktemp("peer"))
    kafka.start()
    try:
        create_topic(kafka.bootstrap, "t", 1, {"segment.bytes": "1048576"})
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            values = [os.urandom(900) for _ in range(1000)]
            produce_values(
                kafka.bootstrap,
                "t",
                values,
                compression_type=codec,
                enable_idempotence=codec != "gzip",
                batch_num_messages=25,
                linger_ms=20,
            )
        produce_transactions(kafka.bootstrap)
        messages = consume_messages(kafka.bootstrap, "t", 5020, isolation_level="read_uncommitted")
        found = Written(
            kafka.data_dir,
            request.param == "stopped",
            [(message.offset(), message.value(), message.timestamp()[1]) for message in messages],
            offsets_by_time(kafka.bootstrap, sorted({message.timestamp()[1] for message in messages})[::8]),
        )
        if found.was_stopped:
            kafka.stop()
        else:
            kafka.kill()
        yield found
    finally:
        kafka.stop()


def produce_transactions(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "x"})
    producer.init_transactions(30)
    for ends_with_commit in (True, False):
        producer.begin_transaction()
        for number in range(10):
            producer.produce("t", b"in transaction %d" % number)
        producer.flush(30)
        (producer.commit_transaction if ends_with_commit else producer.abort_transaction)(30)


def offsets_by_time(bootstrap: str, times: list[int]) -> dict[int, int]:
    admin, partition = admin_client(bootstrap), ClientTopicPartition("t", 0)
    found = {}
    for time in times:
        asked = admin.list_offsets({partition: OffsetSpec.for_timestamp(time)})
        found[time] = asked[partition].result(30).offset
    return found


@pytest.fixture
def opened(written: Written) -> Iterator[tuple[LogDirectory, OwnedLog]]:
    meta = read_meta_properties(written.data_dir)
    assert meta is not None
    directory = LogDirectory.open(written.data_dir, cluster_id=meta.cluster_id, node_id=meta.node_id)
    topic_id = directory.topic_id_on_disk(TopicPartition("t", 0))
    assert topic_id is not None
    yield directory, OwnedLog(directory.open_partition(TopicPartition("t", 0), topic_id, CONFIG, now_ms=0))
    directory.close()


def test_all_records_of_kafka_are_read(written: Written, opened: tuple[LogDirectory, OwnedLog]) -> None:
    directory, log = opened
    internal = {"__transaction_state", "__consumer_offsets"}
    assert [found for found in directory.topic_partitions_on_disk() if found.topic not in internal] == [
        TopicPartition("t", 0)
    ]
    assert directory.was_clean == written.was_stopped
    assert (directory.previous_broker_epoch > 0) == written.was_stopped
    assert log.cut_at_opening is None
    assert len(log.segments) > 3
    assert [tuple(entry) for entry in log.leader_epochs] == [(0, 0)]
    batches = read_all(log)
    records = [
        (record.offset, record.value, record.timestamp)
        for batch in batches
        if not parse_header(batch).is_control
        for record in iterate_records(batch)
    ]
    assert records == written.messages
    assert sum(parse_header(batch).is_control for batch in batches) == 2
    for time, offset in written.offsets_by_time.items():
        found = log.offset_for_timestamp(time)
        assert found is not None
        assert found.offset == offset


def test_producers_are_remembered(opened: tuple[LogDirectory, OwnedLog]) -> None:
    _, log = opened
    producers = log.producer_state.describe()
    assert len(producers) == 5, "four idempotent ones and a transactional one"
    assert all(producer.current_txn_start_offset == -1 for producer in producers)
    log.producer_state.on_high_watermark(log.log_end_offset)
    assert log.producer_state.first_unstable_offset is None


def test_kafka_reads_a_log_that_we_appended_to(
    written: Written, opened: tuple[LogDirectory, OwnedLog], java: JavaTools
) -> None:
    directory, log = opened
    end = log.log_end_offset
    for offset in range(end, end + 2000):
        append(log, make_batch(offset, value_bytes=1000, timestamp=2_000_000_000_000 + offset))
    directory.close_partition(TopicPartition("t", 0))
    logs = sorted((written.data_dir / "t-0").glob("*.log"))
    said = java.check(
        "DumpLogSegments", "--deep-iteration", "--files", ",".join(map(str, logs)), timeout_s=120
    )
    assert said.count("| offset:") == end + 2000
    for suffix in ("index", "timeindex"):
        indexes = sorted((written.data_dir / "t-0").glob(f"*.{suffix}"))
        said = java.check("DumpLogSegments", "--files", ",".join(map(str, indexes)))
        assert "Mismatch" not in said
        assert "mismatch" not in said
        assert "not found" not in said
