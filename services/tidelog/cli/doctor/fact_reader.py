"""Reads the facts about a cluster over Kafka's protocol, and others from metrics endpoints, etcd, and a local
cluster's files. A fact that cannot be read is an `Unseen`.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final, TypeVar
from urllib.parse import urlsplit

from tidelog.cli.doctor.facts import (
    ClusterFacts,
    EtcdMember,
    OfflineReplica,
    Registrations,
    ServiceMetrics,
    Unseen,
    sum_of,
)
from tidelog.cli.local_cluster.cluster import LocalCluster
from tidelog.cli.local_cluster.plan import BROKER, CONTROLLER, COORDINATOR
from tidelog.client.admin.brokers import LogDir, describe_log_dirs
from tidelog.client.admin.groups import (
    SHARE,
    ListedGroup,
    Transaction,
    list_groups,
)
from tidelog.client.admin.topics import (
    ConfigResource,
    describe_configs,
    unconfirmed_topics,
)
from tidelog.client.admin.transactions import (
    PartitionProducer,
    describe_producers,
    judged,
    transactions_of,
    unknown_to_coordinators,
)
from tidelog.client.cluster import Broker, Cluster, Topic
from tidelog.client.errors import ClientError, UnsupportedApiError
from tidelog.kernel.instants import WallMs
from tidelog.metadata.coordinators import GROUP, coordinator_ids, decode_coordinator
from tidelog.metadata.entries import (
    ALL_KEYS_PREFIX,
    BrokerEntry,
    CandidateEntry,
    ControllerEntry,
    InvalidEntryError,
    decode_entry,
)
from tidelog.metadata.store import NO_LEASE, KeyValue, StoreError
from tidelog.metrics.certificates import MAX_FILE_BYTES, first_expiration_s
from tidelog.metrics.process_metrics import REPLICAS_PAGE
from tidelog.model.brokers import host_and_port
from tidelog.model.errors import KafkaError
from tidelog.model.protocol_values import ConfigResourceType
from tidelog.model.topics import TopicPartition
from tidelog.observe.availability import named
from tidelog.observe.cluster_reader import ClusterReader, OpenTransaction, next_offsets
from tidelog.observe.lag import LogOffsets
from tidelog.observe.number_texts import iso_time
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.listeners import is_loopback_host

MAX_GROUPS: Final = 1_000
MAX_TRANSACTIONS: Final = 1_000
"""The groups and the open transactions that are examined, each with a request of its own."""
MAX_UNSEEN_GROUPS: Final = 3
"""The groups that may fail before the others are left out: each failure takes the whole timeout."""
NOT_SET: Final = ("", *BrokerSettings().tidelog_etcd_endpoints)
"""The endpoint of etcd that a broker describes if it uses none: that of Kafka, and that of `tidelog dev`."""
ETCD_ENDPOINTS: Final = "tidelog.etcd.endpoints"
ETCD_PORT: Final = 2379
METRICS_LISTENER: Final = "tidelog.metrics.listener"
MAX_METRICS_BYTES: Final = 32 * 1024 * 1024
_WHOLE_SECOND_MS: Final = 1_000
_WILDCARDS: Final = ("", "0.0.0.0", "::")
_LEASE_AGE: Final = "tidelog_metadata_lease_renewed_seconds"
_LOST_LEASES: Final = "kafka_server_sessionexpirelistener_zookeeperexpires_total"
_EXPIRY: Final = re.compile(
    r'^tidelog_certificate_expiration_timestamp_seconds\{[^}]*use="([^"]*)"[^}]*\} (\S+)', re.MULTILINE
)
_FSYNC_BUCKET: Final = re.compile(
    r'^etcd_disk_wal_fsync_duration_seconds_bucket\{le="([^"]+)"\} (\S+)', re.MULTILINE
)
_P99: Final = 0.99
_OFFLINE: Final = "failed"
"""The state of a replica whose log could not be opened, or whose role could not be taken."""
_REGISTERED: Final = (BROKER, CONTROLLER, COORDINATOR)
T = TypeVar("T")


@dataclass(slots=True)
class FactReader:
    """Reads the facts. `local` is the local cluster that the facts are about, if it is one.

    `tell` is called with the name of the part that is read next.
    """

    cluster: Cluster
    timeout_s: float
    local: LocalCluster | None
    etcd_addresses: Sequence[str]
    tell: Callable[[str], None]

    def read(self, now_ms: WallMs) -> ClusterFacts:
        """Returns the facts. Raises KafkaError, ClientError if the cluster does not answer at all."""
        self.tell("brokers")
        brokers = self.cluster.describe().brokers
        live = frozenset(broker.broker_id for broker in brokers)
        self.tell("partitions")
        topics: dict[str, Topic] = self.cluster.topics()
        silent: dict[int, str] = {}
        views = self._of_each(brokers, silent, lambda broker_id: self.cluster.topics(seen_by=broker_id))
        partitions = _seen(lambda: ClusterReader(self.cluster).partitions_of(list(views.values())))
        self.tell("settings")
        settings = self._of_each(brokers, silent, self._settings)
        unconfirmed = _seen(lambda: unconfirmed_topics(self.cluster, topics))
        self.tell("data directories")
        directories = self._of_each(brokers, silent, self._directories)
        self.tell("offsets")
        offsets = _seen(lambda: ClusterReader(self.cluster).log_offsets(topics, now_ms, silent))
        self.tell("groups")
        unseen_groups: dict[str, str] = {}
        group_types: dict[str, str] = {}
        committed = _seen(lambda: self._committed(unseen_groups, group_types))
        self.tell("transactions")
        transactions, hanging = self._transactions(offsets, now_ms)
        self.tell("metrics")
        metrics: dict[int, ServiceMetrics | Unseen] = {
            broker.broker_id: read_metrics(broker, settings.get(broker.broker_id), self.timeout_s)
            for broker in brokers
        }
        self.tell("etcd and certificates")
        return ClusterFacts(
            live=live,
            silent=silent,
            partitions=partitions,
            settings=settings,
            unconfirmed=unconfirmed,
            log_directories=[directory for held in directories.values() for directory in held],
            offsets=offsets,
            committed=committed,
            unseen_groups=unseen_groups,
            group_types=group_types,
            transactions=transactions,
            hanging=hanging,
            metrics=metrics,
            certificate_expiry_s=self._certificates(live - silent.keys()),
            etcd=self._etcd(brokers, settings),
            registrations=self._registrations(),
        )

    def _of_each(
        self, brokers: Sequence[Broker], silent: dict[int, str], read: Callable[[int], T]
    ) -> dict[int, T]:
        """Reads from each broker that answers. The others are added to `silent`, and asked only once."""
        found: dict[int, T] = {}
        for broker_id in [broker.broker_id for broker in brokers if broker.broker_id not in silent]:
            try:
                found[broker_id] = read(broker_id)
            except (ClientError, KafkaError) as error:
                silent[broker_id] = str(error)
        return found

    def _directories(self, broker_id: int) -> list[LogDir]:
        return describe_log_dirs(self.cluster, [broker_id])

    def _settings(self, broker_id: int) -> dict[str, str]:
        entries = describe_configs(self.cluster, ConfigResource(ConfigResourceType.BROKER, str(broker_id)))
        return {e.name: e.value for e in entries if e.value is not None and not e.is_sensitive}

    def _committed(
        self, unseen: dict[str, str], types: dict[str, str]
    ) -> dict[str, dict[TopicPartition, int]]:
        """Returns the next offsets of groups. Groups that fail are added to `unseen`, and all to `types`."""
        groups = list_groups(self.cluster, [], [])
        types |= {group.group_id: group.group_type for group in groups}
        found: dict[str, dict[TopicPartition, int]] = {}
        failures = 0
        for group in groups:
            if len(found) >= MAX_GROUPS:
                unseen[group.group_id] = f"only {MAX_GROUPS} groups are examined"
                continue
            if failures >= MAX_UNSEEN_GROUPS:
                unseen[group.group_id] = "not examined, because other groups do not answer"
                continue
            try:
                found[group.group_id] = self._next_offsets(group)
            except UnsupportedApiError as error:  # Kafka 4.0 and share groups; this takes no time
                unseen[group.group_id] = str(error)
            except (ClientError, KafkaError) as error:
                unseen[group.group_id] = str(error)
                failures += 1
        return found

    def _next_offsets(self, group: ListedGroup) -> dict[TopicPartition, int]:
        return next_offsets(self.cluster, group.group_id, is_share=group.group_type == SHARE)

    def _transactions(
        self, offsets: Mapping[TopicPartition, LogOffsets] | Unseen, now_ms: WallMs
    ) -> tuple[list[OpenTransaction] | Unseen, list[PartitionProducer] | Unseen]:
        """Returns the open transactions of the coordinators, and those that only the partitions know."""
        places: list[TopicPartition] | Unseen = offsets if isinstance(offsets, Unseen) else _waiting(offsets)
        before = self._producers(places)
        found = _seen(lambda: ClusterReader(self.cluster).open_transactions(now_ms, MAX_TRANSACTIONS)[0])
        if isinstance(found, Unseen):
            return found, found
        return found, before if isinstance(before, Unseen) else self._hanging(before)

    def _hanging(self, before: Sequence[PartitionProducer]) -> list[PartitionProducer] | Unseen:
        """Returns the producers whose transaction no coordinator knows, of those with an open one."""
        producer_ids = {producer.producer_id for producer in before}
        if len(producer_ids) > MAX_TRANSACTIONS:
            return Unseen(
                f"{len(producer_ids)} producers have open transactions, more than {MAX_TRANSACTIONS}"
            )
        if not before:
            return []
        asked = _seen(lambda: transactions_of(self.cluster, producer_ids))
        if isinstance(asked, Unseen):
            return asked
        after = self._producers({producer.place for producer in before})
        if isinstance(after, Unseen):
            return after
        found = judged(hanging_transactions(before, asked.known, after), asked)
        if found.unjudged:
            return Unseen(
                f"no coordinator of {named(found.unread_shards)} could be asked",
                "'tidelog transactions find-hanging' shows the transactions that they may know",
            )
        return list(found.hanging)

    def _producers(self, places: Collection[TopicPartition] | Unseen) -> list[PartitionProducer] | Unseen:
        """Returns the producers in a transaction that the leaders of partitions remember."""
        if isinstance(places, Unseen):
            return places
        return _seen(
            lambda: [row for row in describe_producers(self.cluster, places) if row.is_in_transaction]
        )

    def _certificates(self, brokers: Collection[int]) -> dict[str, float] | Unseen:
        """Returns when the certificates of listeners, and those of a local cluster's files, expire."""
        found: dict[str, float] = {}
        for broker_id in sorted(brokers):
            try:
                certificate = self.cluster.broker(broker_id).peer_certificate
                if certificate is not None:
                    found[f"broker {broker_id}'s listener"] = expiry_of(certificate)
            except (ClientError, KafkaError, ValueError) as error:
                return Unseen(f"broker {broker_id}: {error}")
        if self.local is not None:
            of_files = certificate_expiries(self.local)
            if isinstance(of_files, Unseen):
                return of_files
            found |= of_files
        return found or Unseen(
            "the connection is not encrypted, and brokers' metrics do not name a certificate",
            "set tidelog.metrics.listener, or give --data-dir of a local cluster",
        )

    def _etcd(
        self, brokers: Sequence[Broker], settings: Mapping[int, Mapping[str, str]]
    ) -> list[EtcdMember] | Unseen:
        addresses = list(self.etcd_addresses)
        if self.local is not None:
            addresses.append(self.local.plan.etcd_metrics_address)
        if not addresses:
            named_by_brokers = {
                endpoint
                for values in settings.values()
                for endpoint in values.get(ETCD_ENDPOINTS, "").split(",")
                if endpoint not in NOT_SET
            }
            are_here = all(is_loopback_host(broker.address.host) for broker in brokers)
            return refusing_etcd(sorted(named_by_brokers), self.timeout_s, are_here=are_here)
        return [read_etcd(address, self.timeout_s) for address in addresses]

    def _registrations(self) -> Registrations | Unseen:
        if self.local is None:
            return Unseen("only the files of a local cluster state which services should run")
        return read_registrations(self.local)


def hanging_transactions(
    before: Iterable[PartitionProducer],
    known: Mapping[int, Transaction],
    after: Collection[PartitionProducer],
) -> list[PartitionProducer]:
    """Returns the open transactions that no coordinator knows.

    `before` and `after` are the producers that the leaders remembered before and after the coordinators were
    asked for what they know, which is `known` by producer id. Only a transaction that was open at both times
    was open all the time, so it is not one that has just begun or ended.
    """
    remained = {(producer.place, producer.producer_id, producer.start_offset) for producer in after}
    lasting = (
        producer
        for producer in before
        if producer.is_in_transaction
        and (producer.place, producer.producer_id, producer.start_offset) in remained
    )
    return unknown_to_coordinators(lasting, known)


def _waiting(offsets: Mapping[TopicPartition, LogOffsets]) -> list[TopicPartition]:
    """Returns the partitions whose readers of committed records wait for a transaction."""
    return [place for place, log in offsets.items() if log.last_stable_offset < log.log_end_offset]


def _seen(read: Callable[[], T]) -> T | Unseen:
    try:
        return read()
    except (ClientError, KafkaError) as error:
        return Unseen(str(error))


class _EndpointError(Exception):
    """An endpoint does not answer as expected. The message is the reason."""


class _NoPageError(_EndpointError):
    """An endpoint does not have the page."""


def read_metrics(
    broker: Broker, settings: Mapping[str, str] | None, timeout_s: float
) -> ServiceMetrics | Unseen:
    """Reads a broker's metrics endpoint, whose address its settings contain."""
    listener = "" if settings is None else settings.get(METRICS_LISTENER, "")
    if not listener:
        return Unseen(
            "the broker serves no metrics" if settings is not None else "the broker's settings are unknown",
            f"set {METRICS_LISTENER}",
        )
    host, _, port = listener.rpartition(":")
    host = host.strip("[]")
    if not port.isdecimal() or port == "0":
        return Unseen(
            f"{METRICS_LISTENER}={listener} does not name a port", f"set a port in {METRICS_LISTENER}"
        )
    address = broker.address.host if host in _WILDCARDS else host
    try:
        began_s = time.time()
        text, date = _fetched(address, int(port), "/metrics", timeout_s)
        took_s = time.time() - began_s
        lease_age_s = sum_of(text, _LEASE_AGE)
        lost = sum_of(text, _LOST_LEASES)
        server_s = parsedate_to_datetime(date).timestamp()
        offline = _offline_replicas(address, int(port), timeout_s)
    except (_EndpointError, ValueError) as error:
        return Unseen(
            f"http://{host_and_port(address, port)}/metrics: {error}",
            "check the address and the NetworkPolicy",
        )
    # The header is the start of the second in which the server answered: half a second early on average.
    ahead_ms = round((server_s + 0.5 - (began_s + took_s / 2)) * 1000)
    return ServiceMetrics(
        clock_ahead_ms=ahead_ms,
        clock_error_ms=_WHOLE_SECOND_MS + round(took_s * 1000),
        lease_age_s=lease_age_s,
        lost_leases=int(lost or 0),
        certificate_expiry_s={use: float(at_s) for use, at_s in _EXPIRY.findall(text)},
        offline=offline,
    )


def _offline_replicas(host: str, port: int, timeout_s: float) -> list[OfflineReplica]:
    """Reads which replicas of a broker are offline, and why. The endpoint of an older broker does not have
    this page, or answers metrics. Raises _EndpointError.
    """
    try:
        page = json.loads(_fetched(host, port, REPLICAS_PAGE, timeout_s)[0])
        return [
            OfflineReplica(str(replica["topic"]), int(replica["partition"]), _told(replica["story"]))
            for replica in page["replicas"]
            if replica["state"] == _OFFLINE
        ]
    except (_NoPageError, ValueError, KeyError, TypeError):
        return []


def _told(story: Iterable[Mapping[str, str]]) -> tuple[str, ...]:
    """Returns the transitions as text, without the attempts to open the log again that failed as before."""
    told: dict[str, str] = {}
    for step in story:
        if step["from"] != _OFFLINE:
            text = f"{step['from']} -> {step['to']}: {step['reason']}"
            told.setdefault(text, f"{iso_time(int(step['at_ms']))} {text}")
    return tuple(told.values())


def read_etcd(address: str, timeout_s: float) -> EtcdMember:
    """Reads the health and the metrics of an etcd server at its metrics address (`host:port`)."""
    host, _, port = address.rpartition(":")
    try:
        began_s = time.perf_counter()
        text, _ = _fetched(host.strip("[]"), int(port), "/health", timeout_s)
        health_ms = (time.perf_counter() - began_s) * 1000
        answer = json.loads(text)
        if not isinstance(answer, dict) or str(answer.get("health")) != "true":
            reason = answer.get("reason") if isinstance(answer, dict) else text[:100]
            return EtcdMember(address, f"is not healthy ({reason or 'no reason'})")
        metrics, _ = _fetched(host.strip("[]"), int(port), "/metrics", timeout_s)
        database = sum_of(metrics, "etcd_mvcc_db_total_size_in_bytes")
        quota = sum_of(metrics, "etcd_server_quota_backend_bytes")
        return EtcdMember(
            address,
            health_ms=health_ms,
            fsync_p99_ms=fsync_p99_ms(metrics),
            database_bytes=None if database is None else int(database),
            quota_bytes=None if quota is None else int(quota),
        )
    except (_EndpointError, ValueError) as error:
        return EtcdMember(address, f"does not answer as etcd ({error})")


def refusing_etcd(endpoints: Sequence[str], timeout_s: float, *, are_here: bool) -> list[EtcdMember] | Unseen:
    """Returns the etcd servers that refuse connections, of those that the brokers' settings name. If none
    does, etcd's health remains unknown: its endpoints for clients require a certificate.

    `are_here` says whether the brokers are on this machine. Otherwise, their loopback addresses lead
    elsewhere.
    """
    refusing: list[EtcdMember] = []
    for endpoint in endpoints:
        place = urlsplit(endpoint)
        if place.hostname is None or (is_loopback_host(place.hostname) and not are_here):
            continue
        try:
            socket.create_connection((place.hostname, place.port or ETCD_PORT), timeout_s).close()
        except ConnectionRefusedError:
            refusing.append(EtcdMember(endpoint, f"refuses connections, although {ETCD_ENDPOINTS} names it"))
        except OSError:  # the network between here and etcd says nothing about the brokers' way to it
            continue
    if refusing:
        return refusing
    places = f" ({', '.join(endpoints)})" if endpoints else ""
    return Unseen(
        f"Kafka's protocol does not show etcd{places}",
        "give --etcd HOST:PORT of etcd's metrics, or --data-dir of a local cluster",
    )


def fsync_p99_ms(metrics: str) -> float | None:
    """Returns the upper bound of the histogram's bucket with the 99th percentile of etcd's fsyncs."""
    buckets = sorted((float(le), float(count)) for le, count in _FSYNC_BUCKET.findall(metrics))
    if not buckets or not buckets[-1][1]:
        return None
    wanted = buckets[-1][1] * _P99
    return next(le for le, count in buckets if count >= wanted) * 1000


def _fetched(host: str, port: int, path: str, timeout_s: float) -> tuple[str, str]:
    """Returns the text and the Date header of an answer. Raises _EndpointError."""
    place = f"[{host}]" if ":" in host else host
    try:
        with urllib.request.urlopen(f"http://{place}:{port}{path}", timeout=timeout_s) as answer:
            content = answer.read(MAX_METRICS_BYTES + 1)
            date = answer.headers.get("Date", "")
    except urllib.error.HTTPError as error:
        with error:
            if path == "/health":  # etcd states its reason with status 503
                return error.read(MAX_METRICS_BYTES).decode("utf-8", "replace"), ""
        failure = _NoPageError if error.code == HTTPStatus.NOT_FOUND else _EndpointError
        raise failure(f"HTTP status {error.code}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _EndpointError(str(getattr(error, "reason", error))) from error
    if len(content) > MAX_METRICS_BYTES:
        raise _EndpointError(f"more than {MAX_METRICS_BYTES} bytes")
    return content.decode("utf-8", "replace"), date


def certificate_expiries(cluster: LocalCluster) -> dict[str, float] | Unseen:
    """Returns when the certificates of a local cluster expire, by their holders."""
    found: dict[str, float] = {}
    for holder in cluster.plan.certificate_holders:
        for name in ("tls.crt", "ca.crt"):
            path = cluster.plan.certificate_directory(holder, cluster.directory) / name
            try:
                with path.open("rb") as file:
                    found[f"{holder.name} ({name})"] = first_expiration_s(file.read(MAX_FILE_BYTES))
            except (OSError, ValueError) as error:
                return Unseen(f"{path}: {error}")
    return found


def expiry_of(certificate: bytes) -> float:
    """Returns when a certificate in DER expires, in seconds since 1970. Raises ValueError."""
    return first_expiration_s(ssl.DER_cert_to_PEM_cert(certificate).encode())


def read_registrations(cluster: LocalCluster) -> Registrations | Unseen:
    """Compares the services in a local cluster's store with its plan."""
    try:
        items = asyncio.run(_stored(cluster))
        return registrations_of(items, [m.name for m in cluster.plan.members if m.kind in _REGISTERED])
    except (StoreError, OSError, InvalidEntryError) as error:
        return Unseen(f"etcd: {error}")


def registrations_of(items: Iterable[KeyValue], expected: Iterable[str]) -> Registrations:
    """Returns which of the `expected` services (`broker-1`, ...) are missing, and which have no lease.

    One controller must also be the active one. Raises InvalidEntryError.
    """
    leases: dict[str, int] = {}
    is_led = False
    for item in items:
        if item.key.startswith(coordinator_ids(GROUP)):
            number = decode_coordinator(item.key, item.value).coordinator_id
            leases[f"{COORDINATOR}-{number}"] = item.lease
            continue
        match decode_entry(item.key, item.value):
            case BrokerEntry() as broker:
                leases[f"{BROKER}-{broker.broker_id}"] = item.lease
            case ControllerEntry() as controller:
                is_led = True
                leases[f"the active controller ({controller.controller_id})"] = item.lease
            case CandidateEntry() as candidate:
                leases[f"{CONTROLLER}-{candidate.controller_id}"] = item.lease
            case _:
                pass
    missing = [name for name in expected if name not in leases]
    if not is_led:
        missing.append("an active controller")
    without = sorted(name for name, lease in leases.items() if lease == NO_LEASE)
    return Registrations(missing, without, len(leases) - is_led)


async def _stored(cluster: LocalCluster) -> list[KeyValue]:
    from tidelog.metadata.etcd.etcd_store import EtcdMetadataStore  # loads gRPC

    store = EtcdMetadataStore(cluster.etcd_options())
    try:
        return list((await store.list_prefix(ALL_KEYS_PREFIX)).items)
    finally:
        await store.close()
