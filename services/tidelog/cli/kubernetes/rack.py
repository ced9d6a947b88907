"""`tidelog kubernetes rack`: writes a node's zone to a properties file, in the broker's init container."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from tidelog.cli.kubernetes.api_server import NotFoundError
from tidelog.cli.kubernetes.object_reader import read_object
from tidelog.cli.output import say
from tidelog.cli.tool_command import ToolCommand, ToolError

ZONE_LABEL: Final = "topology.kubernetes.io/zone"
_FORBIDDEN_IN_PROPERTIES: Final = frozenset("\\\r\n")


def rack_properties(labels: Mapping[str, str], label: str) -> str:
    """Returns the file's text, without `broker.rack` if the node has no such label."""
    rack = labels.get(label, "")
    if not rack:
        return f"# The node has no label {label}, so broker.rack is not set.\n"
    if _FORBIDDEN_IN_PROPERTIES & set(rack):
        raise ToolError(f"label {label}: {rack!r} is not a valid name of a rack")
    return f"broker.rack={rack}\n"


@click.command(
    cls=ToolCommand,
    short_help="Write a node's zone to a properties file.",
    examples=("tidelog kubernetes rack --node worker-1 --output rack.properties",),
)
@click.option("--node", required=True, envvar="NODE_NAME", show_envvar=True, help="The node's name.")
@click.option(
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Output file with `broker.rack=ZONE`, for 'tidelog broker --config FILE'.",
)
@click.option("--label", default=ZONE_LABEL, show_default=True, help="The node's label that holds the rack.")
def command(node: str, output: Path, label: str) -> None:
    """Write the node's zone as `broker.rack`, or a file without settings if the node has no zone."""
    try:
        found = read_object("node", node)
    except NotFoundError as error:
        raise ToolError(f"--node {node}: no such node") from error
    text = rack_properties(found["metadata"].get("labels") or {}, label)
    try:
        output.write_text(text, "utf-8")
    except OSError as error:
        raise ToolError(f"--output {output}: {error.strerror}") from error
    say(text.strip(), node=node, output=str(output))
