"""The HTTP endpoint that Prometheus scrapes and kubelet probes: a thread, so that a scrape doesn't hold up
the event loop.

`/livez` and `/readyz` answer 200 or 503 with one line of reason (`health.py`), any other path the metrics.
Imported only where metrics are served: prometheus-client with the standard library's HTTP server takes 4 MB
and 30 ms.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app
from tidelog.runtime.health import Verdict
from tidelog.runtime.metric_families import MetricFamilies

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from tidelog.runtime.telemetry import Telemetry

_STOP_TIMEOUT_S = 5
_POLL_INTERVAL_S = 0.1
_CLIENT_TIMEOUT_S = 10


def new_registry(telemetry: Telemetry) -> CollectorRegistry:
    """What is shown: the telemetry's counters, and the process's memory, CPU and garbage collections."""
    registry = CollectorRegistry()
    registry.register(MetricFamilies(telemetry))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class MetricsEndpoint:
    """Answers scrapes and probes from its making to `close`; OSError if the address can't be had."""

    def __init__(self, telemetry: Telemetry, host: str, port: int) -> None:
        class Server(ThreadingWSGIServer):
            address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that went away is not worth a traceback."""

        app = _with_probes(telemetry, make_wsgi_app(new_registry(telemetry)))
        self._server = make_server(host, port, app, Server, handler_class=_SilentHandler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_INTERVAL_S,), name="metrics", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_STOP_TIMEOUT_S)


class _SilentHandler(WSGIRequestHandler):
    timeout = _CLIENT_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Requests are not logged."""

    def address_string(self) -> str:
        """No question to DNS."""
        return str(self.client_address[0])


def _with_probes(telemetry: Telemetry, metrics: WSGIApplication) -> WSGIApplication:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        health = telemetry.health
        probes: dict[str, Callable[[], Verdict]] = (
            {} if health is None else {"/livez": health.liveness, "/readyz": health.readiness}
        )
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
