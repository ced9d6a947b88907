"""`tidelog kubernetes address`: a load balancer's address as a properties file for the broker.

The address is not known before the balancer is there, which takes seconds to minutes after its service was
made. So a broker's pod waits for it (in an init container), and is told with everything else it advertises.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import click
from tidelog.cli.kubernetes.api_server import NotFoundError
from tidelog.cli.kubernetes.object_reader import read_object
from tidelog.cli.output import say
from tidelog.cli.tool_command import ToolCommand, ToolError

POLL_S: Final = 2.0
PLACE: Final = "{address}"
"""What stands for the address in --listeners."""


def address_in(ingress: Iterable[Mapping[str, Any]]) -> str | None:
    """The first host name or IP address of `status.loadBalancer.ingress`, IPv6 in brackets."""
    for point in ingress:
        if point.get("hostname"):
            return str(point["hostname"])
        if ip := point.get("ip"):
            is_v6 = isinstance(ipaddress.ip_address(ip), ipaddress.IPv6Address)
            return f"[{ip}]" if is_v6 else str(ip)
    return None


@click.command(cls=ToolCommand, short_help="A load balancer's address as a properties file.")
@click.option("--service", required=True, help="The service whose balancer it is.")
@click.option(
    "--namespace", "-n", required=True, envvar="POD_NAMESPACE", show_envvar=True, help="Where it is."
)
@click.option(
    "--listeners",
    required=True,
    metavar="LISTENERS",
    help=f"What the broker advertises, with {PLACE} for the balancer's: INTERNAL://a:9092,EXTERNAL://{PLACE}:9094",
)
@click.option(
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where `advertised.listeners=...` is written, for 'tidelog broker --config FILE'.",
)
def command(service: str, namespace: str, listeners: str, output: Path) -> None:
    """Wait until the service has an address, and write what the broker advertises."""
    if PLACE not in listeners:
        raise ToolError(f"--listeners {listeners}: no {PLACE} in it")
    is_told = False
    while (address := _address_of(service, namespace)) is None:
        if not is_told:
            say(f"waiting: service {service} has no address from a load balancer yet")
            is_told = True
        time.sleep(POLL_S)
    text = f"advertised.listeners={listeners.replace(PLACE, address)}\n"
    try:
        output.write_text(text, "utf-8")
    except OSError as error:
        raise ToolError(f"--output {output}: {error.strerror}") from error
    say(text.strip())


def _address_of(service: str, namespace: str) -> str | None:
    try:
        found = read_object("service", service, namespace)
    except NotFoundError as error:
        raise ToolError(f"--service {service}: there is no such service in {namespace}") from error
    return address_in(found.get("status", {}).get("loadBalancer", {}).get("ingress") or ())
