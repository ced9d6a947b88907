"""`tidelog doctor` names the transactions of a real cluster that hold back readers of committed records, and
the step that it proposes for each of them ends it.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaException, Producer

from brokerlab.batches import build_batch
from brokerlab.broker_process import tidelog_command
from brokerlab.clients import CLIENT_TIMEOUT_S, consume_messages, create_topic
from brokerlab.raw_client import RawClient
from clusterlab.tidelog_cluster import TidelogCluster
from tidelog.cli.main import main
from tidelog.client.admin.transactions import PartitionProducer, describe_producers
from tidelog.client.cluster import Cluster
from tidelog.model.topics import TopicPartition

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]
TIMEOUT_S = 60.0
TEN_MINUTES_S = 600.0
TRANSACTIONAL = 0x10
TOPIC = "waited-for"
PLACE = TopicPartition(TOPIC, 0)
WITHOUT_VERIFICATION = {"transaction.partition.verification.enable": "false"}


def findings(cluster: TidelogCluster) -> list[dict[str, Any]]:
    """Returns what the doctor says about transactions."""
    done = CliRunner().invoke(main, ["doctor", "-b", cluster.bootstrap, "--format", "json"])
    assert done.exit_code in (0, 1, 2), (done.output, done.exception)
    return [row for row in json.loads(done.stdout)["findings"] if row["check"] == "transactions"]


def follow(cluster: TidelogCluster, next_step: str) -> None:
    """Runs the command after the colon of a next step."""
    _, _, command = next_step.partition(": ")
    name, *arguments = shlex.split(command)
    assert name == "tidelog", next_step
    done = subprocess.run(
        [*tidelog_command(), *arguments, "-b", cluster.bootstrap],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def begun(cluster: TidelogCluster, transactional_id: str, timeout_ms: int = 60_000) -> Producer:
    """Returns a producer with one record in an open transaction."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
        }
    )
    producer.init_transactions(CLIENT_TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(TOPIC, transactional_id.encode(), partition=0)
    assert producer.flush(CLIENT_TIMEOUT_S) == 0
    return producer


def write_late(
    cluster: TidelogCluster, transactional_id: str, writer: PartitionProducer, leader: int
) -> None:
    """Writes a batch of a transaction that its coordinator has ended."""
    batch = build_batch(
        [b"late"],
        producer_id=writer.producer_id,
        producer_epoch=writer.producer_epoch,
        base_sequence=writer.last_sequence + 1,
        attributes=TRANSACTIONAL,
    )
    with RawClient(cluster.address(leader)) as client:
        assert client.produce(TOPIC, batch, transactional_id=transactional_id).error_code == 0


def test_the_step_for_a_hanging_transaction_ends_it(new_cluster: Callable[..., TidelogCluster]) -> None:
    """A late batch begins a transaction that no coordinator knows, beside one that is well."""
    cluster = new_cluster(brokers=2, controllers=1, settings=WITHOUT_VERIFICATION)
    create_topic(cluster.bootstrap, TOPIC, 1, replication_factor=2)
    begun(cluster, "ended").commit_transaction(CLIENT_TIMEOUT_S)
    with Cluster(cluster.bootstrap) as brokers:
        (writer,) = describe_producers(brokers, [PLACE])
        leader = brokers.topics([TOPIC])[TOPIC].partitions[0].leader
    assert not writer.is_in_transaction
    (ok,) = findings(cluster)
    assert ok["state"] == "ok"
    write_late(cluster, "ended", writer, leader)
    open_one = begun(cluster, "open")

    (finding,) = findings(cluster)
    assert finding["state"] == "warn"
    assert f"producer {writer.producer_id} " in finding["finding"]
    assert f"{TOPIC}-0" in finding["finding"]
    follow(cluster, finding["next_step"])
    (ok,) = findings(cluster)
    assert (ok["state"], "1 open" in ok["finding"]) == ("ok", True)
    open_one.commit_transaction(CLIENT_TIMEOUT_S)
    read = consume_messages(cluster.bootstrap, TOPIC, 2, isolation_level="read_committed")
    assert [message.value() for message in read] == [b"ended", b"open"]


def test_the_step_for_a_transaction_that_stays_open_ends_it(
    new_cluster: Callable[..., TidelogCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer neither commits nor aborts. The doctor's clock is ten minutes ahead instead of a wait."""
    cluster = new_cluster(brokers=2, controllers=1)
    create_topic(cluster.bootstrap, TOPIC, 1, replication_factor=2)
    forgotten = begun(cluster, "forgotten writer", timeout_ms=900_000)
    (ok,) = findings(cluster)
    assert ok["state"] == "ok"
    ahead = types.SimpleNamespace(time=lambda: time.time() + TEN_MINUTES_S)
    monkeypatch.setattr("tidelog.cli.doctor.command.time", ahead)

    (finding,) = findings(cluster)
    assert finding["state"] == "warn"
    assert finding["finding"].startswith("forgotten writer has been open for 10 min")
    follow(cluster, finding["next_step"])
    (ok,) = findings(cluster)
    assert (ok["state"], "0 open" in ok["finding"]) == ("ok", True)
    with pytest.raises(KafkaException):
        forgotten.commit_transaction(CLIENT_TIMEOUT_S)
    begun(cluster, "forgotten writer").commit_transaction(CLIENT_TIMEOUT_S)
    read = consume_messages(cluster.bootstrap, TOPIC, 1, isolation_level="read_committed")
    assert [message.value() for message in read] == [b"forgotten writer"]
