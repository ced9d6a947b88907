"""The HTTP endpoint that Prometheus scrapes and kubelet probes.

It runs in a thread of its own, so that a scrape does not hold up the event loop, which continues to count in
the meantime: one sample may be a request older than the next. `/livez` and `/readyz` answer 200 or 503 with
one line of reason (`health.py`); any other path answers the metrics. The module is imported only where
metrics are served, because prometheus-client and the HTTP server of the standard library take 4 MB and 30 ms.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import ThreadingWSGIServer, choose_encoder
from prometheus_client.registry import Collector as PrometheusCollector

from tidelog.metrics.families import Collector, Families

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from tidelog.metrics.health import Health, Verdict

_STOP_TIMEOUT_S: Final = 5
_POLL_INTERVAL_S: Final = 0.1
_CLIENT_TIMEOUT_S: Final = 10
MAX_CONNECTIONS: Final = 32
"""The connections that are served at a time, each by a thread. One more connection ends the oldest, so that
unfinished requests cannot keep probes out.
"""
LISTEN_BACKLOG: Final = 128
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


class MetricsEndpoint:
    """A server of scrapes and probes, from its creation until `close`."""

    def __init__(self, collectors: Sequence[Collector], health: Health | None, host: str, port: int) -> None:
        """Raises OSError if the address is not available."""

        class Server(ThreadingWSGIServer):
            address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            # With the default of 5, the kernel drops connections of a burst, and probes wait for a second.
            request_queue_size = LISTEN_BACKLOG

            def process_request(self, request: Any, client_address: Any) -> None:
                """Starts a thread for the request, after ending the oldest one if there are too many."""
                with lock:
                    open_requests[request] = None
                    oldest = next(iter(open_requests)) if len(open_requests) > MAX_CONNECTIONS else None
                    if oldest is not None:
                        del open_requests[oldest]
                if oldest is not None:
                    with suppress(OSError):
                        oldest.shutdown(socket.SHUT_RDWR)
                super().process_request(request, client_address)

            def shutdown_request(self, request: Any) -> None:
                with lock:
                    open_requests.pop(request, None)
                super().shutdown_request(request)

            def handle_error(self, request: object, client_address: object) -> None:
                """Ignores errors of clients that have disconnected."""

        open_requests: dict[socket.socket, None] = {}
        lock = threading.Lock()
        app = _with_probes(health, _Scrapes(new_registry(collectors)))
        self._server = make_server(host, port, app, Server, handler_class=_SilentHandler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_INTERVAL_S,), name="metrics", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that the endpoint listens on."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stops answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_STOP_TIMEOUT_S)


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
                body = encode(self._registry)
                self._bodies = {content_type: (time.monotonic(), body)}
        start_response("200 OK", [("Content-Type", content_type), ("Content-Length", str(len(body)))])
        return [body]


class _SilentHandler(WSGIRequestHandler):
    timeout = _CLIENT_TIMEOUT_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Does not log requests."""

    def address_string(self) -> str:
        """Returns the client's address without asking DNS for its name."""
        return str(self.client_address[0])


def _with_probes(health: Health | None, metrics: WSGIApplication) -> WSGIApplication:
    probes: dict[str, Callable[[], Verdict]] = (
        {} if health is None else {"/livez": health.liveness, "/readyz": health.readiness}
    )

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        probe = probes.get(environ["PATH_INFO"])
        if probe is None:
            return metrics(environ, start_response)
        verdict = probe()
        body = f"{verdict.reason}\n".encode()
        start_response(
            "200 OK" if verdict.is_good else "503 Service Unavailable",
            [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))],
        )
        return [body]

    return app
