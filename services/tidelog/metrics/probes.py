"""The endpoint that kubelet probes: `/livez` and `/readyz` answer 200 or 503 with one line of reason
(`health.py`).

It has a port of its own, because readers of metrics need not be trusted with the life of a process: slow
scrapes and unfinished requests at the port of the metrics do not delay a probe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tidelog.metrics.http_endpoint import HttpEndpoint

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from tidelog.metrics.health import Health, Verdict


class ProbesEndpoint(HttpEndpoint):
    """A server of probes, from its creation until `close`."""

    def __init__(self, health: Health, host: str, port: int) -> None:
        """Raises OSError if the address is not available."""
        super().__init__(with_probes(health, _not_found), host, port, "probes")


def with_probes(health: Health, others: WSGIApplication) -> WSGIApplication:
    """Returns an application that answers probes, and leaves other paths to `others`."""
    probes: dict[str, Callable[[], Verdict]] = {"/livez": health.liveness, "/readyz": health.readiness}

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        probe = probes.get(environ["PATH_INFO"])
        if probe is None:
            return others(environ, start_response)
        verdict = probe()
        status = "200 OK" if verdict.is_good else "503 Service Unavailable"
        return _line(start_response, status, verdict.reason)

    return app


def _not_found(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    return _line(start_response, "404 Not Found", "only /livez and /readyz are served here")


def _line(start_response: StartResponse, status: str, text: str) -> Iterable[bytes]:
    body = f"{text}\n".encode()
    start_response(
        status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
    )
    return [body]
