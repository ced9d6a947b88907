"""Pages of /metrics are parsed like Prometheus' own client does, and kept in a topic with their sources."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from observabilitylab import synthetic
from tidelog.pipeline.analytics.facts import Fact, Sample, fact_of, facts_of, node_ids
from tidelog.pipeline.analytics.prometheus import MAX_POINTS, range_samples, slices_of
from tidelog.pipeline.analytics.scrape import Target, failure_of, parse_target, scrape
from tidelog.pipeline.analytics.snapshots import kept_lines, snapshot_facts
from tidelog.pipeline.analytics.text_format import ExpositionError, samples_of
from tidelog.pipeline.errors import PipelineError

AT_MS = 1_790_000_000_000


@given(
    st.dictionaries(st.text(max_size=12), st.floats(allow_nan=False), min_size=1, max_size=5),
)
def test_pages_of_prometheus_client_are_parsed(values: dict[str, float]) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("name", "what it is\nin lines", ["topic", "other"], registry=registry)
    for text, value in values.items():
        gauge.labels(text, 'a"b\\c\nd').set(value)
    page = generate_latest(registry).decode()
    # A newline within a label is escaped. Unicode's other line breaks are not, and must not split the line.
    found = {s.labels["topic"]: s for s in samples_of(page, AT_MS)}
    assert {topic: s.value for topic, s in found.items()} == values
    assert all(s.labels["other"] == 'a"b\\c\nd' and s.at_ms == AT_MS for s in found.values())


def test_timestamps_of_samples_count_and_invalid_lines_are_named() -> None:
    assert next(samples_of("a 1 123", AT_MS)).at_ms == 123
    with pytest.raises(ExpositionError, match="line 2"):
        list(samples_of("a 1\n<html>", AT_MS))
    with pytest.raises(ExpositionError, match="not a number"):
        list(samples_of("a one", AT_MS))
    with pytest.raises(ExpositionError, match="not a label"):
        list(samples_of("a{b=c} 1", AT_MS))
    assert list(samples_of("<html>", AT_MS, wanted={"a"})) == [], "unwanted lines aren't looked at"


def test_only_used_metrics_are_kept() -> None:
    page = 'kafka_consumergroup_lag{x="y"} 1\n# HELP z\nprocess_cpu_seconds_total 5\nkafka_brokers_x 1\n'
    assert kept_lines(page) == 'kafka_consumergroup_lag{x="y"} 1\n'


def test_each_scrape_is_a_record_and_a_silent_target_has_a_reason() -> None:
    def fetch(url: str, timeout_s: float) -> str:
        if "2" in url:
            raise ConnectionRefusedError("refused")
        return "kafka_consumergroup_lag 1\nother 2\n"

    targets = [Target("http://one:1/metrics", {"broker": "7"}), Target("http://two:2/metrics")]
    one, two = scrape(targets, AT_MS, 1.0, fetch=fetch)
    assert (one.key, one.value, one.timestamp) == (b"one:1", b"kafka_consumergroup_lag 1\n", AT_MS)
    assert one.headers == (("label.broker", b"7"),)
    assert (two.value, failure_of(two), failure_of(one)) == (None, "refused", None)
    (whole,) = scrape(targets[:1], AT_MS, 1.0, keeps_all=True, fetch=fetch)
    assert b"other" in (whole.value or b"")


def test_targets_as_people_write_them() -> None:
    assert parse_target("h:1") == Target("http://h:1/metrics")
    assert parse_target("https://h/m,broker=3").labels == {"broker": "3"}
    for wrong in ("ftp://h/m", "h:1,broker", "http://"):
        with pytest.raises(PipelineError, match="--target"):
            parse_target(wrong)


def test_snapshots_give_the_same_facts_as_the_samples() -> None:
    told = [s for s in synthetic.samples(AT_MS) if s.at_ms < AT_MS + 60_000]
    found = [
        fact
        for (instance, at_ms), page in synthetic.pages(told).items()
        for fact in snapshot_facts(instance.encode(), page.encode(), (), at_ms)
    ]
    expected = list(facts_of(told, node_ids(told)))
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert {fact.broker for fact in found if fact.metric == "kafka_log_log_size"} == {1, 2, 3}
    assert list(snapshot_facts(b"x", None, (), AT_MS)) == []


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
    from tidelog.pipeline.analytics.history import FACT_SCHEMA

    assert tuple(column.split()[0] for column in FACT_SCHEMA.split(", ")) == Fact._fields
