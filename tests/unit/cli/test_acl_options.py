"""`tidelog acl` understands the options and names of kafka-acls."""

from __future__ import annotations

import click
import pytest

from tidelog.cli.acl import command


def parsed(name: str, *arguments: str) -> dict[str, object]:
    subcommand = command.get_command(click.Context(command), name)
    assert subcommand is not None
    return subcommand.make_context(name, list(arguments)).params


def test_principals_have_the_names_of_kafka_acls() -> None:
    ours = parsed("add", "--topic", "t", "--allow", "User:a", "--deny", "User:b", "--operation", "read")
    kafkas = ("--allow-principal", "User:a", "--deny-principal", "User:b", "--operation", "Read")
    assert parsed("add", "--topic", "t", *kafkas) == ours
    assert (ours["allow"], ours["deny"]) == (("User:a",), ("User:b",))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("Read", "read"),
        ("DescribeConfigs", "describe-configs"),
        ("IDEMPOTENT-WRITE", "idempotent-write"),
        ("TwoPhaseCommit", "two-phase-commit"),
        ("all", "all"),
    ],
)
def test_operations_have_the_names_of_kafka_acls(given: str, meant: str) -> None:
    assert parsed("delete", "--topic", "t", "--operation", given)["operation"] == meant


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="'Any' is not one of 'all', 'read'"):
        parsed("delete", "--topic", "t", "--operation", "Any")
