"""`tidelog group` and `tidelog transactions` with librdkafka's groups and transactions."""

from __future__ import annotations

import os
import subprocess
import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition

from brokerlab.broker_process import tidelog_command
from brokerlab.clients import CLIENT_TIMEOUT_S, new_producer

pytestmark = pytest.mark.integration


def tool(bootstrap: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*tidelog_command(), *arguments],
        env={**os.environ, "TIDELOG_BOOTSTRAP_SERVER": bootstrap},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def rows(bootstrap: str, *arguments: str) -> list[list[str]]:
    done = tool(bootstrap, *arguments)
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


@pytest.fixture
def name() -> str:
    return f"tool-{uuid.uuid4().hex[:10]}"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_listed_described_and_deleted(bootstrap: str, name: str, protocol: str) -> None:
    assert tool(bootstrap, "topic", "create", name, "--partitions", "2").returncode == 0
    producer = new_producer(bootstrap)
    for number in range(10):
        producer.produce(name, str(number), partition=0)
    assert producer.flush(CLIENT_TIMEOUT_S) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "client.id": "me",
        }
    )
    consumer.subscribe([name])
    while consumer.poll(CLIENT_TIMEOUT_S) is None or len(consumer.assignment()) < 2:
        pass
    consumer.commit(offsets=[TopicPartition(name, 0, 4)], asynchronous=False)

    listed = {row[0]: row[1:] for row in rows(bootstrap, "group", "list")}
    assert listed[name] == [protocol, "consumer", "Stable"]
    others = "consumer" if protocol == "classic" else "classic"
    assert name not in {row[0] for row in rows(bootstrap, "group", "list", "--type", others)}

    heading, columns, first, second = rows(bootstrap, "group", "describe", name)
    assert f"{protocol}, Stable" in heading[0]
    assert heading[0].endswith(
        ", coordinator 1, 1 member, total lag 6, 1 partition without a commit (not in the total)"
    )
    assert columns == ["topic", "partition", "committed", "log end", "lag", "member", "host"]
    assert first[:5] == [name, "0", "4", "10", "6"]
    assert second[:5] == [name, "1", "", "0", ""]
    assert first[5] == second[5] != ""
    _, _, member = rows(bootstrap, "group", "describe", name, "--members")
    assert (member[0], member[2], member[4]) == (first[5], "me", "2")
    assert member[5] == f"{name}-0 {name}-1"

    refused = tool(bootstrap, "group", "delete", name)
    assert refused.returncode == 1
    assert f"group '{name}' has members" in refused.stderr
    consumer.close()
    assert tool(bootstrap, "group", "delete", name).returncode == 0
    gone = tool(bootstrap, "group", "describe", name)
    assert gone.returncode == 1
    assert gone.stderr.startswith(f"tidelog: group '{name}' does not exist; 'tidelog group list' shows")


def test_a_transaction_is_listed_and_described(bootstrap: str, name: str) -> None:
    assert tool(bootstrap, "topic", "create", name).returncode == 0
    producer = new_producer(bootstrap, **{"transactional.id": name})
    producer.init_transactions(CLIENT_TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(name, b"x")
    assert producer.flush(CLIENT_TIMEOUT_S) == 0
    listed = {row[0]: row[1:] for row in rows(bootstrap, "transactions", "list", "--state", "Ongoing")}
    assert listed[name][2] == "Ongoing"
    heading, _, partition = rows(bootstrap, "transactions", "describe", name)
    assert "Ongoing, begun" in heading[0]
    assert partition == [name, "0"]
    producer.commit_transaction(CLIENT_TIMEOUT_S)
    heading, *_ = rows(bootstrap, "transactions", "describe", name)
    assert "CompleteCommit" in heading[0]
    unknown = tool(bootstrap, "transactions", "describe", f"{name}-not")
    assert unknown.returncode == 1
