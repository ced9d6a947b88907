"""Apache Kafka's own tools against three brokers: the script's checks with three replicas, reassignment with
a throttle, leader election, under-replicated partitions, replica verification and log directories.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerlab.clients import create_topic, produce_values
from brokerlab.kafka_jars import JavaTools
from brokerlab.tools_check import EXPECTED_OF_CLUSTER, SCRIPT, run_checks
from clusterlab.kafka_cluster import KafkaCluster
from clusterlab.tidelog_cluster import TidelogCluster
from clusterlab.topic_view import TopicView, await_view

pytestmark = [pytest.mark.integration, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]
Cluster = TidelogCluster | KafkaCluster
REASSIGN = "reassign.ReassignPartitionsCommand"
MOVED_BYTES = 4_000_000
THROTTLE_BYTES_PER_S = 1_000_000


@pytest.fixture(scope="module")
def outcomes(
    cluster: Cluster, kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[str, str]]:
    if not SCRIPT.exists():
        pytest.skip("shared/peer/kafka-tools-check.sh is not beside the checkout")
    return run_checks(
        kafka_jars,
        tmp_path_factory.mktemp("tools"),
        cluster.bootstrap,
        3,
        cluster.log_dir(1),
        expected=EXPECTED_OF_CLUSTER,
    )


@pytest.mark.parametrize("name", EXPECTED_OF_CLUSTER or ["(the script is not there)"])
def test_tool_with_three_replicas(outcomes: dict[str, tuple[str, str]], name: str) -> None:
    state, said = outcomes[name]
    assert state == "ok", said


@pytest.fixture
def server(cluster: Cluster) -> tuple[str, str]:
    return ("--bootstrap-server", cluster.bootstrap)


def is_whole(view: TopicView) -> bool:
    return all(set(state.isr) == set(state.replicas) for state in view.values())


def test_reassignment_with_a_throttle(
    cluster: Cluster, java: JavaTools, server: tuple[str, str], tmp_path: Path, tell: Callable[..., None]
) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.bootstrap, topic, replication_factor=2)
    produce_values(cluster.bootstrap, topic, [b"x" * 10_000] * (MOVED_BYTES // 10_000), acks="all")
    view = await_view(cluster.addresses.values(), topic, is_whole, 20)
    stays, leaves = view[0].replicas
    (joins,) = {1, 2, 3} - {stays, leaves}
    plan = tmp_path / "plan.json"
    target = {"topic": topic, "partition": 0, "replicas": [stays, joins]}
    plan.write_text(json.dumps({"version": 1, "partitions": [target]}))
    began_s = time.monotonic()
    said = java.check(
        REASSIGN,
        *server,
        *("--reassignment-json-file", str(plan), "--execute", "--throttle", str(THROTTLE_BYTES_PER_S)),
    )
    assert "Successfully started" in said
    configs = java.check("kafka.admin.ConfigCommand", *server, "--describe", "--entity-type", "brokers")
    assert f"leader.replication.throttled.rate={THROTTLE_BYTES_PER_S}" in configs
    await_view(
        cluster.addresses.values(), topic, lambda v: set(v[0].replicas) == {stays, joins} and is_whole(v), 60
    )
    took_s = time.monotonic() - began_s
    tell(f"{MOVED_BYTES} bytes moved at {THROTTLE_BYTES_PER_S} B/s", took_s)
    said = java.check(REASSIGN, *server, "--reassignment-json-file", str(plan), "--verify")
    assert "is completed" in said.lower() or "is complete" in said.lower()
    configs = java.check("kafka.admin.ConfigCommand", *server, "--describe", "--entity-type", "brokers")
    assert "throttled.rate" not in configs
    # The quota of the first second is added.
    assert took_s >= 0.7 * MOVED_BYTES / THROTTLE_BYTES_PER_S - 1, "the throttle had no effect"


def test_reassignment_cancelled(
    cluster: Cluster, java: JavaTools, server: tuple[str, str], tmp_path: Path
) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.bootstrap, topic, replication_factor=2)
    produce_values(cluster.bootstrap, topic, [b"x" * 10_000] * (MOVED_BYTES // 10_000), acks="all")
    before = await_view(cluster.addresses.values(), topic, is_whole, 20)[0].replicas
    (joins,) = {1, 2, 3} - set(before)
    plan = tmp_path / "plan.json"
    target = {"topic": topic, "partition": 0, "replicas": [before[0], joins]}
    plan.write_text(json.dumps({"version": 1, "partitions": [target]}))
    options = ("--reassignment-json-file", str(plan))
    java.check(REASSIGN, *server, *options, "--execute", "--throttle", "100000")
    assert topic in java.check(REASSIGN, *server, "--list")
    java.check(REASSIGN, *server, *options, "--cancel")
    view = await_view(
        cluster.addresses.values(), topic, lambda v: v[0].replicas == before and is_whole(v), 20
    )
    assert view[0].leader in before
    assert topic not in java.check(REASSIGN, *server, "--list")


def test_under_replicated_partitions_and_election(
    cluster: Cluster, java: JavaTools, server: tuple[str, str]
) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.bootstrap, topic, 3, replication_factor=3)
    view = await_view(cluster.addresses.values(), topic, is_whole, 20)
    preferred = {partition: state.replicas[0] for partition, state in view.items()}
    stopped = preferred[0]
    cluster.signal(f"broker-{stopped}", signal.SIGTERM)
    live = [a for name, a in cluster.addresses.items() if name != f"broker-{stopped}"]
    await_view(live, topic, lambda v: all(stopped not in state.isr for state in v.values()), 20)
    describe = ("TopicCommand", "--bootstrap-server", ",".join(live), "--describe", "--topic", topic)
    under = java.check(*describe, "--under-replicated-partitions")
    assert len(re.findall(r"Partition: \d", under)) == 3
    assert java.check(*describe, "--under-min-isr-partitions").strip() == ""
    assert java.check(*describe, "--unavailable-partitions").strip() == ""
    cluster.start(f"broker-{stopped}")
    await_view(cluster.addresses.values(), topic, is_whole, 30)
    assert java.check(*describe, "--under-replicated-partitions").strip() == ""
    said = java.check(
        "LeaderElectionCommand", *server, "--election-type", "preferred", "--all-topic-partitions"
    )
    assert topic in said, said
    await_view(
        cluster.addresses.values(),
        topic,
        lambda v: {partition: state.leader for partition, state in v.items()} == preferred,
        15,
    )


def test_replica_verification_and_log_dirs(
    cluster: Cluster, java: JavaTools, server: tuple[str, str]
) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.bootstrap, topic, 3, replication_factor=3)
    for partition in range(3):
        produce_values(cluster.bootstrap, topic, [b"x" * 100] * 500, partition, acks="all")
    await_view(cluster.addresses.values(), topic, is_whole, 20)
    said = java.check("LogDirsCommand", *server, "--describe", "--topic-list", topic)
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    sizes: dict[str, set[int]] = {}
    for broker in json.loads(line)["brokers"]:
        for directory in broker["logDirs"]:
            for found in directory["partitions"]:
                sizes.setdefault(found["partition"], set()).add(found["size"])
                assert found["offsetLag"] == 0
    assert set(sizes) == {f"{topic}-{partition}" for partition in range(3)}
    assert all(len(different) == 1 for different in sizes.values()), sizes
    with pytest.raises(subprocess.TimeoutExpired) as stopped:
        java.run(
            "ReplicaVerificationTool",
            *("--broker-list", cluster.bootstrap, "--topics-include", topic, "--report-interval-ms", "1000"),
            timeout_s=8,
        )
    output = stopped.value.stdout or b""
    said = output.decode() if isinstance(output, bytes) else output
    lags = re.findall(r"max lag is (-?\d+)", said)
    assert lags and set(lags) == {"0"}, said
