"""An OTLP collector in the test's process, which keeps the spans that services export."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent import futures
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service

POLL_S = 0.05


class CollectedSpan(NamedTuple):
    """A received span. Ids are hexadecimal, the root of a trace has an empty `parent`, and `links` are
    (trace, span).
    """

    service: str
    name: str
    trace: str
    span: str
    parent: str
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    is_error: bool


class OtlpCollector(service.TraceServiceServicer):
    """A collector. In `with OtlpCollector() as collector`, exporters connect to `collector.endpoint`."""

    def __init__(self) -> None:
        self.spans: list[CollectedSpan] = []
        self.resources: dict[str, dict[str, Any]] = {}
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        service.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> OtlpCollector:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None)

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  the name in the .proto
        for of_resource in request.resource_spans:
            resource = _attributes(of_resource.resource.attributes)
            name = str(resource["service.name"])
            self.resources[name] = resource
            for of_scope in of_resource.scope_spans:
                self.spans += [_collected(name, span) for span in of_scope.spans]
        return pb.ExportTraceServiceResponse()

    def until(self, condition: Callable[[list[CollectedSpan]], Any], timeout_s: float = 30.0) -> Any:
        """Waits until `condition` finds something among the spans and returns it."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = condition(list(self.spans))
            if found:
                return found
            if time.monotonic() > deadline:
                seen = sorted({(span.service, span.name) for span in self.spans})
                raise AssertionError(f"not among the spans within {timeout_s} s; there are {seen}")
            time.sleep(POLL_S)

    def roots(self, name: str) -> list[CollectedSpan]:
        return [span for span in self.spans if span.name == name and not span.parent]

    def children(self, parent: CollectedSpan) -> list[CollectedSpan]:
        """Returns the children in the order of their start."""
        found = [s for s in self.spans if s.trace == parent.trace and s.parent == parent.span]
        return sorted(found, key=lambda span: span.began_ns)


def _collected(service_name: str, span: Any) -> CollectedSpan:
    return CollectedSpan(
        service_name,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        span.status.code == span.status.STATUS_CODE_ERROR,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
