"""`tidelog config`: shows and changes the settings of topics, brokers and groups (kafka-configs)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from tidelog.cli.output import note, print_table, say
from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, connect
from tidelog.client.admin.topics import (
    CONFIG_SOURCES,
    ConfigChange,
    ConfigResource,
    alter_configs,
    describe_configs,
)
from tidelog.client.cluster import Cluster
from tidelog.model.protocol_values import ConfigOperation, ConfigResourceType
from tidelog.process.command_help import SuggestingGroup

SECRET: Final = "(secret)"
_OWN_SOURCES: Final[Mapping[tuple[ConfigResourceType, bool], int]] = {
    (ConfigResourceType.TOPIC, True): 1,
    (ConfigResourceType.BROKER, True): 2,
    (ConfigResourceType.BROKER, False): 3,
    (ConfigResourceType.GROUP, True): 8,
}
"""The source of a resource's own settings (see CONFIG_SOURCES), by its type and whether it has a name."""
_ENTITY_TYPES: Final = {
    "topics": ConfigResourceType.TOPIC,
    "brokers": ConfigResourceType.BROKER,
    "groups": ConfigResourceType.GROUP,
}

_NAME_ONE: Final = (
    "Give one of --topic TOPIC, --group GROUP, --broker ID, --broker-defaults, "
    "or --entity-type and --entity-name as in Kafka's tool."
)
APPLY_TIMEOUT_S: Final = 10.0
"""The time within which a broker must show a change that was accepted."""
_APPLY_LOOK_S: Final = 0.1

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


# `Any`: the options of _entity_options are of different types.
def _resource(options: Mapping[str, Any]) -> ConfigResource:
    """Returns the resource that the options name. Raises click.UsageError, ToolError."""
    resource = _named_resource(options)
    if resource is None:
        raise click.UsageError(_NAME_ONE)
    return resource


def _named_resource(options: Mapping[str, Any]) -> ConfigResource | None:
    """Returns the resource that the options name, or None. Raises click.UsageError if they name several,
    ToolError.
    """
    entity_type, entity_name = options["entity_type"], options["entity_name"]
    named: list[ConfigResource] = []
    if options["topic"]:
        named.append(ConfigResource(ConfigResourceType.TOPIC, options["topic"]))
    if options["group"]:
        named.append(ConfigResource(ConfigResourceType.GROUP, options["group"]))
    if options["broker"] is not None:
        named.append(ConfigResource(ConfigResourceType.BROKER, str(options["broker"])))
    if options["broker_defaults"] or (entity_type == "brokers" and options["entity_default"]):
        named.append(ConfigResource(ConfigResourceType.BROKER, ""))
    elif entity_type and entity_name:
        resource_type = _ENTITY_TYPES[entity_type]
        if resource_type is ConfigResourceType.BROKER and not entity_name.isdecimal():
            raise ToolError(
                f"--entity-name {entity_name}: broker ids are numbers; 'tidelog cluster describe' shows them"
            )
        named.append(ConfigResource(resource_type, entity_name))
    if len(named) > 1 or (entity_type and not named):
        raise click.UsageError(_NAME_ONE)
    return named[0] if named else None


@command.command(
    "describe",
    cls=ToolCommand,
    examples=("tidelog config describe --topic flights", "tidelog config describe --broker 1 --all"),
)
@_entity_options
@click.option("--all", "shows_all", is_flag=True, help="Show defaults as well.")
@cluster_options
def describe(shows_all: bool, **entity: Any) -> None:
    """Show the settings that differ from their defaults, or all settings with --all.

    With --all and nothing else, the settings of the broker with the lowest id are shown.
    """
    named = _named_resource(entity) if shows_all else _resource(entity)
    with connect() as cluster:
        resource = named or _lowest_broker(cluster)
        if resource.resource_type is ConfigResourceType.TOPIC:
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


def _lowest_broker(cluster: Cluster) -> ConfigResource:
    lowest = min(broker.broker_id for broker in cluster.describe().brokers)
    return ConfigResource(ConfigResourceType.BROKER, str(lowest))


@command.command(
    "alter",
    cls=ToolCommand,
    examples=(
        "tidelog config alter --topic flights --add-config retention.ms=86400000",
        "tidelog config alter --broker-defaults --delete-config log.retention.ms",
    ),
)
@_entity_options
@click.argument("assignments", metavar="[NAME=VALUE]...", nargs=-1)
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
    assignments: tuple[str, ...],
    additions: tuple[str, ...],
    deletions: tuple[str, ...],
    validate_only: bool,
    **entity: Any,
) -> None:
    """Set settings, or reset them to their defaults.

    NAME=VALUE is short for --add-config. The command reports only changes that the cluster then shows.
    """
    resource = _resource(entity)
    changes = [change for text in (*assignments, *additions) for change in parse_additions(text)]
    changes += [
        ConfigChange(name.strip(), ConfigOperation.DELETE)
        for text in deletions
        for name in text.split(",")
        if name.strip()
    ]
    if not changes:
        raise click.UsageError("Give --add-config NAME=VALUE or --delete-config NAME.")
    with connect() as cluster:
        unset = set() if validate_only else _not_set(cluster, resource, changes)
        alter_configs(cluster, resource, changes, validate_only=validate_only)
        if not validate_only:
            _wait_until_shown(cluster, resource, changes)
    if unset:
        note(f"These settings were not set before: {', '.join(sorted(unset))}.")
    if len(unset) == len(changes):
        say(f"No setting of {resource} was changed.", changed=False, settings=[])
        return
    say(
        f"Settings of {resource} {'could be' if validate_only else ''} changed.".replace("  ", " "),
        changed=not validate_only,
        settings=[change.name for change in changes if change.name not in unset],
    )


def _own_settings(cluster: Cluster, resource: ConfigResource) -> set[str]:
    """Returns the names of the settings that the resource itself has."""
    own = _OWN_SOURCES[resource.resource_type, bool(resource.name)]
    return {entry.name for entry in describe_configs(cluster, resource) if entry.source == own}


def _not_set(cluster: Cluster, resource: ConfigResource, changes: Sequence[ConfigChange]) -> set[str]:
    """Returns the names of deletions that change nothing."""
    deleted = {change.name for change in changes if change.operation is ConfigOperation.DELETE}
    return deleted - _own_settings(cluster, resource) if deleted else set()


def _wait_until_shown(cluster: Cluster, resource: ConfigResource, changes: Sequence[ConfigChange]) -> None:
    """Raises ToolError if the cluster accepted a change, but does not show it."""
    wanted = {change.name: change.operation is ConfigOperation.SET for change in changes}
    deadline_s = time.monotonic() + min(APPLY_TIMEOUT_S, cluster.timeout_s)
    while True:
        found = _own_settings(cluster, resource)
        missing = sorted(name for name, is_set in wanted.items() if (name in found) != is_set)
        if not missing:
            return
        if time.monotonic() > deadline_s:
            raise ToolError(
                f"the change of {', '.join(missing)} was accepted, but {resource} does not show it; "
                "'tidelog config describe' shows the settings"
            )
        time.sleep(_APPLY_LOOK_S)


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
