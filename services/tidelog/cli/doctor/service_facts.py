"""Reads facts outside Kafka's protocol: from metrics endpoints, etcd, and a local cluster's files."""

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
from collections.abc import Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from tidelog.cli.doctor.facts import EtcdMember, OfflineReplica, Registrations, ServiceMetrics, Unseen, sum_of
from tidelog.cli.local_cluster.cluster import LocalCluster
from tidelog.cli.local_cluster.plan import BROKER, CONTROLLER, COORDINATOR
from tidelog.client.cluster import Broker
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
from tidelog.observe.number_texts import iso_time
from tidelog.settings.listeners import is_loopback_host

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
