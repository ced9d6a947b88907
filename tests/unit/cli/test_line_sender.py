"""Records of lines: which partition gets them, and what a refused one does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidelog.cli.produce import LineSender
from tidelog.client.cluster import Cluster as Client
from tidelog.client.partitioners import partition_for_key
from tidelog.client.threads.topic_reader import batch_producer_of
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.record import Record
from tidelog.testing import Cluster

NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


def test_keys_headers_and_the_time_arrive(cluster: Cluster) -> None:
    cluster.create_topic("keyed", 3)
    records = [
        Record(0, NOW_MS, b"k%d" % number, b"v%d" % number, (("h", b"%d" % number),) if number % 2 else ())
        for number in range(20)
    ]
    with Client(cluster.bootstrap) as client, batch_producer_of(client) as producer:
        sender = LineSender(producer, "keyed")
        sender.send(records[:7], NOW_MS)
        sender.send(records[7:], NOW_MS)
        sender.flush()
    assert sender.sent_records == 20
    found = {record.key: record for record in cluster.records("keyed")}
    for record in records:
        stored = found[record.key]
        assert (stored.value, stored.headers, stored.timestamp_ms) == (
            record.value,
            record.headers,
            NOW_MS,
        )
        assert stored.partition == partition_for_key(record.key or b"", 3)


def test_a_given_partition_gets_every_record(cluster: Cluster) -> None:
    cluster.create_topic("fixed", 3)
    with Client(cluster.bootstrap) as client, batch_producer_of(client) as producer:
        sender = LineSender(producer, "fixed", partition=2)
        sender.send([Record(0, NOW_MS, None, b"a"), Record(0, NOW_MS, b"k", None)], NOW_MS)
        sender.flush()
    assert [(record.partition, record.key, record.value) for record in cluster.records("fixed")] == [
        (2, None, b"a"),
        (2, b"k", None),
    ]


def test_a_refused_record_is_an_error_and_is_not_counted(cluster: Cluster) -> None:
    cluster.create_topic("small", configs={"max.message.bytes": "2000"})
    with Client(cluster.bootstrap) as client, batch_producer_of(client) as producer:
        sender = LineSender(producer, "small")
        sender.send([Record(0, NOW_MS, None, b"a")], NOW_MS)
        sender.flush()
        with pytest.raises(KafkaError) as raised:
            for _ in range(100_000):  # more than the buffer holds, so that it waits for the first answers
                sender.send([Record(0, NOW_MS, None, b"x" * 3_000)], NOW_MS)
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert sender.sent_records == 1
