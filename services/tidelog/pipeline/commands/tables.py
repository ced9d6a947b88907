"""`tidelog pipeline verify` and `maintain`, the subcommands for an archive's table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tidelog.pipeline.archive.survey import check_brokers
from tidelog.pipeline.commands.options import (
    Options,
    Size,
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
from tidelog.pipeline.tables.archive_table import table_format_of
from tidelog.pipeline.tables.maintenance import MaintenanceSettings, maintain
from tidelog.pipeline.verify.log_reader import LogReader
from tidelog.pipeline.verify.verdict import Verdict, report_html
from tidelog.process.command_help import DescribedCommand, OutputFormat, output_format, with_format

_NAMED_PROBLEMS: Final = 50
_MIN_KEEP_HOURS: Final = 1.0


@click.command("verify", cls=DescribedCommand, examples=("tidelog pipeline verify tables/flights",))
@click.argument("table", metavar="TABLE")
@with_bootstrap
@click.option(
    "--segments",
    multiple=True,
    metavar="PATH|URI",
    help="A data directory, or a copy or an export of one, instead of brokers; repeatable.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="The archive's checkpoint.",
)
@click.option(
    "--quarantine",
    metavar="TOPIC",
    help="The quarantine topic, to check the ledger's claims about it; default: trust the ledger.",
)
@click.option(
    "--html",
    "html_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a report to this file, too.",
)
@with_format
@with_spark
@with_client_settings
@click.option(
    "--storage-set",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the segments' object store; repeatable.",
)
def verify_table(**options: Any) -> None:  # see Options
    """Compare an archive's table with its ledger and the log: is each record in it exactly once?

    The report names lost, duplicated and changed records, and explains offsets without a row: transaction
    markers, aborted transactions, compaction, retention, quarantine. The exit code is 1 unless everything is
    explained.
    """
    log = log_of(options)
    from tidelog.pipeline.verify.job import STEPS, verify

    table_format_of(options["table"])  # raises NoTableError before Spark starts
    if not options["segments"]:
        check_brokers(options["bootstrap_server"], client_settings_of(options["client_set"]))
    spark = start_spark(f"verify {options['table']}", options)
    console = Console(stderr=True)
    try:
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        ) as progress:
            task = progress.add_task("verifying", total=len(STEPS))

            def on_step(name: str) -> None:
                progress.update(task, description=name, completed=STEPS.index(name))

            verdict = verify(spark, options["table"], log, on_step, quarantine_topic=options["quarantine"])
    finally:
        spark.stop()
    if html_path := options["html_path"]:
        html_path.write_text(report_html(options["table"], log.place, verdict), encoding="utf-8")
    if output_format() is OutputFormat.JSON:
        click.echo(verdict.to_json())
    else:
        print_verdict(options["table"], verdict)
    sys.exit(0 if verdict.is_complete else 1)


def log_of(options: Options) -> LogReader:
    """Returns the log to compare with. Raises PipelineError."""
    is_committed = options["isolation_level"] == "read_committed"
    storage_settings = pairs(options["storage_set"], "--storage-set")
    if options["segments"]:
        if options["client_set"]:
            raise PipelineError("--client-set is for brokers; with --segments no broker is asked")
        from tidelog.pipeline.segments.storage import Storage
        from tidelog.pipeline.verify.logs import SegmentLog

        return SegmentLog(options["segments"], Storage(storage_settings), is_committed)
    if storage_settings:
        raise PipelineError("--storage-set is for an object store; name its files with --segments")
    from tidelog.pipeline.verify.logs import BrokerLog

    client_settings = client_settings_of(options["client_set"])
    return BrokerLog(options["bootstrap_server"], client_settings, is_committed)


def print_verdict(table: str, verdict: Verdict) -> None:
    """Prints the partitions if the format is a table, one line for each problem, and the summary line."""
    console = Console(highlight=False)
    if output_format() is OutputFormat.TABLE:
        console.print(_partitions(verdict))
    for problem in verdict.problems[:_NAMED_PROBLEMS]:
        console.print(Text(problem.text, style="red"), soft_wrap=True)
    if len(verdict.problems) > _NAMED_PROBLEMS:
        click.echo(f"... and {len(verdict.problems) - _NAMED_PROBLEMS} more problems: --json lists all")
    colour = "green" if verdict.is_complete else "red"
    word = "complete" if verdict.is_complete else "NOT complete"
    console.print(
        Text.assemble(f"{table}: ", (word, f"bold {colour}"), f": {verdict.line()}"), soft_wrap=True
    )


def _partitions(verdict: Verdict) -> Table:
    table = Table(box=None, header_style="bold cyan")
    table.add_column("topic")
    for name in ("partition", "offsets", "rows", "lost", "duplicated", "changed"):
        table.add_column(name, justify="right")
    table.add_column("holes")
    table.add_column("behind", justify="right")
    for each in verdict.partitions:
        holes = ", ".join(f"{kind} {count:,}" for kind, count in sorted(each.holes.items()))
        if each.unexplained:
            holes += f"{', ' if holes else ''}[red]unexplained {each.unexplained:,}[/red]"
        faults = (f"[red]{n:,}[/red]" if n else "0" for n in (each.lost, each.duplicated, each.changed))
        table.add_row(
            each.topic,
            str(each.partition),
            f"{each.start}-{each.end - 1}",
            f"{each.rows:,}",
            *faults,
            holes,
            f"{each.behind:,}" if each.behind else "",
        )
    return table


@click.command(
    "maintain",
    cls=DescribedCommand,
    examples=("tidelog pipeline maintain tables/flights --target-file-size 256m",),
)
@click.argument("table", metavar="PATH")
@click.option("--target-file-size", type=Size(), default="128m", show_default=True)
@click.option(
    "--keep-hours",
    type=click.FloatRange(min=_MIN_KEEP_HOURS),
    default=168.0,
    show_default=True,
    help="Keep files that versions of this period need; longer than any job that reads the table.",
)
@click.option(
    "--optimize/--no-optimize", "optimizes", default=True, help="Compact small files into large ones."
)
@click.option("--vacuum/--no-vacuum", "vacuums", default=True, help="Delete files that no version needs.")
@with_spark
@with_format
def maintain_table(**options: Any) -> None:  # see Options
    """Compact small files of an archive's table into large ones, and delete files that no version needs.

    Rows and the ledger do not change. A running archive does this itself with --maintain-every. While an
    archive writes to a Delta table on a plain volume, no other process may maintain the table.
    """
    table: str = options["table"]
    table_format_of(table)  # raises NoTableError before Spark starts
    wanted = MaintenanceSettings(
        options["target_file_size"], options["keep_hours"], options["optimizes"], options["vacuums"]
    )
    console = Console(stderr=True)
    with console.status(f"maintaining {table}") as status:
        spark = start_spark(f"maintain {table}", options)
        try:
            summary = maintain(
                spark,
                table,
                wanted,
                on_pack=lambda done, of: status.update(f"maintaining {table}: {done} of {of} packs of files"),
            )
        finally:
            spark.stop()
    if output_format() is OutputFormat.JSON:
        click.echo(json.dumps(summary.as_dict()))
        return
    click.echo(
        f"{summary.table}: {summary.packed} small files became {summary.made}, "
        f"{summary.removed} unneeded files were deleted, {summary.seconds:.1f} s"
    )
