"""The facts that the doctor reads: groups, and what metrics endpoints, etcd and the metadata store state."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from tidelog.cli.doctor import fact_reader
from tidelog.cli.doctor.fact_reader import (
    MAX_UNSEEN_GROUPS,
    FactReader,
    fsync_p99_ms,
    read_etcd,
    read_metrics,
    refusing_etcd,
    registrations_of,
)
from tidelog.cli.doctor.facts import ServiceMetrics, Unseen
from tidelog.client.address import Address
from tidelog.client.admin.groups import ListedGroup
from tidelog.client.admin.transactions import AskedCoordinators, PartitionProducer
from tidelog.client.cluster import Broker
from tidelog.client.errors import UnsupportedApiError
from tidelog.metadata.coordinators import GROUP, CoordinatorEntry
from tidelog.metadata.entries import BrokerEntry, CandidateEntry, ControllerEntry
from tidelog.metadata.store import KeyValue
from tidelog.metrics.http_endpoint import HttpEndpoint
from tidelog.model.topics import TopicPartition
from tidelog.observe import cluster_reader

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def test_share_groups_whose_offsets_the_broker_does_not_serve_leave_the_others_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka 4.0 lists share groups without their offsets. Groups that do not answer take long, so only few of
    them are asked, but these answer at once.
    """

    def unsupported(*args: object) -> object:
        raise UnsupportedApiError("the broker does not serve DescribeShareGroupOffsets")

    shares = [ListedGroup(f"share-{n}", "share", "share", "Empty") for n in range(MAX_UNSEEN_GROUPS + 1)]
    readers = ListedGroup("writers", "classic", "consumer", "Empty")
    monkeypatch.setattr(fact_reader, "list_groups", lambda *args: [*shares, readers])
    monkeypatch.setattr(cluster_reader, "describe_share_offsets", unsupported)
    monkeypatch.setattr(cluster_reader, "committed_offsets", lambda *args: {TopicPartition("flights", 0): 4})
    reader = FactReader(cast("Any", None), 1.0, None, (), lambda part: None)
    unseen: dict[str, str] = {}
    types: dict[str, str] = {}
    assert reader._committed(unseen, types) == {"writers": {("flights", 0): 4}}
    assert unseen.keys() == {group.group_id for group in shares}
    assert types["writers"] == "classic"


def test_a_transaction_that_an_unread_shard_may_know_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the doctor would advise to abort a healthy transaction whose coordinator is just away."""
    unread = TopicPartition("__transaction_state", 3)
    opened = PartitionProducer(TopicPartition("flights", 0), 7, 0, 0, 0, 0, start_offset=10)
    monkeypatch.setattr(fact_reader, "describe_producers", lambda *args: [opened])
    reader = FactReader(cast("Any", None), 1.0, None, (), lambda part: None)
    for shards, seen in (([unread], True), ([], False)):
        asked = AskedCoordinators({}, shards)
        monkeypatch.setattr(fact_reader, "transactions_of", lambda *args, asked=asked: asked)
        found = reader._hanging([opened])
        assert isinstance(found, Unseen) is seen
        assert "__transaction_state-3" in found.reason if isinstance(found, Unseen) else found == [opened]


BROKER = Broker(1, Address("127.0.0.1", 9092), None)
TIMEOUT_S = 60.0


@contextmanager
def served(pages: dict[str, tuple[str, str]]) -> Iterator[int]:
    """Serves pages, each with its status, and yields the port."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        status, text = pages.get(environ["PATH_INFO"], ("404 Not Found", ""))
        start_response(status, [("Content-Type", "text/plain")])
        return [text.encode()]

    endpoint = HttpEndpoint(app, "127.0.0.1", 0, "pages")
    try:
        yield endpoint.port
    finally:
        endpoint.close()


def test_metrics_state_the_clock_the_lease_and_certificates() -> None:
    text = (
        "tidelog_metadata_lease_renewed_seconds 1.5\n"
        "kafka_server_sessionexpirelistener_zookeeperexpires_total 2\n"
        'tidelog_certificate_expiration_timestamp_seconds{use="rpc"} 4102444800\n'
    )
    with served({"/metrics": ("200 OK", text)}) as port:
        for host in ("0.0.0.0", "127.0.0.1", "[::]"):
            seen = read_metrics(BROKER, {"tidelog.metrics.listener": f"{host}:{port}"}, TIMEOUT_S)
            assert isinstance(seen, ServiceMetrics)
            assert abs(seen.clock_ahead_ms) <= seen.clock_error_ms
            assert (seen.lease_age_s, seen.lost_leases) == (1.5, 2)
            assert seen.certificate_expiry_s == {"rpc": 4102444800.0}


def test_offline_replicas_tell_how_they_came_to_that() -> None:
    step = {"at_ms": 0, "from": "opening", "to": "failed", "reason": "the disk is gone"}
    again = {"at_ms": 5_000, "from": "failed", "to": "opening", "reason": "it is tried again"}
    replicas = [
        {"topic": "t", "partition": 3, "state": "failed", "story": [step, again, step | {"at_ms": 5_001}]},
        {"topic": "t", "partition": 4, "state": "opening", "story": []},
    ]
    page = json.dumps({"replicas": replicas, "hidden": 0})
    for text in (page, "# metrics of an older broker"):
        with served({"/metrics": ("200 OK", ""), "/replicas": ("200 OK", text)}) as port:
            seen = read_metrics(BROKER, {"tidelog.metrics.listener": f"127.0.0.1:{port}"}, TIMEOUT_S)
            assert isinstance(seen, ServiceMetrics)
            if text is page:
                told = "1970-01-01T00:00:00.000Z opening -> failed: the disk is gone"
                assert seen.offline == [("t", 3, (told,))]
            else:
                assert seen.offline == []


def test_a_broker_without_metrics_is_unseen_with_the_reason() -> None:
    assert read_metrics(BROKER, {}, TIMEOUT_S) == Unseen(
        "the broker serves no metrics", "set tidelog.metrics.listener"
    )
    assert isinstance(read_metrics(BROKER, None, TIMEOUT_S), Unseen)
    assert isinstance(read_metrics(BROKER, {"tidelog.metrics.listener": "127.0.0.1:0"}, TIMEOUT_S), Unseen)
    with served({}) as port:
        seen = read_metrics(BROKER, {"tidelog.metrics.listener": f"127.0.0.1:{port}"}, TIMEOUT_S)
        assert isinstance(seen, Unseen)
        assert "HTTP status 404" in seen.reason


def test_etcd_is_asked_for_its_health_and_metrics() -> None:
    metrics = (
        'etcd_disk_wal_fsync_duration_seconds_bucket{le="0.008"} 99\n'
        'etcd_disk_wal_fsync_duration_seconds_bucket{le="+Inf"} 100\n'
        "etcd_mvcc_db_total_size_in_bytes 3e+06\netcd_server_quota_backend_bytes 2e+09\n"
    )
    pages = {"/health": ("200 OK", '{"health":"true"}'), "/metrics": ("200 OK", metrics)}
    with served(pages) as port:
        member = read_etcd(f"127.0.0.1:{port}", TIMEOUT_S)
    assert (member.problem, member.fsync_p99_ms) == ("", 8.0)
    assert (member.database_bytes, member.quota_bytes) == (3_000_000, 2_000_000_000)
    sick = {"/health": ("503 Service Unavailable", '{"health":"false","reason":"NO LEADER"}')}
    with served(sick) as port:
        assert read_etcd(f"127.0.0.1:{port}", TIMEOUT_S).problem == "is not healthy (NO LEADER)"
    with served({"/health": ("200 OK", "<html>")}) as port:
        assert "does not answer as etcd" in read_etcd(f"127.0.0.1:{port}", TIMEOUT_S).problem
    assert "does not answer as etcd" in read_etcd("127.0.0.1:1", TIMEOUT_S).problem


def test_without_fsyncs_there_is_no_percentile() -> None:
    assert fsync_p99_ms("") is None
    assert fsync_p99_ms('etcd_disk_wal_fsync_duration_seconds_bucket{le="+Inf"} 0\n') is None


def test_services_must_be_registered_with_a_lease_and_a_controller_must_lead() -> None:
    def stored(
        entry: BrokerEntry | CoordinatorEntry | ControllerEntry | CandidateEntry, lease: int = 7
    ) -> KeyValue:
        return KeyValue(entry.key, entry.encode(), 1, 1, 1, lease)

    expected = ["controller-1", "coordinator-1", "broker-1", "broker-2"]
    items = [
        stored(ControllerEntry(1)),
        stored(CandidateEntry(1)),
        stored(CoordinatorEntry(GROUP, 1)),
        stored(BrokerEntry(1, ())),
        stored(BrokerEntry(2, ())),
    ]
    whole = registrations_of(items, expected)
    assert (whole.missing, whole.without_lease, whole.count) == ([], [], 4)
    found = registrations_of([stored(CandidateEntry(1)), stored(BrokerEntry(1, ()), lease=0)], expected)
    assert found.missing == ["coordinator-1", "broker-2", "an active controller"]
    assert found.without_lease == ["broker-1"]


def test_an_etcd_that_refuses_connections_is_named() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # no process listens here, so connections are refused
        dead = f"https://127.0.0.1:{nobody.getsockname()[1]}"
        with served({}) as port:
            alive = f"https://127.0.0.1:{port}"
            found = refusing_etcd([alive, dead], TIMEOUT_S, are_here=True)
            assert not isinstance(found, Unseen)
            assert [member.name for member in found] == [dead]
            assert "refuses connections" in found[0].problem
            for endpoints, are_here in (([alive], True), ([dead], False)):
                unseen = refusing_etcd(endpoints, TIMEOUT_S, are_here=are_here)
                assert isinstance(unseen, Unseen)
                assert endpoints[0] in unseen.reason
