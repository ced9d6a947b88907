"""The state that a broker keeps after SIGTERM and after SIGKILL."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicCollection, TopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType

from brokerlab.batches import build_batch
from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import (
    admin_client,
    consume_messages,
    create_topic,
    end_offset,
    new_consumer,
    new_producer,
    produce_values,
)
from brokerlab.raw_client import RawClient

pytestmark = pytest.mark.integration
WAIT_S = 30


@pytest.fixture(params=[pytest.param("SIGTERM", marks=pytest.mark.slow), "SIGKILL"])
def restart(request: pytest.FixtureRequest) -> Callable[[BrokerProcess], None]:
    def again(broker: BrokerProcess) -> None:
        if request.param == "SIGTERM":
            assert broker.stop() == 0
        else:
            broker.kill()
        broker.start()

    return again


def topic_ids(bootstrap: str, names: list[str]) -> dict[str, str]:
    described = admin_client(bootstrap).describe_topics(TopicCollection(names))
    return {name: str(future.result(WAIT_S).topic_id) for name, future in described.items()}


def produce_batch(bootstrap: str, topic: str, producer_id: int, sequence: int) -> tuple[int, int]:
    """Returns the error code and the base offset of a batch of two records."""
    batch = build_batch([b"a", b"b"], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    with RawClient(bootstrap) as client:
        found = client.produce(topic, batch)
    return int(found.error_code), int(found.base_offset)


def new_producer_id(bootstrap: str) -> int:
    with RawClient(bootstrap) as client:
        answer = client.call(
            "init_producer_id",
            4,
            transactional_id=None,
            transaction_timeout=-1,
            producer_id=-1,
            producer_epoch=-1,
        )
    assert answer.error_code == 0
    return int(answer.producer_id)


def test_topics_configs_and_messages_remain(
    own_broker: BrokerProcess, restart: Callable[[BrokerProcess], None]
) -> None:
    bootstrap = own_broker.bootstrap
    create_topic(bootstrap, "kept", 3, {"retention.ms": "99999999", "segment.bytes": "1048576"})
    create_topic(bootstrap, "deleted")
    create_topic(bootstrap, "trimmed")
    for partition in range(3):
        produce_values(bootstrap, "kept", [b"%d" % i * 1000 for i in range(3000)], partition=partition)
    produce_values(bootstrap, "trimmed", [b"%d" % i for i in range(10)])
    admin = admin_client(bootstrap)
    trim = TopicPartition("trimmed", 0, 6)
    admin.delete_records([trim])[trim].result(WAIT_S)
    admin.delete_topics(["deleted"])["deleted"].result(WAIT_S)
    ids = topic_ids(bootstrap, ["kept", "trimmed"])
    cluster_id = admin.describe_cluster().result(WAIT_S).cluster_id

    restart(own_broker)

    assert admin.describe_cluster().result(WAIT_S).cluster_id == cluster_id
    assert set(admin.list_topics(timeout=WAIT_S).topics) == {"kept", "trimmed"}
    assert topic_ids(bootstrap, ["kept", "trimmed"]) == ids
    resource = ConfigResource(ResourceType.TOPIC, "kept")
    assert admin.describe_configs([resource])[resource].result(WAIT_S)["retention.ms"].value == "99999999"
    for partition in range(3):
        messages = consume_messages(bootstrap, "kept", 3000, [partition], check_crcs=True)
        assert [m.value() for m in messages] == [b"%d" % i * 1000 for i in range(3000)]
        assert [m.offset() for m in messages] == list(range(3000))
    (earliest,) = admin.list_offsets({TopicPartition("trimmed", 0): OffsetSpec.earliest()}).values()
    assert earliest.result(WAIT_S).offset == 6
    assert [m.offset() for m in produce_values(bootstrap, "kept", [b"next"])] == [3000]


def test_the_last_five_batches_of_a_producer_are_remembered(
    own_broker: BrokerProcess, restart: Callable[[BrokerProcess], None]
) -> None:
    bootstrap = own_broker.bootstrap
    create_topic(bootstrap, "t")
    producer = new_producer_id(bootstrap)
    for i in range(6):
        assert produce_batch(bootstrap, "t", producer, 2 * i) == (0, 2 * i)
    for _ in range(2):
        restart(own_broker)
        for i in range(1, 6):
            assert produce_batch(bootstrap, "t", producer, 2 * i) == (0, 2 * i)
        assert produce_batch(bootstrap, "t", producer, 14)[0] == 45
    assert produce_batch(bootstrap, "t", producer, 12) == (0, 12)
    assert end_offset(bootstrap, "t") == 14
    assert new_producer_id(bootstrap) != producer


def test_connected_clients_continue(
    own_broker: BrokerProcess, restart: Callable[[BrokerProcess], None]
) -> None:
    bootstrap = own_broker.bootstrap
    create_topic(bootstrap, "t")
    consumer = new_consumer(bootstrap, reconnect_backoff_max_ms=200)
    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    try:
        for i in range(3):
            produce_values(bootstrap, "t", [b"%d" % i])
            deadline = time.monotonic() + WAIT_S
            while (message := consumer.poll(0.2)) is None or message.error():
                assert time.monotonic() < deadline
            assert message.value() == b"%d" % i
            restart(own_broker)
    finally:
        consumer.close()


def test_many_topics_come_back(own_broker: BrokerProcess, restart: Callable[[BrokerProcess], None]) -> None:
    bootstrap = own_broker.bootstrap
    names = [f"topic-{i}" for i in range(30)]
    for name in names:
        create_topic(bootstrap, name, 10)
    for name in names[:5]:
        produce_values(bootstrap, name, [b"x"] * 10, partition=9)
    restart(own_broker)
    assert own_broker.start_seconds < 15
    assert set(admin_client(bootstrap).list_topics(timeout=WAIT_S).topics) == set(names)
    for name in names[:5]:
        assert end_offset(bootstrap, name, 9) == 10


def test_sigterm_ends_parked_requests_and_the_process_soon(own_broker: BrokerProcess) -> None:
    bootstrap = own_broker.bootstrap
    create_topic(bootstrap, "t")
    with RawClient(bootstrap) as client:
        client.send(
            "fetch",
            12,
            max_wait=60_000,
            min_bytes=1,
            replica_id=-1,
            topics=[
                {
                    "topic": "t",
                    "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}],
                }
            ],
            forgotten_topics_data=[],
        )
        time.sleep(0.3)
        began = time.monotonic()
        assert own_broker.stop() == 0
        assert time.monotonic() - began < 10


def test_sigint_is_a_clean_stop_too(own_broker: BrokerProcess) -> None:
    assert own_broker.process is not None
    own_broker.process.send_signal(signal.SIGINT)
    assert own_broker.process.wait(20) == 0
    assert "Traceback" not in own_broker.log_text()


def test_a_clean_stop_leaves_kafkas_files(own_broker: BrokerProcess) -> None:
    create_topic(own_broker.bootstrap, "t")
    produce_values(own_broker.bootstrap, "t", [b"x"])
    own_broker.stop()
    (partition,) = own_broker.data_dir.rglob("t-0")
    files = {f.name for f in partition.iterdir()}
    assert {
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "leader-epoch-checkpoint",
        "partition.metadata",
    } <= files
    log_dir = partition.parent
    for name in (
        "meta.properties",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
        ".kafka_cleanshutdown",
    ):
        assert (log_dir / name).exists(), name


def test_a_torn_tail_is_truncated(own_broker: BrokerProcess) -> None:
    bootstrap = own_broker.bootstrap
    create_topic(bootstrap, "t")
    produce_values(bootstrap, "t", [b"%d" % i for i in range(100)], batch_num_messages=10)
    own_broker.kill()
    (log,) = own_broker.data_dir.rglob("t-0/00000000000000000000.log")
    with log.open("ab") as file:
        file.write(build_batch([b"torn" * 100], base_offset=100)[:-50])
    own_broker.start()
    assert end_offset(bootstrap, "t") == 100
    assert [m.offset() for m in produce_values(bootstrap, "t", [b"next"])] == [100]
    assert len(consume_messages(bootstrap, "t", 101, check_crcs=True)) == 101


def test_lost_indexes_are_rebuilt(own_broker: BrokerProcess) -> None:
    bootstrap = own_broker.bootstrap
    create_topic(bootstrap, "t", configs={"segment.bytes": "1048576"})
    produce_values(bootstrap, "t", [b"%d" % i * 500 for i in range(4000)])
    own_broker.kill()
    for index in [*own_broker.data_dir.rglob("t-0/*.index"), *own_broker.data_dir.rglob("t-0/*.timeindex")]:
        index.unlink()
    own_broker.start()
    assert len(consume_messages(bootstrap, "t", 4000, check_crcs=True)) == 4000
    for offset in (1, 1234, 3999):
        assert consume_messages(bootstrap, "t", 1, offset=offset)[0].offset() == offset


def test_two_processes_cannot_share_a_directory(
    own_broker: BrokerProcess, start_broker: Callable[..., BrokerProcess]
) -> None:
    second = start_broker(data_dir=own_broker.data_dir, start=False)
    process = second.spawn()
    assert process.wait(30) not in (0, None)
    said = second.log_text()
    assert "Traceback" not in said
    assert str(own_broker.data_dir) in said
    assert own_broker.is_running()
    create_topic(own_broker.bootstrap, "t")
    produce_values(own_broker.bootstrap, "t", [b"x"])


def test_a_taken_port_is_one_clear_line(
    own_broker: BrokerProcess, start_broker: Callable[..., BrokerProcess]
) -> None:
    second = start_broker(port=own_broker.port, start=False)
    assert second.spawn().wait(30) not in (0, None)
    said = second.log_text()
    assert "Traceback" not in said
    assert str(own_broker.port) in said


def test_data_dir_is_created(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    broker = start_broker(data_dir=tmp_path / "not" / "yet" / uuid.uuid4().hex)
    assert broker.data_dir.is_dir()


def test_a_log_without_its_end_is_not_served_until_the_operator_confirms(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker()
    create_topic(broker.bootstrap, "whole")
    create_topic(broker.bootstrap, "cut")
    for topic in ("whole", "cut"):
        produce_values(broker.bootstrap, topic, [b"one", b"two"])
    broker.stop()
    (checkpoint,) = broker.data_dir.rglob("log-start-offset-checkpoint")
    text = checkpoint.read_text()
    assert "\ncut 0 0\n" in text
    checkpoint.write_text(text.replace("\ncut 0 0\n", f"\ncut 0 {10**12}\n"))
    broker.start()
    assert [message.value() for message in consume_messages(broker.bootstrap, "whole", 2)] == [b"one", b"two"]
    producer = new_producer(broker.bootstrap, message_timeout_ms=3000)
    failures: list[object] = []
    producer.produce("cut", b"three", on_delivery=lambda error, _: failures.append(error))
    producer.flush(10)
    assert failures[0] is not None
    assert "remove the partition's line from that file" in broker.log_text()
    broker.stop()
    text = checkpoint.read_text()
    checkpoint.write_text(text.replace(f"\ncut 0 {10**12}\n", "\ncut 0 0\n"))
    broker.start()
    assert [message.value() for message in consume_messages(broker.bootstrap, "cut", 2)] == [b"one", b"two"]


@pytest.mark.slow
def test_a_log_without_a_segment_is_not_served_until_it_is_restored(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker()
    create_topic(broker.bootstrap, "t")
    produce_values(broker.bootstrap, "t", [b"one", b"two"])
    broker.stop()
    (segment,) = broker.data_dir.rglob("t-0/00000000000000000000.log")
    content = segment.read_bytes()
    segment.unlink()
    broker.start()
    producer = new_producer(broker.bootstrap, message_timeout_ms=3000)
    failures: list[object] = []
    producer.produce("t", b"three", on_delivery=lambda error, _: failures.append(error))
    producer.flush(10)
    assert failures[0] is not None
    assert "segments are missing that the broker did not remove" in broker.log_text()
    broker.stop()
    segment.write_bytes(content)
    broker.start()
    assert [message.value() for message in consume_messages(broker.bootstrap, "t", 2)] == [b"one", b"two"]


def test_a_killed_broker_keeps_the_segments_behind_a_missing_one(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    """The death of the process is no crash of the machine, so a hole within the log takes the partition
    offline. What is missing at the beginning can't be confused with anything, and the rest is served.
    """
    broker = start_broker()
    for topic in ("first", "middle"):
        create_topic(broker.bootstrap, topic, configs={"segment.bytes": "1048576"})
        produce_values(broker.bootstrap, topic, [b"%d" % i * 500 for i in range(4000)])
    broker.kill()
    segments = {topic: sorted(broker.data_dir.glob(f"{topic}-0/*.log")) for topic in ("first", "middle")}
    second = int(segments["first"][1].stem)
    before = {path: path.stat().st_size for paths in segments.values() for path in paths}
    for path in (segments["first"][0], segments["middle"][1]):
        path.unlink()
        del before[path]
    broker.start()
    assert end_offset(broker.bootstrap, "first") == 4000
    found = consume_messages(
        broker.bootstrap, "first", 4000 - second, offset=OFFSET_BEGINNING, check_crcs=True
    )
    assert [message.offset() for message in found] == list(range(second, 4000))
    assert f"of offsets 0 to {second - 1}" in broker.log_text()
    assert "middle-0 cannot be opened: segments are missing" in broker.log_text()
    broker.kill()
    assert {path: path.stat().st_size for path in before} == before
