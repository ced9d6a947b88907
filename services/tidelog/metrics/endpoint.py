"""The HTTP endpoint that Prometheus scrapes and kubelet probes.

It runs in a thread of its own, so that a scrape does not hold up the event loop, which continues to count in
the meantime: one sample may be a request older than the next. `/livez` and `/readyz` answer 200 or 503 with
one line of reason (`health.py`); any other path answers the metrics. The module is imported only where
metrics are served, because prometheus-client and the HTTP server of the standard library take 4 MB and 30 ms.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app
from prometheus_client.registry import Collector as PrometheusCollector

from tidelog.metrics.families import Collector, Families

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from tidelog.metrics.health import Health, Verdict

_STOP_TIMEOUT_S: Final = 5
_POLL_INTERVAL_S: Final = 0.1
_CLIENT_TIMEOUT_S: Final = 10


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

            def handle_error(self, request: object, client_address: object) -> None:
                """Ignores errors of clients that have disconnected."""

        app = _with_probes(health, make_wsgi_app(new_registry(collectors)))
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
