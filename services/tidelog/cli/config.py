"""`tidelog config`: shows and changes the settings of topics, brokers and groups (kafka-configs)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from tidelog.cli.output import print_table, say
from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, connect
from tidelog.client.configs import (
    CONFIG_SOURCES,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ResourceType,
    alter_configs,
    describe_configs,
)
from tidelog.process.command_help import SuggestingGroup

SECRET: Final = "(secret)"
_ENTITY_TYPES: Final = {
    "topics": ResourceType.TOPIC,
    "brokers": ResourceType.BROKER,
    "groups": ResourceType.GROUP,
}

F = TypeVar("F", bound=Callable[..., object])


@click.group(cls=SuggestingGroup)
def command() -> None:
    """Show and change the settings of topics, brokers and groups."""


def _entity_options(function: F) -> F:
    for option in (
        click.option(
            "--entity-default", is_flag=True, help="With --entity-type brokers: the defaults of all brokers."
        ),
        click.option(
            "--entity-name", metavar="NAME", help="The topic's name, the broker's id or the group's id."
        ),
        click.option(
            "--entity-type",
            type=click.Choice(list(_ENTITY_TYPES)),
            help="The type of the entity that --entity-name names.",
        ),
        click.option("--broker-defaults", is_flag=True, help="The settings of all brokers."),
        click.option(
            "--broker", type=click.IntRange(min=0), metavar="ID", help="The settings of this broker."
        ),
        click.option("--group", metavar="GROUP", help="The settings of this group."),
        click.option("--topic", metavar="TOPIC", help="The settings of this topic."),
    ):
        function = option(function)
    return function


def _resource(
    topic: str | None,
    group: str | None,
    broker: int | None,
    broker_defaults: bool,
    entity_type: str | None,
    entity_name: str | None,
    entity_default: bool,
) -> ConfigResource:
    """Returns the resource that the options name. Raises click.UsageError, ToolError."""
    named: list[ConfigResource] = []
    if topic:
        named.append(ConfigResource(ResourceType.TOPIC, topic))
    if group:
        named.append(ConfigResource(ResourceType.GROUP, group))
    if broker is not None:
        named.append(ConfigResource(ResourceType.BROKER, str(broker)))
    if broker_defaults or (entity_type == "brokers" and entity_default):
        named.append(ConfigResource(ResourceType.BROKER, ""))
    elif entity_type and entity_name:
        resource_type = _ENTITY_TYPES[entity_type]
        if resource_type is ResourceType.BROKER and not entity_name.isdecimal():
            raise ToolError(
                f"--entity-name {entity_name}: broker ids are numbers; 'tidelog cluster describe' shows them"
            )
        named.append(ConfigResource(resource_type, entity_name))
    if len(named) != 1:
        raise click.UsageError(
            "Give one of --topic TOPIC, --group GROUP, --broker ID, --broker-defaults, "
            "or --entity-type and --entity-name as in Kafka's tool."
        )
    return named[0]


@command.command(
    "describe",
    cls=ToolCommand,
    examples=(
        "tidelog config describe --topic flights",
        "tidelog config describe --broker 1 --all",
    ),
)
# `Any`: the options of _entity_options are of different types.
@_entity_options
@click.option("--all", "shows_all", is_flag=True, help="Show defaults as well.")
@cluster_options
def describe(shows_all: bool, bootstrap_server: str, request_timeout_ms: int, **entity: Any) -> None:
    """Show the settings that differ from their defaults, or all settings with --all."""
    resource = _resource(**entity)
    with connect(bootstrap_server, request_timeout_ms) as cluster:
        if resource.resource_type is ResourceType.TOPIC:
            cluster.topic(resource.name)  # reports a missing topic clearly
        entries = describe_configs(cluster, resource)
    rows = [
        (
            entry.name,
            SECRET if entry.is_sensitive else entry.value,
            CONFIG_SOURCES.get(entry.source, str(entry.source)),
            "read-only" if entry.is_read_only else "",
        )
        for entry in entries
        if shows_all or entry.is_dynamic
    ]
    print_table(("name", "value", "source", "access"), rows, title=f"Settings of {resource}")


@command.command(
    "alter",
    cls=ToolCommand,
    examples=(
        "tidelog config alter --topic flights --add-config retention.ms=86400000",
        "tidelog config alter --broker-defaults --delete-config log.retention.ms",
    ),
)
@_entity_options
@click.option(
    "--add-config",
    "additions",
    multiple=True,
    metavar="NAME=VALUE[,...]",
    help="Set settings. Put a value that contains commas into brackets: NAME=[a,b].",
)
@click.option(
    "--delete-config",
    "deletions",
    multiple=True,
    metavar="NAME[,...]",
    help="Reset settings to their defaults.",
)
@click.option("--validate-only", is_flag=True, help="Only check whether the change is valid.")
@cluster_options
def alter(
    additions: tuple[str, ...],
    deletions: tuple[str, ...],
    validate_only: bool,
    bootstrap_server: str,
    request_timeout_ms: int,
    **entity: Any,
) -> None:
    """Set settings, or reset them to their defaults."""
    resource = _resource(**entity)
    changes = [change for text in additions for change in parse_additions(text)]
    changes += [
        ConfigChange(name.strip(), ConfigOperation.DELETE)
        for text in deletions
        for name in text.split(",")
        if name.strip()
    ]
    if not changes:
        raise click.UsageError("Give --add-config NAME=VALUE or --delete-config NAME.")
    with connect(bootstrap_server, request_timeout_ms) as cluster:
        alter_configs(cluster, resource, changes, validate_only=validate_only)
    say(
        f"Settings of {resource} {'could be' if validate_only else ''} changed.".replace("  ", " "),
        changed=not validate_only,
        settings=[change.name for change in changes],
    )


def parse_additions(text: str) -> list[ConfigChange]:
    """Parses `a=1,b=[x,y]`. As in Kafka's tool, brackets enclose values with commas. Raises ToolError."""
    parts: list[str] = [""]
    depth = 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    changes: list[ConfigChange] = []
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise ToolError(f"--add-config {part or text}: expected NAME=VALUE")
        value = value.strip()
        if value.startswith("[") and value.endswith("]"):
            value = value[1:-1]
        changes.append(ConfigChange(name.strip(), ConfigOperation.SET, value))
    return changes
