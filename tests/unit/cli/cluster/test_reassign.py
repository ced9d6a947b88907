"""The files of `tidelog reassign`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tidelog.cli.cluster.replicas import parse_reassignment, parse_topics, reassign_command
from tidelog.cli.tool_command import ToolError
from tidelog.client.admin.reassignments import assignment_json


def test_an_assignment_is_written_and_read() -> None:
    assignment = {("t", 0): (1, 2), ("t", 1): (2,)}
    assert parse_reassignment(assignment_json(assignment), "f") == assignment


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, 't-0 has no list of broker ids "replicas"'),
        ({"replicas": ["1"]}, 't-0 has no list of broker ids "replicas"'),
        ({"replicas": [1], "log_dirs": ["/data"]}, 'the "log_dirs" of t-0 must be "any"'),
        ({"replicas": [1, 2], "log_dirs": ["any"]}, 't-0 has 2 replicas, but 1 "log_dirs"'),
    ],
)
def test_the_fault_of_a_partition_is_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ToolError, match=message):
        parse_reassignment(json.dumps({"partitions": [{"topic": "t", "partition": 0, **fields}]}), "f")


def test_topics_to_move() -> None:
    assert parse_topics('{"version": 1, "topics": [{"topic": "t"}, {"topic": "u"}]}', "f") == ["t", "u"]
    for text in ('{"topics": []}', '{"topics": [{}]}', '{"topics": [{"topic": "t"}, {"topic": "t"}]}'):
        with pytest.raises(ToolError, match="f "):
            parse_topics(text, "f")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give one of --generate"),
        (["--execute", "--verify"], "Give one of --generate"),
        (["--execute"], "require --reassignment-json-file"),
        (["--generate", "--broker-list", "1"], "requires --topics-to-move-json-file"),
    ],
)
def test_contradicting_options_are_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(reassign_command, arguments)
    assert result.exit_code == 2
    assert message in result.output
