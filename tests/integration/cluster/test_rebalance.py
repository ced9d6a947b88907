"""`tidelog rebalance` on a cluster of processes: shown, executed under load, throttled, cancelled."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from brokerlab.clients import create_topic, new_producer
from chaoslab.scrutiny import loaded
from clusterlab.load import LoadPlan
from clusterlab.tidelog_cluster import TidelogCluster
from tidelog.cli.cluster.rebalance import FOLLOWER_RATE, LEADER_RATE, LEADER_REPLICAS
from tidelog.cli.main import main
from tidelog.client.admin.reassignments import list_reassignments
from tidelog.client.admin.topics import ConfigResource, describe_configs
from tidelog.client.cluster import Cluster
from tidelog.model.protocol_values import ConfigResourceType

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]
RECORD = b"x" * 1000


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    cluster = TidelogCluster(tmp_path_factory.mktemp("rebalance") / "data")
    try:
        yield cluster.up()
    finally:
        cluster.destroy()


def rebalance(cluster: TidelogCluster, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["rebalance", "--bootstrap-server", cluster.bootstrap, *arguments])


def topic_on_two(cluster: TidelogCluster, partitions: int) -> str:
    """Creates a topic on brokers 1 and 2 only, as if broker 3 had joined later."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    assignment = ",".join(["1:2", "2:1"] * (partitions // 2))
    arguments = ["topic", "create", name, "--replica-assignment", assignment]
    result = CliRunner().invoke(main, [*arguments, "--bootstrap-server", cluster.bootstrap])
    assert result.exit_code == 0, result.output
    return name


def replicas_on(cluster: TidelogCluster, topic: str) -> dict[int, int]:
    with Cluster(cluster.bootstrap) as client:
        partitions = client.topic(topic).partitions
    return {broker: sum(broker in p.replicas for p in partitions) for broker in (1, 2, 3)}


def dynamic_settings(cluster: TidelogCluster, kind: ConfigResourceType, name: str) -> dict[str, str | None]:
    with Cluster(cluster.bootstrap) as client:
        entries = describe_configs(client, ConfigResource(kind, name))
    return {entry.name: entry.value for entry in entries if entry.is_dynamic}


def test_a_new_broker_is_filled_and_emptied_under_load(three: TidelogCluster) -> None:
    topic = topic_on_two(three, 6)
    with loaded(three, LoadPlan(topic, 6)):
        shown = rebalance(three, "--topic", topic)
        assert shown.exit_code == 0, shown.output
        assert "Nothing was moved" in shown.stderr
        assert replicas_on(three, topic) == {1: 6, 2: 6, 3: 0}
        done = rebalance(three, "--topic", topic, "--execute")
        assert done.exit_code == 0, done.output
        assert "The plan copies 4 replicas" in done.stderr, (
            "there are 12 replicas on 3 brokers, and no more moved"
        )
        assert replicas_on(three, topic) == {1: 4, 2: 4, 3: 4}
        assert "All replicas are where they should be" in rebalance(three, "--topic", topic).stdout
        emptied = rebalance(three, "--topic", topic, "--without", "3", "--execute")
        assert emptied.exit_code == 0, emptied.output
        assert replicas_on(three, topic) == {1: 6, 2: 6, 3: 0}


def test_a_plan_is_written_as_kafkas_tool_reads_it(three: TidelogCluster, tmp_path: Path) -> None:
    topic = topic_on_two(three, 6)
    output = tmp_path / "plan.json"
    assert rebalance(three, "--topic", topic, "--output", str(output)).exit_code == 0
    plan = json.loads(output.read_text())
    assert plan["version"] == 1
    assert {row["topic"] for row in plan["partitions"]} == {topic}
    assert sum(3 in row["replicas"] for row in plan["partitions"]) == 4


@pytest.fixture
def big_topic(three: TidelogCluster) -> str:
    """Creates a topic with about 1.5 MB in each of two partitions."""
    topic = topic_on_two(three, 2)
    client = new_producer(three.bootstrap, linger_ms=50)
    for index in range(3000):
        client.produce(topic, RECORD, partition=index % 2)
    assert client.flush(30) == 0
    return topic


def test_copying_is_throttled_and_the_throttle_is_removed_at_its_end(
    three: TidelogCluster, big_topic: str, tell: Callable[..., None]
) -> None:
    began_s = time.monotonic()
    started = rebalance(three, "--topic", big_topic, "--execute", "--throttle", "300000", "--timeout", "0.5")
    assert started.exit_code == 1, started.output
    assert "Started moves continue" in started.stderr
    assert dynamic_settings(three, ConfigResourceType.BROKER, "3").keys() >= {LEADER_RATE, FOLLOWER_RATE}
    assert dynamic_settings(three, ConfigResourceType.TOPIC, big_topic)[LEADER_REPLICAS]
    under_way = rebalance(three, "--verify")
    assert (under_way.exit_code, "the throttle remains" in under_way.stderr) == (1, True), under_way.output
    again = rebalance(three, "--topic", big_topic, "--execute")
    assert "already moving" in again.stderr
    while (verified := rebalance(three, "--verify")).exit_code:
        assert time.monotonic() - began_s < 60
        time.sleep(0.2)
    tell("1.5 MB at 0.3 MB/s", time.monotonic() - began_s)
    assert time.monotonic() - began_s > 2, "it was throttled"
    assert re.search(r"throttle was removed|throttles were removed", verified.stdout)
    assert dynamic_settings(three, ConfigResourceType.BROKER, "3") == {}
    assert LEADER_REPLICAS not in dynamic_settings(three, ConfigResourceType.TOPIC, big_topic)


def test_a_running_move_can_be_cancelled(three: TidelogCluster, big_topic: str) -> None:
    rebalance(three, "--topic", big_topic, "--execute", "--throttle", "1000", "--timeout", "0.2")
    cancelled = rebalance(three, "--cancel")
    assert cancelled.exit_code == 0, cancelled.output
    assert re.match(r"(1 move was|\d+ moves were) cancelled, and the throttle was removed", cancelled.stdout)
    with Cluster(three.bootstrap) as client:
        assert list_reassignments(client) == {}
    assert replicas_on(three, big_topic) == {1: 2, 2: 2, 3: 0}
    assert dynamic_settings(three, ConfigResourceType.BROKER, "1") == {}


def test_an_impossible_plan_is_reported_in_one_line(three: TidelogCluster) -> None:
    create_topic(three.bootstrap, f"t-{uuid.uuid4().hex[:8]}", 1, replication_factor=3)
    refused = rebalance(three, "--without", "3")
    assert refused.exit_code == 1
    assert "has 3 replicas, but only 2 brokers would remain" in refused.stderr
    assert "--without x" in rebalance(three, "--without", "x").stderr
