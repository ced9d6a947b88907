"""The counters as Prometheus samples, under the names that Kafka's dashboards already use.

The names are what the JMX exporter makes of Kafka's MBeans with the rules of Strimzi and of the common
dashboards: `kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec` is
`kafka_server_brokertopicmetrics_bytesin_total`, with a `topic` label for one topic and without for all.
Runs in the scraper's thread while the loop goes on counting: it copies what it iterates over, and a sample
may be one request older than the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from tidelog.runtime.coordinator_metrics import add_coordinator
from tidelog.runtime.request_metrics import RequestMetrics, add_up, cumulative_counts, quantile_ms

if TYPE_CHECKING:
    from tidelog.runtime.telemetry import Telemetry

QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
DURATION_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30,
)  # fmt: skip
# Fetch is shown under the name of who fetches, too: dashboards ask for that one.
_ALSO_KNOWN_AS = {"Fetch": "FetchConsumer"}


class PurgatoryView(Protocol):
    """What is shown of a purgatory."""

    name: str
    expired_total: int

    def __len__(self) -> int: ...

    @property
    def watched_count(self) -> int: ...


class FetchersView(Protocol):
    """What is shown of the partitions that a broker follows."""

    @property
    def failed_count(self) -> int: ...

    def lags(self) -> Iterator[tuple[Any, int, int]]:
        """((topic, partition), leader, records behind) of each that was answered."""
        ...


class BrokerView(Protocol):
    """What is shown of a broker; `replicas` maps (topic, partition) to objects with `core` and `log`."""

    @property
    def replicas(self) -> Mapping[Any, Any]: ...

    @property
    def produce_purgatory(self) -> PurgatoryView: ...

    @property
    def fetch_purgatory(self) -> PurgatoryView: ...

    @property
    def offline_replica_count(self) -> int: ...

    @property
    def parked_follower_fetch_count(self) -> int: ...

    @property
    def fetch_session_counts(self) -> tuple[int, int]: ...

    @property
    def delete_records_purgatory(self) -> PurgatoryView: ...

    @property
    def fetchers(self) -> FetchersView: ...


class ControllerView(Protocol):
    """What is shown of the active controller."""

    @property
    def topic_count(self) -> int: ...

    @property
    def partition_count(self) -> int: ...

    @property
    def offline_partition_count(self) -> int: ...

    @property
    def preferred_replica_imbalance_count(self) -> int: ...

    @property
    def active_broker_count(self) -> int: ...


class _Families:
    """Metric families by name, in the order of their first sample."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def counter(self, name: str, doc: str, value: float, **labels: str) -> None:
        self._add(name, "counter", doc, name + "_total", value, labels)

    def gauge(self, name: str, doc: str, value: float, **labels: str) -> None:
        self._add(name, "gauge", doc, name, value, labels)

    def summary(self, name: str, doc: str, suffix: str, value: float, **labels: str) -> None:
        self._add(name, "summary", doc, name + suffix, value, labels)

    def _add(
        self, name: str, kind: str, doc: str, sample_name: str, value: float, labels: dict[str, str]
    ) -> None:
        metric = self._metrics.get(name)
        if metric is None:
            metric = self._metrics[name] = Metric(name, doc, kind)
        metric.add_sample(sample_name, labels, value)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._metrics.values())


class MetricFamilies(Collector):
    """The collector that Prometheus' registry asks at each scrape."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def describe(self) -> list[Metric]:
        """Nothing in advance: names are known at the scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        families = _Families()
        self._add_topics(families)
        self._add_listeners(families)
        self._add_broker(families)
        self._add_controller(families)
        if self._telemetry.coordinator is not None:
            add_coordinator(families, self._telemetry.coordinator)
        yield from families
        yield from self._requests()

    def _add_topics(self, families: _Families) -> None:
        telemetry = self._telemetry
        topics = sorted(telemetry.topics.items())
        for short_name, attribute, doc in _TRAFFIC:
            name = f"kafka_server_brokertopicmetrics_{short_name}"
            total = getattr(telemetry.broker_traffic, attribute)
            if attribute in telemetry.broker_traffic.SUMMED:
                total += sum(getattr(traffic, attribute) for _, traffic in topics)
            families.counter(name, doc, total)
            for topic, traffic in topics:
                families.counter(name, doc, getattr(traffic, attribute), topic=topic)
        for short_name, attribute, doc in _REPLICATION_TRAFFIC:
            name = f"kafka_server_brokertopicmetrics_{short_name}"
            families.counter(name, doc, getattr(telemetry.broker_traffic, attribute))

    def _add_listeners(self, families: _Families) -> None:
        for listener, connections in sorted(self._telemetry.listeners.items()):
            labels = {"listener": listener, "networkProcessor": "0"}
            for prefix in ("kafka_server_socketservermetrics", "kafka_server_socket_server_metrics"):
                open_count = connections.open_count
                families.gauge(f"{prefix}_connection_count", "Open connections", open_count, **labels)
            prefix = "kafka_server_socketservermetrics"
            accepted, closed = connections.accepted_total, connections.closed_total
            families.counter(f"{prefix}_connection_creation", "Connections accepted", accepted, **labels)
            families.counter(f"{prefix}_connection_close", "Connections closed", closed, **labels)

    def _add_broker(self, families: _Families) -> None:
        broker = self._telemetry.broker
        if broker is None:
            return
        replicas = sorted(broker.replicas.items())
        leaders = [replica for _, replica in replicas if replica.core.is_leader]
        prefix = "kafka_server_replicamanager"
        families.gauge(f"{prefix}_partitioncount", "Replicas on this broker", len(replicas))
        families.gauge(f"{prefix}_leadercount", "Replicas that lead", len(leaders))
        families.gauge(
            f"{prefix}_underreplicatedpartitions",
            "Led partitions with replicas outside the ISR",
            sum(_is_under_replicated(replica.core) for replica in leaders),
        )
        families.gauge(
            f"{prefix}_underminisrpartitioncount",
            "Led partitions with too small an ISR for acks=all",
            sum(_in_sync_above_least(replica.core) < 0 for replica in leaders),
        )
        families.gauge(
            f"{prefix}_atminisrpartitioncount",
            "Led partitions that can't lose another replica from the ISR",
            sum(_in_sync_above_least(replica.core) == 0 for replica in leaders),
        )
        offline = broker.offline_replica_count
        families.gauge(f"{prefix}_offlinereplicacount", "Replicas whose log failed", offline)
        telemetry = self._telemetry
        families.counter(f"{prefix}_isrshrinks", "ISRs that replicas left", telemetry.isr_shrinks)
        families.counter(f"{prefix}_isrexpands", "ISRs that replicas joined", telemetry.isr_expands)
        failed = telemetry.failed_isr_updates
        families.counter(f"{prefix}_failedisrupdates", "ISR changes that the store refused", failed)
        for (topic, partition), replica in replicas:
            _add_partition(families, replica, {"topic": topic, "partition": str(partition)})
        _add_fetchers(families, broker.fetchers)
        _add_purgatory(families, broker.produce_purgatory)
        _add_purgatory(families, broker.fetch_purgatory, also_waiting=broker.parked_follower_fetch_count)
        _add_purgatory(families, broker.delete_records_purgatory)
        prefix = "kafka_server_fetchsessioncache"
        sessions, partitions = broker.fetch_session_counts
        families.gauge(f"{prefix}_numincrementalfetchsessions", "Fetch sessions kept", sessions)
        doc = "Partitions in fetch sessions"
        families.gauge(f"{prefix}_numincrementalfetchpartitionscached", doc, partitions)

    def _add_controller(self, families: _Families) -> None:
        counts, view = self._telemetry.controller_counts, self._telemetry.controller
        prefix = "kafka_controller_kafkacontroller"
        is_active = int(counts.is_active)
        families.gauge(f"{prefix}_activecontrollercount", "1 if it is the controller", is_active)
        if view is None or not is_active:
            return
        for short_name, attribute, doc in _CONTROLLER_GAUGES:
            families.gauge(f"{prefix}_{short_name}", doc, getattr(view, attribute))
        prefix = "kafka_controller_controllerstats"
        unclean = counts.unclean_leader_elections
        families.counter(f"{prefix}_leaderelections", "Leaders elected", counts.leader_elections)
        families.counter(f"{prefix}_uncleanleaderelections", "Of them outside the ISR", unclean)

    def _requests(self) -> Iterator[Metric]:
        telemetry = self._telemetry
        families = _Families()
        histogram = HistogramMetricFamily(
            "tidelog_request_duration_seconds", "From a request's arrival to its answer", labels=["request"]
        )
        now_ms = telemetry.clock.monotonic_ms()
        for api_name, by_version in sorted(telemetry.requests.items()):
            versions = [metrics for _, metrics in sorted(by_version.items())]
            counts = add_up([metrics.bucket_counts() for metrics in versions])
            recent = telemetry.windows[api_name].recent(counts, now_ms)
            seconds = sum(metrics.seconds for metrics in versions)
            names = [api_name, *filter(None, [_ALSO_KNOWN_AS.get(api_name)])]
            for name in names:
                _add_api(families, name, versions, recent, sum(counts), seconds)
            bounds = [str(float(bound)) for bound in DURATION_BOUNDS_S]
            buckets = list(zip(bounds, cumulative_counts(counts, DURATION_BOUNDS_S), strict=True))
            histogram.add_metric([api_name], [*buckets, ("+Inf", sum(counts))], sum_value=seconds)
        yield from families
        yield histogram


_TRAFFIC = (
    ("messagesin", "messages_in", "Records appended"),
    ("bytesin", "bytes_in", "Bytes of batches appended"),
    ("bytesout", "bytes_out", "Bytes of batches fetched"),
    ("totalproducerequests", "produce_requests", "Batches produced"),
    ("failedproducerequests", "failed_produce_requests", "Batches refused"),
    ("totalfetchrequests", "fetch_requests", "Fetches"),
    ("failedfetchrequests", "failed_fetch_requests", "Fetches of a partition refused"),
)
_REPLICATION_TRAFFIC = (
    ("replicationbytesin", "replication_bytes_in", "Bytes of batches fetched from leaders"),
    ("replicationbytesout", "replication_bytes_out", "Bytes of batches that followers fetched"),
)
_CONTROLLER_GAUGES = (
    ("globaltopiccount", "topic_count", "Topics of the cluster"),
    ("globalpartitioncount", "partition_count", "Partitions of the cluster"),
    ("offlinepartitionscount", "offline_partition_count", "Partitions without a leader"),
    ("preferredreplicaimbalancecount", "preferred_replica_imbalance_count", "Not led as preferred"),
    ("activebrokercount", "active_broker_count", "Live brokers"),
)


def _is_under_replicated(core: Any) -> bool:
    return len(core.in_sync_replicas) < len(core.replicas)


def _in_sync_above_least(core: Any) -> int:
    least = min(core.min_in_sync_replicas, len(core.replicas))
    return int(len(core.in_sync_replicas) - least)


def _add_partition(families: _Families, replica: Any, labels: dict[str, str]) -> None:
    log, core = replica.log, replica.core
    families.gauge("kafka_log_log_size", "Bytes of segments", log.size_bytes, **labels)
    families.gauge("kafka_log_log_logstartoffset", "First offset", log.log_start_offset, **labels)
    families.gauge("kafka_log_log_logendoffset", "Offset of the next record", log.log_end_offset, **labels)
    families.gauge("kafka_log_log_numlogsegments", "Segments", len(log.segments), **labels)
    if not core.is_leader:
        return
    prefix = "kafka_cluster_partition"
    in_sync = len(core.in_sync_replicas)
    families.gauge(f"{prefix}_replicascount", "Replicas assigned", len(core.replicas), **labels)
    families.gauge(f"{prefix}_insyncreplicascount", "Replicas in the ISR", in_sync, **labels)
    under_replicated = int(_is_under_replicated(core))
    families.gauge(f"{prefix}_underreplicated", "1 if one is outside the ISR", under_replicated, **labels)
    under_min_isr = int(_in_sync_above_least(core) < 0)
    families.gauge(f"{prefix}_underminisr", "1 if acks=all is refused", under_min_isr, **labels)
    at_min_isr = int(_in_sync_above_least(core) == 0)
    families.gauge(f"{prefix}_atminisr", "1 if one less in sync would refuse acks=all", at_min_isr, **labels)
    lag = core.high_watermark - core.last_stable_offset
    families.gauge(f"{prefix}_laststableoffsetlag", "Records of open transactions", lag, **labels)


def _add_fetchers(families: _Families, fetchers: FetchersView) -> None:
    family, max_lag = "kafka_server_fetcherlagmetrics_consumerlag", 0
    doc = "Records that this follower is behind its leader's high watermark"
    for (topic, partition), leader, lag in fetchers.lags():
        max_lag = max(max_lag, lag)
        client_id = f"ReplicaFetcherThread-0-{leader}"
        families.gauge(family, doc, lag, clientId=client_id, topic=topic, partition=str(partition))
    prefix = "kafka_server_replicafetchermanager"
    families.gauge(f"{prefix}_maxlag", "The greatest of these", max_lag, clientId="Replica")
    failed = fetchers.failed_count
    doc = "Followed partitions that fail again and again"
    families.gauge(f"{prefix}_failedpartitionscount", doc, failed, clientId="Replica")


def _add_purgatory(families: _Families, purgatory: PurgatoryView, *, also_waiting: int = 0) -> None:
    prefix = "kafka_server_delayedoperationpurgatory"
    name, waiting, watched = purgatory.name, len(purgatory) + also_waiting, purgatory.watched_count
    families.gauge(f"{prefix}_numdelayedoperations", "Requests that wait", waiting, delayedOperation=name)
    families.gauge(f"{prefix}_purgatorysize", "Partitions they wait for", watched, delayedOperation=name)
    expired = purgatory.expired_total
    families.counter(f"{prefix}_expires", "Requests whose time was over", expired, delayedOperation=name)


def _add_api(
    families: _Families,
    name: str,
    versions: list[RequestMetrics],
    recent: list[int],
    count: int,
    seconds: float,
) -> None:
    prefix = "kafka_network_requestmetrics"
    for metrics in versions:
        version = str(metrics.version)
        families.counter(f"{prefix}_requests", "Requests", metrics.count, request=name, version=version)
    sent = sum(metrics.response_bytes for metrics in versions)
    families.counter(f"{prefix}_responsebytes", "Bytes of answers", sent, request=name)
    family, doc = f"{prefix}_totaltimems", "Milliseconds from arrival to answer, over the last minutes"
    for quantile in QUANTILES:
        value = quantile_ms(recent, quantile)
        families.summary(family, doc, "", value, request=name, quantile=str(quantile))
    families.summary(family, doc, "_count", count, request=name)
    families.summary(family, doc, "_sum", seconds * 1000, request=name)
