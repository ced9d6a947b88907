"""`tidelog cluster check`, which is also the chart's `helm test`."""

from __future__ import annotations

import os
import subprocess

import pytest

from brokerlab.broker_process import tidelog_command
from tidelog.cli.cluster import check

pytestmark = pytest.mark.integration


def tool(bootstrap: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*tidelog_command(), *arguments, "--bootstrap-server", bootstrap],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_check_succeeds_and_leaves_nothing_behind(bootstrap: str) -> None:
    done = tool(bootstrap, "cluster", "check")
    assert done.returncode == 0, done.stderr
    steps = [line.split()[:2] for line in done.stdout.splitlines()]
    assert steps == [["produce", "ok"], ["consume", "ok"], ["group", "ok"], ["transaction", "ok"]]
    assert check.TOPIC_PREFIX not in tool(bootstrap, "topic", "list").stdout
    assert check.TOPIC_PREFIX not in tool(bootstrap, "group", "list").stdout


def test_a_failure_is_reported_in_one_line(bootstrap: str) -> None:
    done = tool(bootstrap, "cluster", "check", "--replication-factor", "7")
    assert done.returncode == 1
    assert done.stderr.startswith("tidelog: ")
    assert "replication" in done.stderr.lower()
    assert len(done.stderr.splitlines()) == 1
