"""The receiver of clients' metrics: it follows the subscriptions and keeps what clients push.

It exists only with `tidelog.client.metrics.enable`. Kafka, too, lists the APIs of client metrics only if a
reporter can receive them.

`ClientInstances` has the clients that push: which metrics, how often, and whether a request comes at the
right time, by the rules of Kafka's `ClientMetricsManager`. Times and ids are arguments. A broker remembers at
most MAX_INSTANCES clients, which share them fairly. The requests of a client that it does not remember are
answered, too; only their times are not checked.

`ClientSeries` has the newest values that clients have pushed, as series for Prometheus. A metric
`org.apache.kafka.producer.record.send.total` becomes `kafka_client_producer_record_send_total`. Its labels
are the client's id and instance id and the attributes of the data point. Numbers of series and lengths of
names are bounded, because clients choose them. The event loop and the scraper's thread both use this object,
so a client's series are replaced as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID
from zlib import crc32

import structlog
from google.protobuf.message import DecodeError

from tidelog.kernel.instants import MonotonicMs
from tidelog.metrics.generated.metrics_pb2 import AnyValue, Metric, MetricsData, NumberDataPoint
from tidelog.model.client_metrics import (
    ALL_METRICS,
    DEFAULT_INTERVAL_MS,
    MetricsSubscription,
    parse_subscription,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.fair_budget import ANY_TIME_S, NEVER_S, FairBudget, Holding
from tidelog.records.compression import CompressionDataError, decompress

if TYPE_CHECKING:
    from tidelog.broker.client_telemetry.forwarder import OtlpMetricsForwarder
    from tidelog.broker.security.security_snapshot import SecuritySnapshot
    from tidelog.kernel.instants import MonotonicMs
    from tidelog.metadata.entries import ClientMetricsEntry
    from tidelog.metrics.families import Families
    from tidelog.metrics.generated.metrics_pb2 import MetricsData
    from tidelog.model.fair_budget import BudgetUse

SWEEP_INTERVAL_MS: Final = 10_000
MAX_INSTANCES: Final = 16_384
"""The clients whose state a broker keeps. It is Kafka's number."""
SILENT_INTERVALS: Final = 3
"""A client that is silent for this many intervals is forgotten."""
COMPRESSION_TYPES: Final = (4, 3, 1, 2)
"""The accepted codecs in the order of preference: zstd, lz4, gzip, snappy. 0, none, is always accepted."""
ZERO_ID: Final = UUID(int=0)
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

_log = structlog.get_logger(__name__)


class Plan(NamedTuple):
    """The metrics that a client pushes, and how often. The id changes whenever the rest does."""

    subscription_id: int
    metrics: tuple[str, ...]
    interval_ms: int


class ClientInstance:
    """One client that asked for its subscription or pushed metrics. `place` is its part of the budget."""

    __slots__ = (
        "attributes",
        "has_ended",
        "has_pushed",
        "heard_ms",
        "instance_id",
        "is_forgiven",
        "place",
        "plan",
        "version",
    )

    def __init__(
        self, instance_id: UUID, attributes: Mapping[str, str], plan: Plan, version: int, place: Holding
    ) -> None:
        self.instance_id = instance_id
        self.place = place
        self.attributes = attributes
        self.plan = plan
        self.version = version  # of the subscriptions from which the plan was made
        self.heard_ms: MonotonicMs | None = None
        self.is_forgiven = False  # the next request may come early, because the last one was refused
        self.has_pushed = False
        """Whether the client has pushed since it asked. The first push may be early (KIP-714)."""
        self.has_ended = False

    def is_early(self, now_ms: MonotonicMs) -> bool:
        return (
            self.heard_ms is not None
            and not self.is_forgiven
            and now_ms - self.heard_ms < self.plan.interval_ms
        )


class ClientInstances:
    """The clients of one broker and the subscriptions of the cluster."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.places = FairBudget(MAX_INSTANCES, stalled_s=NEVER_S)
        self._instances: dict[UUID, ClientInstance] = {}
        self._subscriptions: tuple[MetricsSubscription, ...] = ()
        self._version = 0

    def __len__(self) -> int:
        return len(self._instances)

    def set_subscriptions(self, subscriptions: Sequence[MetricsSubscription]) -> None:
        """Replaces the subscriptions. Clients learn their new ones at their next request."""
        self._subscriptions = tuple(subscriptions)
        self._version += 1

    def ask(
        self, instance_id: UUID, new_id: UUID, owner: str, attributes: Mapping[str, str], now_ms: MonotonicMs
    ) -> ClientInstance:
        """Returns the client of a GetTelemetrySubscriptions. A client without an id becomes `new_id`. `owner`
        is its key in fair budgets.

        Raises KafkaError(THROTTLING_QUOTA_EXCEEDED) if it asks before its interval is over.
        """
        instance = self._find(new_id if instance_id == ZERO_ID else instance_id, owner, attributes)
        if instance.is_early(now_ms):
            raise _early(instance)
        instance.heard_ms, instance.is_forgiven, instance.has_ended = now_ms, False, False
        instance.has_pushed = False
        return instance

    def take_push(
        self,
        instance_id: UUID,
        owner: str,
        attributes: Mapping[str, str],
        subscription_id: int,
        compression: int,
        size: int,
        now_ms: MonotonicMs,
        *,
        is_last: bool,
    ) -> ClientInstance:
        """Returns the client of a PushTelemetry whose metrics the broker takes.

        Raises KafkaError: INVALID_REQUEST (no id, or the client has ended), THROTTLING_QUOTA_EXCEEDED,
        UNKNOWN_SUBSCRIPTION_ID, UNSUPPORTED_COMPRESSION_TYPE, TELEMETRY_TOO_LARGE.
        """
        if instance_id == ZERO_ID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The client instance id is missing.")
        instance = self._find(instance_id, owner, attributes)
        if instance.has_ended:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The client instance is terminating already.")
        if instance.is_early(now_ms) and instance.has_pushed and not is_last:
            raise _early(instance)
        instance.has_pushed = True
        instance.heard_ms, instance.is_forgiven, instance.has_ended = now_ms, False, is_last
        if subscription_id != instance.plan.subscription_id:
            instance.is_forgiven = True
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "The subscription has changed.")
        if compression and compression not in COMPRESSION_TYPES:
            instance.is_forgiven = True
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Unknown codec {compression}.")
        if size > self.max_bytes:
            raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE, f"More than {self.max_bytes} bytes of metrics.")
        return instance

    def forget_silent(self, now_ms: MonotonicMs) -> None:
        """Removes the clients that were silent for SILENT_INTERVALS."""
        silent = [
            instance.instance_id
            for instance in self._instances.values()
            if instance.heard_ms is not None
            and now_ms - instance.heard_ms > SILENT_INTERVALS * instance.plan.interval_ms
        ]
        for instance_id in silent:
            self.places.forget(self._instances.pop(instance_id).place, ANY_TIME_S)

    def _find(self, instance_id: UUID, owner: str, attributes: Mapping[str, str]) -> ClientInstance:
        known = self._instances.get(instance_id)
        if known is not None and known.version == self._version:
            return known
        told = {**attributes, "client_instance_id": str(instance_id)}
        plan = _plan(instance_id, [each for each in self._subscriptions if each.matches(told)])
        if known is None:
            place = Holding(lambda: self._instances.pop(instance_id))
            known = ClientInstance(instance_id, told, plan, self._version, place)
            if self.places.resize(place, owner, 1, ANY_TIME_S):
                self._instances[instance_id] = known
        else:
            known.is_forgiven = known.is_forgiven or known.plan != plan
            known.plan, known.version = plan, self._version
        return known


def _plan(instance_id: UUID, subscriptions: Iterable[MetricsSubscription]) -> Plan:
    """Returns what a client with these subscriptions pushes: all their metrics, at the shortest interval."""
    metrics: dict[str, None] = {}
    interval_ms = None
    for subscription in subscriptions:
        metrics.update(dict.fromkeys(subscription.metrics))
        interval_ms = min(interval_ms or subscription.interval_ms, subscription.interval_ms)
    names = (ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics))
    interval_ms = interval_ms or DEFAULT_INTERVAL_MS
    checksum = crc32(f"{instance_id}/{interval_ms}/{','.join(names)}".encode())
    return Plan(checksum - (1 << 32) if checksum >= 1 << 31 else checksum, names, interval_ms)


def _early(instance: ClientInstance) -> KafkaError:
    return KafkaError(
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        f"Client instance {instance.instance_id} asks before its interval of {instance.plan.interval_ms} ms"
        " is over.",
    )


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
        self.clients: dict[UUID, _Client] = {}
        self.numbers = FairBudget(MAX_SERIES, stalled_s=NEVER_S)
        self.memory = FairBudget(MAX_SERIES_BYTES, stalled_s=NEVER_S)

    def replace(self, instance_id: UUID, client: str, pushed: PushedMetrics, until_ms: MonotonicMs) -> None:
        """Takes a client's newest values, to show them until a time. `client` is its key in fair budgets. If
        there is no room, none of its values are shown.
        """
        known = self.clients.get(instance_id)
        if known is None:
            number, memory = (Holding(lambda: self.forget(instance_id)) for _ in range(2))
        else:
            number, memory = known.number, known.memory
        samples = pushed.samples
        self.clients[instance_id] = _Client(samples, until_ms, number, memory)
        has_room = self.numbers.resize(number, client, len(samples), ANY_TIME_S) and self.memory.resize(
            memory, client, pushed.size_bytes, ANY_TIME_S
        )
        self.pushes_total += 1
        self.dropped_total += pushed.dropped + (0 if has_room else len(samples))
        if not has_room or not samples:
            self.forget(instance_id)

    def forget(self, instance_id: UUID) -> None:
        client = self.clients.pop(instance_id, None)
        if client is not None:
            self.numbers.forget(client.number, ANY_TIME_S)
            self.memory.forget(client.memory, ANY_TIME_S)

    def forget_old(self, now_ms: MonotonicMs) -> None:
        """Removes the series whose time is over."""
        for instance_id, client in tuple(self.clients.items()):
            if client.until_ms < now_ms:
                self.forget(instance_id)

    def collect(self, families: Families, instance_count: int, now_ms: MonotonicMs) -> None:
        """Adds the samples of all clients and the numbers about them."""
        kinds: dict[str, bool] = {}
        for client in tuple(self.clients.values()):
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


class ClientTelemetry:
    """The clients of one broker that push metrics, and their newest values."""

    def __init__(self, max_bytes: int) -> None:
        self.instances = ClientInstances(max_bytes)
        self.series = ClientSeries()
        self.forwarder: OtlpMetricsForwarder | None = None
        """The way to the collector, if tracing is set up."""
        self._entries: Mapping[str, ClientMetricsEntry] | None = None
        self._next_sweep_ms = MonotonicMs(0)

    def security_changed(self, snapshot: SecuritySnapshot) -> None:
        """Takes the subscriptions of a snapshot, if they have changed."""
        if snapshot.client_metrics is self._entries:
            return
        self._entries = snapshot.client_metrics
        subscriptions: list[MetricsSubscription] = []
        for entry in snapshot.client_metrics.values():
            try:
                subscriptions.append(parse_subscription(entry.name, entry.configs))
            except KafkaError as error:  # a newer controller may know more settings
                _log.warning(
                    "a subscription to clients' metrics is skipped", name=entry.name, reason=str(error)
                )
        self.instances.set_subscriptions(subscriptions)

    def keep(self, instance: ClientInstance, client: str, pushed: PushedMetrics, now_ms: MonotonicMs) -> None:
        """Shows the metrics of a push until the client counts as silent, and sends them on. `client` is the
        client's key in fair budgets.
        """
        until_ms = MonotonicMs(now_ms + SILENT_INTERVALS * instance.plan.interval_ms)
        self.series.replace(instance.instance_id, client, pushed, until_ms)
        if self.forwarder is not None:
            self.forwarder.forward(pushed.data, instance.attributes)

    def forget_silent(self, now_ms: MonotonicMs) -> None:
        """Forgets the clients that are silent. It looks for them every SWEEP_INTERVAL_MS."""
        if now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = MonotonicMs(now_ms + SWEEP_INTERVAL_MS)
            self.instances.forget_silent(now_ms)
            self.series.forget_old(now_ms)

    @property
    def budget_uses(self) -> dict[str, BudgetUse]:
        """The use of the budgets of clients that push, by name. Any thread may read it."""
        return {
            "client_metrics_clients": self.instances.places.use,
            "client_metrics_series": self.series.numbers.use,
            "client_metrics_bytes": self.series.memory.use,
        }

    def collect(self, families: Families, now_ms: MonotonicMs) -> None:
        """Adds the current samples. Any thread may call it."""
        self.series.collect(families, len(self.instances), now_ms)
