"""Tracing: traceparent, sampling, and the queue of spans for the exporter."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from io import StringIO
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from tidelog.model.trace_context import (
    CURRENT,
    SpanIds,
    format_traceparent,
    outgoing_metadata,
    parse_traceparent,
    part_of,
    traced_step,
)
from tidelog.process.structured_log import configure_logging
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.setting import SettingError
from tidelog.tracing.start import start_tracing
from tidelog.tracing.tracer import Tracing

IDS = SpanIds(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, True)
TEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Kept(SpanExporter):
    """An exporter that keeps spans. While `gate` is closed, it blocks the caller."""

    def __init__(self, result: SpanExportResult = SpanExportResult.SUCCESS) -> None:
        self.spans: list[ReadableSpan] = []
        self.gate = threading.Event()
        self.gate.set()
        self.result = result

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.gate.wait(10)
        self.spans += spans
        return self.result


def tracing(exporter: SpanExporter, **changed: Any) -> Tracing:
    options: dict[str, Any] = {"sampling_ratio": 1.0, "max_traces_per_second": 1000, "max_queued_spans": 100}
    return Tracing(exporter, Resource.get_empty(), **options | changed)


# -- traceparent


def test_a_traceparent_is_read_and_written() -> None:
    assert parse_traceparent(TEXT) == IDS
    assert format_traceparent(IDS) == TEXT
    assert parse_traceparent(TEXT[:-2] + "00") == IDS._replace(is_sampled=False)
    assert parse_traceparent("cc" + TEXT[2:] + "-what-the-future-will-be-like") == IDS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        TEXT.upper(),
        TEXT + "-more",
        "ff" + TEXT[2:],
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        TEXT.replace("-", "_"),
    ],
)
def test_invalid_traceparents(text: str) -> None:
    assert parse_traceparent(text) is None


@given(st.text(max_size=80))
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    ids = parse_traceparent(text)
    assert ids is None or format_traceparent(ids).startswith("00-")


# -- sampling


def test_sampling_ratio_and_rate_limit() -> None:
    chances, now_s = iter([0.05, 0.5, 0.1, 0.01, 0.02, 0.03, 0.04]), [1.0]
    traced = tracing(
        Kept(),
        sampling_ratio=0.1,
        max_traces_per_second=2,
        chance=lambda: next(chances),
        monotonic_s=lambda: now_s[0],
    )
    assert [traced.is_sampled() for _ in range(5)] == [True, False, False, True, False]
    now_s[0] = 2.0
    assert traced.is_sampled()
    traced.close()


# -- traces


def test_the_steps_of_a_trace() -> None:
    exporter = Kept()
    traced = tracing(exporter)
    trace = traced.begin("Produce", {"messaging.system": "kafka"}, waited_s=0.5)
    with part_of(trace), traced_step("append", {"n": 1}):
        assert CURRENT.get() is trace
        assert outgoing_metadata() == (("traceparent", trace.traceparent),)
    trace.begin_wait("replication wait")
    trace.begin_wait("replication wait")
    trace.link(TEXT)
    trace.link("nonsense")
    trace.fail("REQUEST_TIMED_OUT")
    trace.end()
    traced.close()
    spans = {span.name: span for span in exporter.spans}
    assert [s.name for s in exporter.spans] == ["queue", "append", "replication wait", "Produce"]
    root = spans["Produce"]
    assert [link.context.span_id for link in root.links] == [IDS.span_id]
    assert root.attributes is not None
    assert root.attributes["error.type"] == "REQUEST_TIMED_OUT"
    queue = spans["queue"]
    assert queue.start_time == root.start_time
    assert queue.end_time is not None
    assert queue.start_time is not None
    assert queue.end_time - queue.start_time == 500_000_000
    for name in ("queue", "append", "replication wait"):
        parent = spans[name].parent
        assert parent is not None
        assert parent.span_id == trace.ids.span_id
    assert (traced.ended_total, traced.dropped_total) == (4, 0)


def test_an_exception_in_a_step_is_recorded_and_raised() -> None:
    exporter = Kept()
    traced = tracing(exporter)
    trace = traced.begin("Fetch", {})
    with pytest.raises(KeyError), trace.step("read"):
        raise KeyError("gone")
    trace.end()
    traced.close()
    read = next(span for span in exporter.spans if span.name == "read")
    assert read.attributes is not None
    assert read.attributes["error.type"] == "KeyError"
    assert CURRENT.get() is None


def test_a_trace_of_another_process_is_continued() -> None:
    exporter = Kept()
    traced = tracing(exporter, sampling_ratio=0.0)
    trace = traced.go_on(TEXT, "coordinator OffsetCommit", {})
    assert trace is not None
    assert (trace.ids.trace_id, trace.ids.is_sampled) == (IDS.trace_id, True)
    trace.end()
    assert traced.go_on(TEXT[:-1] + "0", "not sampled there", {}) is None
    assert traced.go_on("nonsense", "x", {}) is None
    traced.close()
    parent = exporter.spans[0].parent
    assert parent is not None
    assert parent.span_id == IDS.span_id


def test_nothing_is_traced_outside_of_a_trace() -> None:
    assert outgoing_metadata() is None
    with traced_step("anything"):
        assert CURRENT.get() is None


# -- export


def test_spans_are_dropped_if_the_exporter_is_too_slow() -> None:
    exporter = Kept()
    exporter.gate.clear()
    traced = tracing(exporter, max_queued_spans=10)
    for _ in range(30):
        traced.begin("Fetch", {}).end()
    assert traced.ended_total == 60
    dropped = traced.dropped_total
    assert dropped >= 40
    exporter.gate.set()
    traced.close()
    assert len(exporter.spans) == 60 - traced.dropped_total == 60 - dropped


def test_spans_that_could_not_be_sent_are_counted() -> None:
    traced = tracing(Kept(SpanExportResult.FAILURE))
    traced.begin("Fetch", {}).end()
    traced.close()
    assert traced.dropped_total == 2


def test_an_exporter_that_hangs_does_not_delay_the_shutdown() -> None:
    exporter = Kept()
    exporter.gate.clear()
    traced = tracing(exporter)
    traced.begin("Fetch", {}).end()
    closing = threading.Thread(target=traced.close)
    closing.start()
    closing.join(8)
    assert not closing.is_alive()
    exporter.gate.set()


# -- log lines and settings


def test_a_log_line_contains_the_trace_id() -> None:
    stream = StringIO()
    configure_logging("json", stream=stream)
    traced = tracing(Kept())
    trace = traced.begin("Produce", {})
    with part_of(trace):
        structlog.get_logger("test").info("within")
    structlog.get_logger("test").info("without")
    traced.close()
    within, without = stream.getvalue().splitlines()
    assert f'"trace_id": "{trace.ids.trace_id:032x}"' in within
    assert f'"span_id": "{trace.ids.span_id:016x}"' in within
    assert "trace_id" not in without


def test_off_by_default() -> None:
    assert start_tracing(BrokerSettings.parse({}), "broker", 1) is None


@pytest.mark.parametrize(
    "endpoint", ["collector:4317", "http://collector", "ftp://collector:4317", "http://:4317"]
)
def test_invalid_endpoints(endpoint: str) -> None:
    with pytest.raises(SettingError, match="http://host:port"):
        BrokerSettings.parse({"tidelog.tracing.otlp.endpoint": endpoint})


@pytest.mark.parametrize("ratio", ["-0.1", "1.5", "a tenth"])
def test_invalid_sampling_ratios(ratio: str) -> None:
    with pytest.raises(SettingError, match=r"tidelog\.tracing\.sampling\.ratio"):
        BrokerSettings.parse({"tidelog.tracing.sampling.ratio": ratio})
