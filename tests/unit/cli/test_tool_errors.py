"""Failures of tools are one line that names the option, file or broker at fault, with the next step."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tidelog.cli.main import main
from tidelog.cli.tool_command import (
    ToolError,
    parse_assignments,
    parse_partition_rows,
    read_text_file,
    sentence_of,
)
from tidelog.client.errors import AdvertisedUnreachableError, RecordTooLargeError
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition


def test_rows_by_partition() -> None:
    given = [{"topic": "t", "partition": 0, "offset": 9}, {"topic": "t", "partition": 2, "offset": -1}]
    rows = parse_partition_rows(json.dumps({"partitions": given}), "f", ("offset",))
    assert {place: row["offset"] for place, row in rows.items()} == {
        TopicPartition("t", 0): 9,
        TopicPartition("t", 2): -1,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f is not JSON"),
        ("[" * 100_000, "f is not JSON"),
        ("[]", 'f has no list "partitions"'),
        ('{"partitions": {}}', 'f has no list "partitions"'),
        ('{"partitions": []}', "f contains no partitions"),
        ('{"version": 2, "partitions": []}', "f has version 2"),
        ('{"partitions": [1]}', "1 in .* is not an object"),
        ('{"partitions": [{"partition": 0, "offset": 1}]}', 'has no text "topic"'),
        ('{"partitions": [{"topic": "t", "partition": "0", "offset": 1}]}', 'has no number "partition"'),
        ('{"partitions": [{"topic": "t", "partition": true, "offset": 1}]}', 'has no number "partition"'),
        ('{"partitions": [{"topic": "t", "partition": 0}]}', 'has no number "offset"'),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "offset": 1},'
            ' {"topic": "t", "partition": 0, "offset": 2}]}',
            "f contains t-0 twice",
        ),
    ],
)
def test_the_fault_of_a_file_is_named(text: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        parse_partition_rows(text, "f", ("offset",))


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ToolError, match=r"--x .*binary: the file is not UTF-8 text"):
        read_text_file("--x", tmp_path / "binary")
    with pytest.raises(ToolError, match=r"--x .*missing: No such file"):
        read_text_file("--x", tmp_path / "missing")


def test_a_name_with_two_values_is_an_error() -> None:
    """One of them was silently dropped."""
    assert parse_assignments("--config", ("a=1", "b=2", "a= 1")) == {"a": "1", "b": "2"}
    with pytest.raises(ToolError, match="--config a=2: another value of a is given, too"):
        parse_assignments("--config", ("a=1", "a=2"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def assert_one_line(result: Result, *parts: str) -> None:
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("tidelog: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["topic", "list"],
        ["topic", "create", "t"],
        ["topic", "describe"],
        ["topic", "alter", "t", "--partitions", "2"],
        ["topic", "delete", "t"],
        ["config", "describe", "--topic", "t"],
        ["rebalance"],
        ["config", "alter", "--broker", "1", "--add-config", "a=b"],
        ["offsets", "t"],
        ["produce", "t"],
        ["consume", "t"],
        ["cluster", "describe"],
        ["perf", "produce", "t"],
        ["perf", "consume", "t"],
    ],
    ids=" ".join,
)
def test_no_broker_there(command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    result = run(*command, "--bootstrap-server", f"127.0.0.1:{port}")
    assert_one_line(result, f"127.0.0.1:{port}: connection refused", "'tidelog dev' starts one")


@pytest.mark.parametrize("address", ["localhost", "localhost:kafka", ":9092", "::1:9092"])
def test_an_invalid_address(address: str) -> None:
    assert_one_line(run("topic", "list", "--bootstrap-server", address), "--bootstrap-server: '", address)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["topic", "create", "t", "--config", "retention.ms"], "--config retention.ms: expected NAME=VALUE"),
        (
            ["topic", "create", "t", "--replica-assignment", "1:x"],
            "--replica-assignment 1:x: expected broker ids",
        ),
        (["config", "alter", "--topic", "t", "--add-config", "a"], "--add-config a: expected NAME=VALUE"),
        (
            ["config", "describe", "--entity-type", "brokers", "--entity-name", "x"],
            "broker ids are numbers",
        ),
        (["offsets", "t", "--time", "yesterday"], "--time yesterday: expected latest, earliest"),
        (["offsets", "t", "--partitions", "1-"], "--partitions 1-: expected numbers and ranges"),
        (
            ["consume", "t", "--property", "print.colour=true"],
            "--property print.colour=true: expected one of print.",
        ),
        (["consume", "t", "--property", "print.key=yes"], "expected true or false"),
        (["produce", "t", "--header", "x"], "--header x: expected NAME=VALUE"),
        (["produce", "t", "--key-separator", ""], "--key-separator: expected at least one character"),
        (["dump-log", "/nonexistent/00000000000000000000.log"], "no such file"),
    ],
)
def test_values_that_make_no_sense(arguments: list[str], part: str) -> None:
    assert_one_line(run(*arguments), part)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["topic", "create"], "Give the topic's name"),
        (["topic", "create", "a", "--topic", "b"], "'a' or 'b'."),
        (
            ["topic", "create", "a", "--partitions", "2", "--replica-assignment", "1"],
            "can't be combined with --partitions",
        ),
        (["config", "describe"], "Give one of --topic TOPIC"),
        (["rebalance", "--execute", "--verify"], "only one of --execute, --verify and --cancel"),
        (["config", "describe", "--topic", "t", "--broker", "1"], "Give one of --topic TOPIC"),
        (["config", "alter", "--topic", "t"], "Give --add-config"),
        (["consume", "t", "--offset", "5"], "requires --partition"),
        (["consume", "t", "--offset", "5", "--partition", "0", "--from-beginning"], "Give either"),
        (["dump-log"], "Give a segment"),
    ],
)
def test_a_command_that_is_incomplete_is_answered_with_its_usage(arguments: list[str], part: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert part in result.stderr
    assert "--help" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["consume", "t", "--max-messages", "0"], "Expected an integer, at least 1, not '0'."),
        (["consume", "t", "--max-messages", "many"], "Expected an integer, at least 1, not 'many'."),
        (["plan", "add", "2000"], "Expected an integer, from 1 to 1000, not '2000'."),
        (["topic", "list", "--request-timeout-ms", "x"], "Expected an integer, at least 1, not 'x'."),
        (["topic", "list", "--watch", "0.1"], "Expected a number, at least 0.5, not '0.1'."),
        (["console", "--interval-s", "x"], "Expected a number, from 0.5 to 3600, not 'x'."),
    ],
)
def test_a_number_beyond_its_limits_is_answered_with_them(arguments: list[str], sentence: str) -> None:
    """They were `x>=1`, and a text was not a valid `integer range`."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.endswith(f": {sentence}\n")


def commands_below(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the names of all commands that are not groups."""
    if not isinstance(command, click.Group):
        yield path
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from commands_below(below, (*path, name))


@pytest.mark.parametrize("path", list(commands_below(main)), ids=" ".join)
def test_no_help_has_ranges_in_the_notation_of_click(path: tuple[str, ...]) -> None:
    text = run(*path, "--help").stdout
    assert "RANGE" not in text
    assert not re.search(r"x[<>]", text)


def test_an_error_of_the_broker_becomes_one_line() -> None:
    error = KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "topic 't'\n partition 0 has no offset 9.")
    assert sentence_of(error) == (
        "topic 't' partition 0 has no offset 9; 'tidelog offsets' shows the existing offsets"
    )
    assert "advertised.listeners" in sentence_of(AdvertisedUnreachableError("broker 1 tells ..."))


def test_a_record_beyond_a_limit_of_the_producer_gets_advice_about_this_limit() -> None:
    """`buffer.memory` got advice about the topic's max.message.bytes, which does not help."""
    error = RecordTooLargeError("a record of 9 bytes for topic 't' exceeds buffer.memory, 8", "buffer.memory")
    assert sentence_of(error).endswith(
        "; send smaller records, or use a producer with a larger buffer.memory"
    )
    assert "max.message.bytes" in sentence_of(RecordTooLargeError("the broker refused a record"))


def test_every_command_has_help() -> None:
    for name in main.list_commands(None):  # type: ignore[arg-type]  # it needs no context
        result = run(name, "--help")
        assert result.exit_code == 0
        assert "Usage: " in result.stdout
