"""`tidelog acl`: lists, adds and deletes access control lists (kafka-acls)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import click

from tidelog.cli.output import counted, print_table, say
from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, connect
from tidelog.client.acls import create_acls, delete_acls, list_acls
from tidelog.model.acl import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from tidelog.model.principal import Principal
from tidelog.process.command_help import SuggestingGroup

F = TypeVar("F", bound=Callable[..., object])


def _name_of(operation: AclOperation) -> str:
    return operation.name.lower().replace("_", "-")


_OPERATIONS: Final = {_name_of(each): each for each in AclOperation if each is not AclOperation.ANY}


class _OperationName(click.Choice[str]):
    """The names of operations. Those of kafka-acls, such as DescribeConfigs, are accepted, too."""

    def __init__(self) -> None:
        super().__init__(list(_OPERATIONS))

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name = re.sub("(?<=[a-z])(?=[A-Z])", "-", value).lower()
        return super().convert(name if name in _OPERATIONS else value, param, ctx)


_ANY_HOST: Final = WILDCARD


class _Resource(NamedTuple):
    resource_type: ResourceType
    name: str | None


def _resource_options(function: F) -> F:
    for option in (
        click.option("--transactional-id", metavar="ID", help="Transactional id; * means all."),
        click.option("--cluster", "is_cluster", is_flag=True, help="The cluster itself."),
        click.option("--group", metavar="GROUP", help="Group; * means all."),
        click.option("--topic", metavar="TOPIC", help="Topic; * means all."),
    ):
        function = option(function)
    return function


def _resource(
    topic: str | None, group: str | None, is_cluster: bool, transactional_id: str | None
) -> _Resource:
    """Returns the resource that the options name, ANY if they name none. Raises click.UsageError."""
    named = [
        _Resource(kind, name)
        for kind, name in (
            (ResourceType.TOPIC, topic),
            (ResourceType.GROUP, group),
            (ResourceType.CLUSTER, CLUSTER_NAME if is_cluster else None),
            (ResourceType.TRANSACTIONAL_ID, transactional_id),
        )
        if name is not None
    ]
    if len(named) > 1:
        raise click.UsageError("Give only one of --topic, --group, --cluster and --transactional-id.")
    return named[0] if named else _Resource(ResourceType.ANY, None)


@click.group(cls=SuggestingGroup)
def command() -> None:
    """List, add and delete access control lists."""


@command.command(
    "list",
    cls=ToolCommand,
    examples=(
        "tidelog acl list",
        "tidelog acl list --topic flights --matching",
    ),
)
@_resource_options
@click.option("--principal", metavar="User:NAME", help="Only ACLs of this principal.")
@click.option(
    "--matching", is_flag=True, help="Also show the prefixes and wildcards that contain the resource."
)
@cluster_options
def list_command(
    topic: str | None,
    group: str | None,
    is_cluster: bool,
    transactional_id: str | None,
    principal: str | None,
    matching: bool,
    bootstrap_server: str,
    request_timeout_ms: int,
) -> None:
    """Show the ACLs of the cluster, or those of one resource or principal."""
    resource = _resource(topic, group, is_cluster, transactional_id)
    wanted = AclFilter(
        resource.resource_type,
        PatternType.MATCH if matching else PatternType.ANY,
        resource.name,
        principal,
        None,
        AclOperation.ANY,
        PermissionType.ANY,
    )
    with connect(bootstrap_server, request_timeout_ms) as cluster:
        found = list_acls(cluster, wanted)
    rows = [
        (
            acl.resource_type.name,
            acl.pattern_type.name,
            acl.resource_name,
            acl.principal,
            acl.host,
            acl.operation.name,
            acl.permission.name,
        )
        for acl in found
    ]
    names = ("type", "pattern", "resource", "principal", "host", "operation", "permission")
    print_table(names, rows, title="ACLs")


@command.command(
    "add",
    cls=ToolCommand,
    examples=(
        "tidelog acl add --topic flights --allow User:alice --operation read",
        "tidelog acl add --topic team- --prefixed --allow User:bob --operation all",
    ),
)
@_resource_options
@click.option(
    "--allow",
    "--allow-principal",
    "allow",
    metavar="User:NAME",
    multiple=True,
    help="A principal that may do the operations. Repeatable.",
)
@click.option(
    "--deny",
    "--deny-principal",
    "deny",
    metavar="User:NAME",
    multiple=True,
    help="A principal that may not do them. Repeatable.",
)
@click.option(
    "--operation",
    "operations",
    type=_OperationName(),
    multiple=True,
    required=True,
    help="An operation. Repeatable.",
)
@click.option("--prefixed", is_flag=True, help="All resources whose names begin with the given one.")
@click.option(
    "--host",
    "hosts",
    metavar="ADDRESS",
    multiple=True,
    default=[_ANY_HOST],
    show_default=True,
    help="An address, or a range such as 10.0.0.0/8. Repeatable.",
)
@cluster_options
def add(
    topic: str | None,
    group: str | None,
    is_cluster: bool,
    transactional_id: str | None,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    operations: tuple[str, ...],
    prefixed: bool,
    hosts: tuple[str, ...],
    bootstrap_server: str,
    request_timeout_ms: int,
) -> None:
    """Add ACLs: every principal, every operation, every host."""
    resource = _resource(topic, group, is_cluster, transactional_id)
    if resource.name is None:
        raise click.UsageError("Give one of --topic, --group, --cluster and --transactional-id.")
    if not allow and not deny:
        raise click.UsageError("Give --allow or --deny with a principal such as User:alice.")
    bindings = [
        AclBinding(
            resource.resource_type,
            PatternType.PREFIXED if prefixed else PatternType.LITERAL,
            resource.name,
            Principal(principal),
            host,
            _OPERATIONS[operation],
            permission,
        )
        for permission, principals in ((PermissionType.ALLOW, allow), (PermissionType.DENY, deny))
        for principal in principals
        for operation in operations
        for host in hosts
    ]
    with connect(bootstrap_server, request_timeout_ms) as cluster:
        create_acls(cluster, bindings)
    say(f"Added {counted(len(bindings), 'ACL')}.", added=len(bindings))


@command.command(
    "delete", cls=ToolCommand, examples=("tidelog acl delete --topic flights --principal User:alice",)
)
@_resource_options
@click.option("--principal", metavar="User:NAME", help="Only ACLs of this principal.")
@click.option("--operation", type=_OperationName(), help="Only ACLs with exactly this operation.")
@click.option("--prefixed", is_flag=True, help="Only ACLs of prefixes; without it, only literal ones.")
@cluster_options
def delete(
    topic: str | None,
    group: str | None,
    is_cluster: bool,
    transactional_id: str | None,
    principal: str | None,
    operation: str | None,
    prefixed: bool,
    bootstrap_server: str,
    request_timeout_ms: int,
) -> None:
    """Delete the ACLs of a resource, of a principal, or of both."""
    resource = _resource(topic, group, is_cluster, transactional_id)
    if resource.name is None and principal is None:
        raise click.UsageError("Name a resource or a --principal.")
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    wanted = AclFilter(
        resource.resource_type,
        PatternType.ANY if resource.name is None and not prefixed else pattern,
        resource.name,
        principal,
        None,
        AclOperation.ANY if operation is None else _OPERATIONS[operation],
        PermissionType.ANY,
    )
    with connect(bootstrap_server, request_timeout_ms) as cluster:
        deleted = delete_acls(cluster, wanted)
    if not deleted:
        raise ToolError("no ACL matches; 'tidelog acl list' shows all")
    say(f"Deleted {counted(deleted, 'ACL')}.", deleted=deleted)
