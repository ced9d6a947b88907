"""The labels of samples become the broker, partition and group of facts, and slices cover a history once."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.pipeline.analytics.facts import Fact, Sample, fact_of
from tidelog.pipeline.analytics.prometheus import FACT_SCHEMA, MAX_POINTS, range_samples, slices_of
from tidelog.pipeline.errors import PipelineError


def test_the_source_of_a_fact() -> None:
    def broker(**labels: str) -> int | None:
        place = {"topic": "t", "partition": "0"}
        fact = fact_of(Sample("kafka_log_log_size", {**place, **labels}, 0, 1), {"i:1": 9})
        assert fact is not None
        return fact.broker

    assert broker(instance="i:1", broker="3") == 9, "the service's own label has precedence"
    assert broker(broker="3", pod="x-4") == 3
    assert broker(pod="my-kafka-4") == 4
    assert broker(instance="exporter:9308") is None


@pytest.mark.parametrize(
    ("metric", "labels", "value"),
    [
        ("up", {}, 1.0),
        ("kafka_log_log_size", {"topic": "t"}, 1.0),
        ("kafka_log_log_size", {"topic": "t", "partition": "x"}, 1.0),
        ("kafka_log_log_size", {"topic": "t", "partition": "0"}, float("nan")),
        ("kafka_consumergroup_lag", {"topic": "t", "partition": "0"}, 1.0),
        ("kafka_broker_info", {"id": "a"}, 1.0),
        ("kafka_server_replicamanager_partitioncount", {}, 1.0),
    ],
)
def test_series_without_information_are_omitted(metric: str, labels: dict[str, str], value: float) -> None:
    assert fact_of(Sample(metric, labels, 0, value), {}) is None


@given(st.integers(0, 10**7), st.integers(1, 10**7), st.integers(1, 10**5), st.integers(1, 10**7))
def test_slices_cover_each_step_once(start: int, length: int, step: int, longest: int) -> None:
    length = min(length, step * 3000)
    end = start + length
    parts = slices_of(("m",), start, end, step, longest)
    if len(parts) > 4000:
        return
    asked = [at for part in parts for at in range(part.start_ms, part.end_ms + 1, step)]
    assert asked == list(range(start, end + 1, step))
    assert all((part.end_ms - part.start_ms) // step < MAX_POINTS for part in parts)


def test_a_server_that_is_not_prometheus_is_reported() -> None:
    body = json.dumps({"data": {"result": [{"metric": {"a": "b"}, "values": [[1.5, "2"]]}]}}).encode()
    assert list(range_samples(body, "m")) == [Sample("m", {"a": "b"}, 1500, 2.0)]
    for wrong in (b"<html>", b"[]", b"{}"):
        with pytest.raises(PipelineError, match="not Prometheus"):
            range_samples(wrong, "m")


def test_facts_have_the_tables_order() -> None:
    assert tuple(column.split()[0] for column in FACT_SCHEMA.split(", ")) == Fact._fields
