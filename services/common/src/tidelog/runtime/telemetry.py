"""What a broker counts, for Prometheus.

Counting is adding to integers of slotted objects on the event loop; no lock, no Prometheus object, no string.
`metric_families.py` makes samples of them when somebody scrapes, in the scraper's thread.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tidelog.runtime.clock import Clock, SystemClock
from tidelog.runtime.request_metrics import Durations, LatencyWindow, RequestMetrics
from tidelog.runtime.setting import SettingError

if TYPE_CHECKING:
    from tidelog.runtime.broker_metrics import BrokerView, ListenerView
    from tidelog.runtime.controller_metrics import ControllerView
    from tidelog.runtime.coordinator_metrics import CoordinatorView
    from tidelog.runtime.health import Health
    from tidelog.runtime.loop_watch import LoopWatch
    from tidelog.runtime.metrics_endpoint import MetricsEndpoint
    from tidelog.runtime.process_metrics import Identity, LeaseView, SpanCounts
    from tidelog.runtime.tracing import Tracing
    from tidelog.runtime.tracing_settings import TracingSettings

BROKER_SERVICES = ("broker", "dev")
"""Names of the processes that a broker lives in."""
_METRICS_LISTENER = "tidelog.metrics.listener"
_MAX_PORT = 65_535

BROKER_STARTING = 1
BROKER_RECOVERING = 2
BROKER_RUNNING = 3
BROKER_HANDING_OVER = 6
BROKER_STOPPING = 7


class TopicTraffic:
    """Kafka's BrokerTopicMetrics of one topic; add to its integers where the traffic is."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_fetch_requests",
        "failed_produce_requests",
        "fetch_requests",
        "messages_in",
        "produce_requests",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    SUMMED: Final = ("messages_in", "bytes_in", "produce_requests")
    """Counted by topic only. The others are told to Telemetry once a request, too, for all its topics."""

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.produce_requests = 0
        self.failed_produce_requests = 0
        self.fetch_requests = 0
        self.failed_fetch_requests = 0
        self.replication_bytes_in = 0  # counted for the broker only, as the next
        self.replication_bytes_out = 0

    def produced(self, messages: int, size_bytes: int) -> None:
        """One batch was appended."""
        self.produce_requests += 1
        self.messages_in += messages
        self.bytes_in += size_bytes


class ListenerConnections:
    """Connections of one listener."""

    __slots__ = ("accepted_total", "closed_total")

    def __init__(self) -> None:
        self.accepted_total = 0
        self.closed_total = 0

    @property
    def open_count(self) -> int:
        return self.accepted_total - self.closed_total


class ControllerCounts:
    """What the controller of this process counts; `is_active` is whether it is the cluster's."""

    __slots__ = ("is_active", "leader_elections", "unclean_leader_elections")

    def __init__(self) -> None:
        self.is_active = False
        self.leader_elections = 0
        self.unclean_leader_elections = 0


class Telemetry:
    """All counters of a process, and the endpoint that shows them."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.requests: dict[str, dict[int, RequestMetrics]] = {}
        self.windows: dict[str, LatencyWindow] = {}
        self.wait_windows: dict[str, LatencyWindow] = {}
        self.errors: dict[tuple[str, int], int] = {}
        """Partitions refused, by API and Kafka's number of the error."""
        self.topics: dict[str, TopicTraffic] = {}
        self.broker_traffic = TopicTraffic()
        """What is counted by request, and what forgotten topics had counted."""
        self.listeners: dict[str, ListenerConnections] = {}
        self.controller_counts = ControllerCounts()
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.failed_isr_updates = 0
        self.log_flushes = Durations()
        self.broker_state = 0
        """As Kafka numbers them (`BROKER_RUNNING` and so on); 0: there is no broker."""
        self.listener_views: list[ListenerView] = []
        self.identity: Identity | None = None
        self.loop: LoopWatch | None = None
        self.lease: LeaseView | None = None
        self.spans: SpanCounts | None = None
        self.tracing: Tracing | None = None
        """None where tracing is off."""
        self.broker: BrokerView | None = None
        self.controller: ControllerView | None = None
        self.coordinator: CoordinatorView | None = None
        self.health: Health | None = None
        """What the probes are answered from, if this is the telemetry of a service."""
        self._endpoint: MetricsEndpoint | None = None

    # --- counting ---

    def request_metrics(self, api_name: str, version: int) -> RequestMetrics:
        """The counter of one version of one API (`Produce`, 12); ask once and keep it."""
        versions = self.requests.get(api_name)
        if versions is None:
            self.windows[api_name] = LatencyWindow()
            self.wait_windows[api_name] = LatencyWindow()
            versions = self.requests[api_name] = {}
        metrics = versions.get(version)
        if metrics is None:
            metrics = versions[version] = RequestMetrics(version)
        return metrics

    def topic(self, name: str) -> TopicTraffic:
        """The counters of one topic; ask once a partition and keep it."""
        traffic = self.topics.get(name)
        if traffic is None:
            traffic = self.topics[name] = TopicTraffic()
        return traffic

    def forget_topic(self, name: str) -> None:
        """The topic is gone from this broker; the broker's totals keep what it counted."""
        traffic = self.topics.pop(name, None)
        if traffic is not None:
            for attribute in TopicTraffic.SUMMED:
                counted = getattr(self.broker_traffic, attribute) + getattr(traffic, attribute)
                setattr(self.broker_traffic, attribute, counted)

    def fetched(self, bytes_out: int) -> None:
        """A fetch was answered with so many bytes of records, over all its topics."""
        traffic = self.broker_traffic
        traffic.fetch_requests += 1
        traffic.bytes_out += bytes_out

    def produce_failed(self, topic: str | None, error: int) -> None:
        """A partition of a produce request was refused; `topic` is None where its id is unknown."""
        self._failed("Produce", error)
        self.broker_traffic.failed_produce_requests += 1
        traffic = None if topic is None else self.topics.get(topic)
        if traffic is not None:
            traffic.failed_produce_requests += 1

    def fetch_failed(self, topic: str | None, error: int) -> None:
        """A partition of a fetch was refused; `topic` is None where its id is unknown."""
        self._failed("Fetch", error)
        self.broker_traffic.failed_fetch_requests += 1
        traffic = None if topic is None else self.topics.get(topic)
        if traffic is not None:
            traffic.failed_fetch_requests += 1

    def _failed(self, api_name: str, error: int) -> None:
        self.errors[api_name, error] = self.errors.get((api_name, error), 0) + 1

    def connection_opened(self, listener_name: str) -> None:
        connections = self.listeners.get(listener_name)
        if connections is None:
            connections = self.listeners[listener_name] = ListenerConnections()
        connections.accepted_total += 1

    def connection_closed(self, listener_name: str) -> None:
        self.listeners[listener_name].closed_total += 1

    # --- showing ---

    @property
    def is_of_a_broker(self) -> bool:
        """Or may be: nobody said what process this is."""
        return self.identity is None or self.identity.service in BROKER_SERVICES

    def identify(self, service: str, node_id: int) -> None:
        """Show whose metrics these are; `service` is the subcommand that runs it."""
        from tidelog.runtime.process_metrics import Identity  # as in `serve`

        self.identity = Identity(service, node_id)

    def trace(self, settings: TracingSettings, service: str, node_id: int) -> None:
        """Trace requests, if the settings say so; until `close_tracing`. Raises OSError, SettingError."""
        if not settings.tidelog_tracing_otlp_endpoint:
            return
        try:
            from tidelog.runtime.tracing import start_tracing  # as in `serve`
        except ImportError as error:
            name = "tidelog.tracing.otlp.endpoint"
            reason = f"{name}: OpenTelemetry is not installed ({error}): pip install 'tidelog[tracing]'"
            raise SettingError(name, reason) from error

        self.spans = self.tracing = start_tracing(settings, service, node_id)

    def close_tracing(self) -> None:
        """Send the spans that wait, for a second at most."""
        if self.tracing is not None:
            self.tracing.close()

    def watch_loop(self) -> None:
        """Show how the event loop of this thread keeps up; until `close`."""
        from tidelog.runtime.loop_watch import LoopWatch

        if self.loop is None:
            self.loop = LoopWatch(asyncio.get_running_loop())

    def observe_lease(self, lease: LeaseView) -> None:
        """Show what becomes of the service's lease, too."""
        self.lease = lease

    def observe_broker(self, broker: BrokerView) -> None:
        """Show its partitions and purgatories, too."""
        self.broker = broker

    def observe_controller(self, controller: ControllerView) -> None:
        """Show its topics and elections, too."""
        self.controller = controller

    def observe_coordinator(self, coordinator: CoordinatorView) -> None:
        """Show the lag of its groups, too."""
        self.coordinator = coordinator

    def serve(self, address: str) -> int:
        """Answer scrapes at `host:port` in a thread; the port (the one taken, if 0 was asked for).

        SettingError if the address makes no sense, OSError if it can't be had.
        """
        host, port = _parse_address(address)
        # Not at the top: who serves no metrics needn't pay for it in memory and start-up time.
        from tidelog.runtime.metrics_endpoint import MetricsEndpoint

        try:
            self._endpoint = MetricsEndpoint(self, host, port)
        except OSError as error:
            reason = error.strerror or str(error)
            raise OSError(error.errno, f"{_METRICS_LISTENER}: {address}: {reason}") from error
        return self._endpoint.port

    def close(self) -> None:
        """Stop answering."""
        if self.loop is not None:
            self.loop.close()
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None


def _parse_address(address: str) -> tuple[str, int]:
    host, separator, port = address.strip().rpartition(":")
    if not separator or not port.isdecimal() or int(port) > _MAX_PORT:
        raise SettingError(_METRICS_LISTENER, f"{_METRICS_LISTENER}: {address} is not host:port")
    return host.strip("[]") or "0.0.0.0", int(port)
