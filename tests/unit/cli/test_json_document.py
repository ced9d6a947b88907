"""The JSON document of a command."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner, Result

from tidelog.cli import output
from tidelog.cli.output import JsonDocument, Shown, key_of, value_of
from tidelog.cli.tool_command import ToolCommand, ToolError
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
