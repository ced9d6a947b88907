"""`tidelog dev`: runs broker and controller in one process, with the metadata in a file beside the data."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from pathlib import Path
from typing import NoReturn

import click
import uvloop

from tidelog.broker.log.errors import CorruptFileError, LogDirectoryInUseError
from tidelog.embedded.cluster import METADATA_DIRECTORY, EmbeddedCluster
from tidelog.metadata.store import StoreError
from tidelog.model.errors import KafkaError
from tidelog.process.private_files import keep_files_private
from tidelog.process.structured_log import configure_logging
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.setting import SettingError


def _parse_assignments(assignments: tuple[str, ...]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            _fail(f"--set {assignment}: expected NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


def _fail(reason: str) -> NoReturn:
    click.echo(f"tidelog: {reason}", err=True)
    sys.exit(1)


@click.command()
@click.option(
    "--listen",
    default="127.0.0.1:9092",
    show_default=True,
    metavar="HOST:PORT",
    help="Address for clients. Port 0 selects a free port.",
)
@click.option(
    "--data-dir",
    default="data",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for segments and metadata.",
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
def command(listen: str, data_dir: Path, assignments: tuple[str, ...], is_secure: bool) -> None:
    """Run a complete single-broker cluster in one process, for development and tests."""
    given = _parse_assignments(assignments)
    keep_files_private(data_dir)
    if is_secure:
        _secure(given, listen, data_dir)
    given.setdefault("listeners", f"PLAINTEXT://{listen}")
    # As in Kafka, the directory itself contains the partitions, so either program can open the other's.
    given.setdefault("log.dirs", str(data_dir))
    # One broker can't hold more than one replica of a partition.
    for name in (
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.min.isr",
    ):
        given.setdefault(name, "1")
    try:
        settings = BrokerSettings.parse(given)
    except SettingError as error:
        _fail(str(error))
    configure_logging(settings.tidelog_log_format, settings.tidelog_log_level)
    try:
        uvloop.run(_serve(settings, data_dir, listen if is_secure else None))
    except (OSError, KafkaError, StoreError, CorruptFileError, LogDirectoryInUseError) as error:
        _fail(str(error))


def _secure(given: dict[str, str], listen: str, data_dir: Path) -> None:
    from tidelog.cli.secure_dev import secure_settings  # loads cryptography

    try:
        secure_settings(given, listen, data_dir)
    except OSError as error:
        _fail(f"--secure: {error}")


async def _serve(settings: BrokerSettings, data_dir: Path, secure_listen: str | None) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    renewals: asyncio.Task[None] | None = None
    if secure_listen is not None:
        from tidelog.cli.secure_dev import ensure_admin, keep_certificate

        renewals = asyncio.create_task(keep_certificate(secure_listen, data_dir), name="renewals")
        properties = await ensure_admin(data_dir, data_dir / METADATA_DIRECTORY)
        click.echo(f"clients: --command-config {properties}")
    cluster = await EmbeddedCluster.start(settings, data_dir)
    try:
        # The objects of the start live as long as the process, so later garbage collections can skip them.
        gc.collect()
        gc.freeze()
        click.echo(f"ready: {cluster.address}")
        sys.stdout.flush()
        await stopping.wait()
    finally:
        if renewals is not None:
            renewals.cancel()
        await cluster.stop()
