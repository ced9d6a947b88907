"""Reading a topic for a command: positions, and errors that last."""

from __future__ import annotations

import pytest

from tidelog.client.admin.topics import delete_topic
from tidelog.client.cluster import Cluster as Client
from tidelog.client.core.consuming.consumer_batch import ConsumerBatch
from tidelog.client.errors import BrokerGoneError, CorruptFetchError
from tidelog.client.threads.topic_reader import reading, sound_records
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import parse_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.testing import Cluster

MOST_POLLS = 1_000


def test_positions_begin_where_they_were_set_and_advance() -> None:
    with Cluster() as cluster, Client(cluster.bootstrap) as client:
        cluster.create_topic("t", 2)
        cluster.produce("t", b"a", b"b", b"c", partition=1)
        with reading(client, "t", {1: 1}) as reader:
            found = [record.value for batch in iter(reader.poll, None) for record in sound_records(batch)]
            assert found == [b"b", b"c"]
            assert reader.positions() == {1: 3}


def test_an_offset_that_is_gone_is_an_error() -> None:
    with Cluster() as cluster, Client(cluster.bootstrap) as client:
        cluster.create_topic("t", 1)
        with reading(client, "t", {0: 7}) as reader, pytest.raises(KafkaError) as raised:
            reader.poll(10.0)
    assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_topic_that_is_deleted_is_an_error() -> None:
    with Cluster() as cluster, Client(cluster.bootstrap, timeout_s=0.5) as client:
        cluster.create_topic("t", 1)
        with reading(client, "t", {0: 0}) as reader:
            client.topic("t")
            delete_topic(client, "t")
            with pytest.raises(KafkaError) as raised:
                for _ in range(MOST_POLLS):
                    reader.poll(0.1)
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_broker_that_goes_away_for_long_is_an_error() -> None:
    with Cluster() as cluster, Client(cluster.bootstrap, timeout_s=0.5) as client:
        cluster.create_topic("t", 1)
        client.broker(cluster.leader("t"))
        with reading(client, "t", {0: 0}) as reader:
            for _ in range(8):  # it asks the leader once, while the broker answers
                assert reader.poll(0.1) is None
            cluster.kill_broker(1)
            with pytest.raises(BrokerGoneError, match="broker 1 no longer answers"):
                for _ in range(MOST_POLLS):
                    reader.poll(0.1)


def test_records_that_their_producer_damaged_are_named() -> None:
    raw = bytearray(build_batch([Record(5, 1, None, b"x"), Record(6, 1, None, b"y")]))
    raw[-3] = 0x7F  # the length of the second value
    batch: ConsumerBatch[bytes, bytes] = ConsumerBatch(
        TopicPartition("t", 0), memoryview(bytes(raw)), [(0, parse_header(raw))], 5, 7, 2
    )
    records = sound_records(batch)
    with pytest.raises(CorruptFetchError, match="topic 't' partition 0 near offset 5: "):
        list(records)
