"""`tidelog console`: a web console that shows a cluster and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, command_security
from tidelog.client.address import Address, parse_bootstrap
from tidelog.client.cluster import Cluster
from tidelog.client.errors import BadAddressError
from tidelog.client.security import ClientSecurity

if TYPE_CHECKING:
    from tidelog.console.server import ConsoleServer

DEFAULT_LISTEN: Final = "127.0.0.1:8080"
DEFAULT_INTERVAL_MS: Final = 5_000
MAX_READ_TIMEOUT_MS: Final = 5_000
"""The console does not wait longer than this for a broker, because a page waits with it."""


@click.command(
    cls=ToolCommand,
    prints_data=False,
    examples=("tidelog console", "tidelog console --listen 127.0.0.1:8080 -b broker-1:9092"),
)
@click.option(
    "--listen",
    default=DEFAULT_LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    help="Address of the console. Port 0 selects a free port.",
)
@click.option(
    "--interval-s",
    type=click.FloatRange(min=0.5, max=3600),
    default=DEFAULT_INTERVAL_MS / 1000,
    show_default=True,
    help="Seconds between two readings of what somebody looks at.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Another host name by which browsers call the console. Repeatable.",
)
@cluster_options
def command(
    listen: str,
    interval_s: float,
    allowed_hosts: tuple[str, ...],
    bootstrap_server: str,
    request_timeout_ms: int,
) -> None:
    """Serve a web console with the cluster's brokers, topics, records, groups and transactions.

    It reads the cluster while somebody looks at a page, and changes nothing. It has no login of its own: who
    reaches its address sees what --command-config may read.
    """
    server = console_server(
        listen,
        bootstrap_server,
        command_security(),
        timeout_ms=request_timeout_ms,
        interval_ms=int(interval_s * 1000),
        allowed_hosts=allowed_hosts,
    )
    click.echo(f"console: {server.url}")
    server.run()


def console_server(
    listen: str,
    bootstrap_server: str,
    security: ClientSecurity,
    *,
    timeout_ms: int = MAX_READ_TIMEOUT_MS,
    interval_ms: int = DEFAULT_INTERVAL_MS,
    allowed_hosts: tuple[str, ...] = (),
) -> ConsoleServer:
    """Returns a console that listens but does not answer yet. Raises ToolError, ClientError."""
    address = _listen_address(listen)
    for name in allowed_hosts:
        if "*" in name:
            raise ToolError(f"--allowed-host {name}: expected a host name without *")
    parse_bootstrap(bootstrap_server)
    try:
        from tidelog.console.server import ConsoleServer
    except ImportError as error:
        if error.name is None or error.name.startswith("tidelog"):
            raise
        raise ToolError(
            f"the console needs the package {error.name}: pip install 'tidelog[console]'"
        ) from None

    def connect(known: tuple[str, ...]) -> Cluster:
        return Cluster(
            ",".join(dict.fromkeys((*bootstrap_server.split(","), *known))),
            client_id="tidelog-console",
            timeout_s=min(timeout_ms, MAX_READ_TIMEOUT_MS) / 1000,
            security=security,
        )

    try:
        return ConsoleServer(address, connect, interval_ms=interval_ms, allowed_hosts=allowed_hosts)
    except OSError as error:
        raise ToolError(f"the console cannot listen at {listen}: {error.strerror}") from None


def _listen_address(text: str) -> Address:
    """Returns the address of --listen, whose port may be 0. Raises ToolError."""
    host, colon, port = text.rpartition(":")
    if colon and port == "0" and host:
        return Address(host.removeprefix("[").removesuffix("]"), 0)
    try:
        (address,) = parse_bootstrap(text)
    except (BadAddressError, ValueError):
        raise ToolError(f"{text} is not an address: expected HOST:PORT, as in {DEFAULT_LISTEN}") from None
    return address
