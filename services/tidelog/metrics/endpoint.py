"""The HTTP endpoint that Prometheus scrapes.

It runs in a thread of its own, so that a scrape does not hold up the event loop, which continues to count in
the meantime: one sample may be a request older than the next. `/livez` and `/readyz` answer as at the port of
the probes (`http_endpoint.py`), a service may add pages about its state, and any other path answers the
metrics. The module is imported only where metrics are served, because prometheus-client and the HTTP server
of the standard library take 4 MB and 30 ms.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector as PrometheusCollector

from tidelog.metrics.families import Collector, Families
from tidelog.metrics.http_endpoint import HttpEndpoint, with_probes

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from tidelog.metrics.health import Health

Page = Callable[[str], str]
"""Returns a page of JSON for the query in its address. Threads of the endpoint call it."""
SCRAPE_CACHE_S: Final = 0.5
"""A scrape returns the body of the previous one if it is younger than this."""


class MetricFamilies(PrometheusCollector):
    """The families of all collectors, which Prometheus' registry asks for at each scrape."""

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self._collectors = collectors

    def describe(self) -> list[Metric]:
        """Returns nothing: the names are known only at the scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        families = Families()
        for collector in tuple(self._collectors):
            collector.collect(families)
        yield from families


def new_registry(collectors: Sequence[Collector]) -> CollectorRegistry:
    """Returns a registry of the collectors and of the process's memory, CPU and garbage collections.

    Collectors that are added to `collectors` later are included.
    """
    registry = CollectorRegistry()
    registry.register(MetricFamilies(collectors))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class MetricsEndpoint(HttpEndpoint):
    """A server of scrapes, from its creation until `close`. It answers probes, too."""

    def __init__(
        self,
        collectors: Sequence[Collector],
        pages: Mapping[str, Page],
        health: Health | None,
        host: str,
        port: int,
    ) -> None:
        """Raises OSError if the address is not available. Pages that are added later are served, too."""
        scrapes = _with_pages(pages, _Scrapes(new_registry(collectors)))
        super().__init__(scrapes if health is None else with_probes(health, scrapes), host, port, "metrics")


def _with_pages(pages: Mapping[str, Page], others: WSGIApplication) -> WSGIApplication:
    """Returns an application that answers pages and leaves other paths to `others`."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        page = pages.get(environ["PATH_INFO"])
        if page is None:
            return others(environ, start_response)
        body = page(environ.get("QUERY_STRING", "")).encode()
        start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]

    return app


def _without_collections(encode: Callable[[CollectorRegistry], bytes], registry: CollectorRegistry) -> bytes:
    """Encodes without collections of garbage, of which a scrape of thousands of series would cause several.
    Each of them stops all threads, for 0.3 s with 15,000 partitions. Samples contain no cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return encode(registry)
    finally:
        if was_enabled:
            gc.enable()


class _Scrapes:
    """Answers scrapes one at a time, because encoding thousands of series takes long."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._bodies: dict[str, tuple[float, bytes]] = {}

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        encode, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
        with self._lock:
            made_at, body = self._bodies.get(content_type, (0.0, b""))
            if not body or time.monotonic() - made_at > SCRAPE_CACHE_S:
                body = _without_collections(encode, self._registry)
                self._bodies = {content_type: (time.monotonic(), body)}
        start_response("200 OK", [("Content-Type", content_type), ("Content-Length", str(len(body)))])
        return [body]
