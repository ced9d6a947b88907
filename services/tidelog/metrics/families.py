"""Metric families by name, to which collectors add samples.

The names are those that the JMX exporter makes of Kafka's MBeans with the rules of Strimzi and of the common
dashboards: `kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec` becomes
`kafka_server_brokertopicmetrics_bytesin_total`, with a label `topic` for one topic and without it for all.
docs/metrics.md lists all names; a test keeps the list and the code equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from prometheus_client.core import HistogramMetricFamily, Metric

from tidelog.metrics.telemetry import cumulative_counts, quantile_ms

QUANTILES: Final = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
DURATION_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30,
)  # fmt: skip


class Families:
    """The samples of one scrape. Iterating yields the families in the order of their first sample."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def counter(self, name: str, doc: str, value: float, /, **labels: str) -> None:
        """Adds the sample `<name>_total` of a counter."""
        self._add(name, "counter", doc, name + "_total", value, labels)

    def gauge(self, name: str, doc: str, value: float, /, **labels: str) -> None:
        """Adds a sample of a gauge."""
        self._add(name, "gauge", doc, name, value, labels)

    def summary(self, name: str, doc: str, suffix: str, value: float, **labels: str) -> None:
        """Adds the sample `<name><suffix>` of a summary."""
        self._add(name, "summary", doc, name + suffix, value, labels)

    def summary_ms(
        self, name: str, doc: str, recent: Sequence[int], count: int, seconds: float, **labels: str
    ) -> None:
        """Adds a summary in milliseconds.

        The quantiles are those of the bucket counts `recent`; `count` and `seconds` are totals since the
        start.
        """
        for quantile in QUANTILES:
            self.summary(name, doc, "", quantile_ms(recent, quantile), **labels, quantile=str(quantile))
        self.summary(name, doc, "_count", count, **labels)
        self.summary(name, doc, "_sum", seconds * 1000, **labels)

    def histogram(self, name: str, doc: str, counts: Sequence[int], seconds: float, **labels: str) -> None:
        """Adds a histogram of durations; `counts` are bucket counts of `Durations`."""
        metric = self._metrics.get(name)
        if metric is None:
            metric = self._metrics[name] = HistogramMetricFamily(name, doc, labels=tuple(labels))
        assert isinstance(metric, HistogramMetricFamily)
        bounds = [str(float(bound)) for bound in DURATION_BOUNDS_S]
        buckets = list(zip(bounds, cumulative_counts(counts, DURATION_BOUNDS_S), strict=True))
        metric.add_metric(list(labels.values()), [*buckets, ("+Inf", sum(counts))], sum_value=seconds)

    def _add(
        self, name: str, kind: str, doc: str, sample_name: str, value: float, labels: dict[str, str]
    ) -> None:
        metric = self._metrics.get(name)
        if metric is None:
            metric = self._metrics[name] = Metric(name, doc, kind)
        metric.add_sample(sample_name, labels, value)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._metrics.values())


class Collector(Protocol):
    """A source of samples. The endpoint's thread calls it at each scrape."""

    def collect(self, families: Families) -> None:
        """Adds the current samples."""
        ...
