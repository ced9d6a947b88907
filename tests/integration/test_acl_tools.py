"""ACLs with `tidelog acl`, with librdkafka's admin client and with Kafka's AclCommand."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from brokerlab.broker_process import BrokerProcess, tidelog_command
from brokerlab.kafka_jars import JavaTools
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER

SETTINGS = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}


@pytest.fixture
def bootstrap(start_broker: Callable[..., BrokerProcess]) -> str:
    return start_broker(SETTINGS).bootstrap


def acl(bootstrap: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*tidelog_command(), "acl", *arguments, "--bootstrap-server", bootstrap]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_our_own_tool(bootstrap: str) -> None:
    added = acl(
        bootstrap,
        "add",
        "--topic",
        "t-",
        "--prefixed",
        "--allow",
        "User:a",
        "--deny",
        "User:b",
        "--operation",
        "read",
    )
    assert (added.returncode, added.stdout) == (0, "Added 2 ACLs.\n"), added.stderr
    listed = acl(bootstrap, "list", "--topic", "t-1", "--matching")
    assert "User:a" in listed.stdout
    assert "DENY" in listed.stdout
    assert "User:a" not in acl(bootstrap, "list", "--topic", "other", "--matching").stdout
    refused = acl(bootstrap, "add", "--group", "g", "--allow", "nobody", "--operation", "read")
    assert refused.returncode == 1
    assert "does not have the form User:name" in refused.stderr
    deleted = acl(bootstrap, "delete", "--principal", "User:a")
    assert deleted.stdout == "Deleted 1 ACL.\n", deleted.stderr
    assert acl(bootstrap, "delete", "--principal", "User:a").returncode == 1


def test_librdkafka(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    binding = AclBinding(
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.LITERAL,
        "User:a",
        "10.0.0.0/8",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([binding]).values():
        future.result(30)
    everything = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert admin.describe_acls(everything).result(30) == [binding]
    (deleted,) = [future.result(30) for future in admin.delete_acls([everything]).values()]
    assert deleted == [binding]
    assert admin.describe_acls(everything).result(30) == []


@pytest.mark.java
def test_kafkas_tool(java: JavaTools, bootstrap: str) -> None:
    connection = ("AclCommand", "--bootstrap-server", bootstrap)
    created = java.check(
        *connection,
        "--add",
        "--allow-principal",
        "User:a",
        "--producer",
        "--topic",
        "t",
        "--transactional-id",
        "x",
    )
    assert "Adding ACLs" in created
    java.check(
        *connection, "--add", "--allow-principal", "User:b", "--consumer", "--topic", "t", "--group", "g"
    )
    listed = java.check(*connection, "--list", "--topic", "t")
    assert listed.count("operation=WRITE") == 1
    assert listed.count("operation=READ") == 1
    assert "principal=User:b" in java.check(*connection, "--list", "--group", "g")
    java.check(*connection, "--remove", "--force", "--topic", "t")
    assert "operation" not in java.check(*connection, "--list", "--topic", "t")
    assert "User:a" in java.check(*connection, "--list", "--transactional-id", "x")


@pytest.mark.java
@pytest.mark.parametrize(
    "options",
    [
        "--producer --topic t --transactional-id x --idempotent",
        "--consumer --topic t- --group g --resource-pattern-type prefixed",
        "--producer --consumer --topic t --group g --allow-host 10.0.0.1 --allow-host 10.0.0.2",
        "--operation Read --topic t --deny-principal User:d --allow-host 10.0.0.1 --deny-host 10.0.0.2",
    ],
)
def test_our_tool_adds_what_kafkas_adds(java: JavaTools, bootstrap: str, options: str) -> None:
    given = ("--allow-principal", "User:a", *options.split())
    java.check("AclCommand", "--bootstrap-server", bootstrap, "--add", *given)
    kafkas = acl(bootstrap, "list").stdout
    for principal in ("User:a", "User:d"):
        acl(bootstrap, "delete", "--principal", principal)
    assert len(acl(bootstrap, "list").stdout.splitlines()) == 1, "only the heading"
    added = acl(bootstrap, "add", *given)
    assert added.returncode == 0, added.stderr
    assert acl(bootstrap, "list").stdout == kafkas
    assert kafkas.count("User:a") >= 1


def test_acls_survive_a_kill(start_broker: Callable[..., BrokerProcess]) -> None:
    broker = start_broker(SETTINGS)
    acl(broker.bootstrap, "add", "--topic", "t", "--allow", "User:a", "--operation", "read")
    broker.kill()
    broker.start()
    assert "User:a" in acl(broker.bootstrap, "list", "--topic", "t").stdout
