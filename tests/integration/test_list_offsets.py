"""ListOffsets: earliest, latest, greatest timestamp, a time, and Kafka's newer special timestamps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

from brokerlab.batches import build_batch
from brokerlab.clients import admin_client, new_producer
from brokerlab.raw_client import RawClient

pytestmark = pytest.mark.integration
FIRST_MS = 1_700_000_000_000
EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -2, -1, -3, -4, -5
WAIT_S = 30


def produce_at(bootstrap: str, topic: str, timestamps_ms: list[int], **settings: object) -> None:
    producer = new_producer(bootstrap, **settings)
    for timestamp in timestamps_ms:
        producer.produce(topic, b"v%d" % timestamp, partition=0, timestamp=timestamp)
        if settings.get("linger_ms", 0) == 0:
            assert producer.flush(WAIT_S) == 0
    assert producer.flush(WAIT_S) == 0


def lookup(bootstrap: str, topic: str, spec: OffsetSpec) -> tuple[int, int]:
    (future,) = admin_client(bootstrap).list_offsets({TopicPartition(topic, 0): spec}).values()
    found = future.result(WAIT_S)
    return found.offset, found.timestamp


def raw_lookup(raw: RawClient, topic: str, timestamp: int, version: int = 9) -> tuple[int, int, int]:
    """Returns (offset, timestamp, error code)."""
    partition: dict[str, int] = {"partition_index": 0, "timestamp": timestamp}
    topics = [{"name": topic, "partitions": [partition]}]
    extra = {
        **({"isolation_level": 0} if version >= 2 else {}),
        **({"timeout": 1000} if version >= 10 else {}),
    }
    answer = raw.call("list_offsets", version, replica_id=-1, topics=topics, **extra)
    ((found,),) = [t.partitions for t in answer.topics]
    return found.offset, found.timestamp, int(found.error_code)


@pytest.mark.parametrize("settings", [{}, {"linger_ms": 200}, {"linger_ms": 200, "compression_type": "lz4"}])
def test_all_specs(bootstrap: str, topic: str, settings: dict[str, object]) -> None:
    times = [FIRST_MS + i * 1000 for i in (0, 1, 5, 2, 3)]
    produce_at(bootstrap, topic, times, **settings)
    assert lookup(bootstrap, topic, OffsetSpec.earliest())[0] == 0
    assert lookup(bootstrap, topic, OffsetSpec.latest())[0] == 5
    assert lookup(bootstrap, topic, OffsetSpec.max_timestamp()) == (2, FIRST_MS + 5000)
    assert lookup(bootstrap, topic, OffsetSpec.for_timestamp(FIRST_MS + 1000)) == (1, FIRST_MS + 1000)
    assert lookup(bootstrap, topic, OffsetSpec.for_timestamp(FIRST_MS + 1001)) == (2, FIRST_MS + 5000)
    assert lookup(bootstrap, topic, OffsetSpec.for_timestamp(0)) == (0, FIRST_MS)
    assert lookup(bootstrap, topic, OffsetSpec.for_timestamp(FIRST_MS + 5001))[0] == -1


def test_an_empty_partition(bootstrap: str, topic: str) -> None:
    assert lookup(bootstrap, topic, OffsetSpec.earliest())[0] == 0
    assert lookup(bootstrap, topic, OffsetSpec.latest())[0] == 0
    assert lookup(bootstrap, topic, OffsetSpec.max_timestamp())[0] == -1
    assert lookup(bootstrap, topic, OffsetSpec.for_timestamp(0))[0] == -1


def test_lookup_by_time_over_many_segments(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(segment_bytes=1048576)
    with RawClient(bootstrap) as raw:
        for i in range(40):
            batch = build_batch([b"x" * 100_000], timestamps_ms=[FIRST_MS + i * 1000])
            data = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
            raw.call("produce", 9, transactional_id=None, acks=-1, timeout=10000, topic_data=data)
    for i in (0, 1, 9, 10, 11, 25, 39):
        found = lookup(bootstrap, topic, OffsetSpec.for_timestamp(FIRST_MS + i * 1000 - 500))
        assert found == (i, FIRST_MS + i * 1000)
    assert lookup(bootstrap, topic, OffsetSpec.max_timestamp()) == (39, FIRST_MS + 39_000)


@pytest.mark.parametrize("version", range(1, 11))
def test_every_version_knows_earliest_and_latest(
    raw: RawClient, bootstrap: str, topic: str, version: int
) -> None:
    produce_at(bootstrap, topic, [FIRST_MS, FIRST_MS + 1])
    assert raw_lookup(raw, topic, EARLIEST, version)[0] == 0
    assert raw_lookup(raw, topic, LATEST, version)[0] == 2
    assert raw_lookup(raw, topic, FIRST_MS + 1, version)[:2] == (1, FIRST_MS + 1)


def test_local_and_tiered_timestamps(raw: RawClient, bootstrap: str, topic: str) -> None:
    produce_at(bootstrap, topic, [FIRST_MS, FIRST_MS + 1])
    assert raw_lookup(raw, topic, EARLIEST_LOCAL)[0] == 0
    assert raw_lookup(raw, topic, LATEST_TIERED)[0] == -1


def test_unknown_topic_and_partition(raw: RawClient, topic: str) -> None:
    assert raw_lookup(raw, "no-such-topic-at-all", LATEST)[2] == 3
    answer = raw.call(
        "list_offsets",
        9,
        replica_id=-1,
        isolation_level=0,
        topics=[{"name": topic, "partitions": [{"partition_index": 7, "timestamp": -1}]}],
    )
    assert answer.topics[0].partitions[0].error_code == 3


def test_an_old_leader_epoch_is_reported(raw: RawClient, topic: str) -> None:
    for epoch, code in ((0, 0), (1000, 75)):
        partition = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": epoch}
        answer = raw.call(
            "list_offsets",
            9,
            replica_id=-1,
            isolation_level=0,
            topics=[{"name": topic, "partitions": [partition]}],
        )
        assert answer.topics[0].partitions[0].error_code == code
