"""`tidelog acl`: lists, adds and deletes access control lists (kafka-acls).

An entry names resources and operations, or a role of Kafka's AclCommand (--producer, --consumer).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import click

from tidelog.cli.output import counted, print_table, say
from tidelog.cli.tool_command import ToolCommand, ToolError, asks_first, cluster_options, confirm, connect
from tidelog.client.admin.access import create_acls, delete_acls, list_acls
from tidelog.model.acl import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    Principal,
    ResourceType,
)
from tidelog.process.command_help import SuggestingGroup

F = TypeVar("F", bound=Callable[..., object])
_ANY_HOST: Final = WILDCARD
_PRODUCER_OF_TOPIC: Final = (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE)
_PRODUCER_OF_TRANSACTIONS: Final = (AclOperation.WRITE, AclOperation.DESCRIBE)
_CONSUMER_OF_TOPIC: Final = (AclOperation.READ, AclOperation.DESCRIBE)


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


# `Any`: the values of these options, which the fields of Resources have, are of different types.
def _resource_options(function: F) -> F:
    for option in (
        click.option("--transactional-id", metavar="ID", help="Transactional id; * means all."),
        click.option("--cluster", "is_cluster", is_flag=True, help="The cluster itself."),
        click.option("--group", metavar="GROUP", help="Group; * means all."),
        click.option("--topic", metavar="TOPIC", help="Topic; * means all."),
    ):
        function = option(function)
    return function


def _pattern_option(*names: str, help_text: str) -> Callable[[F], F]:
    return click.option(
        "--resource-pattern-type",
        "pattern_name",
        type=click.Choice(names, case_sensitive=False),
        help=help_text,
    )


def _chosen_pattern(pattern_name: str | None, shorthand: PatternType | None) -> PatternType | None:
    """Returns the pattern of --resource-pattern-type or of its short form, None if neither was given. Raises
    click.UsageError if they differ.
    """
    pattern = None if pattern_name is None else PatternType[pattern_name.upper()]
    if pattern and shorthand and pattern is not shorthand:
        raise click.UsageError(f"--resource-pattern-type {pattern_name} contradicts the other option.")
    return pattern or shorthand


@click.group(cls=SuggestingGroup)
def command() -> None:
    """List, add and delete access control lists."""


@command.command(
    "list", cls=ToolCommand, examples=("tidelog acl list", "tidelog acl list --topic flights --matching")
)
@_resource_options
@click.option("--principal", metavar="User:NAME", help="Only ACLs of this principal.")
@click.option(
    "--matching", is_flag=True, help="Also show the prefixes and wildcards that contain the resource."
)
@_pattern_option(
    "any", "match", "literal", "prefixed", help_text="Only ACLs of this kind of pattern.  [default: any]"
)
@cluster_options
def list_command(
    principal: str | None,
    matching: bool,
    pattern_name: str | None,
    **resource: Any,
) -> None:
    """Show the ACLs of the cluster, or those of one resource or principal."""
    resource_type, name = Resources(**resource).only() or (ResourceType.ANY, None)
    wanted = AclFilter(
        resource_type,
        _chosen_pattern(pattern_name, PatternType.MATCH if matching else None) or PatternType.ANY,
        name,
        principal,
        None,
        AclOperation.ANY,
        PermissionType.ANY,
    )
    with connect() as cluster:
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
        "tidelog acl add --topic flights --group billing --consumer --allow User:carol",
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
    "--operation", "operations", type=_OperationName(), multiple=True, help="An operation. Repeatable."
)
@click.option("--producer", "produces", is_flag=True, help="What a producer to --topic needs.")
@click.option("--consumer", "consumes", is_flag=True, help="What a consumer of --topic in --group needs.")
@click.option("--idempotent", "is_idempotent", is_flag=True, help="With --producer: idempotent writes, too.")
@_pattern_option("literal", "prefixed", help_text="How names of resources are meant.  [default: literal]")
@click.option("--prefixed", is_flag=True, help="All resources whose names begin with the given one.")
@click.option(
    "--host",
    "hosts",
    metavar="ADDRESS",
    multiple=True,
    help="An address, or a range such as 10.0.0.0/8. Repeatable.  [default: *]",
)
@click.option(
    "--allow-host", "allow_hosts", metavar="ADDRESS", multiple=True, help="As --host, only for --allow."
)
@click.option(
    "--deny-host", "deny_hosts", metavar="ADDRESS", multiple=True, help="As --host, only for --deny."
)
@cluster_options
def add(
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    operations: tuple[str, ...],
    produces: bool,
    consumes: bool,
    is_idempotent: bool,
    prefixed: bool,
    pattern_name: str | None,
    hosts: tuple[str, ...],
    allow_hosts: tuple[str, ...],
    deny_hosts: tuple[str, ...],
    **resource: Any,
) -> None:
    """Add ACLs: every principal, every operation, every host.

    --producer and --consumer stand for the operations of kafka-acls.
    """
    if not allow and not deny:
        raise click.UsageError("Give --allow or --deny with a principal such as User:alice.")
    if (allow_hosts and not allow) or (deny_hosts and not deny):
        raise click.UsageError("--allow-host needs --allow, and --deny-host needs --deny.")
    resources = Resources(**resource)
    pattern = _chosen_pattern(pattern_name, PatternType.PREFIXED if prefixed else None) or PatternType.LITERAL
    if produces or consumes:
        if operations or deny:
            raise click.UsageError("Give neither --operation nor --deny with --producer and --consumer.")
        grants = grants_of_roles(
            resources, pattern, produces=produces, consumes=consumes, is_idempotent=is_idempotent
        )
    elif is_idempotent:
        raise click.UsageError("--idempotent needs --producer.")
    else:
        grants = grants_of_operations(resources, pattern, [_OPERATIONS[each] for each in operations])
    bindings = [
        AclBinding(
            grant.resource_type,
            grant.pattern,
            grant.resource_name,
            Principal(principal),
            host,
            grant.operation,
            permission,
        )
        for permission, principals, its_hosts in (
            (PermissionType.ALLOW, allow, allow_hosts),
            (PermissionType.DENY, deny, deny_hosts),
        )
        for principal in principals
        for grant in grants
        for host in dict.fromkeys((*hosts, *its_hosts)) or (_ANY_HOST,)
    ]
    with connect() as cluster:
        create_acls(cluster, bindings)
    say(f"Added {counted(len(bindings), 'ACL')}.", added=len(bindings))


@command.command(
    "delete", cls=ToolCommand, examples=("tidelog acl delete --topic flights --principal User:alice",)
)
@_resource_options
@click.option("--principal", metavar="User:NAME", help="Only ACLs of this principal.")
@click.option("--operation", type=_OperationName(), help="Only ACLs with exactly this operation.")
@click.option("--prefixed", is_flag=True, help="Only ACLs of prefixes; without it, only literal ones.")
@_pattern_option("any", "match", "literal", "prefixed", help_text="Only ACLs of this kind of pattern.")
@asks_first
@cluster_options
def delete(
    principal: str | None,
    operation: str | None,
    prefixed: bool,
    pattern_name: str | None,
    **resource: Any,
) -> None:
    """Delete the ACLs of a resource, of a principal, or of both.

    On a terminal, it asks first.
    """
    resource_type, name = Resources(**resource).only() or (ResourceType.ANY, None)
    if name is None and principal is None:
        raise click.UsageError("Name a resource or a --principal.")
    pattern = _chosen_pattern(pattern_name, PatternType.PREFIXED if prefixed else None)
    wanted = AclFilter(
        resource_type,
        pattern or (PatternType.ANY if name is None else PatternType.LITERAL),
        name,
        principal,
        None,
        AclOperation.ANY if operation is None else _OPERATIONS[operation],
        PermissionType.ANY,
    )
    confirm("Delete all ACLs that match these options?")
    with connect() as cluster:
        deleted = delete_acls(cluster, wanted)
    if not deleted:
        raise ToolError("no ACL matches; 'tidelog acl list' shows all")
    say(f"Deleted {counted(deleted, 'ACL')}.", deleted=deleted)


class Grant(NamedTuple):
    resource_type: ResourceType
    resource_name: str
    pattern: PatternType
    operation: AclOperation


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that the options of a command name."""

    topic: str | None = None
    group: str | None = None
    is_cluster: bool = False
    transactional_id: str | None = None

    def named(self) -> list[tuple[ResourceType, str]]:
        names = (
            (ResourceType.TOPIC, self.topic),
            (ResourceType.GROUP, self.group),
            (ResourceType.CLUSTER, CLUSTER_NAME if self.is_cluster else None),
            (ResourceType.TRANSACTIONAL_ID, self.transactional_id),
        )
        return [(kind, name) for kind, name in names if name is not None]

    def only(self) -> tuple[ResourceType, str] | None:
        """Returns the resource, None if there is none. Raises click.UsageError if there are several."""
        named = self.named()
        if len(named) > 1:
            raise click.UsageError("Give only one of --topic, --group, --cluster and --transactional-id.")
        return named[0] if named else None


def grants_of_roles(
    resources: Resources, pattern: PatternType, *, produces: bool, consumes: bool, is_idempotent: bool
) -> list[Grant]:
    """Returns what producers and consumers need. Raises click.UsageError for other resources."""
    topic, group, transactional_id = resources.topic, resources.group, resources.transactional_id
    if topic is None:
        raise click.UsageError("--producer and --consumer need a --topic.")
    if consumes and group is None:
        raise click.UsageError("--consumer needs a --group.")
    if not consumes and group is not None:
        raise click.UsageError("--group needs --consumer.")
    if not produces and (transactional_id is not None or is_idempotent):
        raise click.UsageError("--transactional-id and --idempotent need --producer.")
    if resources.is_cluster:
        raise click.UsageError("Give no --cluster with --producer and --consumer; --idempotent implies it.")
    operations: list[AclOperation] = []
    found: list[Grant] = []
    if produces:
        operations += _PRODUCER_OF_TOPIC
    if consumes:
        operations += _CONSUMER_OF_TOPIC
    found += [Grant(ResourceType.TOPIC, topic, pattern, each) for each in dict.fromkeys(operations)]
    if transactional_id is not None:
        found += [
            Grant(ResourceType.TRANSACTIONAL_ID, transactional_id, pattern, each)
            for each in _PRODUCER_OF_TRANSACTIONS
        ]
    if group is not None:
        found.append(Grant(ResourceType.GROUP, group, pattern, AclOperation.READ))
    if is_idempotent:
        cluster = (ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)
        found.append(Grant(*cluster, AclOperation.IDEMPOTENT_WRITE))
    return found


def grants_of_operations(
    resources: Resources, pattern: PatternType, operations: Sequence[AclOperation]
) -> list[Grant]:
    """Returns the operations on the one resource. Raises click.UsageError if there is another number."""
    resource = resources.only()
    if resource is None:
        raise click.UsageError("Give one of --topic, --group, --cluster and --transactional-id.")
    if not operations:
        raise click.UsageError("Give --operation, --producer or --consumer.")
    return [Grant(*resource, pattern, each) for each in operations]
