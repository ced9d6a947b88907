"""`tidelog delete-records`, `elect-leaders`, `log-dirs` and `topic list --sizes` on three brokers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerlab.command_line import InProcessTools
from tidelog.client.cluster import NO_LEADER
from tidelog.testing import Cluster

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as running:
        yield running


@pytest.fixture
def tools(cluster: Cluster) -> InProcessTools:
    return InProcessTools(cluster.bootstrap)


def test_records_are_deleted_and_sizes_are_shown(
    cluster: Cluster, tools: InProcessTools, tmp_path: Path
) -> None:
    cluster.create_topic("sized", 2)
    cluster.produce("sized", *(b"x" * 1000 for _ in range(10)), partition=0)
    counts = next(row[1:] for row in tools.rows("topic", "list", "--sizes") if row[0] == "sized")
    assert counts[:3] == ["2", "3", "10"]
    size = int(counts[3])
    assert 10_000 < size < 12_000
    assert int(counts[4]) == 3 * size
    replicas = tools.rows("log-dirs", "--describe", "--topic-list", "sized", "--broker-list", "2,3")[1:]
    assert [(row[0], row[2], row[3]) for row in replicas] == [
        ("2", "sized", "0"), ("2", "sized", "1"), ("3", "sized", "0"), ("3", "sized", "1"),
    ]  # fmt: skip
    assert [row[4] for row in replicas] == [str(size), "0"] * 2
    assert [row[0] for row in tools.rows("log-dirs")[1:]] == ["1", "2", "3"]

    assert tools.rows("delete-records", "sized", "--partition", 0, "--offset", 4)[1][:3] == [
        "sized",
        "0",
        "4",
    ]
    file = tmp_path / "offsets.json"
    rows = [{"topic": "sized", "partition": part, "offset": offset} for part, offset in ((0, -1), (1, 99))]
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    refusal, shown = tools.failed_rows("delete-records", "--offset-json-file", file)
    assert "1 partitions were not deleted" in refusal
    assert shown[1:] == [
        ["sized", "0", "10", ""],
        ["sized", "1", "", "the offset is higher than the latest one"],
    ]
    assert "sized-7 does not exist" in tools.refusal(
        "delete-records", "sized", "--partition", 7, "--offset", 0
    )


def test_the_preferred_leader_returns(cluster: Cluster, tools: InProcessTools) -> None:
    cluster.create_topic("elected")
    preferred = cluster.kill_leader("elected")
    while cluster.leader("elected") in (preferred, NO_LEADER):
        time.sleep(0.05)
    cluster.start_broker(preferred)
    start = ("elect-leaders", "--election-type", "preferred", "--topic", "elected", "--partition", 0)
    while True:  # until the broker is in sync
        done = tools.run(*start)
        if done.exit_code == 0:
            break
        assert "failed: " in done.stdout, done.output
        time.sleep(0.05)
    assert done.stdout.splitlines()[1] in ("elected\t0\telected", "elected\t0\tnot needed")
    assert cluster.leader("elected") == preferred
    assert tools.rows(*start)[1] == ["elected", "0", "not needed"]
    _, shown = tools.failed_rows(
        "elect-leaders", "--election-type", "unclean", "--topic", "none", "--partition", 0
    )
    assert shown[1][2].startswith("failed: ")


def test_unknown_brokers_and_topics(tools: InProcessTools) -> None:
    assert "no live broker 9" in tools.refusal("log-dirs", "--broker-list", "1,9")
    assert "'none' does not exist" in tools.refusal("log-dirs", "--topic-list", "none")
