"""`tidelog kubernetes address` and `rack`: write properties files in the init containers of a broker.

The address of a load balancer is unknown until it exists, seconds to minutes after its service was created.
The broker's pod therefore waits for it, and receives it with the other advertised listeners. The rack is the
zone of the pod's node.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import click

from tidelog.cli.kubernetes.api_server import NotFoundError, read_object
from tidelog.cli.output import progress, say
from tidelog.cli.tool_command import ToolCommand, ToolError, write_text_file
from tidelog.model.text import JsonObject

POLL_S: Final = 2.0
PLACE: Final = "{address}"
"""The placeholder for the address in --listeners."""
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
_FORBIDDEN_IN_PROPERTIES: Final = frozenset("\\\r\n")


def address_in(ingress: Iterable[JsonObject]) -> str | None:
    """Returns the first host name or IP address of `status.loadBalancer.ingress`, with IPv6 in brackets."""
    for point in ingress:
        if point.get("hostname"):
            return str(point["hostname"])
        if ip := point.get("ip"):
            is_v6 = isinstance(ipaddress.ip_address(ip), ipaddress.IPv6Address)
            return f"[{ip}]" if is_v6 else str(ip)
    return None


@click.command(
    cls=ToolCommand,
    short_help="Write a load balancer's address to a properties file.",
    examples=(
        "tidelog kubernetes address --service t1 -n kafka --listeners EXT://{address}:9094 --output a.txt",
    ),
)
@click.option("--service", required=True, help="The service of the load balancer.")
@click.option(
    "--namespace",
    "-n",
    required=True,
    envvar="POD_NAMESPACE",
    show_envvar=True,
    help="The service's namespace.",
)
@click.option(
    "--listeners",
    required=True,
    metavar="LISTENERS",
    help=f"The advertised listeners, with {PLACE} for the address: INTERNAL://a:9092,EXTERNAL://{PLACE}:9094",
)
@click.option(
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Output file with `advertised.listeners=...`, for 'tidelog broker --config FILE'.",
)
def write_address(service: str, namespace: str, listeners: str, output: Path) -> None:
    """Wait until the service has an address, and write the advertised listeners."""
    if PLACE not in listeners:
        raise ToolError(f"--listeners {listeners}: {PLACE} is missing")
    is_told = False
    while (address := _address_of(service, namespace)) is None:
        if not is_told:
            progress(f"waiting: service {service} has no address from a load balancer yet")
            is_told = True
        time.sleep(POLL_S)
    text = f"advertised.listeners={listeners.replace(PLACE, address)}\n"
    write_text_file(output, text)
    say(text.strip(), address=address, output=str(output))


def _address_of(service: str, namespace: str) -> str | None:
    try:
        found = read_object("service", service, namespace)
    except NotFoundError as error:
        raise ToolError(f"--service {service}: no such service in namespace {namespace}") from error
    return address_in(found.get("status", {}).get("loadBalancer", {}).get("ingress") or ())


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
def write_rack(node: str, output: Path, label: str) -> None:
    """Write the node's zone as `broker.rack`, or a file without settings if the node has no zone."""
    try:
        found = read_object("node", node)
    except NotFoundError as error:
        raise ToolError(f"--node {node}: no such node") from error
    text = rack_properties(found["metadata"].get("labels") or {}, label)
    write_text_file(output, text)
    say(text.strip(), node=node, output=str(output))
