"""The formats of what commands print: JSON documents, tables, and repetitions with --watch."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner, Result

from tidelog.cli import output
from tidelog.cli.output import JsonDocument, Shown, key_of, print_table, value_of
from tidelog.cli.tool_command import ToolCommand, ToolError
from tidelog.client.errors import UnreachableError
from tidelog.model.topics import TopicPartition


@click.command(cls=ToolCommand)
@click.argument("scenario")
def scripted(scenario: str) -> None:
    """Says one of several things."""
    match scenario:
        case "one table":
            output.print_table(("in sync", "#lag"), [((1, 2), "3.50"), (None, Shown("none", None))])
        case "one result":
            output.say("Group x deleted.", group="x")
        case "results":
            output.say("Group x deleted.", is_one_of_many=True)
        case "table and result":
            output.print_table(("topic",), [("t",)])
            output.say("done")
        case "facts and empty table":
            output.add_facts(cluster_id="c")
            output.print_table(("#broker",), [], name="brokers")
        case "headings":
            for name in ("a", "b"):
                output.print_heading(name, "  Stable, 1 member", group=name, lag=None)
                output.print_table(("#partition",), [(0,)], name="partitions")
        case "bare heading":
            output.print_heading("a", "  Stable")
        case "two tables":
            output.print_table(("x",), [("1",)], name="rates")
            output.print_table(("x",), [("1",)], name="rates")
        case "named tuple":
            output.print_table(("place",), [(TopicPartition("t", 1),)])
        case "failure after a table":
            output.print_table(("topic",), [("t",)])
            raise ToolError("t is moving")
        case "failure":
            raise ToolError("no")
        case _:
            pass


def run(scenario: str, *options: str) -> Result:
    return CliRunner().invoke(scripted, [scenario, *options])


@pytest.mark.parametrize(
    ("scenario", "document"),
    [
        ("nothing", []),
        ("one table", [{"in_sync": [1, 2], "lag": 3.5}, {"in_sync": None, "lag": None}]),
        ("one result", {"message": "Group x deleted.", "group": "x"}),
        ("results", [{"message": "Group x deleted."}]),
        ("table and result", {"rows": [{"topic": "t"}], "message": "done"}),
        ("facts and empty table", {"cluster_id": "c", "brokers": []}),
        (
            "headings",
            [
                {"group": "a", "lag": None, "partitions": [{"partition": 0}]},
                {"group": "b", "lag": None, "partitions": [{"partition": 0}]},
            ],
        ),
        ("bare heading", [{"name": "a", "description": "Stable"}]),
        ("two tables", {"rates": [{"x": "1"}], "rates_2": [{"x": "1"}]}),
    ],
)
def test_a_command_prints_one_document(scenario: str, document: object) -> None:
    result = run(scenario, "--format", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == document


def test_a_failed_command_prints_what_it_had_said_before() -> None:
    result = run("failure after a table", "--format", "json")
    assert (result.exit_code, result.stderr) == (1, "tidelog: t is moving\n")
    assert json.loads(result.stdout) == [{"topic": "t"}]
    result = run("failure", "--format", "json")
    assert (result.exit_code, result.stdout) == (1, "")


def test_plain_is_the_default_without_a_terminal() -> None:
    assert run("one table").stdout == run("one table", "--format", "plain").stdout
    assert run("one table").stdout == "in sync\tlag\n1,2\t3.50\n\tnone\n"
    assert run("named tuple").stdout == "place\nt-1\n"


def test_a_table_without_a_terminal_is_as_wide_as_its_contents() -> None:
    @click.command(cls=ToolCommand)
    def wide() -> None:
        output.print_table(("text", "more"), [("x" * 200, "y" * 200)])

    shown = CliRunner().invoke(wide, ["--format", "table"]).stdout
    assert f"{'x' * 200}   {'y' * 200}" in shown


def test_a_command_keeps_its_own_format_option() -> None:
    @click.command(cls=ToolCommand)
    @click.option("--format", "shape")
    def own(shape: str) -> None:
        click.echo(shape)

    assert CliRunner().invoke(own, ["--format", "%k"]).stdout == "%k\n"


@pytest.mark.parametrize(
    ("column", "key"),
    [
        ("#p99.9 ms", "p99_9_ms"),
        ("#MiB/s", "mib_per_s"),
        ("API", "api"),
        ("#oldest|oldest_age_ms", "oldest_age_ms"),
    ],
)
def test_keys_of_columns(column: str, key: str) -> None:
    assert key_of(column) == key


def test_only_cells_of_numbers_become_numbers() -> None:
    assert value_of("12") == "12"
    assert value_of("12", is_number=True) == 12
    assert value_of("2 h", is_number=True) == "2 h"
    assert value_of({"a": (1, "x")}) == {"a": [1, "x"]}
    assert value_of(TopicPartition("t", 1)) == "t-1"


def test_contents_before_the_first_heading_stay() -> None:
    document = JsonDocument()
    document.add_facts({"cluster_id": "c"})
    document.add_heading({"group": "g"})
    assert document.value() == {"cluster_id": "c", "sections": [{"group": "g"}]}


ROWS = [("a [bold]b", 1), (None, 20)]


def test_a_pipe_gets_tab_separated_lines(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name", "#count"), ROWS, title="not shown")
    assert capsys.readouterr().out == "name\tcount\na [bold]b\t1\n\t20\n"


def test_a_terminal_gets_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tidelog.cli.output", "tidelog.process.command_help"):
        monkeypatch.setattr(f"{module}.is_terminal", lambda: True)
    output.print_table(("name", "#count"), ROWS, title="Things")
    output.print_heading("[x]", " [y]")
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert shown[0] == "Things"
    assert " a [bold]b       1" in shown
    assert "                20" in shown
    assert shown[-1] == "[x] [y]"


@pytest.mark.parametrize("is_shown", [False, True])
def test_names_that_clients_choose_do_not_steer_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_shown: bool
) -> None:
    for module in ("tidelog.cli.output", "tidelog.process.command_help"):
        monkeypatch.setattr(f"{module}.is_terminal", lambda: is_shown)
    name = "evil\x1b[2J\nfake\t1"
    output.print_table(("name", "names"), [(name, [name])])
    output.print_heading("Group ", name)
    output.say(f"Deleted {name}")
    output.note(f"Group {name} is empty")
    for text in capsys.readouterr():
        assert "\x1b[2J" not in text
        assert "evil\\x1b[2J" in text


def test_a_cell_with_a_line_end_or_a_tab_stays_one_cell(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name", "#count"), [("a\tb\nc", 1)])
    assert capsys.readouterr().out == "name\tcount\na\\tb\\nc\t1\n"


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
