"""`tidelog console`: a web console that shows a cluster and changes nothing."""

from __future__ import annotations

import click

from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, command_security
from tidelog.client.address import Address, parse_bootstrap
from tidelog.client.cluster import Cluster
from tidelog.client.errors import BadAddressError

DEFAULT_LISTEN = "127.0.0.1:8080"
MAX_READ_TIMEOUT_MS = 5_000
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
    default=5.0,
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
    try:
        from tidelog.console.server import serve
    except ImportError as error:
        if error.name is None or error.name.startswith("tidelog"):
            raise
        raise ToolError(
            f"the console needs the package {error.name}: pip install 'tidelog[console]'"
        ) from None
    security = command_security()
    parse_bootstrap(bootstrap_server)

    def connect(known: tuple[str, ...]) -> Cluster:
        return Cluster(
            ",".join(dict.fromkeys((*bootstrap_server.split(","), *known))),
            client_id="tidelog-console",
            timeout_s=min(request_timeout_ms, MAX_READ_TIMEOUT_MS) / 1000,
            security=security,
        )

    def say_ready(address: Address) -> None:
        click.echo(f"console: http://{address}/")

    try:
        serve(
            _listen_address(listen),
            connect,
            interval_ms=int(interval_s * 1000),
            allowed_hosts=allowed_hosts,
            on_ready=say_ready,
        )
    except OSError as error:
        raise ToolError(f"--listen {listen}: {error.strerror or error}") from None


def _listen_address(text: str) -> Address:
    """Returns the address of --listen, whose port may be 0. Raises ToolError."""
    host, colon, port = text.rpartition(":")
    if colon and port == "0" and host:
        return Address(host.removeprefix("[").removesuffix("]"), 0)
    try:
        (address,) = parse_bootstrap(text)
    except (BadAddressError, ValueError):
        raise ToolError(f"--listen {text}: expected HOST:PORT, as in {DEFAULT_LISTEN}") from None
    return address
