"""`tidelog acl` understands the options and names of kafka-acls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner, Result

from tidelog.cli.admin import acl
from tidelog.cli.admin.acl import command
from tidelog.model.acl import AclBinding, AclFilter, PatternType, PermissionType, Principal


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


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[AclBinding]]:
    """Yields the entries that commands add, without a cluster."""
    found: list[AclBinding] = []
    monkeypatch.setattr(acl, "connect", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(acl, "create_acls", lambda cluster, bindings: found.extend(bindings))
    yield found


def add(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["add", *arguments])


def short(bindings: list[AclBinding]) -> set[tuple[str, str, str, str]]:
    return {(b.resource_type.name, b.resource_name, b.pattern_type.name, b.operation.name) for b in bindings}


def test_a_producer_gets_what_kafka_acls_gives(added: list[AclBinding]) -> None:
    done = add("--producer", "--idempotent", "--topic", "t", "--transactional-id", "x", "--allow", "User:a")
    assert done.exit_code == 0, done.output
    assert short(added) == {
        *(("TOPIC", "t", "LITERAL", each) for each in ("WRITE", "DESCRIBE", "CREATE")),
        *(("TRANSACTIONAL_ID", "x", "LITERAL", each) for each in ("WRITE", "DESCRIBE")),
        ("CLUSTER", "kafka-cluster", "LITERAL", "IDEMPOTENT_WRITE"),
    }
    assert {(b.permission, b.host, str(b.principal)) for b in added} == {
        (PermissionType.ALLOW, "*", str(Principal("User:a")))
    }


def test_a_consumer_gets_what_kafka_acls_gives(added: list[AclBinding]) -> None:
    arguments = ("--topic", "t-", "--group", "t-", "--allow-principal", "User:a")
    assert add("--consumer", "--resource-pattern-type", "PREFIXED", *arguments).exit_code == 0
    read = {("TOPIC", "t-", "PREFIXED", "READ"), ("GROUP", "t-", "PREFIXED", "READ")}
    describe = ("TOPIC", "t-", "PREFIXED", "DESCRIBE")
    assert short(added) == {*read, describe}
    added.clear()
    assert add("--consumer", "--producer", "--prefixed", *arguments).exit_code == 0
    written = {("TOPIC", "t-", "PREFIXED", each) for each in ("WRITE", "CREATE")}
    assert short(added) == {*read, describe, *written}
    assert len(added) == len(short(added)), "no entry occurs twice"


def test_hosts_belong_to_their_permission(added: list[AclBinding]) -> None:
    principals = ("--allow-principal", "User:a", "--deny-principal", "User:b", "--operation", "Read")
    hosts = ("--allow-host", "10.0.0.1", "--allow-host", "10.0.0.2", "--deny-host", "10.0.0.3")
    for given, allowed, denied in (
        ((), {"*"}, {"*"}),
        (hosts, {"10.0.0.1", "10.0.0.2"}, {"10.0.0.3"}),
        (("--host", "10.0.0.9", *hosts[4:]), {"10.0.0.9"}, {"10.0.0.9", "10.0.0.3"}),
        (hosts[:2], {"10.0.0.1"}, {"*"}),
    ):
        added.clear()
        assert add("--topic", "t", *principals, *given).exit_code == 0
        assert {b.host for b in added if b.permission is PermissionType.ALLOW} == allowed
        assert {b.host for b in added if b.permission is PermissionType.DENY} == denied


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--topic t --allow User:a", "Give --operation, --producer or --consumer."),
        ("--topic t --operation read", "Give --allow or --deny"),
        ("--allow User:a --operation read", "Give one of --topic"),
        ("--topic t --group g --allow User:a --operation read", "Give only one of --topic"),
        ("--producer --allow User:a", "need a --topic"),
        ("--consumer --topic t --allow User:a", "--consumer needs a --group"),
        ("--producer --topic t --group g --allow User:a", "--group needs --consumer"),
        ("--consumer --topic t --group g --transactional-id x --allow User:a", "need --producer"),
        ("--consumer --topic t --group g --idempotent --allow User:a", "need --producer"),
        ("--producer --topic t --cluster --allow User:a", "--idempotent implies it"),
        ("--producer --topic t --allow User:a --operation read", "Give neither --operation nor --deny"),
        ("--producer --topic t --allow User:a --deny User:b", "Give neither --operation nor --deny"),
        ("--idempotent --topic t --allow User:a --operation read", "--idempotent needs --producer"),
        ("--topic t --deny User:a --operation read --allow-host 10.0.0.1", "--allow-host needs --allow"),
        ("--topic t --allow User:a --operation read --deny-host 10.0.0.1", "--deny-host needs --deny"),
        (
            "--topic t --prefixed --resource-pattern-type literal --allow User:a --operation read",
            "contradicts the other option",
        ),
    ],
)
def test_options_that_contradict_each_other_add_nothing(
    added: list[AclBinding], arguments: str, reason: str
) -> None:
    refused = add(*arguments.split())
    assert refused.exit_code == 2
    assert reason in refused.stderr
    assert added == []


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ("list", PatternType.ANY),
        ("list --topic t --matching", PatternType.MATCH),
        ("list --topic t --resource-pattern-type match", PatternType.MATCH),
        ("list --topic t --resource-pattern-type prefixed", PatternType.PREFIXED),
        ("delete --principal User:a", PatternType.ANY),
        ("delete --topic t", PatternType.LITERAL),
        ("delete --topic t --prefixed", PatternType.PREFIXED),
        ("delete --topic t --resource-pattern-type any", PatternType.ANY),
        ("delete --principal User:a --resource-pattern-type literal", PatternType.LITERAL),
    ],
)
def test_patterns_of_filters(monkeypatch: pytest.MonkeyPatch, arguments: str, pattern: PatternType) -> None:
    asked: list[AclFilter] = []
    monkeypatch.setattr(acl, "connect", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(acl, "list_acls", lambda cluster, wanted: asked.append(wanted) or [])
    monkeypatch.setattr(acl, "delete_acls", lambda cluster, wanted: asked.append(wanted) or 1)
    done = CliRunner().invoke(command, arguments.split())
    assert done.exit_code == 0, done.output
    assert [each.pattern_type for each in asked] == [pattern]
