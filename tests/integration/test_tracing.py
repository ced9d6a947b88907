"""The spans of real clients' requests, as an OTLP collector receives them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import CLIENT_TIMEOUT_S, new_producer
from clusterlab.otlp_collector import CollectedSpan, OtlpCollector

pytestmark = pytest.mark.integration

MADE_IN = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")


@pytest.fixture(scope="module")
def collector() -> Iterator[OtlpCollector]:
    with OtlpCollector() as collector:
        yield collector


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, collector: OtlpCollector) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("traced")
    settings = {
        "tidelog.tracing.otlp.endpoint": collector.endpoint,
        "tidelog.tracing.sampling.ratio": "1",
        "tidelog.tracing.max.traces.per.second": "100000",
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
    }
    broker = BrokerProcess(directory / "data", directory / "log", settings)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def topic() -> str:
    return f"traced-{uuid.uuid4().hex[:8]}"


def produced(broker: BrokerProcess, topic: str, count: int = 5, **config: str) -> None:
    """Produces once before the test, because the first request of an API is not traced."""
    producer = new_producer(broker.bootstrap, **config)
    producer.produce(topic, b"first")
    assert producer.flush(CLIENT_TIMEOUT_S) == 0
    for number in range(count):
        headers = {"traceparent": f"00-{MADE_IN[0]}-{MADE_IN[1]}-01"} if number == 0 else None
        producer.produce(topic, str(number), partition=0, headers=headers)
    assert producer.flush(CLIENT_TIMEOUT_S) == 0


def about(collector: OtlpCollector, name: str, topic: str) -> CollectedSpan:
    def newest(spans: list[CollectedSpan]) -> CollectedSpan | None:
        found = [
            s for s in spans if s.name == name and s.attributes.get("messaging.destination.name") == topic
        ]
        return found[-1] if found else None

    span: CollectedSpan = collector.until(newest)
    return span


def test_a_produce(traced: BrokerProcess, collector: OtlpCollector, topic: str) -> None:
    produced(traced, topic, linger_ms="50")
    collector.until(lambda spans: [span for span in spans if span.links])
    root = about(collector, "Produce", topic)
    collector.until(lambda spans: len(collector.children(root)) >= 3)
    children = collector.children(root)
    assert [child.name for child in children] == ["queue", "append", "response"]
    assert root.attributes["messaging.system"] == "kafka"
    assert root.attributes["messaging.operation.type"] == "send"
    assert root.links == (MADE_IN,)
    append = children[1]
    assert append.attributes["messaging.destination.name"] == topic
    assert append.attributes["messaging.destination.partition.id"] == "0"
    assert append.attributes["messaging.batch.message_count"] == 5
    for child in children:
        assert root.began_ns <= child.began_ns <= child.ended_ns <= root.ended_ns
    assert collector.resources["tidelog-dev"]["service.instance.id"] == "1"


def test_messages_of_a_compressed_batch_are_not_read(
    traced: BrokerProcess, collector: OtlpCollector, topic: str
) -> None:
    before = len([span for span in collector.spans if span.links])
    producer = new_producer(traced.bootstrap, **{"compression.type": "gzip", "linger.ms": "50"})
    for _ in range(2):
        for _ in range(100):
            producer.produce(topic, b"x" * 100, headers={"traceparent": f"00-{MADE_IN[0]}-{MADE_IN[1]}-01"})
        assert producer.flush(CLIENT_TIMEOUT_S) == 0
    about(collector, "Produce", topic)
    assert len([span for span in collector.spans if span.links]) == before


def test_spans_of_a_waiting_fetch_and_of_a_commit(
    traced: BrokerProcess, collector: OtlpCollector, topic: str
) -> None:
    produced(traced, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": traced.bootstrap,
            "group.id": f"group-{topic}",
            "client.id": f"me-{topic}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    read = 0
    while read < 6:
        read += consumer.poll(CLIENT_TIMEOUT_S) is not None
    for offset in (3, 6):
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.poll(1.0)
    consumer.close()

    def waited(spans: list[CollectedSpan]) -> list[CollectedSpan]:
        of_topic = [s for s in spans if s.name == "Fetch" and not s.is_error]
        return [s for s in of_topic if [c.name for c in collector.children(s)].count("wait for records")]

    fetch = collector.until(waited)[0]
    assert fetch.attributes["messaging.operation.type"] == "receive"
    names = [child.name for child in collector.children(fetch)]
    assert names[0] == "queue"
    assert names.index("read") < names.index("wait for records")
    commit: CollectedSpan = collector.until(lambda _: collector.roots("OffsetCommit"))[0]
    collector.until(lambda _: len(collector.children(commit)) >= 4)
    names = [child.name for child in collector.children(commit)]
    assert sorted(names) == ["coordinator", "coordinator OffsetCommit", "queue", "response"]
    decided = next(c for c in collector.children(commit) if c.name == "coordinator OffsetCommit")
    assert decided.attributes["tidelog.shard.kind"] == "group"
    assert decided.attributes["messaging.client.id"] == f"me-{topic}"


def test_a_refusal_is_an_error(traced: BrokerProcess, collector: OtlpCollector, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": traced.bootstrap})
    admin.create_topics([NewTopic(topic, 1, config={"max.message.bytes": "1000"})])[topic].result(
        CLIENT_TIMEOUT_S
    )
    producer = new_producer(traced.bootstrap)
    for size in (10, 5000, 5000):
        producer.produce(topic, b"x" * size)
        assert producer.flush(CLIENT_TIMEOUT_S) == 0
    failed: CollectedSpan = collector.until(
        lambda spans: [s for s in spans if s.name == "Produce" and s.is_error]
    )[0]
    assert failed.attributes["error.type"] == "MESSAGE_TOO_LARGE"


def test_logs_name_the_trace(traced: BrokerProcess, collector: OtlpCollector, topic: str) -> None:
    """Uses CreateTopics, since a rejected forwarded request is logged."""
    lines = [json.loads(line) for line in traced.log_text().splitlines() if line.startswith("{")]
    traces = {span.trace for span in collector.spans}
    named = [line for line in lines if "trace_id" in line]
    for line in named:
        assert line["trace_id"] in traces


def test_all_spans_are_exported_at_a_stop(tmp_path: Path) -> None:
    with OtlpCollector() as collector:
        settings = {
            "tidelog.tracing.otlp.endpoint": collector.endpoint,
            "tidelog.tracing.sampling.ratio": "1",
        }
        broker = BrokerProcess(tmp_path / "data", tmp_path / "log", settings).start()
        produced(broker, "last")
        assert broker.stop() == 0
        assert collector.roots("Produce")


def test_a_missing_collector_has_no_effect_on_clients(tmp_path: Path) -> None:
    settings = {
        "tidelog.tracing.otlp.endpoint": "http://127.0.0.1:9",
        "tidelog.tracing.sampling.ratio": "1",
    }
    broker = BrokerProcess(tmp_path / "data", tmp_path / "log", settings).start()
    produced(broker, "t")
    assert broker.stop() == 0
