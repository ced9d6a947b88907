"""Clients connect from outside the cluster by node ports, and from inside by the name of the bootstrap
service.
"""

from __future__ import annotations

import uuid

from confluent_kafka import Consumer, Producer

from brokerlab.clients import create_topic
from clusterlab.load import read_all
from e2e.release import Release

RECORDS = 300
CLIENT_TIMEOUT_S = 60.0


def test_a_client_outside_writes_and_a_group_reads(release: Release) -> None:
    topic = f"outside-{uuid.uuid4().hex[:8]}"
    create_topic(release.bootstrap, topic, partitions=3, replication_factor=3)
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": release.bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(CLIENT_TIMEOUT_S) == 0
    assert not failed
    for protocol in ("classic", "consumer"):
        assert _read_by_group(release.bootstrap, topic, protocol) == set(range(RECORDS))


def _read_by_group(bootstrap: str, topic: str, protocol: str) -> set[int]:
    settings = {"auto.offset.reset": "earliest", "group.protocol": protocol}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-{protocol}", **settings})
    consumer.subscribe([topic])
    found: set[int] = set()
    try:
        for _ in range(int(CLIENT_TIMEOUT_S)):
            for message in consumer.consume(RECORDS, 1.0):
                assert message.error() is None, message.error()
                found.add(int(message.value() or b""))
            if len(found) == RECORDS:
                break
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


def test_a_transaction_from_outside_is_visible_as_a_whole(release: Release) -> None:
    topic = f"transaction-{uuid.uuid4().hex[:8]}"
    create_topic(release.bootstrap, topic, partitions=1, replication_factor=3)
    settings = {"transactional.id": topic, "transaction.timeout.ms": 30_000}
    producer = Producer({"bootstrap.servers": release.bootstrap, **settings})
    producer.init_transactions(CLIENT_TIMEOUT_S)
    for kept in (True, False, True):
        producer.begin_transaction()
        producer.produce(topic, b"kept" if kept else b"dropped")
        producer.flush(CLIENT_TIMEOUT_S)
        (producer.commit_transaction if kept else producer.abort_transaction)(CLIENT_TIMEOUT_S)
    consumer = Consumer(
        {"bootstrap.servers": release.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    seen: list[bytes | None] = []
    try:
        for _ in range(int(CLIENT_TIMEOUT_S)):
            seen += [message.value() for message in consumer.consume(10, 1.0)]
            if len(seen) >= 2:
                break
    finally:
        consumer.close()
    assert seen == [b"kept", b"kept"]


def test_a_client_inside_writes_and_one_outside_reads(release: Release, slowness: float) -> None:
    """The inner client is another pod, which knows brokers by names that only the cluster's DNS has."""
    topic = f"inside-{uuid.uuid4().hex[:8]}"
    create_topic(release.bootstrap, topic, partitions=3, replication_factor=3)
    arguments = [
        "perf",
        "produce",
        topic,
        "--bootstrap-server",
        release.inside_bootstrap,
        "--num-records",
        str(RECORDS),
    ]
    said = release.kubectl.run_to_end(topic, release.image, arguments, timeout_s=CLIENT_TIMEOUT_S * slowness)
    print(said)
    assert len(read_all(release.bootstrap, topic, 3)) == RECORDS
