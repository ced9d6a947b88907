"""Creates traces with OpenTelemetry. This module is imported only if tracing is on, because the SDK takes 100
ms and 15 MB.

The sampling decision is made before any object is created, so a request that is not sampled costs one random
number. Where OpenTelemetry has semantic conventions for messaging (attributes `messaging.*`), spans follow
them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opentelemetry import trace as otel
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter

from tidelog.model.trace_context import (
    CURRENT,
    Attributes,
    SpanIds,
    format_traceparent,
    parse_traceparent,
)
from tidelog.process.build import tidelog_version
from tidelog.tracing.span_queue import SpanQueue

if TYPE_CHECKING:
    from tidelog.settings.cluster_settings import TracingSettings

EXPORT_TIMEOUT_S: Final = 10
ERROR_TYPE: Final = "error.type"
_NS_PER_S: Final = 1_000_000_000


class RequestTrace:
    """The span of one request in this process, and its steps. Implements `Trace`. `end` ends it."""

    __slots__ = ("_context", "_span", "_tracer", "_wait", "_wait_name", "ids", "traceparent")

    def __init__(self, tracer: otel.Tracer, span: otel.Span) -> None:
        self._tracer = tracer
        self._span = span
        self._context = otel.set_span_in_context(span)
        self._wait: otel.Span | None = None
        self._wait_name = ""
        context = span.get_span_context()
        self.ids = SpanIds(context.trace_id, context.span_id, True)
        self.traceparent = format_traceparent(self.ids)

    @contextmanager
    def step(self, name: str, attributes: Attributes | None = None) -> Iterator[otel.Span]:
        """See `Trace.step`. Yields the span, so that the caller can add attributes."""
        span = self._tracer.start_span(name, self._context, attributes=attributes)
        token = CURRENT.set(self)
        try:
            yield span
        except BaseException as error:
            _note_failure(span, error_type(error))
            raise
        finally:
            CURRENT.reset(token)
            span.end()

    def passed(self, name: str, began_ns: int, ended_ns: int) -> None:
        """Adds a step that has ended already. The times are nanoseconds of the wall clock."""
        span = self._tracer.start_span(name, self._context, start_time=began_ns)
        span.end(ended_ns)

    def begin_wait(self, name: str, attributes: Attributes | None = None) -> None:
        """Begins a step that lasts until another one begins, or until `end_wait`. If the current step has the
        same name, it continues.
        """
        if self._wait is not None and self._wait_name == name:
            return
        self.end_wait()
        self._wait_name = name
        self._wait = self._tracer.start_span(name, self._context, attributes=attributes)

    @property
    def is_waiting(self) -> bool:
        return self._wait is not None

    def end_wait(self, attributes: Attributes | None = None) -> None:
        """Ends the current step, if there is one, with these attributes."""
        wait, self._wait = self._wait, None
        if wait is not None:
            if attributes:
                wait.set_attributes(dict(attributes))
            wait.end()

    def note(self, attributes: Attributes) -> None:
        self._span.set_attributes(dict(attributes))

    def link(self, traceparent: str) -> None:
        """Links the span to the one that created a message. Has no effect if `traceparent` is not valid."""
        ids = parse_traceparent(traceparent)
        if ids is not None:
            self._span.add_link(_span_context(ids))

    def fail(self, error: str) -> None:
        _note_failure(self._span, error)

    def end(self) -> None:
        self.end_wait()
        self._span.end()


class Tracing:
    """Creates the traces of one process. The caller closes it."""

    def __init__(
        self,
        exporter: SpanExporter,
        resource: Resource,
        *,
        sampling_ratio: float,
        max_traces_per_second: int,
        max_queued_spans: int,
        chance: Callable[[], float] = random.random,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = SpanQueue(exporter, max_queued_spans)
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(self._queue)
        self._tracer = self._provider.get_tracer("tidelog", tidelog_version())
        self._ratio = sampling_ratio
        self._max_per_second = max_traces_per_second
        self._chance = chance
        self._monotonic_s = monotonic_s
        self._second = -1
        self._in_second = 0

    @property
    def ended_total(self) -> int:
        """The number of spans that have ended. May be called from any thread, as may `dropped_total`."""
        return self._queue.ended_total

    @property
    def dropped_total(self) -> int:
        return self._queue.dropped_total

    def is_sampled(self) -> bool:
        """Returns whether to trace the current request. Must be called once for each request."""
        if self._chance() >= self._ratio:
            return False
        second = int(self._monotonic_s())
        if second != self._second:
            self._second, self._in_second = second, 0
        self._in_second += 1
        return self._in_second <= self._max_per_second

    def begin(self, name: str, attributes: Attributes, *, waited_s: float = 0.0) -> RequestTrace:
        """Begins the trace of a client's request that arrived `waited_s` ago."""
        now_ns = time.time_ns()
        began_ns = now_ns - int(waited_s * _NS_PER_S)
        span = self._tracer.start_span(
            name, None, kind=otel.SpanKind.SERVER, attributes=attributes, start_time=began_ns
        )
        trace = RequestTrace(self._tracer, span)
        trace.passed("queue", began_ns, now_ns)
        return trace

    def go_on(self, traceparent: str, name: str, attributes: Attributes) -> RequestTrace | None:
        """Continues the trace of a request from another tidelog service. Returns None if `traceparent` is not
        valid or its trace is not sampled.
        """
        ids = parse_traceparent(traceparent)
        if ids is None or not ids.is_sampled:
            return None
        context = otel.set_span_in_context(otel.NonRecordingSpan(_span_context(ids)))
        span = self._tracer.start_span(name, context, kind=otel.SpanKind.SERVER, attributes=attributes)
        return RequestTrace(self._tracer, span)

    def close(self) -> None:
        """Exports the queued spans, for a second at most."""
        self._provider.shutdown()


def tracing_to_collector(settings: TracingSettings, service: str, node_id: int) -> Tracing:
    """Returns the tracing to the collector that the settings name.

    Raises OSError if the file of its certificate authority cannot be read.
    """
    endpoint = settings.tidelog_tracing_otlp_endpoint
    credentials = None
    if endpoint.startswith("https://"):
        import grpc

        ca_file = settings.tidelog_tracing_otlp_ca_file
        authority = None if ca_file is None else Path(ca_file).read_bytes()
        credentials = grpc.ssl_channel_credentials(authority)
    exporter = OTLPSpanExporter(
        endpoint=endpoint, insecure=credentials is None, credentials=credentials, timeout=EXPORT_TIMEOUT_S
    )
    resource = Resource.create(
        {
            "service.namespace": "tidelog",
            "service.name": f"tidelog-{service}",
            "service.instance.id": str(node_id),
            "service.version": tidelog_version(),
        }
    )
    return Tracing(
        exporter,
        resource,
        sampling_ratio=settings.tidelog_tracing_sampling_ratio,
        max_traces_per_second=settings.tidelog_tracing_max_traces_per_second,
        max_queued_spans=settings.tidelog_tracing_max_queued_spans,
    )


def error_type(error: BaseException) -> str:
    """Returns the name of Kafka's error code if the error has one, else the name of its class."""
    code = getattr(error, "code", None)
    name = getattr(code, "name", None)
    return name if isinstance(name, str) else type(error).__name__


def _note_failure(span: otel.Span, error: str) -> None:
    span.set_attribute(ERROR_TYPE, error)
    span.set_status(otel.Status(otel.StatusCode.ERROR, error))


def _span_context(ids: SpanIds) -> otel.SpanContext:
    flags = otel.TraceFlags(otel.TraceFlags.SAMPLED if ids.is_sampled else otel.TraceFlags.DEFAULT)
    return otel.SpanContext(ids.trace_id, ids.span_id, is_remote=True, trace_flags=flags)
