"""`tidelog console`: a web console that shows a cluster and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from tidelog.cli.output import note
from tidelog.cli.tool_command import (
    ToolCommand,
    ToolError,
    cluster_options,
    command_bootstrap,
    command_config,
    command_security,
    command_timeout_ms,
)
from tidelog.client.address import Address, parse_bootstrap
from tidelog.client.cluster import Cluster
from tidelog.client.errors import BadAddressError
from tidelog.client.security import ClientSecurity, SecurityConfigError, UsersSecurity, read_users_security
from tidelog.kernel.clock import SystemClock
from tidelog.process.build import install_command

if TYPE_CHECKING:
    from tidelog.console.page_reader import Connect
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
        "tidelog console --schema-registry https://registry.example --schema-registry-config login.conf",
        "tidelog console --schema-dir schemas --topic-schema orders-value=orders.desc:shop.Order",
        "tidelog console --login --command-config console.properties -b broker-1:9096 --listen 0.0.0.0:8443 "
        "--tls-certificate tls.crt --tls-key tls.key --allowed-host console.example",
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
@click.option(
    "--schema-registry-config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Properties with the login at the registry: basic.auth.user.info or bearer.auth.token, and "
    "schema.registry.ssl.truststore.location.",
)
@click.option(
    "--login/--no-login",
    "has_login",
    default=None,
    help="Let each user log in with a user of the cluster, or show everybody what --command-config may read. "
    "Needed unless the address is on loopback.",
)
@click.option(
    "--tls-certificate",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The console's certificate and its authorities, in PEM.",
)
@click.option(
    "--tls-key", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Its key, in PEM."
)
@click.option(
    "--behind-tls-proxy",
    is_flag=True,
    help="Browsers reach the console over TLS through a proxy, which passes the Host header on.",
)
@cluster_options
def command(
    listen: str,
    interval_s: float,
    allowed_hosts: tuple[str, ...],
    schema_dir: Path | None,
    topic_schemas: tuple[str, ...],
    schema_registry: str | None,
    schema_registry_config: Path | None,
    has_login: bool | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
    behind_tls_proxy: bool,
) -> None:
    """Serve a web console with the cluster's brokers, topics, records, groups and transactions.

    It reads the cluster while somebody looks at a page, and changes nothing. With --login, users log in with
    the cluster's own user names and passwords (SCRAM, PLAIN), delegation tokens (SCRAM) or bearer tokens
    (OAUTHBEARER) and see what ACLs allow them. Without it, who reaches the address sees what --command-config
    may read, and the console reads the health of the replicas every 20 seconds.
    """
    if topic_schemas and schema_dir is None:
        raise ToolError("--topic-schema names files of --schema-dir: give that, too")
    if schema_registry_config is not None and schema_registry is None:
        raise ToolError("--schema-registry-config is for a registry: give --schema-registry, too")
    exposure = Exposure(
        listen_address(listen),
        has_login=has_login,
        has_tls=tls_certificate is not None or tls_key is not None,
        is_behind_tls_proxy=behind_tls_proxy,
    )
    exposure.check()
    if exposure.shows_everybody:
        note(
            f"tidelog: warning: whoever reaches {exposure.address} sees what the console may read, without "
            "a login"
        )
    certificate = _certificate_files(tls_certificate, tls_key)
    server = console_server(
        exposure,
        command_bootstrap(),
        users_security() if has_login else command_security(),
        timeout_ms=command_timeout_ms(),
        interval_ms=int(interval_s * 1000),
        allowed_hosts=allowed_hosts,
        schemas=SchemaOptions(schema_dir, topic_schemas, schema_registry, schema_registry_config),
        certificate=certificate,
    )
    click.echo(f"console: {server.url}")
    server.run()


@dataclass(frozen=True, slots=True)
class SchemaOptions:
    """The sources of schemas for Avro and Protobuf."""

    directory: Path | None = None
    assignments: tuple[str, ...] = ()
    registry_url: str | None = None
    registry_config: Path | None = None


NO_SCHEMA_OPTIONS: Final = SchemaOptions()


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches a host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Exposure(NamedTuple):
    """The address of a console and what guards it. `has_login` is None without --login and --no-login."""

    address: Address
    has_login: bool | None = None
    has_tls: bool = False
    is_behind_tls_proxy: bool = False

    @property
    def is_local(self) -> bool:
        return is_loopback(self.address.host)

    @property
    def shows_everybody(self) -> bool:
        """Whether other machines can read the cluster without a login."""
        return not self.is_local and not self.has_login

    def check(self) -> None:
        """Raises ToolError if other machines would reach the console without a login or without TLS."""
        if self.has_tls and self.is_behind_tls_proxy:
            raise ToolError(
                "--behind-tls-proxy: the console has a certificate of its own; give one of the two options"
            )
        if self.is_local:
            return
        if self.has_login is None:
            raise ToolError(
                f"--listen {self.address}: other machines can reach this address; give --login, so that "
                "users log in with the cluster's users, or --no-login"
            )
        if not self.has_tls and not self.is_behind_tls_proxy:
            raise ToolError(
                f"--listen {self.address}: other machines can reach this address; give --tls-certificate and "
                "--tls-key, or --behind-tls-proxy if a proxy terminates TLS"
            )


def users_security() -> UsersSecurity:
    """Returns the security of --command-config for users who log in. Raises ToolError."""
    path = command_config()
    if path is None:
        raise ToolError(
            "--login: name the listener's protocol and mechanism in a file, --command-config FILE, with "
            "security.protocol=SASL_SSL and sasl.mechanism=SCRAM-SHA-512"
        )
    try:
        return read_users_security(path)
    except SecurityConfigError as error:
        raise ToolError(f"--login: {error}") from None


def _certificate_files(certificate: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    if certificate is not None and key is not None:
        return certificate, key
    if certificate is not None or key is not None:
        missing = "--tls-key" if key is None else "--tls-certificate"
        raise ToolError(f"{missing}: a certificate and its key are needed")
    return None


def console_server(
    exposure: Exposure,
    bootstrap_server: str,
    security: ClientSecurity | UsersSecurity,
    *,
    timeout_ms: int = MAX_READ_TIMEOUT_MS,
    interval_ms: int = DEFAULT_INTERVAL_MS,
    allowed_hosts: tuple[str, ...] = (),
    schemas: SchemaOptions = NO_SCHEMA_OPTIONS,
    certificate: tuple[Path, Path] | None = None,
) -> ConsoleServer:
    """Returns a console that listens but does not answer yet. Raises ToolError, ClientError."""
    for name in allowed_hosts:
        if "*" in name:
            raise ToolError(f"--allowed-host {name}: expected a host name without *")
    parse_bootstrap(bootstrap_server)
    try:
        from tidelog.console.login import LoginOptions
        from tidelog.console.server import Certificate, ConsoleServer
    except ImportError as error:
        if error.name is None or error.name.startswith("tidelog"):
            raise
        raise ToolError(f"the console needs the package {error.name}: {install_command('console')}") from None

    def connect(known: tuple[str, ...], security: ClientSecurity) -> Cluster:
        return Cluster(
            ",".join(dict.fromkeys((*bootstrap_server.split(","), *known))),
            client_id="tidelog-console",
            timeout_s=min(timeout_ms, MAX_READ_TIMEOUT_MS) / 1000,
            security=security,
        )

    decoder = _decoder(schemas)
    way: Connect | LoginOptions
    if isinstance(security, ClientSecurity):
        way = partial(connect, security=security)
    else:
        way = LoginOptions(
            security.mechanism,
            lambda login: partial(connect, security=security.of(login)),
            is_https=exposure.has_tls or exposure.is_behind_tls_proxy,
            user_claim=security.user_claim,
        )
    try:
        used = None if certificate is None else Certificate(*certificate)
    except OSError as error:
        raise ToolError(f"--tls-certificate: {_reason(error)}") from None
    try:
        return ConsoleServer(
            exposure.address,
            way,
            interval_ms=interval_ms,
            allowed_hosts=allowed_hosts,
            schemas=decoder,
            certificate=used,
        )
    except OSError as error:
        raise ToolError(f"the console cannot listen at {exposure.address}: {error.strerror}") from None


def _decoder(options: SchemaOptions) -> RecordDecoder:
    """Loads the schemas. Raises ToolError."""
    from tidelog.console.core.decoded import SchemaError
    from tidelog.console.record_decoder import RecordDecoder, load_schemas
    from tidelog.console.schema_registry import NO_LOGIN, SchemaRegistry, read_registry_login

    try:
        files = {} if options.directory is None else load_schemas(options.directory, options.assignments)
    except SchemaError as error:
        raise ToolError(f"--schema-dir: {error}") from None
    if options.registry_url is None:
        return RecordDecoder(files, None)
    path = options.registry_config
    try:
        login = NO_LOGIN if path is None else read_registry_login(path)
        registry = SchemaRegistry(options.registry_url, SystemClock().monotonic_ms, login)
    except SecurityConfigError as error:
        raise ToolError(f"--schema-registry-config: {error}") from None
    except SchemaError as error:
        raise ToolError(f"--schema-registry: {error}") from None
    if registry.sends_login_in_clear and not is_loopback(registry.host):
        note(
            f"tidelog: warning: {registry.name} has no TLS, so that others on the network can read the login"
        )
    return RecordDecoder(files, registry)


def _reason(error: OSError) -> str:
    return f"{error.filename} can't be read: {error.strerror}" if error.filename else str(error)


def listen_address(text: str) -> Address:
    """Returns the address of --listen, whose port may be 0. Raises ToolError."""
    host, colon, port = text.rpartition(":")
    if colon and port == "0" and host:
        return Address(host.removeprefix("[").removesuffix("]"), 0)
    try:
        (address,) = parse_bootstrap(text)
    except (BadAddressError, ValueError):
        raise ToolError(f"{text} is not an address: expected HOST:PORT, as in {DEFAULT_LISTEN}") from None
    return address
