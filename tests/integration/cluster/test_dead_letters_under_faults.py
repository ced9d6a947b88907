"""Dead letters while leaders and coordinators are killed: each rejected record reaches the dead letter topic,
and none is delivered again after that.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    AcknowledgeType,
    Consumer,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from brokerlab.clients import admin_client
from clusterlab.tidelog_cluster import TidelogCluster
from clusterlab.topic_view import view_of_any
from grouplab.group_members import await_true

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

GROUP = "sharers"
PARTITIONS = 2
MEMBERS = 2
WAIT_S = 150.0
DEAD = "dlq.records"
BAD = b"bad"
ALLOWED = "errors.deadletterqueue.group.enable"
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "num.partitions": "2",
    "offsets.topic.num.partitions": "8",
    "share.coordinator.state.topic.num.partitions": "8",
    "group.share.record.lock.duration.ms": "15000",
    "errors.deadletterqueue.auto.create.topics.enable": "true",
}
GROUP_SETTINGS = {
    "share.auto.offset.reset": "earliest",
    "errors.deadletterqueue.topic.name": DEAD,
    "errors.deadletterqueue.copy.record.enable": "true",
}


@dataclass
class Seen:
    """The records that the members and the reader of the dead letter topic have seen, by their values."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    accepted: set[bytes] = field(default_factory=set)
    """The records whose acceptance was sent. If a leader dies, a member may not learn that it was stored."""
    confirmed: set[bytes] = field(default_factory=set)
    dead: Counter[bytes] = field(default_factory=Counter)
    """The number of copies of each dead letter."""
    delivered: set[bytes] = field(default_factory=set)
    problems: list[Exception] = field(default_factory=list)

    def read(self, value: bytes) -> None:
        with self.lock:
            self.dead[value] += 1


class Worker(threading.Thread):
    """Does `take` again and again until it is stopped."""

    def __init__(self, seen: Seen, work: Callable[[Worker], None]) -> None:
        super().__init__(daemon=True)
        self._seen = seen
        self._work = work
        self.is_stopping = False

    def run(self) -> None:
        try:
            self._work(self)
        except Exception as error:  # noqa: BLE001 - the test reports it
            self._seen.problems.append(error)


def member(bootstrap: str, topic: str, seen: Seen) -> Callable[[Worker], None]:
    """Returns the work of a member that rejects bad records and accepts the others."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": GROUP,
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": 50,
        "log_level": 0,
    }

    def work(worker: Worker) -> None:
        with ShareConsumer(settings) as consumer:
            consumer.subscribe([topic])
            while not worker.is_stopping:
                good: dict[int, list[bytes]] = {}
                messages = [message for message in consumer.poll(0.5) if message.error() is None]
                for message in messages:
                    value = message.value() or b""
                    is_bad = value.startswith(BAD)
                    consumer.acknowledge(
                        message, AcknowledgeType.REJECT if is_bad else AcknowledgeType.ACCEPT
                    )
                    seen.delivered.add(value)
                    if not is_bad:
                        seen.accepted.add(value)
                        good.setdefault(message.partition() or 0, []).append(value)
                if not messages:
                    continue
                try:
                    results = consumer.commit_sync(30.0)
                except KafkaException:
                    continue
                for partition, error in results.items():
                    if error is None:
                        seen.confirmed.update(good.get(partition.partition, []))

    return work


def reader(bootstrap: str, seen: Seen) -> Callable[[Worker], None]:
    """Returns the work of a reader of the dead letter topic."""

    def work(worker: Worker) -> None:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0})
        while not worker.is_stopping and DEAD not in consumer.list_topics(timeout=30).topics:
            time.sleep(0.5)
        consumer.assign([TopicPartition(DEAD, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
        while not worker.is_stopping:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                seen.read(message.value() or b"")
        consumer.close()

    return work


def change(bootstrap: str, kind: ResourceType, name: str, settings: dict[str, str]) -> None:
    entries = [
        ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        for setting, value in settings.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    for future in admin_client(bootstrap).incremental_alter_configs([resource]).values():
        future.result(WAIT_S)


@pytest.fixture
def coordinated(new_cluster: Callable[..., TidelogCluster]) -> TidelogCluster:
    found = new_cluster(controllers=1, options=["--coordinators", "2"], settings=SETTINGS)
    change(found.bootstrap, ResourceType.GROUP, GROUP, GROUP_SETTINGS)
    return found


@pytest.fixture
def topic(coordinated: TidelogCluster, new_replicated_topic: Callable[..., str]) -> str:
    return new_replicated_topic(coordinated, PARTITIONS)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def workers(coordinated: TidelogCluster, topic: str, seen: Seen) -> Iterator[list[Worker]]:
    works = [member(coordinated.bootstrap, topic, seen) for _ in range(MEMBERS)]
    started = [Worker(seen, work) for work in (*works, reader(coordinated.bootstrap, seen))]
    for worker in started:
        worker.start()
    yield started
    stop(started)


def stop(workers: list[Worker]) -> None:
    for worker in workers:
        worker.is_stopping = True
    for worker in workers:
        worker.join(60)


def produce(cluster: TidelogCluster, topic: str, prefix: str, count: int) -> set[bytes]:
    """Returns the values that were acknowledged: all of them. Every third one is bad."""
    values = [
        (BAD if number % 3 == 0 else b"good") + f"-{prefix}-{number}".encode() for number in range(count)
    ]
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(WAIT_S) == 0
    return set(values)


def await_finished(seen: Seen, values: set[bytes]) -> None:
    bad = {value for value in values if value.startswith(BAD)}
    try:
        await_true(
            lambda: (bad <= seen.dead.keys() and values - bad <= set(seen.accepted)) or bool(seen.problems),
            WAIT_S,
        )
    except TimeoutError:
        missing = sorted(bad - seen.dead.keys()), sorted(values - bad - set(seen.accepted))
        raise AssertionError(
            f"{len(missing[0])} records are no dead letters, {len(missing[1])} are not accepted: "
            f"{missing[0][:5]}, {missing[1][:5]}"
        ) from None
    assert not seen.problems


def test_rejected_records_reach_the_dead_letter_topic(
    coordinated: TidelogCluster, topic: str, seen: Seen, workers: list[Worker]
) -> None:
    everything = produce(coordinated, topic, "first", 300)
    await_finished(seen, everything)
    everything |= kill_a_leader_that_has_not_copied(coordinated, topic, seen)
    await_finished(seen, everything)
    source_leader = view_of_any(coordinated.live_addresses(), topic)[0].leader
    dead_leader = view_of_any(coordinated.live_addresses(), DEAD)[1].leader
    killed = (f"broker-{source_leader}", "coordinator-1", f"broker-{dead_leader}", "coordinator-2")
    for number, name in enumerate(killed):
        everything |= produce(coordinated, topic, f"before-{number}", 600)
        coordinated.kill(name)
        everything |= produce(coordinated, topic, f"after-{number}", 600)
        coordinated.start(name)
        await_finished(seen, everything)
    assert seen.dead.keys() <= everything, "only rejected records are dead letters"
    assert all(value.startswith(BAD) for value in seen.dead)
    copies = sum(seen.dead.values())
    print(f"{len(everything)} records, {len(seen.dead)} of them dead letters, {copies} copies")
    assert_nothing_comes_again(coordinated, topic, seen, workers)


def kill_a_leader_that_has_not_copied(cluster: TidelogCluster, topic: str, seen: Seen) -> set[bytes]:
    """The dead letter topic refuses its records until their leader is dead."""
    change(cluster.bootstrap, ResourceType.TOPIC, DEAD, {ALLOWED: "false"})
    time.sleep(2.0)  # until every broker knows
    values = produce(cluster, topic, "stuck", 300)
    good = {value for value in values if not value.startswith(BAD)}
    await_true(lambda: good <= seen.accepted, WAIT_S)
    assert not values & seen.dead.keys()
    leader = f"broker-{view_of_any(cluster.live_addresses(), topic)[0].leader}"
    cluster.kill(leader)
    cluster.start(leader)
    change(cluster.bootstrap, ResourceType.TOPIC, DEAD, {ALLOWED: "true"})
    return values


def assert_nothing_comes_again(
    cluster: TidelogCluster, topic: str, seen: Seen, workers: list[Worker]
) -> None:
    """Other members, and a leader that reads the state again, find new records only."""
    stop(workers)
    leader = view_of_any(cluster.live_addresses(), topic)[0].leader
    cluster.kill(f"broker-{leader}")
    seen.delivered.clear()
    confirmed = set(seen.confirmed)
    new = Worker(seen, member(cluster.bootstrap, topic, seen))
    new.start()
    values = {b"good-new-0", b"good-new-1"}
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for partition, value in enumerate(sorted(values)):
        producer.produce(topic, value, partition=partition)
    assert producer.flush(WAIT_S) == 0
    try:
        await_true(lambda: values <= seen.accepted, WAIT_S)
    finally:
        stop([new])
    again = seen.delivered - values
    assert not [value for value in again if value.startswith(BAD) or value in confirmed]
