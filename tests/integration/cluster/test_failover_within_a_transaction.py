"""A coordinator dies between AddPartitionsToTxn and AddOffsetsToTxn of a transaction."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from brokerlab.clients import connection, consume_messages, create_topic
from clusterlab.tidelog_cluster import TidelogCluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]
SETTINGS = {
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "group.initial.rebalance.delay.ms": "0",
}
COORDINATORS = ("coordinator-1", "coordinator-2")
CALL_S = 10.0
RETRY_S = 60.0


def again(call: Callable[[], Any]) -> None:
    """Repeats the call while its error is retriable."""
    deadline_s = time.monotonic() + RETRY_S
    while True:
        try:
            call()
            return
        except KafkaException as problem:
            if not problem.args[0].retriable() or time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)


def test_offsets_and_records_are_committed_together(new_cluster: Callable[..., TidelogCluster]) -> None:
    """Each coordinator dies once, so one of the deaths is that of the transaction's coordinator."""
    cluster = new_cluster(brokers=1, controllers=1, settings=SETTINGS, options=["--coordinators", "2"])
    for topic in ("source", "target"):
        create_topic(cluster.bootstrap, topic, 1)
    consumer = Consumer({**connection(cluster.bootstrap), "group.id": "g", "enable.auto.commit": False})
    consumer.subscribe(["source"])
    consumer.poll(1.0)
    producer = Producer(
        {**connection(cluster.bootstrap), "transactional.id": "t", "transaction.timeout.ms": 60_000}
    )
    again(lambda: producer.init_transactions(CALL_S))
    for number, victim in enumerate(COORDINATORS, 1):
        producer.begin_transaction()
        producer.produce("target", f"from {number}", partition=0)
        assert producer.flush(CALL_S) == 0
        cluster.kill(victim)
        cluster.start(victim)
        offsets = [TopicPartition("source", 0, number)]
        metadata = consumer.consumer_group_metadata()
        again(lambda of=offsets, by=metadata: producer.send_offsets_to_transaction(of, by, CALL_S))
        again(lambda: producer.commit_transaction(CALL_S))
        (found,) = consumer.committed([TopicPartition("source", 0)], RETRY_S)
        assert found.offset == number
    consumer.close()
    values = [message.value() for message in consume_messages(cluster.bootstrap, "target", 2)]
    assert values == [b"from 1", b"from 2"]
