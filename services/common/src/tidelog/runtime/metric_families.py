"""The counters as Prometheus samples, under the names that Kafka's dashboards already use.

The names are what the JMX exporter makes of Kafka's MBeans with the rules of Strimzi and of the common
dashboards: `kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec` is
`kafka_server_brokertopicmetrics_bytesin_total`, with a `topic` label for one topic and without for all.
docs/metrics.md has them all; a test holds it and the code together.
Runs in the scraper's thread while the loop goes on counting: it copies what it iterates over, and a sample
may be one request older than the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from tidelog.runtime.api_metrics import add_requests
from tidelog.runtime.broker_metrics import add_broker
from tidelog.runtime.controller_metrics import add_controller
from tidelog.runtime.coordinator_metrics import add_coordinator
from tidelog.runtime.process_metrics import add_process
from tidelog.runtime.request_metrics import LatencyWindow
from tidelog.runtime.sample_families import Families

if TYPE_CHECKING:
    from tidelog.runtime.telemetry import Telemetry


class MetricFamilies(Collector):
    """The collector that Prometheus' registry asks at each scrape."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._flush_window = LatencyWindow()

    def describe(self) -> list[Metric]:
        """Nothing in advance: names are known at the scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        families, telemetry = Families(), self._telemetry
        add_process(families, telemetry)
        if telemetry.is_of_a_broker:
            add_broker(families, telemetry, self._flush_window)
        add_controller(families, telemetry.controller_counts, telemetry.controller)
        if telemetry.coordinator is not None:
            add_coordinator(families, telemetry.coordinator)
        add_requests(families, telemetry)
        yield from families
