"""The metrics of a broker: traffic by topic, requests, connections, replicas, purgatories, compaction, disks.

`BrokerMetrics.collect` runs in the scraper's thread while the event loop continues to count. It copies each
collection before it iterates over it. The functions add the families of topics, then of requests,
connections, replicas, waiting requests, sessions, coordinators, disks and compaction.
"""

from __future__ import annotations

import json
import os
from heapq import nlargest
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from tidelog.broker.security.client_quotas import MS_PER_S
from tidelog.broker.share.deliveries import OUTCOMES
from tidelog.metrics.telemetry import LatencyWindow, RequestMetrics, Telemetry, add_up
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tidelog.broker.client_telemetry.receiver import ClientTelemetry
    from tidelog.broker.coordination.coordination import Coordination
    from tidelog.broker.hosting.hosted_partitions import HostedPartitions
    from tidelog.broker.hosting.log_cleaner import LogCleaner
    from tidelog.broker.hosting.replica import Replica
    from tidelog.broker.net.listener import ConnectionLoad, Listener
    from tidelog.broker.replication.follower_fetch_sessions import FollowerFetchSessions
    from tidelog.broker.replication.replica_fetchers import ReplicaFetchers
    from tidelog.broker.requests.client_fetch_sessions import ClientFetchSessions
    from tidelog.broker.requests.waiting import Purgatory, WaitingRequests
    from tidelog.broker.security.client_quotas import ClientQuotas
    from tidelog.broker.share.dead_letter_copies import DeadLetterLoad
    from tidelog.broker.share.share_partitions import ShareGroupLoad, SharePartitions
    from tidelog.kernel.instants import MonotonicMs
    from tidelog.metrics.families import Families
    from tidelog.metrics.process_metrics import LoopWatch
    from tidelog.model.fair_budget import BudgetUse, FairBudget

_REQUEST_METRICS: Final = "kafka_network_requestmetrics"
_ALSO_KNOWN_AS: Final = {"Fetch": "FetchConsumer"}
"""Dashboards query the fetches of clients under Kafka's second name."""

_TRAFFIC: Final = (
    ("messagesin", "messages_in", "Records appended"),
    ("bytesin", "bytes_in", "Bytes of batches appended"),
    ("bytesout", "bytes_out", "Bytes of batches fetched"),
    ("totalproducerequests", "produce_requests", "Batches produced"),
    ("failedproducerequests", "failed_produce_requests", "Batches rejected"),
    ("totalfetchrequests", "fetch_requests", "Fetches"),
    ("failedfetchrequests", "failed_fetch_requests", "Rejected partitions of fetches"),
)
MAX_SHOWN_SHARE_GROUPS: Final = 1_000
"""The share groups with series of their own: those with the most unfinished records."""
MAX_SHOWN_STORIES: Final = 200
"""The most replicas that a page of stories shows. Each may have 100 transitions."""
MAX_SHOWN_QUOTAS: Final = 50
"""The quotas whose use is shown: those that are nearest to their limit."""
_REPLICATION_TRAFFIC: Final = (
    ("replicationbytesin", "replication_bytes_in", "Bytes of batches fetched from leaders"),
    ("replicationbytesout", "replication_bytes_out", "Bytes of batches that followers fetched"),
)


class BrokerView:
    """The state of a broker that its metrics show. Any thread may read it."""

    def __init__(
        self,
        broker_id: int,
        data_path: Path,
        hosted: HostedPartitions,
        waiting: WaitingRequests,
        client_fetch_sessions: ClientFetchSessions,
        follower_fetch_sessions: FollowerFetchSessions,
        fetchers: ReplicaFetchers,
        coordination: Coordination,
        log_cleaner: LogCleaner,
        quotas: ClientQuotas,
        share_partitions: Callable[[], SharePartitions | None],
    ) -> None:
        self.broker_id = broker_id
        self.data_path = data_path
        self.replicas = hosted.replicas
        self.produce_purgatory = waiting.produce
        self.fetch_purgatory = waiting.fetch
        self.delete_records_purgatory = waiting.delete_records
        self.fetchers = fetchers
        self.log_cleaner = log_cleaner
        self.quotas = quotas
        self.stories = hosted.stories
        self._hosted = hosted
        self._client_fetch_sessions = client_fetch_sessions
        self._follower_fetch_sessions = follower_fetch_sessions
        self._coordination = coordination
        self._share_partitions = share_partitions

    @property
    def share_loads(self) -> list[ShareGroupLoad]:
        """The loads of share groups. Reads the log."""
        partitions = self._share_partitions()
        return [] if partitions is None else partitions.loads()

    @property
    def dead_letter_loads(self) -> Mapping[str, DeadLetterLoad]:
        """The dead letters of share groups, by group."""
        partitions = self._share_partitions()
        return {} if partitions is None else partitions.dead_letters.loads()

    @property
    def share_session_count(self) -> int:
        """The number of share sessions."""
        partitions = self._share_partitions()
        return 0 if partitions is None else len(partitions.sessions)

    @property
    def budget_uses(self) -> dict[str, BudgetUse]:
        """The use of the budgets of share sessions and of calls to coordinators, by name."""
        partitions, uses = self._share_partitions(), self._coordination.budget_uses()
        if partitions is not None:
            uses["share_sessions"] = partitions.sessions.slots.use
            uses["share_session_partitions"] = partitions.sessions.room.use
        return uses

    @property
    def offline_replica_count(self) -> int:
        """The number of replicas whose logs failed."""
        return self._hosted.offline_count

    @property
    def parked_follower_fetch_count(self) -> int:
        """The number of followers' fetches that wait for records."""
        return self._follower_fetch_sessions.parked_count

    @property
    def evicted_fetch_sessions(self) -> int:
        """The number of clients' fetch sessions that were evicted so far."""
        return self._client_fetch_sessions.evicted_total

    @property
    def fetch_session_counts(self) -> tuple[int, int]:
        """The number of fetch sessions of clients and followers, and of the partitions in them."""
        clients, followers = self._client_fetch_sessions, tuple(self._follower_fetch_sessions)
        partitions = sum(len(session.partitions) for session in followers)
        return len(clients) + len(followers), clients.partition_count + partitions

    @property
    def attachment_counts(self) -> Mapping[str, tuple[int, int]]:
        """The number of attached shards and of the replies that they hold, by kind of shard."""
        return self._coordination.attachment_counts()


class BrokerMetrics:
    """The collector of a broker's metrics.

    It shows the counters of `telemetry` from the start, the broker's state after `observe`, and the load of
    the listeners in `listeners`.
    """

    def __init__(self, telemetry: Telemetry, loop: LoopWatch | None = None) -> None:
        self.telemetry = telemetry
        self.listeners: list[Listener] = []
        """The listeners that accept connections."""
        self.budgets: dict[str, FairBudget] = {}
        """The budgets that clients share from the start, by name."""
        self.client_telemetry: ClientTelemetry | None = None
        """The receiver of clients' metrics, if there is one."""
        self._loop = loop
        self._broker: BrokerView | None = None
        self._flush_window = LatencyWindow()

    def observe(self, broker: BrokerView) -> None:
        """Shows the broker's partitions and waiting requests from now on."""
        self._broker = broker

    def collect(self, families: Families) -> None:
        """Adds the current samples."""
        telemetry, broker = self.telemetry, self._broker
        _add_topics(families, telemetry)
        _add_connections(families, telemetry)
        if self.listeners:
            _add_load(families, [listener.load() for listener in tuple(self.listeners)])
            if self._loop is not None:
                _add_idle_share(families, self._loop.idle_share())
        _add_budgets(families, self._budget_uses())
        if telemetry.broker_state:
            doc = "1 starting, 2 recovering, 3 running, 6 handing over, 7 stopping"
            families.gauge("kafka_server_kafkaserver_brokerstate", doc, telemetry.broker_state)
        if broker is not None:
            _add_replicas(families, telemetry, broker)
            _add_fetchers(families, broker.fetchers)
            _add_purgatory(families, broker.produce_purgatory)
            _add_purgatory(families, broker.fetch_purgatory, also_waiting=broker.parked_follower_fetch_count)
            _add_purgatory(families, broker.delete_records_purgatory)
            _add_fetch_sessions(families, broker)
            _add_share_groups(families, broker)
            _add_coordinators(families, broker.attachment_counts)
            _add_quotas(families, broker.quotas, telemetry.clock.monotonic_ms())
            _add_flushes(families, telemetry, self._flush_window)
            _add_disk(families, broker.data_path)
            _add_cleaner(families, broker.log_cleaner)
        _add_requests(families, telemetry)
        if self.client_telemetry is not None:
            self.client_telemetry.collect(families, telemetry.clock.monotonic_ms())

    def replica_stories(self, query: str) -> str:
        """Returns a page of JSON: the replicas that neither lead nor follow, or those of a topic if the query
        is "topic=NAME", each with its last transitions.
        """
        topic = next(iter(parse_qs(query).get("topic", ())), None)
        stories = [] if self._broker is None else self._broker.stories(topic)
        shown = [
            {
                "topic": story.topic_partition.topic,
                "partition": story.topic_partition.partition,
                "state": story.state.value,
                "story": [
                    {"at_ms": at_ms, "from": before.value, "to": after.value, "reason": reason}
                    for at_ms, before, after, reason in story.transitions
                ],
            }
            for story in sorted(stories)[:MAX_SHOWN_STORIES]
        ]
        return json.dumps({"replicas": shown, "hidden": len(stories) - len(shown)})

    def _budget_uses(self) -> dict[str, BudgetUse]:
        uses = {name: budget.use for name, budget in tuple(self.budgets.items())}
        if self._broker is not None:
            uses |= self._broker.budget_uses
        if self.client_telemetry is not None:
            uses |= self.client_telemetry.budget_uses
        return uses


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


def _add_requests(families: Families, telemetry: Telemetry) -> None:
    now_ms = telemetry.clock.monotonic_ms()
    for api_name, by_version in sorted(telemetry.requests.items()):
        versions = [metrics for _, metrics in sorted(by_version.items())]
        counts = add_up([metrics.bucket_counts() for metrics in versions])
        seconds = sum(metrics.seconds for metrics in versions)
        waits = add_up([metrics.waits.bucket_counts() for metrics in versions])
        waited_s = sum(metrics.waits.seconds for metrics in versions)
        recent = telemetry.windows[api_name].recent(counts, now_ms)
        recent_waits = telemetry.wait_windows[api_name].recent(waits, now_ms)
        for name in (api_name, *filter(None, [_ALSO_KNOWN_AS.get(api_name)])):
            _add_requests_by_version(families, name, versions)
            doc = "Milliseconds from a request's arrival to its response, over the last one to two minutes"
            total = f"{_REQUEST_METRICS}_totaltimems"
            families.summary_ms(total, doc, recent, sum(counts), seconds, request=name)
            doc = "Milliseconds that requests waited for other processes or for records"
            remote = f"{_REQUEST_METRICS}_remotetimems"
            families.summary_ms(remote, doc, recent_waits, sum(waits), waited_s, request=name)
            doc = "Milliseconds that this broker worked on requests: the total time without the remote time"
            local, local_ms = f"{_REQUEST_METRICS}_localtimems", max(0.0, seconds - waited_s) * 1000
            families.summary(local, doc, "_count", sum(counts), request=name)
            families.summary(local, doc, "_sum", local_ms, request=name)
        doc = "Time from a request's arrival to its response"
        families.histogram("tidelog_request_duration_seconds", doc, counts, seconds, request=api_name)
        doc = "Time that requests waited for other processes or for records"
        families.histogram("tidelog_request_wait_seconds", doc, waits, waited_s, request=api_name)
    for (api_name, code), count in sorted(telemetry.errors.items()):
        doc, error = "Rejected partitions of requests", ErrorCode(code).name
        families.counter(f"{_REQUEST_METRICS}_errors", doc, count, request=api_name, error=error)


def _add_requests_by_version(families: Families, name: str, versions: list[RequestMetrics]) -> None:
    for metrics in versions:
        version, count = str(metrics.version), metrics.count
        families.counter(f"{_REQUEST_METRICS}_requests", "Requests", count, request=name, version=version)
    sent = sum(metrics.response_bytes for metrics in versions)
    families.counter(f"{_REQUEST_METRICS}_responsebytes", "Bytes of responses", sent, request=name)


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
        logins, failed = connections.logins, connections.failed_logins
        families.counter(f"{prefix}_successful_authentication", "Logins", logins, **labels)
        families.counter(f"{prefix}_failed_authentication", "Failed logins", failed, **labels)
    for (operation, resource_type), count in sorted(telemetry.denials.items()):
        doc = "Accesses that clients asked for and that no ACL allows"
        labels = {"operation": operation, "resource_type": resource_type}
        families.counter("tidelog_denied_accesses", doc, count, **labels)


def _add_load(families: Families, loads: list[ConnectionLoad]) -> None:
    prefix = "kafka_network_requestchannel"
    unanswered = sum(load.unanswered_requests for load in loads)
    families.gauge(f"{prefix}_requestqueuesize", "Requests in progress, including parked ones", unanswered)
    doc = "Connections whose client has not yet read all its responses"
    families.gauge(f"{prefix}_responsequeuesize", doc, sum(load.with_unsent_answers for load in loads))
    doc = "Bytes of responses that clients have not yet read"
    families.gauge("tidelog_connections_unsent_bytes", doc, sum(load.unsent_bytes for load in loads))
    doc = "Connections that the broker has stopped reading for now"
    families.gauge("tidelog_connections_held_back", doc, sum(load.held_back for load in loads))


def _add_budgets(families: Families, uses: Mapping[str, BudgetUse]) -> None:
    for name, use in sorted(uses.items()):
        labels = {"budget": name}
        doc = "What clients and brokers hold of a budget that they share"
        families.gauge("tidelog_budget_held", doc, use.held, **labels)
        families.gauge("tidelog_budget_total", "The size of the budget", use.total, **labels)
        doc = "Holders that lost what they held, because others needed it"
        families.counter("tidelog_budget_evictions", doc, use.evicted_total, **labels)


def _add_quotas(families: Families, quotas: ClientQuotas, now_ms: MonotonicMs) -> None:
    for kind, throttles in quotas.throttles.items():
        doc = "Requests whose client was throttled"
        families.counter("tidelog_client_quota_throttled", doc, throttles.count, quota=kind.value)
        doc = "Time for which clients were throttled"
        name, seconds = "tidelog_client_quota_throttle_seconds", throttles.total_ms / MS_PER_S
        families.counter(name, doc, seconds, quota=kind.value)
    for usage in quotas.busiest(MAX_SHOWN_QUOTAS, now_ms):
        labels = {"quota": usage.kind.value, "user": usage.user, "client_id": usage.client_id}
        doc = "What the sharers of a quota use, in the unit of the quota"
        families.gauge("tidelog_client_quota_rate", doc, usage.rate, **labels)
        families.gauge("tidelog_client_quota_limit", "The limit of a quota", usage.limit, **labels)


def _add_idle_share(families: Families, idle_share: float) -> None:
    doc = "Share of the time since the last scrape that the event loop's thread used no CPU"
    families.gauge("kafka_network_socketserver_networkprocessoravgidle_percent", doc, idle_share)
    families.gauge("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", doc, idle_share)


def _add_replicas(families: Families, telemetry: Telemetry, broker: BrokerView) -> None:
    replicas = sorted(broker.replicas.items())
    leaders = [replica for _, replica in replicas if replica.core.is_leader]
    prefix = "kafka_server_replicamanager"
    families.gauge(f"{prefix}_partitioncount", "Replicas on this broker", len(replicas))
    families.gauge(f"{prefix}_leadercount", "Partitions that this broker leads", len(leaders))
    families.gauge(
        f"{prefix}_underreplicatedpartitions",
        "Led partitions with replicas outside the ISR",
        sum(_is_under_replicated(replica) for replica in leaders),
    )
    families.gauge(
        f"{prefix}_underminisrpartitioncount",
        "Led partitions whose ISR is too small for acks=all",
        sum(_in_sync_above_minimum(replica) < 0 for replica in leaders),
    )
    families.gauge(
        f"{prefix}_atminisrpartitioncount",
        "Led partitions whose ISR would be too small for acks=all if another replica left it",
        sum(_in_sync_above_minimum(replica) == 0 for replica in leaders),
    )
    offline = broker.offline_replica_count
    families.gauge(f"{prefix}_offlinereplicacount", "Replicas whose log failed", offline)
    producers = sum(len(replica.core.producers) for _, replica in replicas)
    families.gauge(f"{prefix}_produceridcount", "Producers that partitions remember", producers)
    families.counter(f"{prefix}_isrshrinks", "ISR changes that removed replicas", telemetry.isr_shrinks)
    families.counter(f"{prefix}_isrexpands", "ISR changes that added replicas", telemetry.isr_expands)
    failed = telemetry.failed_isr_updates
    families.counter(f"{prefix}_failedisrupdates", "ISR changes that the metadata store rejected", failed)
    for (topic, partition), replica in replicas:
        labels = {"topic": topic, "partition": str(partition)}
        _add_log(families, replica, labels)
        if replica.core.is_leader:
            _add_led_partition(families, broker.broker_id, replica, labels)


def _is_under_replicated(replica: Replica) -> bool:
    return len(replica.core.in_sync_replicas) < len(replica.core.replicas)


def _in_sync_above_minimum(replica: Replica) -> int:
    """Returns how many replicas may leave the ISR before acks=all fails; below 0 it fails now."""
    return len(replica.core.in_sync_replicas) - replica.core.effective_min_in_sync_replicas


def _add_log(families: Families, replica: Replica, labels: dict[str, str]) -> None:
    log = replica.log
    families.gauge("kafka_log_log_size", "Bytes of segments", log.size_bytes, **labels)
    families.gauge("kafka_log_log_logstartoffset", "First offset", log.log_start_offset, **labels)
    families.gauge("kafka_log_log_logendoffset", "Offset of the next record", log.log_end_offset, **labels)
    families.gauge("kafka_log_log_numlogsegments", "Segments", len(log.segments), **labels)


def _add_led_partition(families: Families, leader: int, replica: Replica, labels: dict[str, str]) -> None:
    """Adds a partition that this broker, `leader`, leads, under Kafka's names and kafka_exporter's."""
    core = replica.core
    assigned, in_sync = core.replicas, len(core.in_sync_replicas)
    under_replicated, above_minimum = int(_is_under_replicated(replica)), _in_sync_above_minimum(replica)
    prefix = "kafka_cluster_partition"
    families.gauge(f"{prefix}_replicascount", "Replicas assigned", len(assigned), **labels)
    families.gauge(f"{prefix}_insyncreplicascount", "Replicas in the ISR", in_sync, **labels)
    doc = "1 if a replica is outside the ISR"
    families.gauge(f"{prefix}_underreplicated", doc, under_replicated, **labels)
    doc = "1 if the ISR is too small for acks=all"
    families.gauge(f"{prefix}_underminisr", doc, int(above_minimum < 0), **labels)
    doc = "1 if the ISR would be too small for acks=all if another replica left it"
    families.gauge(f"{prefix}_atminisr", doc, int(above_minimum == 0), **labels)
    lag = core.high_watermark - core.last_stable_offset
    families.gauge(f"{prefix}_laststableoffsetlag", "Records of open transactions", lag, **labels)
    prefix = "kafka_topic_partition"
    families.gauge(f"{prefix}_current_offset", "High watermark", core.high_watermark, **labels)
    families.gauge(f"{prefix}_oldest_offset", "First offset", core.log_start_offset, **labels)
    families.gauge(f"{prefix}_leader", "Id of the leader", leader, **labels)
    preferred = int(bool(assigned) and assigned[0] == leader)
    doc = "1 if the first replica leads"
    families.gauge(f"{prefix}_leader_is_preferred", doc, preferred, **labels)
    families.gauge(f"{prefix}_replicas", "Replicas assigned", len(assigned), **labels)
    families.gauge(f"{prefix}_in_sync_replica", "Replicas in the ISR", in_sync, **labels)
    doc = "1 if a replica is outside the ISR"
    families.gauge(f"{prefix}_under_replicated_partition", doc, under_replicated, **labels)


def _add_fetchers(families: Families, fetchers: ReplicaFetchers) -> None:
    family, max_lag = "kafka_server_fetcherlagmetrics_consumerlag", 0
    doc = "Records between this follower's log end and its leader's high watermark"
    for (topic, partition), leader, lag in fetchers.lags():
        max_lag = max(max_lag, lag)
        client_id = f"ReplicaFetcherThread-0-{leader}"
        families.gauge(family, doc, lag, clientId=client_id, topic=topic, partition=str(partition))
    prefix = "kafka_server_replicafetchermanager"
    families.gauge(f"{prefix}_maxlag", "Greatest lag of a followed partition", max_lag, clientId="Replica")
    failed = fetchers.failed_count
    doc = "Followed partitions whose fetches fail repeatedly"
    families.gauge(f"{prefix}_failedpartitionscount", doc, failed, clientId="Replica")


def _add_purgatory(families: Families, purgatory: Purgatory, *, also_waiting: int = 0) -> None:
    prefix = "kafka_server_delayedoperationpurgatory"
    name, waiting, watched = purgatory.name, len(purgatory) + also_waiting, purgatory.watched_count
    doc = "Requests that wait in a purgatory"
    families.gauge(f"{prefix}_numdelayedoperations", doc, waiting, delayedOperation=name)
    doc = "Partitions that requests in a purgatory wait for"
    families.gauge(f"{prefix}_purgatorysize", doc, watched, delayedOperation=name)
    doc, expired = "Requests that timed out in a purgatory", purgatory.expired_total
    families.counter(f"{prefix}_expires", doc, expired, delayedOperation=name)


def _add_fetch_sessions(families: Families, broker: BrokerView) -> None:
    prefix = "kafka_server_fetchsessioncache"
    sessions, partitions = broker.fetch_session_counts
    families.gauge(f"{prefix}_numincrementalfetchsessions", "Fetch sessions", sessions)
    doc = "Partitions in fetch sessions"
    families.gauge(f"{prefix}_numincrementalfetchpartitionscached", doc, partitions)
    doc, evicted = "Fetch sessions evicted to make room for others", broker.evicted_fetch_sessions
    families.counter(f"{prefix}_incrementalfetchsessionevictions", doc, evicted)


def _add_share_groups(families: Families, broker: BrokerView) -> None:
    families.gauge("tidelog_share_sessions", "Share sessions", broker.share_session_count)
    loads = broker.share_loads
    shown = nlargest(MAX_SHOWN_SHARE_GROUPS, loads, key=lambda load: load.unfinished)
    doc = "Share groups without series of their own, because others have more unfinished records"
    families.gauge("tidelog_share_groups_omitted", doc, len(loads) - len(shown))
    prefix = "tidelog_share_group"
    for load in sorted(shown, key=lambda load: load.group):
        doc = "Records that are not acknowledged or archived"
        families.gauge(f"{prefix}_unfinished_records", doc, load.unfinished, group=load.group)
        doc = "Records that members have and have not acknowledged"
        families.gauge(f"{prefix}_acquired_records", doc, load.acquired, group=load.group)
        doc = "Records that wait for their delivery time, their retry or an earlier record of their key"
        families.gauge(f"{prefix}_waiting_records", doc, load.waiting, group=load.group)
        doc = "Age of the oldest record that is not acknowledged or archived"
        name, age_s = f"{prefix}_oldest_record_seconds", max(load.oldest_age_ms, 0) / MS_PER_S
        families.gauge(name, doc, age_s, group=load.group)
        doc = "Partitions of which no new record may be acquired until others end"
        families.gauge(f"{prefix}_full_partitions", doc, load.full_partitions, group=load.group)
        doc = "Partitions that the circuit breaker pauses or probes"
        families.gauge(f"{prefix}_paused_partitions", doc, load.paused_partitions, group=load.group)
        doc = "Records that were delivered again"
        families.counter(f"{prefix}_redelivered_records", doc, load.counts.redelivered, group=load.group)
        doc = "Deliveries of records that ended, by outcome"
        for outcome in OUTCOMES:
            name, count = f"{prefix}_deliveries", getattr(load.counts, outcome)
            families.counter(name, doc, count, group=load.group, outcome=outcome)
    _add_dead_letters(families, broker.dead_letter_loads)


def _add_dead_letters(families: Families, loads: Mapping[str, DeadLetterLoad]) -> None:
    shown = nlargest(
        MAX_SHOWN_SHARE_GROUPS, loads, key=lambda group: (loads[group].waiting, loads[group].copied)
    )
    prefix = "tidelog_share_group_dead_letter"
    for group in sorted(shown):
        load = loads[group]
        doc = "Records that were given up and wait for their copy to the dead letter topic"
        families.gauge(f"{prefix}s_waiting", doc, load.waiting, group=group)
        doc = "Records that were copied to the dead letter topic"
        families.counter(f"{prefix}s", doc, load.copied, group=group)
        doc = "Attempts to copy records to the dead letter topic that failed"
        families.counter(f"{prefix}_failures", doc, load.failures, group=group)


def _add_coordinators(families: Families, attachment_counts: Mapping[str, tuple[int, int]]) -> None:
    for kind, (attached, held) in sorted(attachment_counts.items()):
        doc = "Shards whose owner is attached to this broker"
        families.gauge("tidelog_coordinator_attachments", doc, attached, kind=kind)
        doc = "Replies that wait until their records are replicated"
        families.gauge("tidelog_coordinator_held_replies", doc, held, kind=kind)


def _add_flushes(families: Families, telemetry: Telemetry, window: LatencyWindow) -> None:
    flushes, now_ms = telemetry.log_flushes, telemetry.clock.monotonic_ms()
    counts = flushes.bucket_counts()
    name, doc = "kafka_log_logflushstats_logflushrateandtimems", "Milliseconds of an fsync of a log"
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
        families.gauge(f"{prefix}_free_bytes", "Free bytes of the data directory's volume", free_bytes)
    doc = "1 if the data directory cannot be read or written"
    families.gauge("kafka_log_logmanager_offlinelogdirectorycount", doc, offline)


def _add_cleaner(families: Families, cleaner: LogCleaner) -> None:
    counts, recent = cleaner.counts, list(cleaner.counts.recent)
    prefix, doc = "kafka_log_logcleanermanager", "Dirty share of the dirtiest compacted log at the last check"
    families.gauge(f"{prefix}_max_dirty_percent", doc, counts.max_dirty_ratio * 100)
    ended_s = counts.last_ended_s
    since_ms = 0.0 if ended_s is None else max(0.0, cleaner.now_s() - ended_s) * 1000
    doc = "Milliseconds since the last cleaning ended; 0 before the first"
    families.gauge(f"{prefix}_time_since_last_run_ms", doc, since_ms)
    doc = "Logs whose last cleaning failed"
    families.gauge(f"{prefix}_uncleanable_partitions_count", doc, cleaner.uncleanable_count)
    prefix = "kafka_log_logcleaner"
    longest_s = max((cleaning.seconds for cleaning in recent), default=0.0)
    families.gauge(f"{prefix}_max_clean_time_secs", "The longest of the recent cleanings", longest_s)
    read, kept = sum(c.bytes_read for c in recent), sum(c.bytes_kept for c in recent)
    doc = "Share of the bytes read that the recent cleanings kept"
    families.gauge(f"{prefix}_cleaner_recopy_percent", doc, 100 * kept / read if read else 0.0)
    prefix = "tidelog_log_cleaner"
    for outcome, count in counts.outcomes.items():
        families.counter(f"{prefix}_runs", "Cleanings by outcome", count, outcome=outcome)
    families.counter(f"{prefix}_bytes_read", "Bytes that cleanings read", counts.bytes_read)
    families.counter(f"{prefix}_bytes_kept", "Bytes that cleanings kept", counts.bytes_kept)
