"""`tidelog delete-records`, `elect-leaders`, `log-dirs` and `topic list --sizes` on three brokers."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerlab.command_line import InProcessTools
from brokerlab.raw_client import RawClient
from tidelog.client import Producer
from tidelog.client.admin.offsets import list_offsets
from tidelog.model.protocol_values import NO_LEADER
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
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
    assert "1 partition were not deleted" in refusal
    assert shown[1:] == [
        ["sized", "0", "10", ""],
        ["sized", "1", "", "the offset is higher than the latest one"],
    ]
    assert "sized-7 does not exist" in tools.refusal(
        "delete-records", "sized", "--partition", 7, "--offset", 0
    )


TIMES = st.lists(st.integers(0, 20), max_size=8)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(times=st.tuples(TIMES, TIMES), wanted=st.integers(0, 21), only_first=st.booleans())
def test_records_before_a_time_are_deleted(
    cluster: Cluster, tools: InProcessTools, times: tuple[list[int], list[int]], wanted: int, only_first: bool
) -> None:
    """Times are minutes after a recent moment, in any order. Records after the first late one stay."""
    topic = f"timed-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(topic, 2)
    began = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    with Producer[bytes, bytes](cluster.bootstrap) as producer:
        for partition, minutes in enumerate(times):
            for minute in minutes:
                at_ms = int((began + timedelta(minutes=minute)).timestamp() * 1000)
                producer.send(topic, b"x", partition=partition, timestamp=at_ms)
        producer.flush()
    moment = (began + timedelta(minutes=wanted)).strftime("%Y-%m-%dT%H:%M:%S.000")
    given_partition = ("--partition", 0) if only_first else ()
    rows = tools.rows("delete-records", topic, "--to-datetime", moment, *given_partition)
    expected = [
        next((offset for offset, minute in enumerate(minutes) if minute >= wanted), len(minutes))
        for minutes in times
    ]
    asked = expected[:1] if only_first else expected
    assert rows[1:] == [[topic, str(index), str(offset), ""] for index, offset in enumerate(asked)]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("sized", "Give either --partition and --offset, or --to-datetime."),
        ("sized --offset 1", "Give either --partition and --offset, or --to-datetime."),
        ("sized --partition 0", "Give either --partition and --offset, or --to-datetime."),
        ("sized --partition 0 --offset 1 --to-datetime 2026-01-31T08:00:00", "Give either --partition"),
    ],
)
def test_an_offset_or_a_time_is_given(tools: InProcessTools, arguments: str, reason: str) -> None:
    refused = tools.run("delete-records", *arguments.split())
    assert (refused.exit_code, reason in refused.stderr) == (2, True)


def test_a_record_that_arrives_during_the_search_stays(
    cluster: Cluster, tools: InProcessTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("busy")
    cluster.produce("busy", b"old")

    def ask_while_records_arrive(*arguments: Any, **options: Any) -> Any:
        found = list_offsets(*arguments, **options)
        cluster.produce("busy", b"new")
        return found

    monkeypatch.setattr("tidelog.cli.admin.offsets.list_offsets", ask_while_records_arrive)
    rows = tools.rows("delete-records", "busy", "--to-datetime", "2100-01-31T08:00:00")
    assert rows[1:] == [["busy", "0", "1", ""]]


def test_a_wrong_time_or_partition_deletes_nothing(cluster: Cluster, tools: InProcessTools) -> None:
    cluster.create_topic("whole")
    cluster.produce("whole", b"a")
    wrong = tools.refusal("delete-records", "whole", "--to-datetime", "yesterday")
    assert "--to-datetime yesterday: expected YYYY-MM-DDThh:mm:ss.sss" in wrong
    at = ("--to-datetime", "2100-01-31T08:00:00")
    assert "whole-7 does not exist" in tools.refusal("delete-records", "whole", "--partition", 7, *at)
    assert tools.rows("delete-records", "whole", *at)[1:] == [["whole", "0", "1", ""]]


def test_records_without_a_time_are_not_deleted_by_time(cluster: Cluster, tools: InProcessTools) -> None:
    cluster.create_topic("timeless")
    at = ("delete-records", "timeless", "--to-datetime", "2020-01-31T08:00:00")
    assert tools.rows(*at)[1:] == [["timeless", "0", "0", ""]], "no record is there"
    with RawClient(cluster.bootstrap.split(",")[cluster.leader("timeless") - 1]) as client:
        client.produce("timeless", bytes(build_batch([Record(0, -1, b"k", b"v")])))
    assert "the records of timeless-0 have no known time" in tools.refusal(*at)


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


def test_replicas_move_as_a_file_says(cluster: Cluster, tools: InProcessTools, tmp_path: Path) -> None:
    cluster.create_topic("moved", 2, replication_factor=2)
    cluster.produce("moved", *(b"x" * 1000 for _ in range(10)))
    topics, moves, back = tmp_path / "topics.json", tmp_path / "moves.json", tmp_path / "back.json"
    topics.write_text('{"version": 1, "topics": [{"topic": "moved"}]}')
    generated = tools.output(
        "reassign", "--generate", "--topics-to-move-json-file", topics, "--broker-list", "1,2"
    )
    rows = json.loads(generated)["partitions"]
    assert [(row["partition"], sorted(row["replicas"])) for row in rows] == [(0, [1, 2]), (1, [1, 2])]
    targets = [[3, 1], [2, 3]]
    for row, target in zip(rows, targets, strict=True):
        row["replicas"] = target
    moves.write_text(json.dumps({"version": 1, "partitions": rows}))
    file = ("--reassignment-json-file", moves)
    started = tools.run("reassign", "--execute", *file, "--throttle", 100_000_000)
    assert started.stdout == "Started 2 moves.\n"
    back.write_text(started.stderr.split("\n", 1)[1].rsplit("\n", 2)[0])
    while (done := tools.run("reassign", "--verify", *file)).exit_code:
        assert "\tmoving" in done.stdout, done.output
        time.sleep(0.05)
    assert done.stdout.splitlines()[1:] == ["moved\t0\t3,1\t3,1\tfinished", "moved\t1\t2,3\t2,3\tfinished"]
    assert "throttles were removed" in done.stderr
    described = tools.output("topic", "describe", "moved")
    assert "Replicas: 3,1" in described
    assert "throttled" not in described
    assert "None of the moves is running" in tools.output("reassign", "--cancel", *file)
    assert tools.rows("reassign", "--list")[1:] == []
    refusal, shown = tools.failed_rows("reassign", "--verify", "--reassignment-json-file", back)
    assert "do not have the requested replicas" in refusal
    assert "different" in {row[4] for row in shown}


def test_top_shows_rates_and_faults_once(cluster: Cluster, tools: InProcessTools) -> None:
    cluster.create_topic("watched", 2)
    cluster.produce("watched", "a", "b")
    tools.rows("group", "reset-offsets", "watcher", "--topic", "watched", "--to-earliest", "--execute")
    rows = tools.rows("top", "--once", "--interval", 0.5, "--topic", "watched")
    assert "3 brokers" in rows[0][0]
    assert "all replicas in sync" in rows[0][0]
    by_name = {row[0]: row for row in rows}
    assert by_name["watched"][1:4] == ["2", "0", "0"]
    assert by_name["watched"][5] == "0.0"
    assert by_name["watcher"][1:5] == ["classic", "Empty", "2", "2"]
    assert {"1", "2", "3"} <= by_name.keys()
