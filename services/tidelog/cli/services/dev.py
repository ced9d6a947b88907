"""`tidelog dev`: runs brokers, a controller and a coordinator in one process, with the metadata in a file."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

import click
import uvloop

from tidelog.broker.log.directory_files import read_meta_properties
from tidelog.broker.log.previous_life import LogDirectoryInUseError
from tidelog.cli.command_line import OutputError
from tidelog.embedded.adopt import metadata_directory, require_adopted
from tidelog.embedded.cluster import EmbeddedCluster
from tidelog.log_format.directory import META_PROPERTIES_FILE, CorruptFileError
from tidelog.metadata.store import StoreError
from tidelog.model.errors import KafkaError
from tidelog.process.command_help import DescribedCommand
from tidelog.process.startup import bound_collection_pauses, keep_files_private
from tidelog.process.structured_log import configure_logging, set_logger_level
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.setting import SettingError

DEFAULT_DATA_DIR: Final = Path("data")
DEFAULT_ADDRESS: Final = "127.0.0.1:9092"
DEFAULT_CONSOLE_ADDRESS: Final = "127.0.0.1:8080"
MAX_BROKERS: Final = 16
"""The brokers share one process and one core, so more of them are of no use."""
_MAX_REPLICAS: Final = 3
_FOLLOWERS: Final = "tidelog.broker.replication.follower"
_BROKER_DIRECTORY: Final = "broker-"
_ONE_BROKER_ONLY: Final = ("listeners", "advertised.listeners", "log.dirs", "log.dir")


class ConsoleUnavailableError(Exception):
    """The reason why the web console cannot be served, as one sentence."""


class TopicWanted(NamedTuple):
    """A topic of `--topic`. `partitions` is -1 for the broker's `num.partitions`."""

    name: str
    partitions: int


def _parse_assignments(assignments: tuple[str, ...]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            _fail(f"--set {assignment}: expected NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


def _parse_topic(text: str) -> TopicWanted:
    name, colon, count = text.partition(":")
    if not name or (colon and not (count.isascii() and count.isdigit() and int(count) > 0)):
        _fail(f"--topic {text}: expected NAME or NAME:PARTITIONS")
    return TopicWanted(name, int(count) if colon else -1)


def _fail(reason: str) -> NoReturn:
    click.echo(f"tidelog: {reason}", err=True)
    sys.exit(1)


@click.command(
    cls=DescribedCommand,
    examples=(
        "tidelog dev",
        "tidelog dev --brokers 3 --topic flights:6 --ephemeral",
        "tidelog dev --console",
    ),
)
@click.option(
    "--listen",
    default=DEFAULT_ADDRESS,
    show_default=True,
    metavar="HOST:PORT",
    help="Address for clients. Port 0 selects a free port. More brokers use the following ports.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for segments and metadata.  [default: data]",
)
@click.option(
    "--ephemeral",
    "is_ephemeral",
    is_flag=True,
    help="Keep the data in a temporary directory, and delete it at the end.",
)
@click.option(
    "--brokers",
    "broker_count",
    type=click.IntRange(1, MAX_BROKERS),
    help="Number of brokers.  [default: those of the data directory, or 1]",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME[:PARTITIONS]",
    help="Create a topic unless it exists. Repeatable.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a broker setting by Kafka's name. Repeatable.",
)
@click.option(
    "--secure",
    "is_secure",
    is_flag=True,
    help="Require TLS and a login. Creates certificates and the user admin; client.properties in the data "
    "directory contains its password.",
)
@click.option(
    "--console",
    "console_listen",
    is_flag=False,
    flag_value=DEFAULT_CONSOLE_ADDRESS,
    metavar="[HOST:PORT]",
    help=f"Serve the web console, too, at {DEFAULT_CONSOLE_ADDRESS} or another address on loopback. It needs "
    "the extra `console`.",
)
def command(
    listen: str,
    data_dir: Path | None,
    is_ephemeral: bool,
    broker_count: int | None,
    topics: tuple[str, ...],
    assignments: tuple[str, ...],
    is_secure: bool,
    console_listen: str | None,
) -> None:
    """Run a complete cluster in one process, for development and tests.

    It prints its address, its data and a command to try. Then it prints only warnings and errors
    (`--set tidelog.log.level=info` prints more). Ctrl-C stops it.
    """
    given = _parse_assignments(assignments)
    wanted = [_parse_topic(topic) for topic in topics]
    if is_ephemeral and data_dir is not None:
        _fail("--ephemeral: it does not keep data, so leave --data-dir out")
    if not is_ephemeral:
        _require_adopted(data_dir or DEFAULT_DATA_DIR)
    with _data_directory(data_dir, is_ephemeral=is_ephemeral) as directory:
        count = _broker_count(directory, broker_count)
        if is_secure:
            if count > 1:
                _fail("--secure: it is for one broker; 'tidelog cluster up --secure' starts several")
            _secure(given, listen, directory)
        try:
            settings = _settings(given, listen, directory, count)
        except (SettingError, CorruptFileError) as error:
            _fail(str(error))
        configure_logging(settings[0].tidelog_log_format, settings[0].tidelog_log_level)
        data = "a temporary directory, which is deleted at the end" if is_ephemeral else str(directory)
        try:
            secure_listen = listen if is_secure else None
            uvloop.run(_serve(settings, directory, wanted, data, secure_listen, console_listen))
        except (
            OSError,
            KafkaError,
            ConsoleUnavailableError,
            StoreError,
            CorruptFileError,
            LogDirectoryInUseError,
        ) as error:
            _fail(str(error))
    with contextlib.suppress(OutputError):  # nobody reads the output any more
        click.echo("stopped")


def _require_adopted(directory: Path) -> None:
    """Refuses a directory of Apache Kafka before anything in it changes, even its mode."""
    try:
        require_adopted(directory, directory)
    except (CorruptFileError, OSError, StoreError) as error:
        _fail(str(error))


@contextlib.contextmanager
def _data_directory(given: Path | None, *, is_ephemeral: bool) -> Iterator[Path]:
    if not is_ephemeral:
        directory = given or DEFAULT_DATA_DIR
        keep_files_private(directory)
        yield directory
        return
    keep_files_private()
    directory = Path(tempfile.mkdtemp(prefix="tidelog-dev-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _broker_count(directory: Path, given: int | None) -> int:
    """Returns the number of brokers, which a directory that was used before determines."""
    if (directory / META_PROPERTIES_FILE).exists():
        found = 1
    else:
        found = sum(
            1 for each in directory.glob(f"{_BROKER_DIRECTORY}*") if (each / META_PROPERTIES_FILE).exists()
        )
    if found and given is not None and given != found:
        _fail(
            f"--brokers {given}: {directory} contains the data of {found}; leave --brokers out, or use "
            "another --data-dir"
        )
    return found or given or 1


def _settings(given: dict[str, str], listen: str, directory: Path, count: int) -> list[BrokerSettings]:
    """Returns the settings of each broker. Raises SettingError, CorruptFileError."""
    replicas = min(_MAX_REPLICAS, count)
    min_isr = str(max(1, replicas - 1))
    defaults = {
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": min_isr,
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": min_isr,
        # For interactive use: groups do not wait for members that may join, and only what is wrong is logged.
        "group.initial.rebalance.delay.ms": "0",
        "tidelog.log.level": "warning",
    }
    if count == 1:
        # As in Kafka, the directory itself contains the partitions, so either program can open the other's.
        defaults |= {"listeners": f"PLAINTEXT://{listen}", "log.dirs": str(directory)}
        meta = read_meta_properties(directory)
        if meta is not None and "broker.id" not in given:
            defaults["node.id"] = str(meta.node_id)
        return [BrokerSettings.parse({**defaults, **given})]
    for name in _ONE_BROKER_ONLY:
        if name in given:
            raise SettingError(
                name, f"{name}: it cannot be set for several brokers; use --listen and --data-dir"
            )
    defaults |= {"default.replication.factor": str(replicas), "min.insync.replicas": min_isr}
    host, colon, port = listen.rpartition(":")
    if not (colon and port.isascii() and port.isdigit()):
        raise SettingError("listeners", f"--listen {listen}: expected HOST:PORT")
    first_id = BrokerSettings.parse({**defaults, **given}).node_id
    each: list[BrokerSettings] = []
    for number in range(count):
        broker_id = first_id + number
        own = {
            "node.id": str(broker_id),
            "listeners": f"PLAINTEXT://{host}:{int(port) + number if int(port) else 0}",
            "log.dirs": str(directory / f"{_BROKER_DIRECTORY}{broker_id}"),
        }
        each.append(BrokerSettings.parse({**defaults, **given, **own}))
    return each


def _secure(given: dict[str, str], listen: str, data_dir: Path) -> None:
    from tidelog.cli.local_cluster.secure_dev import secure_settings  # loads cryptography

    try:
        secure_settings(given, listen, data_dir)
    except OSError as error:
        _fail(f"--secure: {error}")


async def _serve(
    settings: list[BrokerSettings],
    data_dir: Path,
    topics: list[TopicWanted],
    data: str,
    secure_listen: str | None,
    console_listen: str | None,
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    # Only now, because a signal handler's exception would be lost in the collector's callback.
    bound_collection_pauses()
    renewals: asyncio.Task[None] | None = None
    properties: Path | None = None
    options = ""
    if secure_listen is not None:
        from tidelog.cli.local_cluster.secure_dev import ensure_admin, keep_certificate

        renewals = asyncio.create_task(keep_certificate(secure_listen, data_dir), name="renewals")
        properties = await ensure_admin(data_dir, metadata_directory(data_dir))
        options = f" --command-config {properties}"
        click.echo(f"clients:{options}")
    if len(settings) > 1:
        # Brokers that start or stop together cannot reach each other for a moment, and nothing is wrong.
        set_logger_level(_FOLLOWERS, "error")
    cluster = await EmbeddedCluster.start(settings, data_dir)
    try:
        for topic in topics:
            await cluster.ensure_topic(topic.name, topic.partitions)
        first = cluster.address.partition(",")[0]
        if first != DEFAULT_ADDRESS:
            options = f" --bootstrap-server {first}{options}"
        name = topics[0].name if topics else "first-topic"
        async with contextlib.AsyncExitStack() as beside:
            if console_listen is not None:
                console = _console(console_listen, cluster.address, properties)
                console_url = await beside.enter_async_context(console)
            click.echo(f"ready: {cluster.address}")
            click.echo(f"data:  {data}")
            if console_listen is not None:
                click.echo(f"console: {console_url}")
            click.echo(f"try:   echo hello | tidelog produce {name}{options}")
            sys.stdout.flush()
            set_logger_level(_FOLLOWERS, None)
            await stopping.wait()
        set_logger_level(_FOLLOWERS, "error")
    finally:
        if renewals is not None:
            renewals.cancel()
        await cluster.stop()


@contextlib.asynccontextmanager
async def _console(listen: str, bootstrap: str, properties: Path | None) -> AsyncIterator[str]:
    """Serves the web console in a thread of its own and yields its URL. Raises ConsoleUnavailableError.

    The brokers' own HTTP server, for metrics and probes, does not host it (ADR 0063).
    """
    # Without the option, `tidelog dev` loads neither the client nor the extra `console`.
    from tidelog.cli.services.console import Exposure, console_server, listen_address
    from tidelog.cli.tool_command import ToolError
    from tidelog.client.errors import ClientError
    from tidelog.client.security import NO_SECURITY, read_security

    try:
        security = NO_SECURITY if properties is None else read_security(properties)
        exposure = Exposure(listen_address(listen))
        if not exposure.is_local:
            raise ToolError("it serves this machine only; 'tidelog console --login' serves others")
        server = console_server(exposure, bootstrap, security)
    except (ToolError, ClientError) as error:
        raise ConsoleUnavailableError(f"--console {listen}: {error}") from error
    serving = threading.Thread(target=server.run, name="console")
    serving.start()
    try:
        yield server.url
    finally:
        server.stop()
        await asyncio.to_thread(serving.join)
