"""`tidelog adopt`: takes over a data directory that Apache Kafka wrote, with the settings of its topics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from tidelog.broker.log.directory_files import read_meta_properties
from tidelog.broker.log.previous_life import DirectoryLock, LogDirectoryInUseError
from tidelog.cli.output import counted, note, print_table, say
from tidelog.cli.tool_command import ToolCommand, ToolError
from tidelog.embedded.adopt import metadata_directory
from tidelog.embedded.kafka_adoption import AdoptedTopic, AdoptionPlan, carry_out, is_adopted, plan_adoption
from tidelog.embedded.kafka_metadata import METADATA_LOG, KafkaMetadata, read_metadata_log
from tidelog.kernel.clock import SystemClock
from tidelog.log_format.directory import CorruptFileError
from tidelog.metadata.file_store import JOURNAL_NAME, FileMetadataStore
from tidelog.metadata.store import StoreError
from tidelog.model.topics import SETTINGS_CONFIRMED
from tidelog.process.startup import keep_files_private
from tidelog.settings.properties_file import PropertiesError, parse_properties
from tidelog.settings.topic_settings import are_confirmed


@click.command(
    cls=ToolCommand,
    examples=(
        "tidelog adopt /var/lib/kafka/data",
        "tidelog adopt /var/lib/kafka/data --server-properties /etc/kafka/server.properties --execute",
    ),
)
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--metadata-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help=f"The directory of Kafka's controller with {METADATA_LOG}, if DIR has none.  [default: DIR]",
)
@click.option(
    "--server-properties",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The properties of Kafka's broker. Topics keep what they have from it, such as log.retention.ms.",
)
@click.option("--execute", "executes", is_flag=True, help="Take the directory over.")
def command(
    directory: Path, metadata_dir: Path | None, server_properties: Path | None, executes: bool
) -> None:
    """Take over a data directory that Apache Kafka wrote.

    Without --execute, the command only shows what 'tidelog dev --data-dir DIR' would serve, and what is not
    taken over. The settings of topics come from Kafka's metadata log, and those that topics have from their
    broker from --server-properties. If a setting that decides what is deleted is in neither, nothing is
    deleted from the topic until 'tidelog topic confirm-settings' confirms its settings.

    Kafka must be stopped. It can start on the directory again until something is written with tidelog.
    """
    try:
        log = _metadata_log(directory, metadata_dir)
        with _locked(directory, log.parent):
            plan = _plan(directory, log, server_properties)
            _show(plan)
            if not log.is_dir():
                note(
                    f"There is no {METADATA_LOG}, so the settings of topics are not known; --metadata-dir "
                    "names the directory of Kafka's controller."
                )
            if executes:
                _execute(plan, directory)
    except (CorruptFileError, LogDirectoryInUseError, OSError, StoreError) as error:
        raise ToolError(str(error)) from error
    unconfirmed = [topic for topic in plan.topics if not are_confirmed(topic.configs)]
    if unconfirmed:
        hint = "" if server_properties else "--server-properties may have their settings; otherwise nothing"
        note(
            f"{hint or 'Nothing'} is deleted from {counted(len(unconfirmed), 'topic')} until 'tidelog topic "
            "confirm-settings' confirms what applies."
        )
    for obstacle in plan.obstacles:
        note(f"Obstacle: {obstacle}.")
    if executes:
        say(
            f"{counted(len(plan.topics), 'topic')} of {directory} are taken over; 'tidelog dev --data-dir "
            f"{directory}' serves them.",
            topics=len(plan.topics),
        )
    elif not plan.obstacles:
        say("Nothing was changed. --execute takes the directory over.")


@contextlib.contextmanager
def _locked(*directories: Path) -> Iterator[None]:
    """Holds the locks of the directories, so that neither Kafka nor a broker of tidelog can use them."""
    with contextlib.ExitStack() as stack:
        for directory in {each.resolve() for each in directories}:
            stack.callback(DirectoryLock(directory).release)
        yield


def _metadata_log(directory: Path, metadata_dir: Path | None) -> Path:
    """Returns the directory of Kafka's metadata log, which need not exist in `directory`."""
    if metadata_dir is None:
        return directory / METADATA_LOG
    log = metadata_dir if metadata_dir.name == METADATA_LOG else metadata_dir / METADATA_LOG
    if not log.is_dir():
        raise ToolError(f"--metadata-dir {metadata_dir}: there is no {METADATA_LOG}")
    return log


def _plan(directory: Path, log: Path, server_properties: Path | None) -> AdoptionPlan:
    if (metadata_directory(directory) / JOURNAL_NAME).exists() and asyncio.run(_is_adopted(directory)):
        raise ToolError(
            f"{directory} has metadata of tidelog already; 'tidelog dev --data-dir {directory}' serves it"
        )
    meta = read_meta_properties(directory)
    if meta is None:
        raise ToolError(f"{directory}: there is no meta.properties, so it is no data directory of Kafka")
    metadata: KafkaMetadata | None = read_metadata_log(log) if log.is_dir() else None
    properties = None
    if server_properties is not None:
        try:
            found = parse_properties(server_properties.read_text())
        except PropertiesError as error:
            raise ToolError(f"{server_properties}: {error}") from error
        properties = {entry.name: entry.value for entry in found}
    return plan_adoption(directory, meta.cluster_id, meta.node_id, metadata, properties)


def _show(plan: AdoptionPlan) -> None:
    rows = [
        (topic.name, topic.topic_id, len(topic.leader_epochs), _settings(topic), _deletes(topic))
        for topic in plan.topics
    ]
    print_table(("topic", "id", "#partitions", "settings", "deletes"), rows, name="topics")
    ignored = [(each.what, each.number, each.remark) for each in plan.ignored]
    if ignored:
        print_table(("not taken over", "#count", "remark"), ignored, name="ignored")


def _settings(topic: AdoptedTopic) -> list[str]:
    return [f"{name}={text}" for name, text in sorted(topic.configs.items()) if name != SETTINGS_CONFIRMED]


def _deletes(topic: AdoptedTopic) -> str:
    if are_confirmed(topic.configs):
        return "as the settings say"
    return "nothing until confirmed" + ("" if topic.is_in_metadata else ": not in Kafka's metadata")


async def _is_adopted(directory: Path) -> bool:
    store = FileMetadataStore.open(metadata_directory(directory), monotonic_ms=SystemClock().monotonic_ms)
    try:
        return await is_adopted(store)
    finally:
        await store.close()


def _execute(plan: AdoptionPlan, directory: Path) -> None:
    if plan.obstacles:
        raise ToolError(f"nothing was changed: {'; '.join(plan.obstacles)}")
    keep_files_private()
    asyncio.run(_write(plan, directory))


async def _write(plan: AdoptionPlan, directory: Path) -> None:
    # In the directory itself: Kafka does not start on one with another directory than those of partitions.
    store = FileMetadataStore.open(directory, monotonic_ms=SystemClock().monotonic_ms)
    try:
        await carry_out(plan, store)
    finally:
        await store.close()
