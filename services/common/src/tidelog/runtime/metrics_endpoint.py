"""The HTTP endpoint that Prometheus scrapes: a thread, so that a scrape doesn't hold up the event loop.

Imported only where metrics are served: prometheus-client with the standard library's HTTP server takes 4 MB
and 30 ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)
from tidelog.runtime.metric_families import MetricFamilies

if TYPE_CHECKING:
    from tidelog.runtime.telemetry import Telemetry

_STOP_TIMEOUT_S = 5


def new_registry(telemetry: Telemetry) -> CollectorRegistry:
    """What is shown: the telemetry's counters, and the process's memory, CPU and garbage collections."""
    registry = CollectorRegistry()
    registry.register(MetricFamilies(telemetry))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class MetricsEndpoint:
    """Answers scrapes from its making to `close`; OSError if the address can't be had."""

    def __init__(self, telemetry: Telemetry, host: str, port: int) -> None:
        self._server, self._thread = start_http_server(port, host, registry=new_registry(telemetry))

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_STOP_TIMEOUT_S)
