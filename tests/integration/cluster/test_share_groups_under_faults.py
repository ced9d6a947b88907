"""A share group while leaders and coordinators are killed: every record is accepted, and none again later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pytest
from confluent_kafka import KafkaException, Producer, ShareConsumer

from clusterlab.tidelog_cluster import TidelogCluster
from clusterlab.topic_view import view_of_any
from grouplab.group_members import await_true
from grouplab.share_group_client import ShareGroupClient

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

GROUP = "sharers"
PARTITIONS = 2
MEMBERS = 3
WAIT_S = 120.0
BUFFERED_S = 10.0
"""The longest time for which a member may have a record that another member accepts meanwhile, because the
record's leader died.
"""
SETTINGS = {
    "offsets.topic.num.partitions": "8",
    "share.coordinator.state.topic.num.partitions": "8",
    "group.share.record.lock.duration.ms": "15000",
    "group.share.delivery.count.limit": "10",
}


@dataclass
class Seen:
    """The deliveries that the members saw, by the value of a record."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    accepted: dict[bytes, float] = field(default_factory=dict)
    deliveries: int = 0
    partitions: set[int] = field(default_factory=set)
    unknown: set[bytes] = field(default_factory=set)
    """The records whose acknowledgement ended with an error. The broker may have stored it before it died."""
    late: list[bytes] = field(default_factory=list)
    """The records that were delivered long after they were accepted."""

    def delivered(self, value: bytes) -> None:
        with self.lock:
            self.deliveries += 1
            accepted_s = self.accepted.get(value)
            if accepted_s is not None and time.monotonic() - accepted_s > BUFFERED_S:
                self.late.append(value)

    def failed(self, values: Iterable[bytes]) -> None:
        with self.lock:
            self.unknown.update(values)

    def is_finished(self, values: set[bytes]) -> bool:
        with self.lock:
            return values <= self.accepted.keys() | self.unknown

    def confirmed(self, values: list[bytes]) -> None:
        with self.lock:
            for value in values:
                self.accepted.setdefault(value, time.monotonic())


class Member(threading.Thread):
    """A member that accepts what it gets."""

    def __init__(self, bootstrap: str, topic: str, seen: Seen) -> None:
        super().__init__(daemon=True)
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 50,
            "log_level": 0,
        }
        self._topic = topic
        self._seen = seen
        self.is_stopping = False
        self.problem: Exception | None = None

    def run(self) -> None:
        try:
            with ShareConsumer(self._settings) as consumer:
                consumer.subscribe([self._topic])
                while not self.is_stopping:
                    self._take(consumer)
        except Exception as error:  # noqa: BLE001 - the test reports it
            self.problem = error

    def _take(self, consumer: ShareConsumer) -> None:
        partitions: dict[int, list[bytes]] = {}
        for message in consumer.poll(0.5):
            if message.error() is not None:
                continue
            value = message.value() or b""
            self._seen.delivered(value)
            self._seen.partitions.add(message.partition() or 0)
            partitions.setdefault(message.partition() or 0, []).append(value)
            consumer.acknowledge(message)
        if not partitions:
            return
        try:
            results = consumer.commit_sync(30.0)
        except KafkaException:
            for values in partitions.values():
                self._seen.failed(values)
            return
        for partition, error in results.items():
            report = self._seen.confirmed if error is None else self._seen.failed
            report(partitions.get(partition.partition, []))


@pytest.fixture
def coordinated(new_cluster: Callable[..., TidelogCluster]) -> TidelogCluster:
    return new_cluster(controllers=1, options=["--coordinators", "2"], settings=SETTINGS)


@pytest.fixture
def topic(coordinated: TidelogCluster, new_replicated_topic: Callable[..., str]) -> str:
    return new_replicated_topic(coordinated, PARTITIONS)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def members(coordinated: TidelogCluster, topic: str, seen: Seen) -> Iterator[list[Member]]:
    started = [Member(coordinated.bootstrap, topic, seen) for _ in range(MEMBERS)]
    for member in started:
        member.start()
    yield started
    for member in started:
        member.is_stopping = True
    for member in started:
        member.join(60)


def produce(cluster: TidelogCluster, topic: str, prefix: str, count: int) -> set[bytes]:
    """Returns the values that were acknowledged: all of them."""
    values = {f"{prefix}-{number}".encode() for number in range(count)}
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True})
    for number, value in enumerate(sorted(values)):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(WAIT_S) == 0
    return values


def await_accepted(seen: Seen, values: set[bytes], members: list[Member]) -> None:
    try:
        await_true(lambda: seen.is_finished(values) or any(m.problem for m in members), WAIT_S)
    except TimeoutError:
        missing = sorted(values - set(seen.accepted) - seen.unknown)
        raise AssertionError(f"{len(missing)} records are not accepted: {missing[:10]}") from None
    assert not [member.problem for member in members if member.problem is not None]


def test_no_record_is_lost_or_comes_again(
    coordinated: TidelogCluster, topic: str, seen: Seen, members: list[Member]
) -> None:
    warm_up: set[bytes] = set()

    def is_shared() -> bool:
        warm_up.update(produce(coordinated, topic, f"warm-up{len(warm_up)}", PARTITIONS))
        # Each partition begins behind its newest record when it is first fetched.
        return len(seen.partitions) == PARTITIONS

    await_true(is_shared, WAIT_S)
    everything = produce(coordinated, topic, "first", 500)
    await_accepted(seen, everything, members)
    leader = view_of_any(coordinated.live_addresses(), topic)[0].leader
    for name in (f"broker-{leader}", "coordinator-1", "coordinator-2"):
        everything |= produce(coordinated, topic, f"before-{name}", 500)
        coordinated.kill(name)
        everything |= produce(coordinated, topic, f"after-{name}", 500)
        coordinated.start(name)
        await_accepted(seen, everything, members)
    client = ShareGroupClient(coordinated.bootstrap, GROUP, topic)
    client.until(lambda: client.lags() == dict.fromkeys(range(PARTITIONS), 0))
    # A member does not learn that its acknowledgement was stored if the leader died meanwhile. Such a record
    # is not delivered again. The death of a coordinator leaves no acknowledgement without an answer.
    unanswered = everything - seen.accepted.keys()
    at_leader = (f"before-broker-{leader}-".encode(), f"after-broker-{leader}-".encode())
    assert all(value.startswith(at_leader) for value in unanswered)
    assert not seen.late
    print(f"{len(everything)} records, {len(unanswered)} without an answer, {seen.deliveries} deliveries")
