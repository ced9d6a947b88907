"""The metrics of one process: its own, those that its services register, and the endpoint that shows them.

metrics = ProcessMetrics("broker", node_id, health)
metrics.register(BrokerMetrics(telemetry))
metrics.serve_at_listeners(settings)
metrics.close()

The process's own are the delay and the CPU time of its event loop, its lease, its spans, and the memory of
its container.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tidelog.metrics.certificates import CertificateExpiry
from tidelog.metrics.telemetry import Durations
from tidelog.model.brokers import MAX_PORT
from tidelog.process.build import tidelog_version
from tidelog.settings.broker_settings import BrokerSettings, certificate_files
from tidelog.settings.setting import SettingError

if TYPE_CHECKING:
    from tidelog.metrics.families import Collector, Families
    from tidelog.metrics.health import Health
    from tidelog.metrics.http_endpoint import HttpEndpoint

_METRICS_LISTENER: Final = "tidelog.metrics.listener"
_PROBES_LISTENER: Final = "tidelog.probes.listener"
REPLICAS_PAGE: Final = "/replicas"
"""The page of a broker about its replicas, beside its metrics."""
TICK_MS: Final = 100
WINDOW_MS: Final = 60_000
MIN_SHARE_INTERVAL_S: Final = 0.5
"""The share of busy time means nothing over a shorter time. Until then, the previous value is returned."""
_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")
_NO_LIMIT: Final = 1 << 62
"""Version 1 shows a limit of about 2^63 if there is none."""


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

    def serve_at_listeners(self, settings: BrokerSettings) -> None:
        """Starts to answer at the listeners that the settings name. Raises what `serve` raises."""
        if settings.tidelog_metrics_listener:
            self.watch_loop()
            certificates = certificate_files(settings)
            self.register(CertificateExpiry(lambda: certificates))
            self.serve(settings.tidelog_metrics_listener)
        if settings.tidelog_probes_listener:
            self.serve_probes(settings.tidelog_probes_listener)

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
        from tidelog.metrics.http_endpoint import ProbesEndpoint

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


class LoopWatch:
    """The measurements of one event loop: the delay of its callbacks and the CPU time of its thread. It is
    created on the loop's thread; any thread may read the figures.

    To measure the wait of every request would slow down all of them. Instead, the loop schedules a callback a
    few times per second and measures how late the callback runs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lag = Durations()
        self._loop = loop
        self._clock_id = time.pthread_getcpuclockid(threading.get_ident())
        self._newest_max_s = self._older_max_s = 0.0
        self._turned_at_s = loop.time()
        self._seen = (time.monotonic(), self.busy_seconds)
        self._idle_share = 1.0
        self._due_s = loop.time() + TICK_MS / 1000
        self._handle = loop.call_at(self._due_s, self._tick)

    def close(self) -> None:
        self._handle.cancel()

    def _tick(self) -> None:
        now_s = self._loop.time()
        lag_s = max(0.0, now_s - self._due_s)
        self.lag.took(lag_s)
        if now_s - self._turned_at_s >= WINDOW_MS / 1000:
            self._older_max_s, self._newest_max_s = self._newest_max_s, 0.0
            self._turned_at_s = now_s
        self._newest_max_s = max(self._newest_max_s, lag_s)
        self._due_s = now_s + TICK_MS / 1000
        self._handle = self._loop.call_at(self._due_s, self._tick)

    @property
    def max_lag_s(self) -> float:
        """Returns the greatest delay of the last one to two minutes."""
        return max(self._newest_max_s, self._older_max_s)

    @property
    def busy_seconds(self) -> float:
        """Returns the CPU time of the loop's thread."""
        return time.clock_gettime(self._clock_id)

    def idle_share(self) -> float:
        """Returns the share of the time since the last call in which the loop's thread used no CPU."""
        now_s, busy_s = time.monotonic(), self.busy_seconds
        before_s, busy_before_s = self._seen
        if now_s - before_s >= MIN_SHARE_INTERVAL_S:
            self._idle_share = min(1.0, max(0.0, 1 - (busy_s - busy_before_s) / (now_s - before_s)))
            self._seen = now_s, busy_s
        return self._idle_share


class ContainerMemory(NamedTuple):
    """The memory of the container or service in which this process runs, as the kernel's control groups count
    it.

    The kernel ends a process of a group that reaches its limit and has nothing left to give back. A process
    can read both numbers itself, so no exporter of the node is needed. `used_bytes` leaves out the page
    cache, which the kernel gives back before it ends a process.
    """

    used_bytes: int
    limit_bytes: int


class _Files(NamedTuple):
    """The names of one version of control groups."""

    directory: str
    limit: str
    usage: str
    cache_prefix: str


_V1: Final = _Files("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
_V2: Final = _Files("", "memory.max", "memory.current", "")


def read_container_memory(groups: Path = _GROUPS, own_groups: Path = _OWN_GROUPS) -> ContainerMemory | None:
    """Returns the memory of the group with the lowest limit among this process's group and its parents, or
    None if none of them has a limit.
    """
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:  # not Linux
        return None
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            files = _V1 if controllers else _V2
            for directory in _with_parents(groups / files.directory, path):
                memory = _read(directory, files)
                if memory is not None:
                    found.append(memory)
    return min(found, key=lambda memory: memory.limit_bytes, default=None)


def _with_parents(root: Path, path: str) -> Iterator[Path]:
    """Yields the directories of a group and its parents. A container sees its own group as the root, so the
    directories on the way to it may be missing.
    """
    relative = PurePosixPath(path.lstrip("/"))
    yield root / relative
    yield from (root / parent for parent in relative.parents)


def _read(directory: Path, files: _Files) -> ContainerMemory | None:
    try:
        limit = (directory / files.limit).read_text().strip()
        if limit == "max" or int(limit) > _NO_LIMIT:
            return None
        usage = int((directory / files.usage).read_text())
        rows = (line.split() for line in (directory / "memory.stat").read_text().splitlines())
        stat = {name: int(value) for name, value in rows}
    except FileNotFoundError:
        return None
    cache = sum(stat.get(f"{files.cache_prefix}{kind}_file", 0) for kind in ("active", "inactive"))
    return ContainerMemory(max(0, usage - cache), int(limit))
