"""Commands that delete what can't be restored ask on a terminal, and only there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from tidelog.cli.main import main
from tidelog.model.topics import INTERNAL_TOPICS
from tidelog.testing import Cluster

ASKING = (
    ("acl", "delete"),
    ("delete-records",),
    ("group", "delete"),
    ("group", "delete-offsets"),
    ("topic", "delete"),
    ("transactions", "abort"),
    ("transactions", "force-terminate"),
    ("user", "delete"),
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.cli.tool_command.is_interactive", lambda: True)


def run(cluster: Cluster, *arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(
        main, [*arguments, "--bootstrap-server", cluster.bootstrap], input=answer and f"{answer}\n"
    )


def topics(cluster: Cluster) -> list[str]:
    return run(cluster, "topic", "list", "--format", "plain").stdout.split()


@pytest.mark.parametrize("command", ASKING, ids=" ".join)
def test_each_command_that_asks_accepts_yes(command: tuple[str, ...]) -> None:
    assert "--yes" in CliRunner().invoke(main, [*command, "--help"]).output


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(("answer", "status"), [("n", 1), ("", 130)], ids=["no", "end of input"])
def test_without_a_yes_at_the_terminal_nothing_is_deleted(cluster: Cluster, answer: str, status: int) -> None:
    if "kept" not in topics(cluster):
        cluster.create_topic("kept")
    for arguments in (
        ("topic", "delete", "kept"),
        ("delete-records", "kept", "--partition", "0", "--offset", "-1"),
    ):
        refused = run(cluster, *arguments, answer=answer)
        assert refused.exit_code == status
        assert "kept" in refused.stderr.splitlines()[0]
        assert "[y/N]" in refused.stderr
        assert refused.stdout == ""
    assert "kept" in topics(cluster)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(("options", "answer"), [((), "y"), (("--yes",), "")])
def test_a_yes_deletes(cluster: Cluster, options: tuple[str, ...], answer: str) -> None:
    cluster.create_topic("gone")
    done = run(cluster, "topic", "delete", "gone", *options, answer=answer)
    assert done.exit_code == 0, done.output
    assert ("[y/N]" in done.stderr) is not options
    assert "gone" not in topics(cluster)


def test_a_terminal_is_asked_although_the_output_goes_elsewhere(cluster: Cluster) -> None:
    cluster.create_topic("asked")
    here, there = os.openpty()
    command = subprocess.Popen(
        [sys.executable, "-m", "tidelog.cli.main", "topic", "delete", "asked", "-b", cluster.bootstrap],
        stdin=there,
        stdout=subprocess.PIPE,
        stderr=there,
    )
    os.close(there)
    with os.fdopen(here, "r+b", buffering=0) as terminal:
        question = b""
        while b"[y/N]" not in question:
            question += terminal.read(1024)
        assert "asked" in topics(cluster)
        terminal.write(b"y\n")
        stdout, _ = command.communicate(timeout=30)
    assert (command.returncode, stdout) == (0, b"Topic asked deleted.\n")
    assert "asked" not in topics(cluster)


def test_without_a_terminal_nothing_is_asked(cluster: Cluster) -> None:
    cluster.create_topic("gone")
    done = run(cluster, "topic", "delete", "gone")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "gone" not in topics(cluster)


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_without_a_terminal_an_internal_topic_is_deleted_only_with_yes(cluster: Cluster, name: str) -> None:
    cluster.create_topic(name)
    refused = run(cluster, "topic", "delete", name)
    assert refused.exit_code == 1
    assert f"{name} is internal" in refused.stderr
    assert "--yes" in refused.stderr
    assert name in topics(cluster)
    assert run(cluster, "topic", "delete", name, "--yes").exit_code == 0
    assert name not in topics(cluster)
