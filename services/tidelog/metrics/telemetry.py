"""The counters of a broker.

Counting means adding to the integers of slotted objects on the event loop: no lock, no Prometheus object, no
string. `broker/metrics.py` turns them into samples when Prometheus scrapes, in the scraper's thread.
"""

from __future__ import annotations

from typing import Final

from tidelog.metrics.request_metrics import Durations, LatencyWindow, RequestMetrics
from tidelog.timing.clock import Clock, SystemClock

# The states of a broker under the numbers that Kafka gives them (`BrokerState`).
BROKER_STARTING: Final = 1
BROKER_RECOVERING: Final = 2
BROKER_RUNNING: Final = 3
BROKER_HANDING_OVER: Final = 6
BROKER_STOPPING: Final = 7


class TopicTraffic:
    """Kafka's BrokerTopicMetrics of one topic. Code that moves records adds to its integers."""

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
    """The counters that are kept by topic only. The others are counted once a request, over all topics."""

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.produce_requests = 0
        self.failed_produce_requests = 0
        self.fetch_requests = 0
        self.failed_fetch_requests = 0
        self.replication_bytes_in = 0  # this and the next are counted for the whole broker only
        self.replication_bytes_out = 0

    def produced(self, messages: int, size_bytes: int) -> None:
        """Counts a batch that was appended."""
        self.produce_requests += 1
        self.messages_in += messages
        self.bytes_in += size_bytes


class ListenerConnections:
    """Counts the connections of one listener."""

    __slots__ = ("accepted_total", "closed_total")

    def __init__(self) -> None:
        self.accepted_total = 0
        self.closed_total = 0

    @property
    def open_count(self) -> int:
        return self.accepted_total - self.closed_total


class Telemetry:
    """All counters of a broker."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.requests: dict[str, dict[int, RequestMetrics]] = {}
        """Requests by the name and version of their API."""
        self.windows: dict[str, LatencyWindow] = {}
        self.wait_windows: dict[str, LatencyWindow] = {}
        self.errors: dict[tuple[str, int], int] = {}
        """Rejected partitions, by API and Kafka's error code."""
        self.topics: dict[str, TopicTraffic] = {}
        self.broker_traffic = TopicTraffic()
        """Traffic that is counted by request, and the counts of forgotten topics."""
        self.listeners: dict[str, ListenerConnections] = {}
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.failed_isr_updates = 0
        self.log_flushes = Durations()
        self.broker_state = 0
        """One of the states above; 0 before the broker starts."""

    def request_metrics(self, api_name: str, version: int) -> RequestMetrics:
        """Returns the counter of one version of an API, such as `Produce`, 12. Callers keep it."""
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
        """Returns the counters of a topic. Callers keep them for each partition."""
        traffic = self.topics.get(name)
        if traffic is None:
            traffic = self.topics[name] = TopicTraffic()
        return traffic

    def forget_topic(self, name: str) -> None:
        """Removes a topic that left this broker; the broker's totals keep its counts."""
        traffic = self.topics.pop(name, None)
        if traffic is not None:
            for attribute in TopicTraffic.SUMMED:
                counted = getattr(self.broker_traffic, attribute) + getattr(traffic, attribute)
                setattr(self.broker_traffic, attribute, counted)

    def fetched(self, bytes_out: int) -> None:
        """Counts a fetch that was answered with `bytes_out` bytes of records over all topics."""
        traffic = self.broker_traffic
        traffic.fetch_requests += 1
        traffic.bytes_out += bytes_out

    def produce_failed(self, topic: str | None, error: int) -> None:
        """Counts a rejected partition of a produce request; `topic` is None if its id is unknown."""
        self._failed("Produce", error)
        self.broker_traffic.failed_produce_requests += 1
        traffic = None if topic is None else self.topics.get(topic)
        if traffic is not None:
            traffic.failed_produce_requests += 1

    def fetch_failed(self, topic: str | None, error: int) -> None:
        """Counts a rejected partition of a fetch; `topic` is None if its id is unknown."""
        self._failed("Fetch", error)
        self.broker_traffic.failed_fetch_requests += 1
        traffic = None if topic is None else self.topics.get(topic)
        if traffic is not None:
            traffic.failed_fetch_requests += 1

    def _failed(self, api_name: str, error: int) -> None:
        self.errors[api_name, error] = self.errors.get((api_name, error), 0) + 1

    def connection_opened(self, listener_name: str) -> None:
        """Counts a connection that was accepted."""
        connections = self.listeners.get(listener_name)
        if connections is None:
            connections = self.listeners[listener_name] = ListenerConnections()
        connections.accepted_total += 1

    def connection_closed(self, listener_name: str) -> None:
        """Counts a connection that was closed."""
        self.listeners[listener_name].closed_total += 1
