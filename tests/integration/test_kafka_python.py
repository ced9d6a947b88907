"""kafka-python: producer, consumer with assign(), and the admin calls that librdkafka cannot make."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ACLFilter, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from kafka.errors import (
    ElectionNotNeededError,
    MessageSizeTooLargeError,
    SecurityDisabledError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from brokerlab.clients import produce_values

pytestmark = pytest.mark.integration
WAIT_S = 30


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def consume(bootstrap: str, topic: str, count: int, partitions: int = 1, **settings: Any) -> list[Any]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest", **settings
    )
    try:
        consumer.assign([TopicPartition(topic, p) for p in range(partitions)])
        found: list[Any] = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} messages"
            for records in consumer.poll(timeout_ms=500).values():
                found += records
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", [None, "gzip"])  # its other codecs need further libraries
def test_round_trip(bootstrap: str, topic: str, codec: str | None) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type=codec, linger_ms=20, acks="all")
    futures = [
        producer.send(
            topic,
            key=b"k%d" % i,
            value=b"v%d" % i * 20,
            headers=[("h", b"%d" % i)],
            timestamp_ms=1_600_000_000_000 + i,
            partition=0,
        )
        for i in range(500)
    ]
    assert [f.get(WAIT_S).offset for f in futures] == list(range(500))
    producer.close()
    for i, record in enumerate(consume(bootstrap, topic, 500, check_crcs=True)):
        assert (record.offset, record.key, record.value) == (i, b"k%d" % i, b"v%d" % i * 20)
        assert (list(record.headers), record.timestamp) == ([("h", b"%d" % i)], 1_600_000_000_000 + i)


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("is_idempotent", [True, False])
def test_acks(bootstrap: str, topic: str, acks: int | str, is_idempotent: bool) -> None:
    if is_idempotent and acks != "all":
        acks = "all"
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks=acks, enable_idempotence=is_idempotent)
    for i in range(200):
        producer.send(topic, b"%d" % i, partition=0)
    producer.close()
    assert [r.value for r in consume(bootstrap, topic, 200)] == [b"%d" % i for i in range(200)]


def test_too_large_a_message(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(max_message_bytes=1000)
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    with pytest.raises(MessageSizeTooLargeError):
        producer.send(topic, b"x" * 2000, partition=0).get(WAIT_S)
    producer.close()


@pytest.mark.parametrize("has_sessions", [True, False])
def test_fetch_sessions(bootstrap: str, new_topic: Callable[..., str], has_sessions: bool) -> None:
    """With sessions, the client names only partitions that changed. It must read the same records."""
    topic = new_topic(12)
    for partition in range(12):
        produce_values(bootstrap, topic, [b"%d-%d" % (partition, i) for i in range(50)], partition=partition)
    records = consume(
        bootstrap,
        topic,
        600,
        partitions=12,
        enable_incremental_fetch_sessions=has_sessions,
        max_partition_fetch_bytes=500,
        max_poll_records=40,
    )
    by_partition: dict[int, list[bytes]] = {}
    for record in records:
        by_partition.setdefault(record.partition, []).append(record.value)
    assert by_partition == {p: [b"%d-%d" % (p, i) for i in range(50)] for p in range(12)}


def test_consumer_offsets_and_seek(bootstrap: str, topic: str) -> None:
    produce_values(bootstrap, topic, [b"%d" % i for i in range(100)])
    partition = TopicPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    try:
        assert consumer.partitions_for_topic(topic) == {0}
        assert topic in consumer.topics()
        consumer.assign([partition])
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 100}
        consumer.seek(partition, 42)
        assert next(consumer).value == b"42"
        consumer.seek_to_beginning(partition)
        assert next(consumer).offset == 0
        consumer.seek_to_end(partition)
        assert consumer.position(partition) == 100
    finally:
        consumer.close()


def test_read_committed(bootstrap: str, topic: str) -> None:
    produce_values(bootstrap, topic, [b"%d" % i for i in range(50)])
    records = consume(bootstrap, topic, 50, isolation_level="read_committed")
    assert [r.value for r in records] == [b"%d" % i for i in range(50)]


def test_topics(admin: KafkaAdminClient) -> None:
    name = f"kp-{uuid.uuid4().hex[:10]}"
    admin.create_topics(
        {name: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "7000000"}}}
    )
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics({name: {"num_partitions": 2, "replication_factor": 1}})
    assert name in admin.list_topics()
    admin.create_partitions({name: 5})
    (described,) = admin.describe_topics([name])
    assert len(described["partitions"]) == 5
    (by_id,) = admin.describe_topics([uuid.UUID(described["topic_id"])])
    assert by_id["name"] == name
    admin.delete_topics([name])
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([name])


def test_a_topic_is_deleted_by_its_id(admin: KafkaAdminClient) -> None:
    name = f"kp-{uuid.uuid4().hex[:10]}"
    admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}})
    (described,) = admin.describe_topics([name])
    admin.delete_topics([uuid.UUID(described["topic_id"])])
    assert name not in admin.list_topics()


def test_describe_topic_partitions_page_by_page(
    admin: KafkaAdminClient, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(5)
    seen: list[int] = []
    cursor = None
    for _ in range(10):
        page = admin.describe_topic_partitions([topic], response_partition_limit=2, cursor=cursor)
        (found,) = page["topics"]
        assert found["error_code"] == 0
        seen += [p["partition_index"] for p in found["partitions"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [0, 1, 2, 3, 4]


def test_log_dirs_know_sizes(admin: KafkaAdminClient, bootstrap: str, topic: str) -> None:
    produce_values(bootstrap, topic, [b"x" * 10_000] * 10)
    (broker,) = admin.describe_log_dirs([topic])
    (log_dir,) = broker["log_dirs"] if "log_dirs" in broker else broker["results"]
    assert log_dir["error_code"] == 0
    ((partition,),) = [
        t["partitions"] for t in log_dir["topics"] if t["name" if "name" in t else "topic"] == topic
    ]
    assert partition["partition_size"] > 100_000
    assert (partition["offset_lag"], partition["is_future_key"]) == (0, False)
    assert log_dir["total_bytes"] > log_dir["usable_bytes"] > 0


def test_producers_of_a_partition(admin: KafkaAdminClient, bootstrap: str, topic: str) -> None:
    produce_values(bootstrap, topic, [b"%d" % i for i in range(7)], enable_idempotence=True)
    partition = TopicPartition(topic, 0)
    (state,) = admin.describe_producers([partition])[partition].active_producers
    assert state.producer_id >= 0
    assert (state.producer_epoch, state.last_sequence) == (0, 6)
    assert state.current_transaction_start_offset == -1


def test_quorum_and_features(admin: KafkaAdminClient) -> None:
    quorum = admin.describe_metadata_quorum()
    (partition,) = quorum["topics"][0]["partitions"]
    assert partition["leader_id"] >= 0
    assert [v["replica_id"] for v in partition["current_voters"]]
    assert admin.describe_features()["metadata.version"]["finalized"][1] > 0


def test_no_reassignments_and_no_election(admin: KafkaAdminClient, topic: str) -> None:
    assert admin.list_partition_reassignments() == {}
    (result,) = admin.elect_leaders(0, {topic: [0]}).replica_election_results
    assert [p.error_code for p in result.partition_result] == [ElectionNotNeededError.errno]


def test_acls_without_an_authorizer(admin: KafkaAdminClient, shared_broker: object) -> None:
    if shared_broker is None:
        pytest.skip("the external broker may have an authorizer")
    with pytest.raises(SecurityDisabledError):
        admin.describe_acls(
            ACLFilter(
                None, None, ACLOperation.ANY, ACLPermissionType.ANY, ResourcePattern(ResourceType.TOPIC, "x")
            )
        )


def test_scram_users(admin: KafkaAdminClient) -> None:
    assert admin.describe_user_scram_credentials() == {}
