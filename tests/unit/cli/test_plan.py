"""`tidelog plan` against a cluster in the process of the test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tidelog.cli.main import main
from tidelog.client.admin.topics import create_topic
from tidelog.client.cluster import Cluster as BrokerCluster
from tidelog.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as cluster:
        with BrokerCluster(cluster.bootstrap) as brokers:
            create_topic(
                brokers, "safe", assignment={0: [1, 2], 1: [2, 1]}, configs={"min.insync.replicas": "1"}
            )
            create_topic(brokers, "single", assignment={0: [3]})
        cluster.produce("safe", *"abc", key="one")
        yield cluster


def planned(cluster: Cluster, *arguments: object) -> Result:
    return CliRunner().invoke(main, ["plan", *map(str, arguments), "--bootstrap-server", cluster.bootstrap])


def as_object(cluster: Cluster, *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(planned(cluster, *arguments, "--format", "json").stdout)
    return found


def test_a_kill_is_refused_with_the_partitions_that_need_the_broker(cluster: Cluster) -> None:
    assert planned(cluster, "kill", 1).exit_code == 0
    refused = planned(cluster, "kill", 3)
    assert refused.exit_code == 1
    assert "not safe" in refused.stderr
    assert "single-0" in refused.stderr
    report = as_object(cluster, "kill", 3)
    assert report["is_safe"] is False
    assert report["refusals"][0]["partitions"] == ["single-0"]
    assert report["steps"][0]["fewest_in_sync"] == {"partition": "single-0", "in_sync": 0, "needed": 1}


@pytest.mark.parametrize("command", ["kill", "drain", "remove", "restart"])
def test_an_unknown_broker_is_refused_without_a_plan(cluster: Cluster, command: str) -> None:
    """The table of a plan, or its heading, was printed before the refusal."""
    refused = planned(cluster, command, 9)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == "tidelog: not safe: broker 9 is not registered; the live brokers are 1, 2, 3\n"


def test_a_drain_shows_the_bytes_that_move(cluster: Cluster) -> None:
    report = as_object(cluster, "drain", 1)
    assert report["is_safe"] is True
    assert report["steps"][0]["moved_bytes"] > 0
    assert {(move["topic"], move["partition"]) for move in report["moves"]} >= {("safe", 0), ("safe", 1)}
    assert "tidelog rebalance --without 1 --execute" in planned(cluster, "drain", 1).stdout
    assert [step["moved_bytes"] > 0 for step in as_object(cluster, "remove", 1)["steps"]] == [True, False]
    assert as_object(cluster, "add", 2)["is_safe"] is True


def test_a_restart_has_a_step_for_each_broker_and_names_whose_clients_wait(cluster: Cluster) -> None:
    report = as_object(cluster, "restart")
    assert [step["unavailable"] for step in report["steps"]] == [[], [], ["single-0"]]
    done = planned(cluster, "restart")
    assert (done.exit_code, "of 1 partition have to wait" in done.stderr) == (0, True)
