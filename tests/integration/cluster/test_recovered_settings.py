"""`tidelog cluster recover` restores settings, and deletes nothing whose settings it cannot know."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from brokerlab.clients import CLIENT_TIMEOUT_S, consume_messages, create_topic, new_producer
from brokerlab.command_line import InProcessTools
from brokerlab.old_records import OLD_RECORDS, QUICK_DELETION, await_deletion, produce_old
from clusterlab.tidelog_cluster import TidelogCluster

pytestmark = [pytest.mark.integration, pytest.mark.slow]
COMPACTED = {"min.cleanable.dirty.ratio": "0", "segment.ms": "1"}
TOPICS: dict[str, dict[str, str]] = {
    "compacted": {"cleanup.policy": "compact", **COMPACTED},
    "compacted-endless": {"cleanup.policy": "compact,delete", "retention.ms": "-1", **COMPACTED},
    "endless": {"retention.ms": "-1"},
    "inherits": {},
    "sized": {"retention.ms": "-1", "retention.bytes": "1000000000"},
    "transactional": {"retention.ms": "-1"},
    "unmanaged": {"cleanup.policy": "", "retention.ms": "1"},
}


def recover_without_etcd(cluster: TidelogCluster, *, keeps_copies: bool) -> str:
    """Empties etcd, and removes the copies of settings if `keeps_copies` is false. Returns what the recovery
    says.
    """
    cluster.command("down")
    shutil.rmtree(cluster.data_dir / "etcd-1")
    if not keeps_copies:
        for file in cluster.data_dir.glob("broker-*/**/*-settings.json"):
            file.unlink()
    said = cluster.command("recover")
    cluster.command("up")
    return said


def await_a_pass(cluster: TidelogCluster, tools: InProcessTools) -> None:
    """Waits until retention has looked at the replicas of each broker."""
    create_topic(cluster.bootstrap, "new", configs={"retention.ms": "1"}, replication_factor=2)
    produce_old(cluster.bootstrap, "new")
    await_deletion(cluster.bootstrap, "new")
    tools.output("topic", "delete", "new")


def assert_complete(cluster: TidelogCluster) -> None:
    for topic in TOPICS:
        found = consume_messages(cluster.bootstrap, topic, OLD_RECORDS)
        assert [message.value() for message in found] == [b"%d" % n for n in range(OLD_RECORDS)], topic


def overrides(tools: InProcessTools, topic: str) -> dict[str, str]:
    rows = [line.split("\t") for line in tools.output("config", "describe", "--topic", topic).splitlines()]
    return {name: value for name, value, source, *_ in rows[1:] if source == "DYNAMIC_TOPIC_CONFIG"}


def produce_in_transaction(bootstrap: str, topic: str) -> None:
    producer = new_producer(bootstrap, **{"transactional.id": "old"})
    producer.init_transactions(CLIENT_TIMEOUT_S)
    producer.begin_transaction()
    for number in range(OLD_RECORDS):
        producer.produce(topic, b"%d" % number, partition=0, timestamp=1_500_000_000_000)
    producer.commit_transaction(CLIENT_TIMEOUT_S)


def test_a_recovery_keeps_all_records_with_and_without_the_settings(
    new_cluster: Callable[..., TidelogCluster],
) -> None:
    cluster = new_cluster(brokers=2, controllers=1, settings=QUICK_DELETION)
    tools = InProcessTools(cluster.bootstrap)
    tools.output("config", "alter", "--broker-defaults", "log.retention.ms=-1")
    for topic, configs in TOPICS.items():
        create_topic(cluster.bootstrap, topic, configs=configs, replication_factor=2)
        if topic == "transactional":
            produce_in_transaction(cluster.bootstrap, topic)
        else:
            produce_old(cluster.bootstrap, topic)
    assert_complete(cluster)  # which also creates the topic of the groups' offsets
    internal = ("__consumer_offsets", "__transaction_state")
    before = {topic: overrides(tools, topic) for topic in (*TOPICS, *internal)}
    assert before["sized"].keys() == TOPICS["sized"].keys()

    said = recover_without_etcd(cluster, keeps_copies=True)
    assert "not known" not in said
    await_a_pass(cluster, tools)
    assert_complete(cluster)
    assert {topic: overrides(tools, topic) for topic in before} == before
    assert "log.retention.ms\t-1" in tools.output("config", "describe", "--broker-defaults")
    assert "topic settings\tthe settings of all topics are known" in tools.run("doctor").stdout

    recover_without_etcd(cluster, keeps_copies=False)
    await_a_pass(cluster, tools)
    assert_complete(cluster)
    for topic in TOPICS:
        assert overrides(tools, topic) == {"tidelog.settings.confirmed": "false"}
    assert overrides(tools, "__consumer_offsets")["cleanup.policy"] == "compact"
    doctor = tools.run("doctor").stdout
    assert f"topic settings\tlost, so nothing is deleted: {len(TOPICS)} topics, compacted, " in doctor
    assert "tidelog topic confirm-settings" in doctor
    cluster.kill("controller-1")  # the mark survives a fail-over
    cluster.start("controller-1")
    await_a_pass(cluster, tools)
    assert_complete(cluster)
    tools.output("topic", "confirm-settings", "endless")
    await_deletion(cluster.bootstrap, "endless")
    assert len(consume_messages(cluster.bootstrap, "sized", OLD_RECORDS)) == OLD_RECORDS
