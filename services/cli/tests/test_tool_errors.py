"""What people mistype: one line, exit code 1, the next step."""

from __future__ import annotations

import socket

import pytest
from click.testing import CliRunner, Result
from tidelog.cli.main import main
from tidelog.cli.tool_command import sentence_of
from tidelog.client.errors import AdvertisedUnreachableError
from tidelog.model.errors import ErrorCode, KafkaError


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
def test_an_address_that_is_none(address: str) -> None:
    assert_one_line(run("topic", "list", "--bootstrap-server", address), "--bootstrap-server: '", address)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["topic", "create", "t", "--config", "retention.ms"], "--config retention.ms: NAME=VALUE expected"),
        (["topic", "create", "t", "--replica-assignment", "1:x"], "--replica-assignment 1:x: broker ids"),
        (["config", "alter", "--topic", "t", "--add-config", "a"], "--add-config a: NAME=VALUE expected"),
        (
            ["config", "describe", "--entity-type", "brokers", "--entity-name", "x"],
            "broker ids are numbers",
        ),
        (["offsets", "t", "--time", "yesterday"], "--time yesterday: latest, earliest"),
        (["offsets", "t", "--partitions", "1-"], "--partitions 1-: numbers and ranges"),
        (["consume", "t", "--property", "print.colour=true"], "--property print.colour=true: one of print."),
        (["consume", "t", "--property", "print.key=yes"], "true or false expected"),
        (["produce", "t", "--header", "x"], "--header x: NAME=VALUE expected"),
        (["produce", "t", "--key-separator", ""], "--key-separator: at least one character"),
        (["dump-log", "/nonexistent/00000000000000000000.log"], "there is no such file"),
    ],
)
def test_values_that_make_no_sense(arguments: list[str], part: str) -> None:
    assert_one_line(run(*arguments), part)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["topic", "create"], "which topic?"),
        (["topic", "create", "a", "--topic", "b"], "'a' or 'b'?"),
        (
            ["topic", "create", "a", "--partitions", "2", "--replica-assignment", "1"],
            "leave out --partitions",
        ),
        (["config", "describe"], "whose settings?"),
        (["rebalance", "--execute", "--verify"], "one of --execute, --verify, --cancel"),
        (["config", "describe", "--topic", "t", "--broker", "1"], "whose settings?"),
        (["config", "alter", "--topic", "t"], "what to change?"),
        (["consume", "t", "--offset", "5"], "needs --partition"),
        (["consume", "t", "--offset", "5", "--partition", "0", "--from-beginning"], "not both"),
        (["dump-log"], "which files?"),
    ],
)
def test_a_command_that_is_incomplete_is_answered_with_its_usage(arguments: list[str], part: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert part in result.stderr
    assert "--help" in result.stderr


def test_an_error_of_the_broker_becomes_one_line() -> None:
    error = KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "topic 't'\n partition 0 has no offset 9.")
    assert sentence_of(error) == (
        "topic 't' partition 0 has no offset 9; 'tidelog offsets' shows the offsets there are"
    )
    assert "advertised.listeners" in sentence_of(AdvertisedUnreachableError("broker 1 tells ..."))


def test_every_command_has_help() -> None:
    for name in main.list_commands(None):  # type: ignore[arg-type]  # it needs no context
        result = run(name, "--help")
        assert result.exit_code == 0
        assert "Usage: " in result.stdout
