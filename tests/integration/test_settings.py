"""Settings with Kafka's names, given with --set: their effects, and one clear line for each mistake."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import OffsetSpec

from brokerlab.broker_process import BrokerProcess, free_port
from brokerlab.clients import admin_client, consume_messages, create_topic, new_producer, produce_values
from brokerlab.raw_client import ConnectionClosedError, RawClient

pytestmark = pytest.mark.integration
StartBroker = Callable[..., BrokerProcess]
WAIT_S = 30
BROKER = 4
"""The type of a broker's settings in requests."""


def earliest_offset(bootstrap: str, topic: str) -> int:
    (future,) = (
        admin_client(bootstrap).list_offsets({TopicPartition(topic, 0): OffsetSpec.earliest()}).values()
    )
    return int(future.result(WAIT_S).offset)


def wait_until(is_true: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num.partitions", "zero"),
        ("num.partitions", "0"),
        ("log.retention.check.interval.ms", "0"),
        ("message.max.bytes", "-1"),
        ("log.cleanup.policy", "burn"),
        ("compression.type", "rar"),
        ("auto.create.topics.enable", "maybe"),
        ("listeners", "127.0.0.1"),
        ("advertised.listeners", "NOWHERE://x:1"),
        ("inter.broker.listener.name", "INTERNAL"),
        ("socket.request.max.bytes", "many"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(start_broker: StartBroker, name: str, value: str) -> None:
    broker = start_broker({name: value}, start=False)
    process = broker.spawn()
    assert process.wait(30) not in (0, None)
    said = broker.log_text()
    assert "Traceback" not in said
    assert len([line for line in said.splitlines() if name in line]) == 1, said


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_secured_listeners_are_refused_for_now(start_broker: StartBroker, protocol: str) -> None:
    broker = start_broker({"listeners": f"{protocol}://127.0.0.1:{free_port()}"}, start=False)
    assert broker.spawn().wait(30) not in (0, None)
    assert protocol in broker.log_text()
    assert "Traceback" not in broker.log_text()


def test_topic_defaults_come_from_the_broker(start_broker: StartBroker) -> None:
    bootstrap = start_broker({"num.partitions": "7", "message.max.bytes": "5000"}).bootstrap
    errors: list[KafkaError | None] = []
    producer = new_producer(bootstrap)
    for size in (10, 6000):
        producer.produce(
            "made-by-a-client", b"x" * size, partition=0, on_delivery=lambda e, _: errors.append(e)
        )
        producer.flush(WAIT_S)
    assert [e.code() if e else None for e in errors] == [None, KafkaError.MSG_SIZE_TOO_LARGE]
    assert len(admin_client(bootstrap).list_topics(timeout=WAIT_S).topics["made-by-a-client"].partitions) == 7


def test_auto_creation_can_be_off(start_broker: StartBroker) -> None:
    bootstrap = start_broker({"auto.create.topics.enable": "false"}).bootstrap
    errors: list[KafkaError] = []
    producer = new_producer(bootstrap, message_timeout_ms=3000, topic_metadata_propagation_max_ms=100)
    producer.produce("nobody-made-it", b"x", on_delivery=lambda e, _: errors.append(e))
    producer.flush(WAIT_S)
    assert len(errors) == 1
    assert errors[0] is not None
    assert "nobody-made-it" not in admin_client(bootstrap).list_topics(timeout=WAIT_S).topics


def test_topics_cannot_be_deleted_when_that_is_off(start_broker: StartBroker) -> None:
    bootstrap = start_broker({"delete.topic.enable": "false"}).bootstrap
    create_topic(bootstrap, "t")
    error = admin_client(bootstrap).delete_topics(["t"])["t"].exception(WAIT_S)
    assert error is not None
    assert error.args[0].code() in (KafkaError.TOPIC_DELETION_DISABLED, KafkaError.INVALID_REQUEST)


def test_listeners_each_advertise_their_own_address(start_broker: StartBroker) -> None:
    first, second = free_port(), free_port()
    broker = start_broker(
        {
            "listeners": f"PLAINTEXT://127.0.0.1:{first},INTERNAL://127.0.0.1:{second}",
            "advertised.listeners": f"PLAINTEXT://localhost:{first},INTERNAL://127.0.0.1:{second}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
        },
        port=first,
    )
    assert broker.is_running()
    for port, host in ((first, "localhost"), (second, "127.0.0.1")):
        with RawClient(f"127.0.0.1:{port}") as client:
            answer = client.call("metadata", 4, topics=[], allow_auto_topic_creation=False)
            assert [(b.host, b.port) for b in answer.brokers] == [(host, port)]


@pytest.mark.parametrize("scope", ["1", ""], ids=["one broker", "all brokers"])
@pytest.mark.parametrize("name", ["listeners", "advertised.listeners"])
def test_listeners_cannot_change_while_the_broker_runs(
    own_broker: BrokerProcess, name: str, scope: str
) -> None:
    """A change that took no effect would be a promise (ADR 0040), so it is refused in one sentence."""
    port = free_port()
    value = f"PLAINTEXT://127.0.0.1:{port}"
    with RawClient(own_broker.bootstrap) as client:

        def values() -> list[tuple[str | None, bool]]:
            asked = [{"resource_type": BROKER, "resource_name": "1", "configuration_keys": [name]}]
            (found,) = client.call("describe_configs", 4, resources=asked).results
            return [(config.value, config.read_only) for config in found.configs]

        before = values()
        for only_checked in (True, False):
            change = [{"name": name, "config_operation": 0, "value": value}]
            resources = [{"resource_type": BROKER, "resource_name": scope, "configs": change}]
            answer = client.call(
                "incremental_alter_configs", 1, resources=resources, validate_only=only_checked
            )
            (refused,) = answer.responses
            assert refused.error_code == KafkaError.INVALID_REQUEST
            assert refused.error_message == f"Cannot update these configs dynamically: {name}"
        assert values() == before
        assert all(is_read_only for _, is_read_only in before)
        answer = client.call("metadata", 4, topics=[], allow_auto_topic_creation=False)
        assert [broker.port for broker in answer.brokers] == [own_broker.port]
    with pytest.raises(ConnectionRefusedError):
        RawClient(f"127.0.0.1:{port}")


def test_connections_per_address_are_limited(start_broker: StartBroker) -> None:
    bootstrap = start_broker({"max.connections.per.ip": "5"}).bootstrap
    clients = [RawClient(bootstrap) for _ in range(5)]
    for client in clients:
        client.call("api_versions", 0)
    with RawClient(bootstrap) as one_more:
        assert one_more.is_closed_by_broker()
    clients.pop().close()
    time.sleep(0.2)
    with RawClient(bootstrap) as again:
        assert again.call("api_versions", 0).error_code == 0
    for client in clients:
        client.close()


def test_all_connections_are_limited(start_broker: StartBroker) -> None:
    """Apache Kafka lets a connection above the limit wait until another one ends. tidelog closes it."""
    bootstrap = start_broker({"max.connections": "10"}).bootstrap
    clients = [RawClient(bootstrap) for _ in range(10)]
    for client in clients:
        client.call("api_versions", 0)
    with RawClient(bootstrap, timeout_s=1) as one_more, pytest.raises((TimeoutError, ConnectionError)):
        one_more.call("api_versions", 0)
    clients.pop().close()
    time.sleep(0.2)
    with RawClient(bootstrap) as again:
        assert again.call("api_versions", 0).error_code == 0
    for client in clients:
        client.close()


def test_idle_connections_are_closed(start_broker: StartBroker) -> None:
    bootstrap = start_broker({"connections.max.idle.ms": "1500"}).bootstrap
    with RawClient(bootstrap) as idle, RawClient(bootstrap) as busy:
        idle.call("api_versions", 0)
        for _ in range(5):
            busy.call("api_versions", 0)
            time.sleep(0.5)
        assert idle.is_closed_by_broker(3)
        assert busy.call("api_versions", 0).error_code == 0


def test_a_request_over_the_size_limit_is_refused(start_broker: StartBroker) -> None:
    bootstrap = start_broker({"socket.request.max.bytes": "10000"}).bootstrap
    with RawClient(bootstrap) as client:
        topics = [{"name": "x" * 200} for _ in range(100)]
        client.send("metadata", 4, topics=topics, allow_auto_topic_creation=False)
        assert client.is_closed_by_broker()
    with RawClient(bootstrap) as client:
        assert client.call("api_versions", 0).error_code == 0


def test_retention_by_time(start_broker: StartBroker) -> None:
    bootstrap = start_broker({"log.retention.check.interval.ms": "300"}).bootstrap
    create_topic(bootstrap, "t", configs={"retention.ms": "60000"})
    producer = new_producer(bootstrap)
    for _ in range(10):
        producer.produce("t", b"old", timestamp=1_600_000_000_000, partition=0)
    assert producer.flush(WAIT_S) == 0
    wait_until(lambda: earliest_offset(bootstrap, "t") == 10, "the old segment is still there")
    assert [m.offset() for m in produce_values(bootstrap, "t", [b"new"])] == [10]
    time.sleep(1)
    assert [m.value() for m in consume_messages(bootstrap, "t", 1)] == [b"new"]


def test_retention_by_size(start_broker: StartBroker) -> None:
    bootstrap = start_broker({"log.retention.check.interval.ms": "300"}).bootstrap
    create_topic(bootstrap, "t", configs={"retention.bytes": "2000000", "segment.bytes": "1048576"})
    produce_values(bootstrap, "t", [b"%04d" % i * 2500 for i in range(800)], batch_num_messages=10)
    wait_until(lambda: earliest_offset(bootstrap, "t") > 400, "too few records were deleted")
    first = earliest_offset(bootstrap, "t")
    assert first <= 600
    messages = consume_messages(bootstrap, "t", 800 - first)
    assert [m.offset() for m in messages] == list(range(first, 800))


def test_a_changed_topic_config_takes_effect_at_once(start_broker: StartBroker) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    bootstrap = start_broker().bootstrap
    create_topic(bootstrap, "t")
    entry = ConfigEntry("max.message.bytes", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[entry])
    admin_client(bootstrap).incremental_alter_configs([resource])[resource].result(WAIT_S)
    errors: list[KafkaError | None] = []
    producer = new_producer(bootstrap)
    producer.produce("t", b"x" * 2000, partition=0, on_delivery=lambda e, _: errors.append(e))
    producer.flush(WAIT_S)
    assert [e.code() if e else None for e in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_metrics_under_kafkas_prometheus_names(start_broker: StartBroker) -> None:
    port = free_port()
    bootstrap = start_broker({"tidelog.metrics.listener": f"127.0.0.1:{port}"}).bootstrap
    create_topic(bootstrap, "t")
    produce_values(bootstrap, "t", [b"x" * 100] * 50)
    consume_messages(bootstrap, "t", 50)
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    for name in (
        "kafka_server_brokertopicmetrics_messagesin_total",
        "kafka_server_brokertopicmetrics_bytesin_total",
        "kafka_server_brokertopicmetrics_bytesout_total",
        "kafka_network_requestmetrics_requests_total",
        "kafka_server_replicamanager_partitioncount",
    ):
        assert name in text
    (line,) = [
        row
        for row in text.splitlines()
        if row.startswith("kafka_server_brokertopicmetrics_messagesin_total") and 'topic="t"' in row
    ]
    assert float(line.split()[-1]) == 50


def test_a_closed_listener_refuses_connections_after_the_stop(own_broker: BrokerProcess) -> None:
    own_broker.stop()
    with pytest.raises((ConnectionRefusedError, ConnectionClosedError)):
        RawClient(own_broker.bootstrap)
