"""A broker as Prometheus samples: traffic by topic, connections, replicas, purgatories, disks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tidelog.runtime.cleaning_metrics import CleanerView, add_cleaner
from tidelog.runtime.partition_metrics import add_log, add_partition, in_sync_above_least, is_under_replicated
from tidelog.runtime.request_metrics import LatencyWindow

if TYPE_CHECKING:
    from tidelog.runtime.sample_families import Families
    from tidelog.runtime.telemetry import Telemetry


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


class ConnectionLoad(NamedTuple):
    """What a listener's connections have in work at a moment."""

    unanswered_requests: int
    with_unsent_answers: int
    unsent_bytes: int
    held_back: int


class ListenerView(Protocol):
    """What is shown of a listener. Any thread."""

    def load(self) -> ConnectionLoad: ...


class BrokerView(Protocol):
    """What is shown of a broker; `replicas` maps (topic, partition) to objects with `core` and `log`."""

    @property
    def broker_id(self) -> int: ...

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
    def evicted_fetch_sessions(self) -> int: ...

    @property
    def delete_records_purgatory(self) -> PurgatoryView: ...

    @property
    def fetchers(self) -> FetchersView: ...

    @property
    def log_cleaner(self) -> CleanerView: ...

    @property
    def data_path(self) -> Path: ...

    @property
    def attachment_counts(self) -> Mapping[str, tuple[int, int]]:
        """Coordinators' shards attached here and replies that they hold, by kind."""
        ...


def add_broker(families: Families, telemetry: Telemetry, flush_window: LatencyWindow) -> None:
    _add_topics(families, telemetry)
    _add_connections(families, telemetry)
    if telemetry.broker_state:
        doc = "1 starting, 2 recovering, 3 running, 6 handing over, 7 stopping"
        families.gauge("kafka_server_kafkaserver_brokerstate", doc, telemetry.broker_state)
    broker = telemetry.broker
    if broker is None:
        return
    _add_replicas(families, telemetry, broker)
    _add_fetchers(families, broker.fetchers)
    _add_purgatory(families, broker.produce_purgatory)
    _add_purgatory(families, broker.fetch_purgatory, also_waiting=broker.parked_follower_fetch_count)
    _add_purgatory(families, broker.delete_records_purgatory)
    prefix = "kafka_server_fetchsessioncache"
    sessions, partitions = broker.fetch_session_counts
    families.gauge(f"{prefix}_numincrementalfetchsessions", "Fetch sessions kept", sessions)
    doc = "Partitions in fetch sessions"
    families.gauge(f"{prefix}_numincrementalfetchpartitionscached", doc, partitions)
    doc, evicted = "Fetch sessions that had to make room for others", broker.evicted_fetch_sessions
    families.counter(f"{prefix}_incrementalfetchsessionevictions", doc, evicted)
    for kind, (attached, held) in sorted(broker.attachment_counts.items()):
        doc = "Shards whose owner is attached at this broker"
        families.gauge("tidelog_coordinator_attachments", doc, attached, kind=kind)
        doc = "Replies decided that wait until their records are replicated"
        families.gauge("tidelog_coordinator_held_replies", doc, held, kind=kind)
    _add_flushes(families, telemetry, flush_window)
    _add_disk(families, broker.data_path)
    add_cleaner(families, broker.log_cleaner)


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


def _add_topics(families: Families, telemetry: Telemetry) -> None:
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


def _add_connections(families: Families, telemetry: Telemetry) -> None:
    for listener, connections in sorted(telemetry.listeners.items()):
        labels = {"listener": listener, "networkProcessor": "0"}
        for prefix in ("kafka_server_socketservermetrics", "kafka_server_socket_server_metrics"):
            open_count = connections.open_count
            families.gauge(f"{prefix}_connection_count", "Open connections", open_count, **labels)
        prefix = "kafka_server_socketservermetrics"
        accepted, closed = connections.accepted_total, connections.closed_total
        families.counter(f"{prefix}_connection_creation", "Connections accepted", accepted, **labels)
        families.counter(f"{prefix}_connection_close", "Connections closed", closed, **labels)
    if telemetry.listener_views:
        _add_load(families, [listener.load() for listener in telemetry.listener_views])
        if telemetry.loop is not None:
            idle, doc = telemetry.loop.idle_share(), "Share of the time that the loop's thread used no CPU"
            families.gauge("kafka_network_socketserver_networkprocessoravgidle_percent", doc, idle)
            families.gauge("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", doc, idle)


def _add_load(families: Families, loads: list[ConnectionLoad]) -> None:
    prefix = "kafka_network_requestchannel"
    unanswered = sum(load.unanswered_requests for load in loads)
    families.gauge(f"{prefix}_requestqueuesize", "Requests begun and not answered yet", unanswered)
    doc = "Connections whose client has not taken all its answers yet"
    families.gauge(f"{prefix}_responsequeuesize", doc, sum(load.with_unsent_answers for load in loads))
    doc = "Answers that clients have not taken yet"
    families.gauge("tidelog_connections_unsent_bytes", doc, sum(load.unsent_bytes for load in loads))
    doc = "Connections that are not read for now"
    families.gauge("tidelog_connections_held_back", doc, sum(load.held_back for load in loads))


def _add_replicas(families: Families, telemetry: Telemetry, broker: BrokerView) -> None:
    replicas = sorted(broker.replicas.items())
    leaders = [replica for _, replica in replicas if replica.core.is_leader]
    prefix = "kafka_server_replicamanager"
    families.gauge(f"{prefix}_partitioncount", "Replicas on this broker", len(replicas))
    families.gauge(f"{prefix}_leadercount", "Replicas that lead", len(leaders))
    families.gauge(
        f"{prefix}_underreplicatedpartitions",
        "Led partitions with replicas outside the ISR",
        sum(is_under_replicated(replica.core) for replica in leaders),
    )
    families.gauge(
        f"{prefix}_underminisrpartitioncount",
        "Led partitions with too small an ISR for acks=all",
        sum(in_sync_above_least(replica.core) < 0 for replica in leaders),
    )
    families.gauge(
        f"{prefix}_atminisrpartitioncount",
        "Led partitions that can't lose another replica from the ISR",
        sum(in_sync_above_least(replica.core) == 0 for replica in leaders),
    )
    offline = broker.offline_replica_count
    families.gauge(f"{prefix}_offlinereplicacount", "Replicas whose log failed", offline)
    producers = sum(len(replica.core.producers) for _, replica in replicas)
    families.gauge(f"{prefix}_produceridcount", "Producers that partitions remember", producers)
    families.counter(f"{prefix}_isrshrinks", "ISRs that replicas left", telemetry.isr_shrinks)
    families.counter(f"{prefix}_isrexpands", "ISRs that replicas joined", telemetry.isr_expands)
    failed = telemetry.failed_isr_updates
    families.counter(f"{prefix}_failedisrupdates", "ISR changes that the store refused", failed)
    for (topic, partition), replica in replicas:
        labels = {"topic": topic, "partition": str(partition)}
        add_log(families, replica.log, labels)
        if replica.core.is_leader:
            add_partition(families, broker.broker_id, replica.core, labels)


def _add_fetchers(families: Families, fetchers: FetchersView) -> None:
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


def _add_purgatory(families: Families, purgatory: PurgatoryView, *, also_waiting: int = 0) -> None:
    prefix = "kafka_server_delayedoperationpurgatory"
    name, waiting, watched = purgatory.name, len(purgatory) + also_waiting, purgatory.watched_count
    families.gauge(f"{prefix}_numdelayedoperations", "Requests that wait", waiting, delayedOperation=name)
    families.gauge(f"{prefix}_purgatorysize", "Partitions they wait for", watched, delayedOperation=name)
    expired = purgatory.expired_total
    families.counter(f"{prefix}_expires", "Requests whose time was over", expired, delayedOperation=name)


def _add_flushes(families: Families, telemetry: Telemetry, window: LatencyWindow) -> None:
    flushes, now_ms = telemetry.log_flushes, telemetry.clock.monotonic_ms()
    counts = flushes.bucket_counts()
    name, doc = "kafka_log_logflushstats_logflushrateandtimems", "Milliseconds to bring a log to the disk"
    families.summary_ms(name, doc, window.recent(counts, now_ms), sum(counts), flushes.seconds)


def _add_disk(families: Families, path: Path) -> None:
    prefix, offline = "tidelog_log_directory", 0
    try:
        volume = os.statvfs(path)
    except OSError:
        offline = 1
    else:
        size_bytes, free_bytes = volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize
        families.gauge(f"{prefix}_size_bytes", "Size of the data directory's volume", size_bytes)
        families.gauge(f"{prefix}_free_bytes", "What is free of it", free_bytes)
    doc = "1 if the data directory can't be reached"
    families.gauge("kafka_log_logmanager_offlinelogdirectorycount", doc, offline)
