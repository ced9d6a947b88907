"""Every kind of traffic that the dashboards show: plain, idempotent and transactional producers, members of
both group protocols, of a share group and of a streams group, a member that falls behind, and requests that
brokers reject.

`with Traffic(bootstrap):` runs it until the block ends. tests/clusterlab checks the correctness of responses.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import (
    AcknowledgeType,
    Consumer,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tidelog.client.admin.groups import coordinator_of
from tidelog.client.calls import GROUP
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages import streams_group_heartbeat as beating

TOPIC, COMPACTED_TOPIC, COPY_TOPIC = "flights", "planes", "flights-copy"
PARTITIONS = 3
RECORDS_PER_TURN = 40
TURN_S = 0.1
PLANE_BYTES = 40_000
CLASSIC_GROUP, CONSUMER_GROUP, SLOW_GROUP = "dispatch", "dispatch-848", "archive"
SHARE_GROUP, STREAMS_GROUP = "gates", "counter"
RELEASED_EACH = 20
"""The share consumer releases one of so many records."""
REJECTED_EACH = 33
"""It rejects one of so many records, which becomes a dead letter."""
DEAD_LETTER_TOPIC = "dlq.gates"
TRANSACTIONAL_ID = "copier"
ADMIN_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 20.0
TOPIC_SETTINGS = {"min.insync.replicas": "2", "retention.ms": "3600000"}


def create_topics(bootstrap: str, replication_factor: int = 3) -> None:
    """Creates the topics, waits until they can be used, and gives the share group its dead letter topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    compacted = {
        "cleanup.policy": "compact",
        "segment.bytes": "1048576",  # the minimum
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "2000",
    }
    topics = [
        NewTopic(TOPIC, PARTITIONS, replication_factor, config=TOPIC_SETTINGS),
        NewTopic(COPY_TOPIC, PARTITIONS, replication_factor, config=TOPIC_SETTINGS),
        NewTopic(COMPACTED_TOPIC, 1, replication_factor, config=compacted),
        NewTopic(
            DEAD_LETTER_TOPIC,
            1,
            replication_factor,
            config={**TOPIC_SETTINGS, "errors.deadletterqueue.group.enable": "true"},
        ),
    ]
    for done in admin.create_topics(topics, operation_timeout=ADMIN_TIMEOUT_S).values():
        done.result(ADMIN_TIMEOUT_S)
    entry = ConfigEntry(
        "errors.deadletterqueue.topic.name", DEAD_LETTER_TOPIC, incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.GROUP, SHARE_GROUP, incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(ADMIN_TIMEOUT_S)


class Traffic:
    """Client threads of a cluster with the topics of `create_topics`."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._is_over = threading.Event()
        self.failures: list[str] = []
        steps: list[Callable[[], None]] = [
            self._produce,
            self._produce_transactions,
            lambda: self._consume(CLASSIC_GROUP, {"partition.assignment.strategy": "cooperative-sticky"}),
            lambda: self._consume(CONSUMER_GROUP, {"group.protocol": "consumer"}),
            self._share,
            self._stream,
            self._fall_behind,
            self._be_refused,
            self._administer,
        ]
        self._threads = [threading.Thread(target=self._guarded, args=(step,)) for step in steps]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(CLOSE_TIMEOUT_S)

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except KafkaException as error:
            self.failures.append(str(error))

    def _settings(self, **more: Any) -> dict[str, Any]:
        return {"bootstrap.servers": self._bootstrap, "log_level": 0, **more}

    def _produce(self) -> None:
        producer = Producer(self._settings(**{"enable.idempotence": True, "compression.type": "lz4"}))
        number = 0
        while not self._is_over.wait(TURN_S):
            for _ in range(RECORDS_PER_TURN):
                number += 1
                producer.produce(TOPIC, f"flight {number}".encode() * 8, key=str(number % 97))
            # Few keys with large values give the cleaner work.
            producer.produce(COMPACTED_TOPIC, os.urandom(PLANE_BYTES), key=str(number % 5))
            producer.poll(0)
        producer.flush(CLOSE_TIMEOUT_S)

    def _produce_transactions(self) -> None:
        producer = Producer(self._settings(**{"transactional.id": TRANSACTIONAL_ID}))
        producer.init_transactions(ADMIN_TIMEOUT_S)
        turn = 0
        while not self._is_over.wait(TURN_S * 2):
            turn += 1
            producer.begin_transaction()
            producer.produce(COPY_TOPIC, f"copy {turn}".encode(), key=str(turn))
            producer.flush(CLOSE_TIMEOUT_S)
            if turn % 10:
                producer.commit_transaction(CLOSE_TIMEOUT_S)
            else:
                producer.abort_transaction(CLOSE_TIMEOUT_S)

    def _consume(self, group: str, more: dict[str, Any]) -> None:
        settings = self._settings(**{"group.id": group, "auto.offset.reset": "earliest", **more})
        consumer = Consumer({**settings, "auto.commit.interval.ms": 500})
        consumer.subscribe([TOPIC, COPY_TOPIC])
        while not self._is_over.is_set():
            consumer.consume(500, TURN_S)
        consumer.close()

    def _share(self) -> None:
        """Accepts most records, releases some, and rejects others."""
        settings = self._settings(**{"group.id": SHARE_GROUP, "share.acknowledgement.mode": "explicit"})
        with ShareConsumer(settings) as consumer:
            consumer.subscribe([TOPIC])
            count = 0
            while not self._is_over.is_set():
                for message in consumer.poll(TURN_S):
                    count += 1
                    kind = AcknowledgeType.ACCEPT if count % RELEASED_EACH else AcknowledgeType.RELEASE
                    kind = kind if count % REJECTED_EACH else AcknowledgeType.REJECT
                    consumer.acknowledge(message, kind)

    def _stream(self) -> None:
        """Sends the heartbeats of one thread of a streams application, and repeats what failed."""
        epoch = 0
        while not self._is_over.wait(TURN_S * 10):
            try:
                with Cluster(self._bootstrap) as cluster:
                    coordinator = coordinator_of(cluster, GROUP, STREAMS_GROUP)
                    answer = coordinator.call(_heartbeat(epoch), beating.StreamsGroupHeartbeatResponse)
            except (ClientError, KafkaError):
                continue
            epoch = answer.member_epoch if answer.error_code == ErrorCode.NONE else 0

    def _fall_behind(self) -> None:
        """Reads and commits a few records, and then reads no more."""
        settings = self._settings(**{"group.id": SLOW_GROUP, "enable.auto.commit": False})
        consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        committed = False
        while not self._is_over.is_set():
            if not committed and consumer.consume(10, TURN_S):
                places = [TopicPartition(TOPIC, partition, 1) for partition in range(PARTITIONS)]
                consumer.commit(offsets=places, asynchronous=False)
                committed = True
            self._is_over.wait(TURN_S)
        consumer.close()

    def _be_refused(self) -> None:
        """Produces a record that is too large, so that the broker rejects the request."""
        large = 2_000_000
        producer = Producer(self._settings(**{"message.max.bytes": large * 2}))
        while not self._is_over.wait(TURN_S * 10):
            producer.produce(TOPIC, bytes(large))
            producer.poll(0)
        producer.purge()
        producer.flush(1)

    def _administer(self) -> None:
        """Changes a topic's setting back and forth. Otherwise only faults would cause writes to etcd."""
        admin = AdminClient(self._settings())
        hours = 1
        while not self._is_over.wait(TURN_S * 5):
            hours = 3 - hours
            entry = ConfigEntry(
                "retention.ms",
                str(hours * 3_600_000),
                incremental_operation=AlterConfigOpType.SET,
            )
            resource = ConfigResource(ResourceType.TOPIC, COPY_TOPIC, incremental_configs=[entry])
            for done in admin.incremental_alter_configs([resource]).values():
                done.result(ADMIN_TIMEOUT_S)


def _heartbeat(epoch: int) -> beating.StreamsGroupHeartbeatRequest:
    """Returns the heartbeat of a member without state. With epoch 0, it joins."""
    request = beating.StreamsGroupHeartbeatRequest(STREAMS_GROUP, "thread", epoch)
    if epoch == 0:
        request.topology = beating.Topology(0, [beating.Subtopology("0", [TOPIC])])
        request.rebalance_timeout_ms, request.process_id = 60_000, "process"
        request.active_tasks, request.standby_tasks, request.warmup_tasks = [], [], []
    return request


def main() -> None:
    """Runs the traffic for manual tests: `python -m kuberneteslab.traffic HOST:PORT SECONDS`."""
    with contextlib.suppress(KafkaException):  # the topics exist
        create_topics(sys.argv[1])
    with Traffic(sys.argv[1]) as traffic:
        time.sleep(float(sys.argv[2]))
    print(traffic.failures)


if __name__ == "__main__":
    main()
