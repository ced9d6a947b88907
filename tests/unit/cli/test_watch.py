"""`--watch` repeats a command until Ctrl-C."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner, Result

from tidelog.cli.output import print_table
from tidelog.cli.tool_command import ToolCommand
from tidelog.client.errors import UnreachableError

RUNS = 3


class WatchedCommand:
    """A command that counts its runs, and is ended by Ctrl-C in its third pause. Its second run fails."""

    def __init__(self) -> None:
        self.runs = 0
        self.slept_s: list[float] = []

    def invoke(self, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
        @click.command(cls=ToolCommand, is_watchable=True, examples=("tidelog count",))
        def command() -> None:
            self.runs += 1
            if self.runs == 2:
                raise UnreachableError("no broker answers at 127.0.0.1:1")
            print_table(("#run",), [(self.runs,)])

        def sleep(seconds: float) -> None:
            self.slept_s.append(seconds)
            if len(self.slept_s) == RUNS:
                raise KeyboardInterrupt

        monkeypatch.setattr(ToolCommand, "sleep", staticmethod(sleep))
        return CliRunner().invoke(command, arguments)


def test_a_failure_does_not_end_a_watched_command(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = WatchedCommand()
    result = watched.invoke(monkeypatch, "--watch", "2", "--format", "plain")
    assert result.exit_code == 0
    assert result.stdout == "run\n1\nrun\n3\n"
    assert "no broker answers" in result.stderr
    assert watched.slept_s == [2, 2, 2]


def test_each_run_has_a_document_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    text = WatchedCommand().invoke(monkeypatch, "--watch", "1", "--format", "json").stdout
    first, end = json.JSONDecoder().raw_decode(text)
    second, _ = json.JSONDecoder().raw_decode(text[end:].lstrip())
    assert (first, second) == ([{"run": 1}], [{"run": 3}])


@pytest.mark.parametrize("interval", ["0", "-1", "soon"])
def test_an_interval_that_would_load_the_brokers_is_refused(
    monkeypatch: pytest.MonkeyPatch, interval: str
) -> None:
    watched = WatchedCommand()
    assert watched.invoke(monkeypatch, "--watch", interval).exit_code == 2
    assert watched.runs == 0
