"""`tidelog.testing`: each fault has the effect that its description states, as librdkafka sees it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tidelog.testing import Cluster, ErrorCode

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0


def _names(settings: dict[str, object]) -> dict[str, object]:
    """Returns librdkafka's names of settings; `error_cb` is confluent-kafka's own."""
    return {name if name == "error_cb" else name.replace("_", "."): value for name, value in settings.items()}


def producer_of(cluster: Cluster, **settings: object) -> Producer:
    names = _names(settings)
    return Producer({"bootstrap.servers": cluster.bootstrap, "retry.backoff.ms": 10, **names})


def sent(producer: Producer, topic: str, value: bytes, timeout_s: float = DEADLINE_S) -> KafkaError | None:
    """Sends one record and returns its error."""
    outcome: list[KafkaError | None] = []
    producer.produce(topic, value, on_delivery=lambda error, message: outcome.append(error))
    producer.flush(timeout_s)
    assert outcome, "the record was neither delivered nor refused"
    return outcome[0]


def until(condition: Callable[[], bool], what: str) -> None:
    limit_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < limit_s, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.01)


def values_in(cluster: Cluster, topic: str) -> list[bytes | None]:
    return [record.value for record in cluster.records(topic)]


class Reader:
    """A member of a group that polls in a thread, and remembers what it was assigned and what it lost."""

    def __init__(self, cluster: Cluster, topic: str, **settings: object) -> None:
        names = _names(settings)
        self.assigned = self.revoked = 0
        self.values: list[bytes | None] = []
        self.partitions: set[int] = set()
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                **names,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned += 1
        self.partitions |= {each.partition for each in partitions}

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.revoked += 1
        self.partitions -= {each.partition for each in partitions}

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.values.append(message.value())

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()


@contextmanager
def reading(cluster: Cluster, topic: str, **settings: object) -> Iterator[Reader]:
    reader = Reader(cluster, topic, **settings)
    try:
        yield reader
    finally:
        reader.close()


def test_requests_fail_as_often_as_asked_and_do_nothing_else(tidelog: Cluster) -> None:
    topic = tidelog.create_topic("flights")
    fault = tidelog.fail("Produce", ErrorCode.NOT_ENOUGH_REPLICAS, times=3)
    assert sent(producer_of(tidelog), topic, b"a") is None
    assert fault.hits == 3
    assert values_in(tidelog, topic) == [b"a"]


def test_an_error_that_is_not_retriable_reaches_the_client(tidelog: Cluster) -> None:
    topic = tidelog.create_topic("flights")
    tidelog.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
    error = sent(producer_of(tidelog), topic, b"a")
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert values_in(tidelog, topic) == []


def test_a_fault_can_be_for_one_client_and_ends_with_its_block(tidelog: Cluster) -> None:
    topic = tidelog.create_topic("flights")
    with tidelog.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", times=None, client_id="one") as fault:
        assert sent(producer_of(tidelog, client_id="other"), topic, b"a") is None
        assert sent(producer_of(tidelog, client_id="one"), topic, b"b") is not None
        assert fault.hits == 1
    assert sent(producer_of(tidelog, client_id="one"), topic, b"c") is None


def test_a_consumer_reads_on_after_its_fetches_failed(tidelog: Cluster) -> None:
    tidelog.produce("flights", "a", "b")
    fault = tidelog.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", times=2)
    with reading(tidelog, "flights") as reader:
        until(lambda: reader.values == [b"a", b"b"], "both records are read")
    assert fault.hits == 2


def test_a_producer_waits_for_a_leader_that_metadata_does_not_name(tidelog: Cluster) -> None:
    topic = tidelog.create_topic("flights")
    fault = tidelog.fail("Metadata", "LEADER_NOT_AVAILABLE", times=3)
    assert sent(producer_of(tidelog, topic_metadata_refresh_fast_interval_ms=10), topic, b"a") is None
    assert fault.hits == 3
    assert values_in(tidelog, topic) == [b"a"]


def test_a_lost_response_duplicates_a_record_unless_the_producer_is_idempotent(tidelog: Cluster) -> None:
    topic = tidelog.create_topic("flights")
    tidelog.lose_response("Produce")
    assert sent(producer_of(tidelog), topic, b"twice") is None
    assert values_in(tidelog, topic) == [b"twice", b"twice"]
    tidelog.lose_response("Produce")
    assert sent(producer_of(tidelog, enable_idempotence=True), topic, b"once") is None
    assert values_in(tidelog, topic) == [b"twice", b"twice", b"once"]


def test_a_delay_holds_the_end_of_a_transaction_back(tidelog: Cluster) -> None:
    topic = tidelog.create_topic("flights")
    producer = producer_of(tidelog, transactional_id="copier")
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, b"a")
    producer.flush(DEADLINE_S)
    fault = tidelog.delay("EndTxn", 1.0)
    began_s = time.monotonic()
    ending = threading.Thread(target=producer.commit_transaction, args=(DEADLINE_S,))
    ending.start()
    fault.wait()
    assert values_in(tidelog, topic) == []
    ending.join()
    assert time.monotonic() - began_s >= 1.0
    until(lambda: values_in(tidelog, topic) == [b"a"], "the record is committed")


def test_a_paused_broker_answers_nothing_until_it_is_resumed(tidelog: Cluster) -> None:
    topic = tidelog.create_topic("flights")
    producer = producer_of(tidelog)
    assert sent(producer, topic, b"a") is None
    (broker,) = tidelog.brokers
    tidelog.pause(broker)
    outcome: list[object] = []
    producer.produce(topic, b"b", on_delivery=lambda error, message: outcome.append(error))
    assert producer.flush(0.5) == 1
    with socket.create_connection(("127.0.0.1", int(tidelog.bootstrap.rpartition(":")[2])), 5):
        pass  # new connections are accepted
    tidelog.resume(broker)
    producer.flush(DEADLINE_S)
    assert outcome == [None]
    assert values_in(tidelog, topic) == [b"a", b"b"]


def test_only_the_connections_of_one_client_end(tidelog: Cluster) -> None:
    topic = tidelog.create_topic("flights")
    losses: dict[str, int] = {"one": 0, "other": 0}

    def counted(name: str) -> Callable[[KafkaError], None]:
        def lost(error: KafkaError) -> None:
            losses[name] += 1

        return lost

    producers = {name: producer_of(tidelog, client_id=name, error_cb=counted(name)) for name in losses}
    for name, producer in producers.items():
        assert sent(producer, topic, name.encode()) is None
    assert tidelog.disconnect("one") >= 1
    assert tidelog.disconnect("nobody") == 0
    until(lambda: producers["one"].poll(0.01) or losses["one"] > 0, "the client notices it")
    producers["other"].poll(0)
    assert losses["other"] == 0
    assert sent(producers["one"], topic, b"again") is None


def test_records_survive_the_leader(tidelog_cluster: Callable[..., Cluster]) -> None:
    cluster = tidelog_cluster(brokers=3)
    topic = cluster.create_topic("flights")
    producer = producer_of(cluster)
    assert sent(producer, topic, b"a") is None
    killed = cluster.kill_leader(topic)
    assert killed not in cluster.brokers
    assert sent(producer, topic, b"b") is None
    assert cluster.leader(topic) != killed
    cluster.start_broker(killed)
    assert set(cluster.brokers) == {1, 2, 3}
    assert sent(producer, topic, b"c") is None
    assert values_in(cluster, topic) == [b"a", b"b", b"c"]


def test_the_only_broker_returns_with_its_data_and_address(tidelog: Cluster) -> None:
    tidelog.produce("flights", "a")
    address = tidelog.bootstrap
    killed = tidelog.kill_leader("flights")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 5)
    tidelog.start_broker(killed)
    assert tidelog.bootstrap == address
    assert values_in(tidelog, "flights") == [b"a"]


def test_expired_records_are_gone_and_offsets_go_on(tidelog: Cluster) -> None:
    tidelog.produce("flights", "a", "b")
    tidelog.expire("flights")
    assert values_in(tidelog, "flights") == []
    (record,) = tidelog.produce("flights", "c")
    assert record.offset == 2
    with reading(tidelog, "flights") as reader:
        until(lambda: reader.values == [b"c"], "the reader begins after the expired records")


def test_time_makes_records_old(tidelog: Cluster) -> None:
    topic = tidelog.create_topic("flights", configs={"retention.ms": "3600000"})
    tidelog.produce(topic, "a")
    tidelog.advance(1800)
    time.sleep(0.2)
    assert values_in(tidelog, topic) == [b"a"]
    tidelog.advance(3600)
    until(lambda: values_in(tidelog, topic) == [], "retention deletes the record")


def test_time_ends_a_transaction_that_was_left_open(tidelog: Cluster) -> None:
    topic = tidelog.create_topic("flights")
    producer = producer_of(tidelog, transactional_id="copier")
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, b"a")
    producer.flush(DEADLINE_S)
    tidelog.produce(topic, "after")
    assert values_in(tidelog, topic) == []  # it is behind the open transaction
    tidelog.advance(120)
    until(lambda: values_in(tidelog, topic) == [b"after"], "the transaction is aborted")


def test_time_expels_a_member_that_does_not_poll(tidelog: Cluster) -> None:
    topic = tidelog.create_topic("flights", partitions=2)
    silent = Consumer({"bootstrap.servers": tidelog.bootstrap, "group.id": "readers"})
    silent.subscribe([topic])
    until(lambda: silent.poll(0.05) is None and len(silent.assignment()) == 2, "the first has both")
    with reading(tidelog, topic) as reader:
        fault = tidelog.delay("Heartbeat", 3600, times=None)  # the member seems to be dead
        fault.wait()
        tidelog.advance(46)
        fault.end()
        until(lambda: bool(reader.partitions), "the other gets partitions")
        silent.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"partition_assignment_strategy": "range", "heartbeat_interval_ms": 50},
        {"partition_assignment_strategy": "cooperative-sticky", "heartbeat_interval_ms": 50},
        {"group_protocol": "consumer"},
    ],
    ids=["eager", "cooperative", "KIP-848"],
)
@pytest.mark.parametrize("partitions", [1, 4])
def test_partitions_move_twice(
    tidelog: Cluster, settings: dict[str, object], partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A member without a partition knows without waiting whether a cooperative rebalance has a second step.
    monkeypatch.setattr("tidelog.testing.rebalance.SECOND_REBALANCE_S", 10 * DEADLINE_S)
    topic = tidelog.create_topic("flights", partitions=partitions)
    with reading(tidelog, topic, **settings) as reader:
        until(lambda: len(reader.partitions) == partitions, "the reader has all partitions")
        assigned, revoked = reader.assigned, reader.revoked
        tidelog.rebalance("readers").wait(DEADLINE_S / 2)
        if partitions > 1:  # a cooperative member keeps the only one
            until(lambda: reader.revoked > revoked and reader.assigned > assigned, "partitions move twice")
        until(lambda: len(reader.partitions) == partitions, "the reader has all partitions again")


def test_a_group_without_members_is_not_rebalanced(tidelog: Cluster) -> None:
    with pytest.raises(ValueError, match="group nobody has no member"):
        tidelog.rebalance("nobody")
