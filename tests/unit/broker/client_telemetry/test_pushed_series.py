"""Pushed metrics as series: names, labels, bounds, and bytes that are no metrics."""

from __future__ import annotations

import contextlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tidelog.broker.client_telemetry import receiver as module
from tidelog.broker.client_telemetry.receiver import (
    MAX_MESSAGES,
    MAX_RESOURCES,
    ClientSeries,
    InvalidMetricsError,
    decode_push,
)
from tidelog.kernel.instants import MonotonicMs
from tidelog.metrics.families import Families
from tidelog.metrics.generated.metrics_pb2 import AnyValue, KeyValue, Metric, MetricsData, NumberDataPoint
from tidelog.records.compression import Compression, compress

CLIENT, MAX_BYTES = UUID(int=1), 1_000_000
LABELS = {"client_id": "app", "client_instance_id": str(CLIENT)}


def gauge(name: str, value: float, /, **attributes: str) -> Metric:
    metric = Metric(name=name)
    point = metric.gauge.data_points.add(as_double=value)
    for key, text in attributes.items():
        point.attributes.append(KeyValue(key=key, value=AnyValue(string_value=text)))
    return metric


def total(name: str, value: int) -> Metric:
    metric = Metric(name=name)
    metric.sum.is_monotonic = True
    metric.sum.data_points.append(NumberDataPoint(as_int=value))
    return metric


def payload(*metrics: Metric) -> bytes:
    data = MetricsData()
    data.resource_metrics.add().scope_metrics.add().metrics.extend(metrics)
    return data.SerializeToString()


def shown(series: ClientSeries, now_ms: int = 0) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Returns what Prometheus would read. Fails if it would refuse the scrape."""
    families = Families()
    series.collect(families, 1, MonotonicMs(now_ms))

    class Collected:
        def collect(self) -> Families:
            return families

    registry = CollectorRegistry()
    registry.register(Collected())  # type: ignore[arg-type]
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {}), f"{sample.name} {labels} is there twice"
            found[sample.name][labels] = sample.value
    return found


def test_names_labels_and_values() -> None:
    series = ClientSeries()
    data = payload(
        gauge("org.apache.kafka.producer.batch.size.avg", 1.5, topic="t"),
        total("org.apache.kafka.producer.record.send.total", 7),
        gauge("other.metric", 2.0),
    )
    series.replace(CLIENT, "user", decode_push(data, 0, MAX_BYTES, LABELS), MonotonicMs(10))
    client = tuple(LABELS.items())
    found = shown(series)
    assert found["kafka_client_producer_batch_size_avg"] == {(*client, ("topic", "t")): 1.5}
    assert found["kafka_client_producer_record_send_total"] == {client: 7.0}
    assert found["kafka_client_other_metric"] == {client: 2.0}
    assert "kafka_client_other_metric" not in shown(series, now_ms=11), "the client is silent"


def test_a_resource_for_each_metric() -> None:
    """Kafka's Java clients send their metrics in this form."""
    data = MetricsData()
    for number in range(300):
        data.resource_metrics.add().scope_metrics.add().metrics.append(gauge(f"m{number}", number))
    pushed = decode_push(data.SerializeToString(), 0, MAX_BYTES, LABELS)
    assert [sample.value for sample in pushed.samples] == list(range(300))


def test_empty_messages_are_bounded() -> None:
    data = MetricsData()
    scope = data.resource_metrics.add().scope_metrics.add()
    for _ in range(MAX_MESSAGES):
        scope.metrics.add()
    scope.metrics.append(gauge("behind", 1))
    assert not decode_push(data.SerializeToString(), 0, MAX_BYTES, LABELS).samples


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_every_codec(codec: Compression) -> None:
    pushed = decode_push(bytes(compress(codec, payload(gauge("a", 1)))), codec, MAX_BYTES, LABELS)
    assert [sample.name for sample in pushed.samples] == ["kafka_client_a"]


def test_labels_that_are_pythons_names_and_series_that_are_twice_do_no_harm() -> None:
    series = ClientSeries()
    hostile = gauge("a", 1, name="x", doc="x", value="x", self="x", client_id="another")
    data = payload(hostile, gauge("b", 1), gauge("b", 2), gauge("c_total", 1), total("c", 2))
    pushed = decode_push(data, 0, MAX_BYTES, LABELS)
    assert pushed.dropped == 2
    series.replace(CLIENT, "user", pushed, MonotonicMs(10))
    found = shown(series)
    (labels,) = found["kafka_client_a"]
    assert dict(labels)["client_id"] == "app", "a client cannot take another one's name"
    assert found["tidelog_client_metrics_dropped_series_total"] == {(): 2.0}


def test_the_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    many = payload(*(gauge(f"m{number}", number) for number in range(module.MAX_SERIES_OF_CLIENT + 5)))
    pushed = decode_push(many, 0, MAX_BYTES, LABELS)
    assert (len(pushed.samples), pushed.dropped) == (module.MAX_SERIES_OF_CLIENT, 5)
    monkeypatch.setattr(module, "MAX_SERIES", 600)
    series = ClientSeries()
    for number in range(1, 4):
        series.replace(UUID(int=number), "user", pushed, MonotonicMs(10))
    assert sum(name.startswith("kafka_client_") for name in shown(series)) == 500
    assert series.dropped_total == 3 * 5 + 2 * 500
    series.forget(UUID(int=1))
    series.replace(UUID(int=2), "user", pushed, MonotonicMs(10))
    assert sum(name.startswith("kafka_client_") for name in shown(series)) == 500


@pytest.mark.parametrize("limit", ["MAX_SERIES", "MAX_SERIES_BYTES"])
def test_a_client_that_fills_the_series_leaves_others_their_share(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    pushed = decode_push(payload(gauge("a", 1), gauge("b", 1)), 0, MAX_BYTES, LABELS)
    monkeypatch.setattr(module, limit, 16 * (2 if limit == "MAX_SERIES" else pushed.size_bytes))
    series = ClientSeries()
    for number in range(20):
        series.replace(UUID(int=number), "greedy", pushed, MonotonicMs(10))
    for number in range(100, 105):
        series.replace(UUID(int=number), "other", pushed, MonotonicMs(10))
    assert {UUID(int=number) for number in range(100, 105)} <= series.clients.keys()
    assert len(series.clients) == 16
    for number in range(20):  # whoever is above the share goes on with what is left
        series.replace(UUID(int=number), "greedy", pushed, MonotonicMs(20))
    assert {UUID(int=number) for number in range(100, 105)} <= series.clients.keys()
    assert len(series.clients) == 16


def test_the_memory_of_series_is_bounded() -> None:
    """A client without rights may push as many instance ids and labels as it likes."""
    long = {f"l{number}" + "k" * 190: "v" * 200 for number in range(module.MAX_LABELS)}
    many = payload(*(gauge(f"m{number}", number, **long) for number in range(200)))
    pushed = decode_push(many, 0, MAX_BYTES, LABELS)
    assert len(pushed.samples) + pushed.dropped == 200
    assert 0 < sum(sample.size_bytes for sample in pushed.samples) <= module.MAX_SERIES_BYTES_OF_CLIENT
    series = ClientSeries()
    for number in range(50):
        series.replace(UUID(int=number), "user", pushed, MonotonicMs(10))
    kept = sum(sample.size_bytes for client in series.clients.values() for sample in client.samples)
    assert 0 < kept <= module.MAX_SERIES_BYTES
    assert series.dropped_total > 0
    for number in range(50):
        series.forget(UUID(int=number))
    small = decode_push(payload(gauge("m", 1)), 0, MAX_BYTES, LABELS)
    series.replace(UUID(int=1), "user", small, MonotonicMs(10))
    assert "kafka_client_m" in shown(series)


@given(st.binary(max_size=200), st.integers(0, 5))
def test_any_bytes_are_metrics_or_refused(data: bytes, codec: int) -> None:
    with contextlib.suppress(InvalidMetricsError):
        decode_push(data, codec, MAX_BYTES, LABELS)


def test_a_bomb_is_refused() -> None:
    bomb = bytes(compress(Compression.GZIP, bytes(10_000_000)))
    with pytest.raises(InvalidMetricsError):
        decode_push(bomb, Compression.GZIP, 1000, LABELS)


def test_a_push_with_too_many_resources_is_refused() -> None:
    """Four kilobytes of compressed empty resources have millions of them."""
    empty = b"\n\x00" * (MAX_RESOURCES + 1)
    with pytest.raises(InvalidMetricsError, match="resources"):
        decode_push(empty, 0, 1 << 20, {})
    decode_push(empty[:-2], 0, 1 << 20, {})
