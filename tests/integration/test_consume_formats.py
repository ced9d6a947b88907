"""`tidelog consume` with a group, templates and JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import uuid
from collections.abc import Callable

import pytest

from brokerlab.broker_process import tidelog_command
from brokerlab.clients import CLIENT_TIMEOUT_S, new_producer
from brokerlab.command_line import InProcessTools
from tidelog.client import Consumer

pytestmark = pytest.mark.integration


@pytest.fixture
def tools(bootstrap: str) -> InProcessTools:
    return InProcessTools(bootstrap)


@pytest.fixture
def filled(bootstrap: str, new_topic: Callable[..., str]) -> str:
    """A topic of two partitions with ten records in each."""
    name = new_topic(2)
    producer = new_producer(bootstrap)
    for number in range(20):
        producer.produce(name, str(number // 2), key=b"k", partition=number % 2, headers={"h": b"x"})
    assert producer.flush(CLIENT_TIMEOUT_S) == 0
    return name


@pytest.mark.parametrize("protocol", ["consumer", pytest.param("classic", marks=pytest.mark.slow)])
def test_a_group_reads_each_record_once(tools: InProcessTools, filled: str, protocol: str) -> None:
    group = f"consume-{uuid.uuid4().hex[:10]}"
    start = (
        *("consume", filled, "--group", group, "--consumer-property", f"group.protocol={protocol}"),
        *("-f", r"%p/%o\n", "--max-messages"),
    )
    first = tools.output(*start, 7, "--from-beginning").splitlines()
    # The rest comes without --from-beginning, because the positions of both partitions were committed.
    rest = tools.output(*start, 13).splitlines()
    assert len(first) == 7
    assert sorted(first + rest) == sorted(f"{p}/{o}" for p in range(2) for o in range(10))
    assert [row[2:5] for row in tools.rows("group", "describe", group)[2:]] == [["10", "10", "0"]] * 2
    assert tools.output(*start, 1, "--timeout-ms", 300) == ""
    (listed,) = [row for row in tools.rows("group", "list") if row[0] == group]
    assert protocol in listed


def test_a_member_without_commits_leaves_the_group_as_it_is(tools: InProcessTools, filled: str) -> None:
    group = f"consume-{uuid.uuid4().hex[:10]}"
    read = ("consume", filled, "--group", group, "--from-beginning", "--max-messages", 20)
    for _ in range(2):
        printed = tools.output(*read, "--consumer-property", "enable.auto.commit=false", "-f", r"%o\n")
        assert len(printed.splitlines()) == 20


def test_a_member_without_partitions_ends_after_the_timeout(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Another member has the only partition."""
    name = new_topic()
    with Consumer[bytes, bytes](bootstrap, {"group.id": name}) as owner:
        owner.subscribe([name])
        while not owner.assignment():
            owner.poll(0.1)
        ended = subprocess.run(
            [*tidelog_command(), "consume", name, "--group", name, "--timeout-ms", "300"],
            capture_output=True,
            env={**os.environ, "TIDELOG_BOOTSTRAP_SERVER": bootstrap},
            timeout=CLIENT_TIMEOUT_S,
            check=True,
        )
        assert (ended.stdout, ended.stderr) == (b"", f"0 records read from {name}.\n".encode())
        assert owner.assignment()


def test_records_as_json_and_templates(tools: InProcessTools, filled: str) -> None:
    start = ("consume", filled, "--partition", 1, "--offset", 3, "--max-messages", 1)
    found = json.loads(tools.output(*start, "--format", "json"))
    assert found.pop("timestamp") > 0
    assert found == {
        "topic": filled, "partition": 1, "offset": 3, "key": "k", "value": "3",
        "headers": [{"key": "h", "value": "x"}],
    }  # fmt: skip
    assert tools.output(*start, "-f", "%t %p %o %k %v %h;") == f"{filled} 1 3 k 3 h=x;"
    assert tools.output(*start, "--format", "table").splitlines()[1].split()[:2] == ["1", "3"]


def test_ctrl_c_commits_what_was_printed(tools: InProcessTools, bootstrap: str, filled: str) -> None:
    group = f"consume-{uuid.uuid4().hex[:10]}"
    # Background jobs of a shell ignore SIGINT, and processes inherit that.
    reader = subprocess.Popen(
        [
            *("env", "--default-signal=INT"),
            *(*tidelog_command(), "consume", filled, "--group", group, "--from-beginning", "-f", "%o\n"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TIDELOG_BOOTSTRAP_SERVER": bootstrap},
    )
    assert reader.stdout is not None
    try:
        printed = [int(reader.stdout.readline()) for _ in range(20)]
        reader.send_signal(signal.SIGINT)
        _, errors = reader.communicate(timeout=CLIENT_TIMEOUT_S)
    finally:
        reader.kill()
        reader.wait()
    assert (reader.returncode, errors) == (0, f"20 records read from {filled}.\n".encode())
    assert sorted(printed) == sorted([*range(10), *range(10)])
    assert [row[2] for row in tools.rows("group", "describe", group)[2:]] == ["10", "10"]
