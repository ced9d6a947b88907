"""The metrics of one process: its own, those that its services register, and the endpoint that shows them.

metrics = ProcessMetrics("broker", node_id, health)
metrics.register(BrokerMetrics(telemetry))
metrics.serve("0.0.0.0:9404")
metrics.serve_probes("0.0.0.0:9405")
metrics.close()
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tidelog.metrics.container_memory import ContainerMemory, read_container_memory
from tidelog.metrics.loop_watch import LoopWatch
from tidelog.model.brokers import MAX_PORT
from tidelog.process.build import tidelog_version
from tidelog.settings.setting import SettingError

if TYPE_CHECKING:
    from tidelog.metrics.families import Collector, Families
    from tidelog.metrics.health import Health
    from tidelog.metrics.http_endpoint import HttpEndpoint

_METRICS_LISTENER: Final = "tidelog.metrics.listener"
_PROBES_LISTENER: Final = "tidelog.probes.listener"
REPLICAS_PAGE: Final = "/replicas"
"""The page of a broker about its replicas, beside its metrics."""


class Identity(NamedTuple):
    """The service that a process runs, by the name of its subcommand, such as `broker`, and its node id."""

    service: str
    node_id: int


class LeaseView(Protocol):
    """The state of a service's lease in the metadata store. Any thread may read it."""

    @property
    def lease_renewed_s(self) -> float | None:
        """The time of the last renewal, by the monotonic clock; None while there is no lease."""
        ...

    @property
    def leases_lost(self) -> int:
        """The number of leases that expired or were revoked by others."""
        ...


class SpanCounts(Protocol):
    """The counters of tracing."""

    @property
    def ended_total(self) -> int: ...

    @property
    def dropped_total(self) -> int: ...


class ProcessMetrics:
    """The metrics of a process and of the services in it. `health` answers the probes, if there is one."""

    def __init__(
        self,
        service: str,
        node_id: int,
        health: Health | None = None,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = Identity(service, node_id)
        self.loop: LoopWatch | None = None
        """The watch of the event loop, after `watch_loop`."""
        self.lease: LeaseView | None = None
        self.spans: SpanCounts | None = None
        self.read_memory: Callable[[], ContainerMemory | None] = read_container_memory
        self.collectors: list[Collector] = [self]
        self.pages: dict[str, Callable[[str], str]] = {}
        """Pages of JSON about the service, by path: each is made from the query in its address."""
        self._health = health
        self._monotonic_s = monotonic_s
        self._endpoints: list[HttpEndpoint] = []

    def register(self, collector: Collector) -> None:
        """Shows the samples of a service, too."""
        self.collectors.append(collector)

    def watch_loop(self) -> None:
        """Starts to measure the event loop of this thread, until `close`."""
        if self.loop is None:
            self.loop = LoopWatch(asyncio.get_running_loop())

    def serve(self, address: str) -> int:
        """Starts to answer scrapes and probes at "host:port" in a thread, and returns the port.

        Port 0 takes a free port. Raises SettingError if the address is not "host:port", and OSError if it is
        not available.
        """
        from tidelog.metrics.endpoint import MetricsEndpoint  # imported late, because it takes 4 MB and 30 ms

        return self._serve(
            _METRICS_LISTENER, address, partial(MetricsEndpoint, self.collectors, self.pages, self._health)
        )

    def serve_probes(self, address: str) -> int:
        """Starts to answer only probes at "host:port", as `serve` does. The process must have a `health`."""
        assert self._health is not None
        from tidelog.metrics.probes import ProbesEndpoint

        return self._serve(_PROBES_LISTENER, address, partial(ProbesEndpoint, self._health))

    def _serve(self, setting: str, address: str, start: Callable[[str, int], HttpEndpoint]) -> int:
        host, port = _parse_address(setting, address)
        try:
            endpoint = start(host, port)
        except OSError as error:
            reason = error.strerror or str(error)
            raise OSError(error.errno, f"{setting}: {address}: {reason}") from error
        self._endpoints.append(endpoint)
        return endpoint.port

    def close(self) -> None:
        """Stops answering and watching the event loop."""
        if self.loop is not None:
            self.loop.close()
        while self._endpoints:
            self._endpoints.pop().close()

    def collect(self, families: Families) -> None:
        """Adds the samples of the process itself."""
        service, node_id = self.identity
        labels = {"version": tidelog_version(), "service": service, "node_id": str(node_id)}
        families.gauge("tidelog_build_info", "Version, service and node id of this process", 1, **labels)
        if self.loop is not None:
            _add_loop(families, self.loop)
        if self.lease is not None:
            _add_lease(families, self.lease, self._monotonic_s())
        memory = self.read_memory()
        if memory is not None:
            doc = "Memory of the container without page cache"
            families.gauge("tidelog_container_memory_used_bytes", doc, memory.used_bytes)
            doc = "Memory at which the kernel ends a process of the container"
            families.gauge("tidelog_container_memory_limit_bytes", doc, memory.limit_bytes)
        spans = self.spans
        if spans is not None:
            families.counter("tidelog_trace_spans", "Spans of sampled requests", spans.ended_total)
            doc = "Spans dropped because the exporter did not keep up"
            families.counter("tidelog_trace_spans_dropped", doc, spans.dropped_total)


def _add_loop(families: Families, loop: LoopWatch) -> None:
    prefix, lag = "tidelog_event_loop", loop.lag
    doc = "Delay between the time that the event loop is asked to run a callback and the time that it does"
    families.histogram(f"{prefix}_lag_seconds", doc, lag.bucket_counts(), lag.seconds)
    doc = "The greatest delay in the last one to two minutes"
    families.gauge(f"{prefix}_lag_max_seconds", doc, loop.max_lag_s)
    families.counter(f"{prefix}_busy_seconds", "CPU time of the event loop's thread", loop.busy_seconds)


def _add_lease(families: Families, lease: LeaseView, now_s: float) -> None:
    renewed_s = lease.lease_renewed_s
    if renewed_s is not None:
        doc = "Time since the lease in the metadata store was last renewed"
        families.gauge("tidelog_metadata_lease_renewed_seconds", doc, max(0.0, now_s - renewed_s))
    name = "kafka_server_sessionexpirelistener_zookeeperexpires"
    doc = "Leases in the metadata store that ended without being given up"
    families.counter(name, doc, lease.leases_lost)


def _parse_address(setting: str, address: str) -> tuple[str, int]:
    host, separator, port = address.strip().rpartition(":")
    if not separator or not port.isdecimal() or int(port) > MAX_PORT:
        raise SettingError(setting, f"{setting}: {address} is not host:port")
    return host.strip("[]") or "0.0.0.0", int(port)
