"""`tidelog doctor` against clusters in the process of the test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from tidelog.cli.main import main
from tidelog.client.admin.groups import CommittedOffset, commit_offsets
from tidelog.client.admin.topics import ConfigChange, ConfigResource, alter_configs
from tidelog.client.cluster import Cluster as BrokerCluster
from tidelog.model.protocol_values import ConfigOperation, ConfigResourceType
from tidelog.model.topics import TopicPartition
from tidelog.testing import Cluster

CHECKS = {
    "registrations",
    "services",
    "answers",
    "replicas",
    "leaders",
    "settings",
    "topic settings",
    "disk space",
    "disk forecast",
    "groups",
    "transactions",
    "clocks",
    "leases",
    "certificates",
    "etcd",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as cluster:
        cluster.create_topic("flights", partitions=2)
        yield cluster


def examined(cluster: Cluster, *arguments: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """Returns the exit code and the findings by their check."""
    done = CliRunner().invoke(
        main, ["doctor", "--bootstrap-server", cluster.bootstrap, "--format", "json", *arguments]
    )
    # The cluster of this process logs to the same output, if another test has set the log up.
    report, _ = json.JSONDecoder().raw_decode(done.stdout, done.stdout.index("{"))
    assert report["exit_code"] == done.exit_code
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in report["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    assert found.keys() == CHECKS
    return done.exit_code, found


def test_every_check_has_a_line_and_a_reason_if_it_was_not_made(cluster: Cluster) -> None:
    _, found = examined(cluster)
    for check in ("clocks", "leases", "certificates", "etcd", "services"):
        assert [finding["state"] for finding in found[check]] == ["unknown"]
        assert found[check][0]["finding"].startswith("not checked: ")
    for check in (
        "registrations",
        "answers",
        "replicas",
        "leaders",
        "groups",
        "transactions",
        "disk forecast",
    ):
        assert [finding["state"] for finding in found[check]] == ["ok"], found[check]


def test_a_group_that_lost_records_and_settings_that_differ_are_reported(cluster: Cluster) -> None:
    cluster.produce("flights", *"abcdef", key="one")
    with BrokerCluster(cluster.bootstrap) as brokers:
        places = {TopicPartition("flights", index): CommittedOffset(0) for index in (0, 1)}
        commit_offsets(brokers, "late", places)
        threads = ConfigChange("message.max.bytes", ConfigOperation.SET, "2000000")
        alter_configs(brokers, ConfigResource(ConfigResourceType.BROKER, "1"), [threads])
    cluster.expire("flights")
    code, found = examined(cluster)
    assert code == 2
    assert "group late has lost 6 records" in found["groups"][0]["finding"]
    assert "message.max.bytes is '2000000' on 1" in found["settings"][0]["finding"]


def test_a_dead_broker_is_reported() -> None:
    with Cluster(brokers=2) as cluster:
        cluster.create_topic("flights", partitions=4)
        cluster.kill_broker(2)
        code, found = examined(cluster)
        assert code == 2
        # It is registered until its lease ends.
        broken = found["registrations" if found["answers"][0]["state"] == "ok" else "answers"][0]
        assert broken["finding"].startswith("broker 2 ")
        assert broken["next_step"] is not None


def test_what_prevents_a_look_has_its_own_exit_code() -> None:
    runner = CliRunner()
    for arguments in (
        ["--bootstrap-server", "127.0.0.1:1"],
        ["--no-such-option"],
        ["--etcd", "nowhere"],
        ["--data-dir", "/no/such/cluster"],
    ):
        done = runner.invoke(main, ["doctor", *arguments])
        assert done.exit_code == 3, done.output
        assert done.stderr


def test_the_table_has_one_line_for_each_finding(cluster: Cluster) -> None:
    done = CliRunner().invoke(main, ["doctor", "--bootstrap-server", cluster.bootstrap])
    lines = done.stdout.splitlines()
    assert lines[0].split("\t") == ["state", "check", "finding", "next step"]
    assert {line.split("\t")[1] for line in lines[1:]} == CHECKS
    assert "unknown" in done.stderr
