"""Records with times years ago, which retention deletes at its next pass unless settings keep them."""

from __future__ import annotations

import time

from confluent_kafka import TopicPartition

from brokerlab.clients import CLIENT_TIMEOUT_S, new_consumer, new_producer

OLD_RECORDS = 20
DELETION_TIMEOUT_S = 30
QUICK_DELETION = {
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "100",
    "log.cleaner.backoff.ms": "100",
}
"""Settings with which retention and compaction look at all partitions several times in a second."""
_YEARS_AGO_MS = 1_500_000_000_000


def produce_old(bootstrap: str, topic: str, *, keys: int = OLD_RECORDS) -> None:
    """Produces OLD_RECORDS old records, each in a batch of its own, with so many different keys."""
    producer = new_producer(bootstrap)
    for number in range(OLD_RECORDS):
        producer.produce(topic, b"%d" % number, b"key %d" % (number % keys), 0, timestamp=_YEARS_AGO_MS)
        assert producer.flush(CLIENT_TIMEOUT_S) == 0


def await_deletion(bootstrap: str, topic: str) -> None:
    """Waits until retention has deleted all old records of a topic."""
    deadline_s = time.monotonic() + DELETION_TIMEOUT_S
    while _start_offset(bootstrap, topic) < OLD_RECORDS:
        assert time.monotonic() < deadline_s, f"old records of {topic} are not deleted"
        time.sleep(0.1)


def _start_offset(bootstrap: str, topic: str) -> int:
    consumer = new_consumer(bootstrap)
    try:
        low: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), CLIENT_TIMEOUT_S)[0]
        return low
    finally:
        consumer.close()
