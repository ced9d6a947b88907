"""The newest values that clients have pushed, as series for Prometheus.

A metric `org.apache.kafka.producer.record.send.total` becomes `kafka_client_producer_record_send_total`. Its
labels are the client's id and instance id and the attributes of the data point. Numbers of series and lengths
of names are bounded, because clients choose them. The event loop and the scraper's thread both use this
object, so a client's series are replaced as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from google.protobuf.message import DecodeError

from tidelog.metrics.generated.metrics_pb2 import AnyValue, Metric, MetricsData, NumberDataPoint
from tidelog.model.fair_budget import ANY_TIME_S, NEVER_S, FairBudget, Holding
from tidelog.records.compression import CompressionDataError, decompress

if TYPE_CHECKING:
    from tidelog.kernel.instants import MonotonicMs
    from tidelog.metrics.families import Families

MAX_SERIES: Final = 20_000
"""The series of all clients of a broker, who share them fairly. Those of a push without room are left out and
counted."""
MAX_SERIES_OF_CLIENT: Final = 500
MAX_SERIES_BYTES: Final = 16 * 1024 * 1024
"""About the most memory that the series of all clients may take, who share it fairly. 20,000 of Kafka's
clients' series take 10 MiB."""
MAX_SERIES_BYTES_OF_CLIENT: Final = 512 * 1024
LABEL_BYTES: Final = 64
"""About the memory of a label without its characters."""
MAX_LABELS: Final = 16
MAX_NAME_CHARS: Final = 200
MAX_LABEL_CHARS: Final = 200
MAX_DECOMPRESSED_FACTOR: Final = 2
"""Decompressed metrics may be this many times as large as `telemetry.max.bytes`."""
MAX_DECOMPRESSED_BYTES: Final = 4 * 1024 * 1024
"""The parser holds Python's lock for about 20 ms with each MiB of empty messages."""
MAX_RESOURCES: Final = 2_000
"""The resources of one push. Kafka's Java clients send one for each metric."""
MAX_MESSAGES: Final = 20_000
"""The resources, scopes, metrics and data points of one push that are read. Further ones are left out."""
_OWN_PREFIX: Final = "org.apache.kafka."
_PREFIX: Final = "kafka_client_"
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]")


class InvalidMetricsError(Exception):
    """The pushed bytes are no metrics of OpenTelemetry."""


class Sample(NamedTuple):
    name: str
    doc: str
    is_counter: bool
    labels: Mapping[str, str]
    value: float

    @property
    def size_bytes(self) -> int:
        """About the memory that the sample takes, and the size of its line in a scrape."""
        labels = sum(len(name) + len(value) + LABEL_BYTES for name, value in self.labels.items())
        return len(self.name) + len(self.doc) + labels

    @property
    def series_name(self) -> str:
        """The name that Prometheus sees. The endpoint adds `_total` to the names of counters."""
        return f"{self.name}_total" if self.is_counter else self.name


class _Client(NamedTuple):
    """The newest values of an instance of a client. `number` and `memory` are its parts of the budgets."""

    samples: tuple[Sample, ...]
    until_ms: MonotonicMs
    number: Holding
    memory: Holding


class PushedMetrics(NamedTuple):
    """The decoded metrics of one push, and the samples made of them. `dropped` counts left out series."""

    data: MetricsData
    samples: tuple[Sample, ...]
    size_bytes: int
    dropped: int


def decode_push(payload: bytes, compression: int, max_bytes: int, labels: Mapping[str, str]) -> PushedMetrics:
    """Returns the metrics of a push. `labels` name the client. May run in another thread.

    Raises InvalidMetricsError.
    """
    limit = min(max_bytes * MAX_DECOMPRESSED_FACTOR, MAX_DECOMPRESSED_BYTES)
    try:
        if compression:
            payload = bytes(decompress(compression, payload, limit))
        data = MetricsData.FromString(payload)
    except (CompressionDataError, DecodeError) as error:
        raise InvalidMetricsError(str(error)) from error
    if len(data.resource_metrics) > MAX_RESOURCES:
        raise InvalidMetricsError(f"a push may have at most {MAX_RESOURCES} resources")
    samples: dict[object, Sample] = {}
    dropped = size_bytes = 0
    for message in islice(_messages(data), MAX_MESSAGES):
        if message is None:
            continue
        metric, point = message
        sample = _sample(metric, point, labels)
        # Prometheus refuses a whole scrape that has a series twice.
        series = sample and (sample.series_name, tuple(sorted(sample.labels.items())))
        sample_bytes = 0 if sample is None else sample.size_bytes
        is_full = (
            len(samples) >= MAX_SERIES_OF_CLIENT or size_bytes + sample_bytes > MAX_SERIES_BYTES_OF_CLIENT
        )
        if sample is None or series in samples or is_full:
            dropped += 1
        else:
            size_bytes += sample_bytes
            samples[series] = sample
    return PushedMetrics(data, tuple(samples.values()), size_bytes, dropped)


class ClientSeries:
    """The series of all clients. Any thread may call `collect`."""

    def __init__(self) -> None:
        self.dropped_total = 0
        self.pushes_total = 0
        self._clients: dict[UUID, _Client] = {}
        self.numbers = FairBudget(MAX_SERIES, stalled_s=NEVER_S)
        self.memory = FairBudget(MAX_SERIES_BYTES, stalled_s=NEVER_S)

    def replace(self, instance_id: UUID, client: str, pushed: PushedMetrics, until_ms: MonotonicMs) -> None:
        """Takes a client's newest values, to show them until a time. `client` is its key in fair budgets. If
        there is no room, none of its values are shown.
        """
        known = self._clients.get(instance_id)
        if known is None:
            number, memory = (Holding(lambda: self.forget(instance_id)) for _ in range(2))
        else:
            number, memory = known.number, known.memory
        samples = pushed.samples
        self._clients[instance_id] = _Client(samples, until_ms, number, memory)
        has_room = self.numbers.resize(number, client, len(samples), ANY_TIME_S) and self.memory.resize(
            memory, client, pushed.size_bytes, ANY_TIME_S
        )
        self.pushes_total += 1
        self.dropped_total += pushed.dropped + (0 if has_room else len(samples))
        if not has_room or not samples:
            self.forget(instance_id)

    def forget(self, instance_id: UUID) -> None:
        client = self._clients.pop(instance_id, None)
        if client is not None:
            self.numbers.forget(client.number, ANY_TIME_S)
            self.memory.forget(client.memory, ANY_TIME_S)

    def forget_old(self, now_ms: MonotonicMs) -> None:
        """Removes the series whose time is over."""
        for instance_id, client in tuple(self._clients.items()):
            if client.until_ms < now_ms:
                self.forget(instance_id)

    def collect(self, families: Families, instance_count: int, now_ms: MonotonicMs) -> None:
        """Adds the samples of all clients and the numbers about them."""
        kinds: dict[str, bool] = {}
        for client in tuple(self._clients.values()):
            for sample in client.samples if client.until_ms >= now_ms else ():
                if kinds.setdefault(sample.series_name, sample.is_counter) is not sample.is_counter:
                    continue  # clients disagree about the kind of the metric; the first one counts
                add = families.counter if sample.is_counter else families.gauge
                add(sample.name, sample.doc, sample.value, **sample.labels)
        doc = "Clients that push metrics or asked for their subscription"
        families.gauge("tidelog_client_metrics_instances", doc, instance_count)
        families.gauge("tidelog_client_metrics_series", "Series of clients that are shown", self.numbers.held)
        families.counter("tidelog_client_metrics_pushes", "Pushes of clients", self.pushes_total)
        doc = "Series of clients that were left out, because of their number or their form"
        families.counter("tidelog_client_metrics_dropped_series", doc, self.dropped_total)


def _messages(data: MetricsData) -> Iterator[tuple[Metric, NumberDataPoint] | None]:
    """Yields the data points with a number, and None for each message that contains others, so that the
    caller can bound its work. Histograms are skipped; Kafka's clients have none.
    """
    for resource in data.resource_metrics:
        yield None
        for scope in resource.scope_metrics:
            yield None
            for metric in scope.metrics:
                yield None
                for point in (metric.sum if metric.HasField("sum") else metric.gauge).data_points:
                    yield metric, point


def _sample(metric: Metric, point: NumberDataPoint, labels: Mapping[str, str]) -> Sample | None:
    if not 0 < len(metric.name) <= MAX_NAME_CHARS or len(point.attributes) > MAX_LABELS:
        return None
    is_counter = metric.HasField("sum") and metric.sum.is_monotonic
    name = _PREFIX + _NOT_IN_NAMES.sub("_", metric.name.removeprefix(_OWN_PREFIX))
    own = {
        _NOT_IN_NAMES.sub("_", attribute.key[:MAX_NAME_CHARS]).lstrip("0123456789_"): _text(attribute.value)
        for attribute in point.attributes
    }
    own.pop("", None)
    value = point.as_double if point.HasField("as_double") else float(point.as_int)
    return Sample(
        name.removesuffix("_total") if is_counter else name,
        metric.description[:MAX_NAME_CHARS] or "A metric of Kafka's clients",
        is_counter,
        {**own, **labels},
        value,
    )


def _text(value: AnyValue) -> str:
    kind = value.WhichOneof("value")
    return "" if kind is None else str(getattr(value, kind))[:MAX_LABEL_CHARS]
