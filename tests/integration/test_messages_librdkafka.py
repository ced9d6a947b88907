"""Produce and consume with librdkafka (confluent-kafka)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from brokerlab.clients import (
    admin_client,
    consume_messages,
    end_offset,
    new_consumer,
    new_producer,
    poll_messages,
    produce_values,
)

pytestmark = pytest.mark.integration
WAIT_S = 30
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", CODECS)
def test_round_trip_with_key_headers_and_timestamp(bootstrap: str, topic: str, codec: str) -> None:
    producer = new_producer(bootstrap, compression_type=codec, linger_ms=50)
    count = 1000
    for i in range(count):
        producer.produce(
            topic,
            value=b"value %d " % i + b"x" * (i % 300),
            key=b"key %d" % (i % 7) if i % 5 else None,
            headers=[("number", b"%d" % i), ("empty", b""), ("none", None)] if i % 3 else None,
            timestamp=1_600_000_000_000 + i,
            partition=0,
        )
    assert producer.flush(WAIT_S) == 0
    messages = consume_messages(bootstrap, topic, count, check_crcs=True)
    assert [m.offset() for m in messages] == list(range(count))
    for i, message in enumerate(messages):
        assert message.value() == b"value %d " % i + b"x" * (i % 300)
        assert message.key() == (b"key %d" % (i % 7) if i % 5 else None)
        assert message.headers() == (
            [("number", b"%d" % i), ("empty", b""), ("none", None)] if i % 3 else None
        )
        assert message.timestamp() == (TIMESTAMP_CREATE_TIME, 1_600_000_000_000 + i)


@pytest.mark.parametrize("codec", CODECS)
def test_a_topic_with_its_own_codec_recompresses(
    bootstrap: str, new_topic: Callable[..., str], codec: str
) -> None:
    topic = new_topic(compression_type="uncompressed" if codec == "none" else codec)
    for produced in CODECS:
        produce_values(
            bootstrap, topic, [b"%d" % i * 40 for i in range(200)], compression_type=produced, linger_ms=50
        )
    messages = consume_messages(bootstrap, topic, 200 * len(CODECS), check_crcs=True)
    assert [m.value() for m in messages] == [b"%d" % i * 40 for i in range(200)] * len(CODECS)
    assert [m.offset() for m in messages] == list(range(1000))


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(bootstrap: str, topic: str, acks: str) -> None:
    delivered = produce_values(bootstrap, topic, [b"%d" % i for i in range(500)], acks=acks)
    assert len(delivered) == 500
    if acks != "0":
        assert [m.offset() for m in delivered] == list(range(500))
    assert [m.value() for m in consume_messages(bootstrap, topic, 500)] == [b"%d" % i for i in range(500)]


def test_idempotent_producer(bootstrap: str, topic: str) -> None:
    values = [b"%d" % i for i in range(5000)]
    delivered = produce_values(bootstrap, topic, values, enable_idempotence=True, batch_num_messages=50)
    assert [m.offset() for m in delivered] == list(range(5000))
    assert [m.value() for m in consume_messages(bootstrap, topic, 5000)] == values


def test_log_append_time(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    producer = new_producer(bootstrap)
    producer.produce(topic, b"x", timestamp=1_000_000, partition=0)
    assert producer.flush(WAIT_S) == 0
    (message,) = consume_messages(bootstrap, topic, 1, check_crcs=True)
    kind, timestamp = message.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert before <= timestamp <= time.time() * 1000 + 1


def test_a_timestamp_too_far_ahead_is_refused(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(message_timestamp_after_max_ms=1000)
    errors: list[KafkaError] = []
    producer = new_producer(bootstrap)
    ahead = int(time.time() * 1000) + 3_600_000
    producer.produce(topic, b"x", timestamp=ahead, partition=0, on_delivery=lambda e, _: errors.append(e))
    producer.flush(WAIT_S)
    assert [e.code() for e in errors] == [KafkaError.INVALID_TIMESTAMP]


def test_tombstones_and_empty_values(bootstrap: str, topic: str) -> None:
    producer = new_producer(bootstrap)
    for value in (None, b"", b"x"):
        producer.produce(topic, value, key=b"k", partition=0)
    assert producer.flush(WAIT_S) == 0
    assert [m.value() for m in consume_messages(bootstrap, topic, 3)] == [None, b"", b"x"]


def test_a_compacted_topic_refuses_a_null_key(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(cleanup_policy="compact")
    errors: list[KafkaError | None] = []
    producer = new_producer(bootstrap)
    producer.produce(topic, b"x", partition=0, on_delivery=lambda e, _: errors.append(e))
    producer.flush(WAIT_S)
    producer.produce(topic, b"x", key=b"k", partition=0, on_delivery=lambda e, _: errors.append(e))
    producer.flush(WAIT_S)
    assert [e.code() if e else None for e in errors] == [KafkaError.INVALID_RECORD, None]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_large_messages(bootstrap: str, new_topic: Callable[..., str], codec: str) -> None:
    topic = new_topic(max_message_bytes=20_000_000)
    values = [os.urandom(size) for size in (1, 900_000, 9_000_000, 15_000_000, 2)]
    produce_values(bootstrap, topic, values, message_max_bytes=20_000_000, compression_type=codec)
    messages = consume_messages(
        bootstrap,
        topic,
        5,
        check_crcs=True,
        fetch_message_max_bytes=100_000,
        receive_message_max_bytes=60_000_000,
    )
    assert [m.value() for m in messages] == values


def test_max_message_bytes_is_a_limit(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(max_message_bytes=2000)
    errors: list[KafkaError | None] = []
    producer = new_producer(bootstrap)
    for size in (1800, 2000, 100):
        producer.produce(topic, b"x" * size, partition=0, on_delivery=lambda e, _: errors.append(e))
        producer.flush(WAIT_S)
    assert [e.code() if e else None for e in errors] == [None, KafkaError.MSG_SIZE_TOO_LARGE, None]


def test_an_unknown_topic_is_auto_created_by_a_producer(bootstrap: str) -> None:
    topic = f"auto-{os.urandom(6).hex()}"
    delivered = produce_values(bootstrap, topic, [b"x"], partition=0)
    assert [m.offset() for m in delivered] == [0]
    assert topic in admin_client(bootstrap).list_topics(timeout=WAIT_S).topics


def test_an_unknown_partition(bootstrap: str, topic: str) -> None:
    errors: list[KafkaError] = []
    producer = new_producer(bootstrap, message_timeout_ms=5000)
    try:
        producer.produce(topic, b"x", partition=9, on_delivery=lambda e, _: errors.append(e))
        producer.flush(WAIT_S)
    except KafkaException as refused:
        errors.append(refused.args[0])
    assert errors[0].code() in (KafkaError._UNKNOWN_PARTITION, KafkaError._MSG_TIMED_OUT)


def test_the_partitioner_keeps_a_key_together(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(6)
    producer = new_producer(bootstrap, partitioner="murmur2_random")
    for i in range(600):
        producer.produce(topic, b"%d" % i, key=b"key-%d" % (i % 20))
    assert producer.flush(WAIT_S) == 0
    by_key: dict[bytes, list[Message]] = {}
    for message in consume_messages(bootstrap, topic, 600, partitions=range(6)):
        by_key.setdefault(message.key(), []).append(message)
    assert len(by_key) == 20
    for messages in by_key.values():
        assert len({m.partition() for m in messages}) == 1
        numbers = [int(m.value()) for m in messages]
        assert numbers == sorted(numbers)
        assert len(numbers) == 30


def test_seek_to_any_offset_even_inside_a_batch(bootstrap: str, topic: str) -> None:
    produce_values(bootstrap, topic, [b"%d" % i for i in range(1000)], linger_ms=100, compression_type="lz4")
    consumer = new_consumer(bootstrap)
    try:
        consumer.assign([TopicPartition(topic, 0, 500)])
        assert poll_messages(consumer, 1)[0].offset() == 500
        for offset in (999, 1, 777, 0):
            consumer.seek(TopicPartition(topic, 0, offset))
            message = poll_messages(consumer, 1)[0]
            assert (message.offset(), message.value()) == (offset, b"%d" % offset)
    finally:
        consumer.close()


def test_offsets_for_times_and_watermarks(bootstrap: str, topic: str) -> None:
    producer = new_producer(bootstrap)
    for i in range(10):
        producer.produce(topic, b"x", timestamp=1_650_000_000_000 + i * 10, partition=0)
    assert producer.flush(WAIT_S) == 0
    consumer = new_consumer(bootstrap)
    try:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), WAIT_S) == (0, 10)
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, 1_650_000_000_041)], WAIT_S)
        assert found.offset == 5
    finally:
        consumer.close()


def test_reset_when_out_of_range(bootstrap: str, topic: str) -> None:
    produce_values(bootstrap, topic, [b"%d" % i for i in range(5)])
    reset = consume_messages(bootstrap, topic, 5, offset=1_000_000)
    assert [m.offset() for m in reset] == [0, 1, 2, 3, 4]
    consumer = new_consumer(bootstrap, auto_offset_reset="error")
    try:
        consumer.assign([TopicPartition(topic, 0, 1_000_000)])
        deadline = time.monotonic() + WAIT_S
        while (message := consumer.poll(0.2)) is None:
            assert time.monotonic() < deadline
        assert message.error() is not None
        assert message.error().code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
    finally:
        consumer.close()


def test_a_waiting_consumer_gets_a_message_at_once(bootstrap: str, topic: str) -> None:
    """The fetch is parked for up to ten seconds, and the append must wake it."""
    consumer = new_consumer(bootstrap, fetch_wait_max_ms=10_000)
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        produce_values(bootstrap, topic, [b"first"])
        poll_messages(consumer, 1)
        for _ in range(3):
            time.sleep(0.5)
            began = time.monotonic()
            produce_values(bootstrap, topic, [b"later"])
            poll_messages(consumer, 1)
            assert time.monotonic() - began < 3
    finally:
        consumer.close()


def test_assign_to_the_end_returns_only_new_messages(bootstrap: str, topic: str) -> None:
    produce_values(bootstrap, topic, [b"old"] * 3)
    consumer = new_consumer(bootstrap)
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
        assert consumer.poll(1.5) is None
        produce_values(bootstrap, topic, [b"new"])
        (message,) = poll_messages(consumer, 1)
        assert (message.value(), message.offset()) == (b"new", 3)
    finally:
        consumer.close()


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_isolation_levels_read_plain_data_to_the_end(bootstrap: str, topic: str, isolation: str) -> None:
    produce_values(bootstrap, topic, [b"%d" % i for i in range(300)], enable_idempotence=True)
    messages = consume_messages(bootstrap, topic, 300, isolation_level=isolation)
    assert [m.value() for m in messages] == [b"%d" % i for i in range(300)]
    assert end_offset(bootstrap, topic) == 300


def test_pause_resume_and_many_partitions(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(30)
    producer = new_producer(bootstrap)
    for partition in range(30):
        for i in range(20):
            producer.produce(topic, b"%d" % i, partition=partition)
    assert producer.flush(WAIT_S) == 0
    consumer = new_consumer(bootstrap)
    try:
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(30)])
        paused = [TopicPartition(topic, p) for p in range(10)]
        consumer.pause(paused)
        first = poll_messages(consumer, 400)
        assert {m.partition() for m in first} == set(range(10, 30))
        consumer.resume(paused)
        assert {m.partition() for m in poll_messages(consumer, 200)} == set(range(10))
    finally:
        consumer.close()
