"""`tidelog console`: a web console that shows a cluster and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, command_security
from tidelog.client.address import Address, parse_bootstrap
from tidelog.client.cluster import Cluster
from tidelog.client.errors import BadAddressError
from tidelog.client.security import ClientSecurity
from tidelog.timing.clock import SystemClock

if TYPE_CHECKING:
    from tidelog.console.record_decoder import RecordDecoder
    from tidelog.console.server import ConsoleServer

DEFAULT_LISTEN: Final = "127.0.0.1:8080"
DEFAULT_INTERVAL_MS: Final = 5_000
MAX_READ_TIMEOUT_MS: Final = 5_000
"""The console does not wait longer than this for a broker, because a page waits with it."""


@click.command(
    cls=ToolCommand,
    prints_data=False,
    examples=(
        "tidelog console",
        "tidelog console --listen 127.0.0.1:8080 -b broker-1:9092",
        "tidelog console --schema-registry http://127.0.0.1:8081",
        "tidelog console --schema-dir schemas --topic-schema orders-value=orders.desc:shop.Order",
    ),
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
@click.option(
    "--schema-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Schemas of keys and values: TOPIC-key|value.avsc for Avro, and TOPIC-key|value.desc for Protobuf, "
    "as `protoc --include_imports -o FILE` writes it.",
)
@click.option(
    "--topic-schema",
    "topic_schemas",
    multiple=True,
    metavar="TOPIC-key|value=FILE[:MESSAGE]",
    help="A file of --schema-dir with another name, and the message of a .desc file. Repeatable.",
)
@click.option(
    "--schema-registry",
    metavar="URL",
    help="Schema registry with Confluent's API, which is asked for the schema ids before keys and values.",
)
@cluster_options
def command(
    listen: str,
    interval_s: float,
    allowed_hosts: tuple[str, ...],
    schema_dir: Path | None,
    topic_schemas: tuple[str, ...],
    schema_registry: str | None,
    bootstrap_server: str,
    request_timeout_ms: int,
) -> None:
    """Serve a web console with the cluster's brokers, topics, records, groups and transactions.

    It reads the cluster while somebody looks at a page, and the health of the replicas every 20 seconds. It
    changes nothing. It has no login of its own: who reaches its address sees what --command-config may read.
    """
    if topic_schemas and schema_dir is None:
        raise ToolError("--topic-schema names files of --schema-dir: give that, too")
    server = console_server(
        listen,
        bootstrap_server,
        command_security(),
        timeout_ms=request_timeout_ms,
        interval_ms=int(interval_s * 1000),
        allowed_hosts=allowed_hosts,
        schemas=SchemaOptions(schema_dir, topic_schemas, schema_registry),
    )
    click.echo(f"console: {server.url}")
    server.run()


@dataclass(frozen=True, slots=True)
class SchemaOptions:
    """The sources of schemas for Avro and Protobuf."""

    directory: Path | None = None
    assignments: tuple[str, ...] = ()
    registry_url: str | None = None


NO_SCHEMA_OPTIONS: Final = SchemaOptions()


def console_server(
    listen: str,
    bootstrap_server: str,
    security: ClientSecurity,
    *,
    timeout_ms: int = MAX_READ_TIMEOUT_MS,
    interval_ms: int = DEFAULT_INTERVAL_MS,
    allowed_hosts: tuple[str, ...] = (),
    schemas: SchemaOptions = NO_SCHEMA_OPTIONS,
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

    decoder = _decoder(schemas)
    try:
        return ConsoleServer(
            address, connect, interval_ms=interval_ms, allowed_hosts=allowed_hosts, schemas=decoder
        )
    except OSError as error:
        raise ToolError(f"the console cannot listen at {listen}: {error.strerror}") from None


def _decoder(options: SchemaOptions) -> RecordDecoder:
    """Loads the schemas. Raises ToolError."""
    from tidelog.console.core.decoded import SchemaError
    from tidelog.console.record_decoder import RecordDecoder
    from tidelog.console.schema_files import load_schemas
    from tidelog.console.schema_registry import SchemaRegistry

    try:
        files = {} if options.directory is None else load_schemas(options.directory, options.assignments)
    except SchemaError as error:
        raise ToolError(f"--schema-dir: {error}") from None
    if options.registry_url is None:
        return RecordDecoder(files, None)
    try:
        return RecordDecoder(files, SchemaRegistry(options.registry_url, SystemClock().monotonic_ms))
    except SchemaError as error:
        raise ToolError(f"--schema-registry: {error}") from None


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
