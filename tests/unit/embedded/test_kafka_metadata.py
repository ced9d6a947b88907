"""Reading the metadata log of Apache Kafka."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from brokerlab.kraft_logs import frame, segment, snapshot, without_fields
from tidelog.embedded.kafka_metadata import BROKER_CONFIGS, TOPIC_CONFIGS, KafkaMetadata, read_metadata_log
from tidelog.log_format.directory import CorruptFileError
from tidelog.wire.messages.records import kraft_metadata as kraft

ID = uuid.UUID("a104b699-19b2-47d0-9ec2-bb3c9846a974")
OTHER = uuid.UUID("0f1e2d3c-0000-4000-8000-000000000001")
TOPIC = frame(kraft.TopicRecord("t", ID))
OF_KAFKA_4_3_1 = {
    "features": "010c00116d657461646174612e76657273696f6e001e00",
    "config of brokers": "0104000401146d696e2e696e73796e632e7265706c69636173023100",
    "controller": "011b00000000018a7dfa4762384fda80ce07102f92f2c000020b434f4e54524f4c4c45"
    "520a3132372e302e302e316dbc000000010e67726f75702e76657273696f6e000000010000",
    "no operation": "01140000",
    "topic": "01020008656e646c657373a104b69919b247d09ec2bb3c9846a97400",
    "partition": "01030200000000a104b69919b247d09ec2bb3c9846a9740200000001020000000101010"
    "00000010000000000000000028393ddc08e1425c5fe4d6749736a471200",
    "producer ids": "010f0000000001000000000000001400000000000003e800",
    "partition change": "01050200000000a104b69919b247d09ec2bb3c9846a974040001010104ffffff"
    "ff0605020000000107050200000001",
}
"""The values of records that Apache Kafka 4.3.1 wrote."""


def replayed(*values: bytes) -> KafkaMetadata:
    metadata = KafkaMetadata()
    for value in values:
        metadata.replay(value)
    return metadata


def config(name: str, value: str | None, topic: str = "t") -> bytes:
    return frame(kraft.ConfigRecord(TOPIC_CONFIGS, topic, name, value))


def test_records_of_apache_kafka_are_read(tmp_path: Path) -> None:
    segment(tmp_path, 0, [bytes.fromhex(value) for value in OF_KAFKA_4_3_1.values()])
    metadata = read_metadata_log(tmp_path)
    (topic,) = metadata.topics.values()
    assert (topic.name, topic.topic_id) == ("endless", ID)
    (partition,) = topic.partitions.values()
    assert (partition.replicas, partition.isr, partition.leader_epoch) == ((1,), (), 1)
    assert metadata.configs_of(BROKER_CONFIGS, "") == {"min.insync.replicas": "1"}
    assert metadata.features == {"metadata.version": 30}
    assert metadata.next_producer_id == 1000


def test_a_topic_that_was_deleted_takes_its_settings_along() -> None:
    made_again = frame(kraft.TopicRecord("t", OTHER))
    metadata = replayed(TOPIC, config("retention.ms", "1"), frame(kraft.RemoveTopicRecord(ID)), made_again)
    assert metadata.topics_by_name["t"].topic_id == OTHER
    assert metadata.configs_of(TOPIC_CONFIGS, "t") == {}


def test_the_last_value_of_a_setting_counts() -> None:
    metadata = replayed(
        TOPIC,
        config("retention.ms", "1"),
        config("retention.ms", "-1"),
        config("cleanup.policy", "compact"),
        config("cleanup.policy", None),
    )
    assert metadata.configs_of(TOPIC_CONFIGS, "t") == {"retention.ms": "-1"}


def test_changes_of_partitions_count() -> None:
    partition = kraft.PartitionRecord(0, ID, [1, 2], [1, 2], leader=1, leader_epoch=4)
    moved = frame(kraft.PartitionChangeRecord(0, ID, [2], 2, [2, 3]), 2)
    isr_only = frame(kraft.PartitionChangeRecord(0, ID, [2, 3]), 0)
    metadata = replayed(TOPIC, frame(partition, 2), moved, isr_only)
    found = metadata.topics[ID].partitions[0]
    assert (found.replicas, found.isr, found.leader_epoch) == ((2, 3), (2, 3), 5)


def test_what_is_not_taken_over_is_counted() -> None:
    scram = frame(kraft.UserScramCredentialRecord("alice", 1, b"s", b"k", b"k", 4096))
    acl = kraft.AccessControlEntryRecord(ID, 2, "t", 3, "User:a", "*", 3, 3)
    quota = kraft.ClientQuotaRecord([kraft.EntityData("user", None)], "producer_byte_rate", 1.0)
    metadata = replayed(scram, frame(acl), frame(quota))
    counts = (len(metadata.scram_credentials), len(metadata.acls), len(metadata.quotas))
    assert counts == (1, 1, 1)
    quota.remove = True
    for value in (
        frame(kraft.RemoveUserScramCredentialRecord("alice", 1)),
        frame(kraft.RemoveAccessControlEntryRecord(ID)),
        frame(quota),
    ):
        metadata.replay(value)
    assert not (metadata.scram_credentials or metadata.acls or metadata.quotas)


@pytest.mark.parametrize(("end", "names"), [(24, {"t"}), (25, set()), (None, set())])
def test_a_transaction_of_the_controller_counts_when_it_ends(end: int | None, names: set[str]) -> None:
    values = [without_fields(23), TOPIC, *([] if end is None else [without_fields(end)])]
    assert set(replayed(*values).topics_by_name) == names


def test_the_log_continues_the_newest_snapshot(tmp_path: Path) -> None:
    old = frame(kraft.TopicRecord("old", OTHER))
    snapshot(tmp_path, 2, [old])
    snapshot(tmp_path, 5, [TOPIC, config("retention.ms", "1")])
    (tmp_path / "00000000000000000009-0000000001.checkpoint.part").write_bytes(b"unfinished")
    segment(tmp_path, 3, [old, old, config("retention.ms", "2")])  # the first two are in the snapshot
    metadata = read_metadata_log(tmp_path)
    assert set(metadata.topics_by_name) == {"t"}
    assert metadata.configs_of(TOPIC_CONFIGS, "t") == {"retention.ms": "2"}


def test_a_log_that_begins_after_its_snapshot_is_refused(tmp_path: Path) -> None:
    snapshot(tmp_path, 5, [TOPIC])
    segment(tmp_path, 7, [TOPIC])
    with pytest.raises(CorruptFileError, match="the records from 5 to 6 are missing"):
        read_metadata_log(tmp_path)


def test_only_the_end_may_be_unfinished(tmp_path: Path) -> None:
    segment(tmp_path, 0, [TOPIC])
    last = segment(tmp_path, 1, [config("retention.ms", "1")])
    last.write_bytes(last.read_bytes()[:-3])
    assert set(read_metadata_log(tmp_path).topics_by_name) == {"t"}
    segment(tmp_path, 2, [TOPIC])
    with pytest.raises(CorruptFileError, match=last.name):
        read_metadata_log(tmp_path)


def test_a_damaged_or_newer_record_is_refused(tmp_path: Path) -> None:
    for value in (TOPIC[:-4], b"\x01\x02\x09" + TOPIC[3:], b"\x02" + TOPIC[1:], b""):
        segment(tmp_path, 0, [value])
        with pytest.raises(CorruptFileError, match="a metadata record cannot be read"):
            read_metadata_log(tmp_path)
