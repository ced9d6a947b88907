"""The counters of a broker.

The event loop adds to the integers of slotted objects and uses no lock, Prometheus object or string.
`broker/metrics.py` makes samples, quantiles and histograms of them in a thread when Prometheus scrapes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from tidelog.kernel.clock import Clock, SystemClock
from tidelog.kernel.instants import MonotonicMs

# The states of a broker under the numbers that Kafka gives them (`BrokerState`).
BROKER_STARTING: Final = 1
BROKER_RECOVERING: Final = 2
BROKER_RUNNING: Final = 3
BROKER_HANDING_OVER: Final = 6
BROKER_STOPPING: Final = 7


# Each power of two of microseconds has four buckets. A bucket's bounds differ by at most a quarter, and the
# value in its middle is at most an eighth off.
_SUB_BUCKET_BITS = 2
_BUCKET_COUNT = 64 << _SUB_BUCKET_BITS
_US_PER_S = 1_000_000


def _upper_bound_us(index: int) -> int:
    """Returns the first microsecond after bucket `index`."""
    bits, part = index >> _SUB_BUCKET_BITS, index & 3
    if bits == 0:
        return 1
    return ((5 + part << bits) + 7) >> 3


_UPPER_BOUNDS_US = tuple(_upper_bound_us(index) for index in range(_BUCKET_COUNT))


class Durations:
    """Counts how often an operation ran and how long it took."""

    __slots__ = ("_buckets", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self._buckets = [0] * _BUCKET_COUNT

    def took(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        us = int(seconds * 1_000_000)
        bits = us.bit_length()
        self._buckets[bits << 2 | (us << 3 >> bits & 3)] += 1

    def bucket_counts(self) -> tuple[int, ...]:
        return tuple(self._buckets)


class RequestMetrics(Durations):
    """Counts the requests of one version of one API. `waits` counts the requests that had to wait for other
    requests before they could be answered.
    """

    __slots__ = ("response_bytes", "version", "waits")

    def __init__(self, version: int) -> None:
        super().__init__()
        self.version = version
        self.response_bytes = 0
        self.waits = Durations()

    def observe(self, seconds: float, response_bytes: int) -> None:
        """Counts one request, which was answered `seconds` after it arrived."""
        self.count += 1
        self.seconds += seconds
        self.response_bytes += response_bytes
        us = int(seconds * 1_000_000)
        bits = us.bit_length()
        self._buckets[bits << 2 | (us << 3 >> bits & 3)] += 1


class LatencyWindow:
    """Selects the last one to two minutes of counts that only grow.

    Kafka weighs durations towards the last five minutes. This window moves when it is read and a minute has
    passed, so the code that counts does nothing for it.
    """

    __slots__ = ("_newer", "_older", "_turned_at_ms")

    TURN_MS = 60_000

    def __init__(self) -> None:
        self._older: Sequence[int] = (0,) * _BUCKET_COUNT
        self._newer: Sequence[int] = self._older
        self._turned_at_ms: MonotonicMs | None = None

    def recent(self, counts: Sequence[int], now_ms: MonotonicMs) -> list[int]:
        """Returns the part of `counts`, the totals by bucket, in the window."""
        if self._turned_at_ms is None:
            self._turned_at_ms = now_ms
        elif now_ms - self._turned_at_ms >= self.TURN_MS:
            self._older, self._newer = self._newer, tuple(counts)
            self._turned_at_ms = now_ms
        return [now - before for now, before in zip(counts, self._older, strict=True)]


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
    """Counts the connections of one listener and their logins."""

    __slots__ = ("accepted_total", "closed_total", "failed_logins", "logins")

    def __init__(self) -> None:
        self.accepted_total = 0
        self.closed_total = 0
        self.logins = 0
        self.failed_logins = 0

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
        self.denials: dict[tuple[str, str], int] = {}
        """Denied accesses, by operation and type of resource."""
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
        self._listener(listener_name).accepted_total += 1

    def connection_closed(self, listener_name: str) -> None:
        """Counts a connection that was closed."""
        self.listeners[listener_name].closed_total += 1

    def login_ended(self, listener_name: str, *, succeeded: bool) -> None:
        """Counts a login by SASL or by a client certificate. A handshake may fail before its connection is
        accepted.
        """
        connections = self._listener(listener_name)
        if succeeded:
            connections.logins += 1
        else:
            connections.failed_logins += 1

    def access_denied(self, operation: str, resource_type: str) -> None:
        """Counts an access that a client asked for and did not get."""
        self.denials[operation, resource_type] = self.denials.get((operation, resource_type), 0) + 1

    def _listener(self, name: str) -> ListenerConnections:
        connections = self.listeners.get(name)
        if connections is None:
            connections = self.listeners[name] = ListenerConnections()
        return connections


def add_up(columns: Iterable[Sequence[int]]) -> list[int]:
    """Returns the sums of the bucket counts of several versions."""
    return [sum(column) for column in zip(*columns, strict=True)]


def quantile_ms(counts: Sequence[int], quantile: float) -> float:
    """Returns the duration in milliseconds that a share of `quantile` does not exceed.

    Returns 0 if nothing was counted.
    """
    total = sum(counts)
    if total == 0:
        return 0.0
    rank = quantile * total
    seen = 0
    for index, count in enumerate(counts):
        seen += count
        if count and seen >= rank:
            upper_us = _UPPER_BOUNDS_US[index]
            lower_us = _UPPER_BOUNDS_US[index - 1] if index else 0
            return (lower_us + upper_us) / 2 / 1000
    raise AssertionError("a rank above the total")


def cumulative_counts(counts: Sequence[int], bounds_s: Sequence[float]) -> list[int]:
    """Returns how many durations were at most each of `bounds_s`, exact to the width of a bucket."""
    cumulative = [0]
    for count in counts:
        cumulative.append(cumulative[-1] + count)
    return [cumulative[bisect_right(_UPPER_BOUNDS_US, round(bound * _US_PER_S))] for bound in bounds_s]
