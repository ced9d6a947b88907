"""`tidelog pipeline archive`."""

from __future__ import annotations

import functools
import json
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import Progress, TaskID

from tidelog.model.topics import TopicPartition
from tidelog.pipeline.archive.spec import DEFAULT_MAX_OFFSETS_PER_TRIGGER, ArchiveSpec
from tidelog.pipeline.archive.survey import check_topics
from tidelog.pipeline.commands.options import (
    Duration,
    Options,
    Size,
    counted_progress,
    pairs,
    with_bootstrap,
)
from tidelog.pipeline.commands.session import (
    client_settings_of,
    start_spark,
    with_client_settings,
    with_spark,
)
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.formats.value_format import load_value_format
from tidelog.pipeline.tables.ledger import CommitEntry
from tidelog.pipeline.tables.maintenance import MaintenanceSchedule, MaintenanceSettings
from tidelog.process.command_help import DescribedCommand, OutputFormat, output_format, with_format

if TYPE_CHECKING:
    from tidelog.pipeline.archive.from_segments import SegmentFiles
    from tidelog.pipeline.archive.job import ArchiveSummary


@click.command(
    "archive",
    cls=DescribedCommand,
    examples=(
        "tidelog pipeline archive --topic flights --table tables/flights",
        "tidelog pipeline archive --pattern 'orders.*' --table tables/orders --values json --every 1m",
    ),
)
@with_bootstrap
@click.option("--topic", "topics", multiple=True, help="Repeatable.")
@click.option("--pattern", help="A regular expression of whole topic names, instead of topics.")
@click.option(
    "--table", required=True, metavar="PATH", help="The table's path; it is created if it does not exist."
)
@click.option("--name", help="The archive's name; default: the table's directory.")
@click.option(
    "--checkpoint",
    metavar="PATH",
    help="The checkpoint's path; default: the table's path with '.checkpoint'.",
)
@click.option("--table-format", type=click.Choice(["delta", "parquet"]), default="delta", show_default=True)
@click.option(
    "--values",
    type=click.Choice(["raw", "json", "avro", "protobuf"]),
    default="raw",
    show_default=True,
    help="The format of values; all but raw become columns.",
)
@click.option(
    "--schema", "schemas", multiple=True, metavar="FILE", help="The schema of values; repeatable for Avro."
)
@click.option("--message", default="", help="The full name of the Protobuf message.")
@click.option(
    "--framing",
    type=click.Choice(["plain", "single-object", "confluent"]),
    default="plain",
    show_default=True,
)
@click.option(
    "--new-fields",
    type=click.Choice(["add", "ignore", "quarantine"]),
    default="add",
    show_default=True,
    help="What happens to a JSON field without a column.",
)
@click.option(
    "--event-date",
    metavar="FIELD",
    help="The field that partitions the rows by date; default: the timestamp.",
)
@click.option(
    "--quarantine",
    metavar="TOPIC",
    help="The topic for records that cannot be read; without it, they stop the job.",
)
@click.option("--group", help="The consumer group that gets the progress; default: the archive's name.")
@click.option(
    "--every",
    type=Duration(),
    help="Run until stopped, with a batch at this interval; default: archive what exists, then end.",
)
@click.option("--max-offsets", type=click.IntRange(min=1), help="Of a batch.")
@click.option(
    "--from",
    "starting",
    default="earliest",
    show_default=True,
    metavar="earliest|latest|FILE",
    help="Where the first run starts; FILE: exact offsets as JSON, {topic: {partition: offset}}.",
)
@click.option(
    "--on-data-loss",
    type=click.Choice(["stop", "go-on"]),
    default="stop",
    show_default=True,
    help="What to do if retention deleted records first; go-on: the ledger records the loss.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
)
@click.option("--target-file-size", type=Size(), default="128m", show_default=True)
@click.option("--maintain-every", type=Duration(), help="Compact files and remove old ones at this interval.")
@click.option(
    "--from-segments",
    multiple=True,
    metavar="PATH|URI",
    help="A broker's data directory, or a copy or export, to read before the live topic; repeatable.",
)
@click.option(
    "--segments-set",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the segments' object store; repeatable.",
)
@with_spark
@with_client_settings
@with_format
def command(**options: Any) -> None:  # see Options
    """Archive topics into a table, each record exactly once.

    If the job is killed and started again with the same table and checkpoint, it continues where it was. Each
    commit of the table records its offsets, their count and their hash. `tidelog pipeline verify` compares
    them with the log.
    """
    spec = spec_of(options)
    from tidelog.pipeline.archive.from_segments import run_from_segments
    from tidelog.pipeline.archive.job import run_archive

    if not options["from_segments"]:
        check_topics(spec)
    spark = start_spark(f"archive {spec.name}", options)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    console = Console(stderr=True)
    try:
        with counted_progress(console) as progress:
            bar = _Bar(progress, spec)
            run = run_archive
            if options["from_segments"]:
                run = functools.partial(run_from_segments, files=_segment_files(options))
            summary = run(spark, spec, on_start=bar.begin, on_commit=bar.advance, stops=stopping.is_set)
    finally:
        spark.stop()
    _say(summary)


def _segment_files(options: Options) -> SegmentFiles:
    from tidelog.pipeline.archive.from_segments import SegmentFiles

    return SegmentFiles(tuple(options["from_segments"]), pairs(options["segments_set"], "--segments-set"))


def spec_of(options: Options) -> ArchiveSpec:
    """Returns the spec that the options describe. Raises PipelineError."""
    table: str = options["table"].rstrip("/")
    every_ms: int | None = options["maintain_every"]
    target_bytes: int = options["target_file_size"]
    return ArchiveSpec(
        name=options["name"] or table.rpartition("/")[2],
        bootstrap=options["bootstrap_server"],
        table=table,
        checkpoint=options["checkpoint"] or f"{table}.checkpoint",
        topics=tuple(options["topics"]),
        pattern=options["pattern"],
        table_format=options["table_format"],
        value_format=load_value_format(
            options["values"],
            schema_files=options["schemas"],
            message=options["message"],
            framing=options["framing"],
            new_fields=options["new_fields"],
        ),
        event_date_field=options["event_date"],
        group=options["group"],
        quarantine_topic=options["quarantine"],
        interval_ms=options["every"],
        max_offsets_per_trigger=options["max_offsets"] or DEFAULT_MAX_OFFSETS_PER_TRIGGER,
        on_data_loss="go_on" if options["on_data_loss"] == "go-on" else "stop",
        starting=starting_of(options["starting"]),
        isolation_level=options["isolation_level"],
        target_file_bytes=target_bytes,
        maintenance=MaintenanceSchedule(every_ms / 1000, MaintenanceSettings(target_bytes))
        if every_ms
        else None,
        client_settings=client_settings_of(options["client_set"]),
    )


def starting_of(text: str) -> str | dict[TopicPartition, int]:
    """Returns where the first run starts. Raises PipelineError."""
    if text in ("earliest", "latest"):
        return text
    try:
        topics = json.loads(Path(text).read_text())
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in topics.items()
            for partition, offset in partitions.items()
        }
    except OSError as error:
        raise PipelineError(f"--from: {text} cannot be read: {error.strerror}") from error
    except (ValueError, AttributeError, TypeError) as error:
        raise PipelineError(
            f'--from: {text} contains no offsets; the form is {{"topic": {{"0": 123}}}}'
        ) from error


class _Bar:
    """Shows archived offsets out of the waiting ones as a bar on a terminal, or as one line for each batch
    elsewhere.
    """

    def __init__(self, progress: Progress, spec: ArchiveSpec) -> None:
        self._progress = progress
        self._name = spec.name
        self._task: TaskID | None = None
        self._is_endless = spec.interval_ms is not None

    def begin(self, waiting: int) -> None:
        total = None if self._is_endless else waiting
        self._task = self._progress.add_task(self._name, total=total)

    def advance(self, entry: CommitEntry) -> None:
        assert self._task is not None
        offsets = sum(each.end - each.start for each in entry.ranges)
        self._progress.advance(self._task, offsets)
        if not self._progress.console.is_terminal:
            rows = sum(each.stored for each in entry.ranges)
            click.echo(f"batch {entry.batch_id}: {offsets:,} offsets, {rows:,} rows", err=True)


def _say(summary: ArchiveSummary) -> None:
    if output_format() is OutputFormat.JSON:
        click.echo(json.dumps(summary.as_dict()))
        return
    extra = ""
    if summary.quarantined:
        extra += f", {summary.quarantined:,} to quarantine"
    if summary.given_up:
        extra += f", {summary.given_up:,} offsets lost to retention"
    click.echo(
        f"{summary.archive}: {summary.rows:,} rows in {summary.batches} batches to {summary.table}{extra}, "
        f"{summary.seconds:.1f} s"
    )
