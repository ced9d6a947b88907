"""`tidelog pipeline verify`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tidelog.pipeline.commands.archive import (
    BOOTSTRAP_VARIABLE,
    DEFAULT_BOOTSTRAP,
    Options,
    client_settings_of,
    pairs,
)
from tidelog.pipeline.errors import PipelineError
from tidelog.process.command_help import DescribedCommand
from tidelog.process.output_format import OutputFormat, output_format, with_format

if TYPE_CHECKING:
    from tidelog.pipeline.verify.log_reader import LogReader
    from tidelog.pipeline.verify.verdict import Verdict

_NAMED_PROBLEMS: Final = 50


@click.command("verify", cls=DescribedCommand, examples=("tidelog pipeline verify tables/flights",))
@click.argument("table", metavar="TABLE")
@click.option(
    "--bootstrap-server",
    "-b",
    default=DEFAULT_BOOTSTRAP,
    show_default=True,
    envvar=BOOTSTRAP_VARIABLE,
    metavar="LIST",
    help="The brokers that hold the log.",
)
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
@click.option("--master", help="Spark's master; default: local[*], or the one of spark-submit.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; repeatable.")
@click.option(
    "--client-set", multiple=True, metavar="KEY=VALUE", help="A setting of Spark's Kafka clients; repeatable."
)
@click.option(
    "--storage-set",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the segments' object store; repeatable.",
)
def command(**options: Any) -> None:  # see Options
    """Compare an archive's table with its ledger and the log: is each record in it exactly once?

    The report names lost, duplicated and changed records, and explains offsets without a row: transaction
    markers, aborted transactions, compaction, retention, quarantine. The exit code is 1 unless everything is
    explained.
    """
    log = log_of(options)
    from tidelog.pipeline.archive.survey import check_brokers
    from tidelog.pipeline.session import is_remote, spark_session
    from tidelog.pipeline.tables.archive_table import table_format_of
    from tidelog.pipeline.verify.job import STEPS, verify

    table_format_of(options["table"])  # raises NoTableError before Spark starts
    if not options["segments"]:
        check_brokers(options["bootstrap_server"], client_settings_of(options["client_set"]))
    settings = pairs(options["settings"], "--set")
    spark = spark_session(f"verify {options['table']}", master=options["master"], settings=settings)
    if not is_remote(spark) and (options["master"] is None or options["master"].startswith("local")):
        spark.sparkContext.setLogLevel("OFF")  # the command prints each error as one sentence
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
        from tidelog.pipeline.verify.verdict import report_html

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
