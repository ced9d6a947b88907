"""`tidelog group reset-offsets` and `delete-offsets` against a broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from brokerlab.clients import CLIENT_TIMEOUT_S, new_producer
from brokerlab.command_line import InProcessTools

pytestmark = pytest.mark.integration
FIRST_MS = 1_700_000_000_000


@pytest.fixture
def tools(bootstrap: str) -> InProcessTools:
    return InProcessTools(bootstrap)


@pytest.fixture
def group() -> str:
    return f"reset-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def filled(bootstrap: str, new_topic: Callable[..., str]) -> str:
    """A topic of two partitions with ten records in partition 0, one second apart."""
    name = new_topic(2)
    producer = new_producer(bootstrap)
    for number in range(10):
        producer.produce(name, str(number), partition=0, timestamp=FIRST_MS + 1000 * number)
    assert producer.flush(CLIENT_TIMEOUT_S) == 0
    return name


def planned(rows: list[list[str]]) -> dict[str, str]:
    return {row[2]: row[4] for row in rows[1:]}


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (["--to-earliest"], "0"),
        (["--to-latest"], "10"),
        (["--to-offset", 7], "7"),
        (["--to-offset", 700], "10"),
        (["--shift-by", -1], "3"),
        (["--shift-by", -100], "0"),
        (["--to-current"], "4"),
        (["--to-datetime", "2023-11-14T22:13:22.500"], "3"),
        (["--to-datetime", "2023-11-14T23:13:22.500+01:00"], "3"),
        (["--to-datetime", "2100-01-01T00:00:00.000Z"], "10"),
        (["--by-duration", "PT1S"], "10"),
        (["--by-duration", "P20000D"], "0"),
    ],
)
def test_each_method(
    tools: InProcessTools, group: str, filled: str, method: list[object], expected: str
) -> None:
    start = ("group", "reset-offsets", group, "--topic", f"{filled}:0")
    assert planned(tools.rows(*start, "--to-offset", 4, "--execute")) == {"0": "4"}
    assert planned(tools.rows(*start, *method)) == {"0": expected}
    assert tools.rows("group", "describe", group)[-1][:3] == [filled, "0", "4"]
    assert planned(tools.rows(*start, *method, "--execute")) == {"0": expected}
    assert tools.rows("group", "describe", group)[-1][:3] == [filled, "0", expected]


def test_offsets_are_exported_and_restored(
    tools: InProcessTools, group: str, filled: str, tmp_path: Path
) -> None:
    start = ("group", "reset-offsets", "--group", group)
    tools.rows(*start, "--topic", filled, "--to-offset", 4, "--execute")
    exported = tools.output(*start, "--all-topics", "--to-current", "--export")
    assert exported == f"{filled},0,4\n{filled},1,0\n"
    file = tmp_path / "offsets.csv"
    file.write_text(exported)
    tools.rows(*start, "--topic", filled, "--to-latest", "--execute")
    assert planned(tools.rows(*start, "--from-file", file, "--execute")) == {"0": "4", "1": "0"}
    assert tools.rows("group", "describe", group)[2][:3] == [filled, "0", "4"]


def test_impossible_resets_change_nothing(tools: InProcessTools, group: str, filled: str) -> None:
    start = ("group", "reset-offsets", group)
    assert f"{filled}-0 has no committed offset" in tools.refusal(
        *start, "--topic", filled, "--shift-by", 1, "--execute"
    )
    assert "partitions 0 to 1, not 2" in tools.refusal(*start, "--topic", f"{filled}:2", "--to-latest")
    assert "'no-such-topic' does not exist" in tools.refusal(
        *start, "--topic", "no-such-topic", "--to-latest"
    )
    assert tools.rows(*start, "--all-topics", "--to-latest") == [
        ["group", "topic", "partition", "committed", "new offset"]
    ]


def test_a_group_with_members_keeps_its_offsets(
    tools: InProcessTools, bootstrap: str, group: str, filled: str, new_topic: Callable[..., str]
) -> None:
    other = new_topic()
    start = ("group", "reset-offsets", group)
    tools.rows(*start, "--topic", filled, "--topic", other, "--to-earliest", "--execute")
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    consumer.subscribe([filled])
    while len(consumer.assignment()) < 2:
        consumer.poll(1)
    refusal = tools.refusal(*start, "--topic", filled, "--to-latest", "--execute")
    assert f"group '{group}' is Stable" in refusal
    refusal, rows = tools.failed_rows(
        "group", "delete-offsets", group, "--topic", f"{filled}:0", "--topic", other
    )
    assert "1 partition were not deleted" in refusal
    assert {row[1]: row[3] for row in rows[1:]} == {
        filled: "kept, because a member subscribes to the topic",
        other: "deleted",
    }
    assert consumer.committed([TopicPartition(filled, 0)], CLIENT_TIMEOUT_S)[0].offset == 0
    consumer.close()
    assert "were deleted" in tools.output("group", "delete-offsets", group, "--topic", filled)
    assert tools.rows(*start, "--all-topics", "--to-latest")[1:] == []


def test_offsets_of_an_unknown_group_are_not_deleted(tools: InProcessTools, group: str, filled: str) -> None:
    refusal = tools.refusal("group", "delete-offsets", group, "--topic", filled)
    assert f"group '{group}' does not exist" in refusal


def test_the_lag_depends_on_the_isolation_level(
    tools: InProcessTools, bootstrap: str, group: str, filled: str
) -> None:
    tools.rows("group", "reset-offsets", group, "--topic", f"{filled}:0", "--to-offset", 4, "--execute")
    usual = ["topic", "partition", "committed", "log end", "lag", "member", "host"]
    assert tools.rows("group", "describe", group)[1] == usual
    producer = new_producer(bootstrap, **{"transactional.id": group})
    producer.init_transactions(CLIENT_TIMEOUT_S)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(filled, b"open", partition=0)
    assert producer.flush(CLIENT_TIMEOUT_S) == 0
    _, columns, row = tools.rows("group", "describe", group)
    assert columns == [*usual[:5], "last stable", "stable lag", *usual[5:]]
    assert row[2:7] == ["4", "13", "9", "10", "6"]
    level = ("group", "describe", group, "--isolation-level")
    assert tools.rows(*level, "read_committed")[2][2:5] == ["4", "10", "6"]
    assert tools.rows(*level, "read_uncommitted")[2][2:5] == ["4", "13", "9"]
    producer.commit_transaction(CLIENT_TIMEOUT_S)
