"""`tidelog pipeline analytics`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.client.cluster import Cluster
from tidelog.client.reassignments import Standing, standing_of
from tidelog.client.security import environment_properties, environment_security
from tidelog.pipeline.commands.archive import Options
from tidelog.pipeline.commands.spans import parse_ids, parse_moment, parse_span
from tidelog.pipeline.errors import PipelineError
from tidelog.process.command_help import DescribedCommand
from tidelog.process.output_format import OutputFormat, output_format, with_format

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.pipeline.analytics.history import PrometheusHistory
    from tidelog.pipeline.analytics.job import Analysis, Wishes

TOKEN_VARIABLE: Final = "TIDELOG_PROMETHEUS_TOKEN"
REPORT_FILE: Final = "report.html"


@click.command("analytics", cls=DescribedCommand, examples=("tidelog pipeline analytics --output report",))
@click.option("--prometheus", metavar="URL", help="The address of the history: http://HOST:PORT[/PATH].")
@click.option(
    "--remote-read", is_flag=True, help="Use remote read (samples as scraped) instead of range queries."
)
@click.option("--match", metavar='NAME="VALUE",...', default="", help="Use only series with these labels.")
@click.option(
    "--topic",
    metavar="TOPIC",
    help="Read this topic, which 'tidelog pipeline scrape' fills, instead of Prometheus.",
)
@click.option("--segments", metavar="PATH", help="Read the topic from segment files, without the brokers.")
@click.option(
    "--bootstrap-server", metavar="HOST:PORT[,...]", help="The cluster, for --topic and for the plan."
)
@click.option(
    "--since", default="6h", show_default=True, metavar="SPAN|TIME", help="90s, 30m, 6h, 7d or a time."
)
@click.option("--until", default="now", show_default=True, metavar="TIME", help="The end of the history.")
@click.option("--step", metavar="SPAN", help="The step of range queries; default: the scrape interval.")
@click.option(
    "--window",
    default="30m",
    show_default=True,
    metavar="SPAN",
    help="The length of the steps that trends are computed from.",
)
@click.option("--plan", "plan_way", type=click.Choice(["load", "count"]), default="load", show_default=True,
              help="What the plan balances: bytes stored and written, or replicas.")  # fmt: skip
@click.option("--without", metavar="ID,...", help="Brokers that must not hold any replica.")
@click.option("--output", required=True, type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="The directory for the report, the plan and the tables.")  # fmt: skip
@click.option("--table-format", type=click.Choice(["delta", "parquet"]), default="delta", show_default=True)
@click.option("--master", metavar="URL", help="Spark's master; default: local[*].")
@with_format
def command(**options: Any) -> None:  # see Options
    """Report ISR episodes, lag with its estimated end, retention, and skew with a plan that removes it.

    The plan is the JSON that kafka-reassign-partitions takes. With --bootstrap-server, the placement of
    replicas comes from the cluster; without it, from the metrics. TIDELOG_PROMETHEUS_TOKEN holds a bearer
    token for Prometheus.
    """
    if (options["prometheus"] is None) == (options["topic"] is None):
        raise click.UsageError("give either --prometheus URL or --topic TOPIC.")
    if options["topic"] and not (options["bootstrap_server"] or options["segments"]):
        raise click.UsageError("--topic needs --bootstrap-server or --segments.")
    now_ms = time.time_ns() // 1_000_000
    end_ms = parse_moment("--until", options["until"], now_ms)
    start_ms = parse_moment("--since", options["since"], end_ms)
    if start_ms >= end_ms:
        raise PipelineError(f"--since {options['since']} is not before --until {options['until']}")
    wishes = _wishes(options, end_ms - start_ms)
    found = _prometheus_history(options, start_ms, end_ms) if options["prometheus"] else None
    from rich.console import Console

    from tidelog.pipeline.analytics.job import analyse, write_plan, write_tables
    from tidelog.pipeline.session import spark_session

    output: Path = options["output"]
    output.mkdir(parents=True, exist_ok=True)
    with Console(stderr=True).status("starting Spark") as status:
        spark = spark_session("tidelog analytics", master=options["master"])
        facts = _facts(spark, options, found, start_ms, end_ms)
        analysis = analyse(facts, wishes, status.update)
        status.update("writing tables")
        write_tables(spark, analysis, str((output / "tables").resolve()), options["table_format"])
        if analysis.proposal.refused is None:
            write_plan(analysis.proposal, output / "reassignment.json")
        status.update("writing the report")
        _write_report(output / REPORT_FILE, analysis, now_ms)
    _show(analysis, output)


def _wishes(options: Options, span_ms: int) -> Wishes:
    from tidelog.pipeline.analytics.job import Wishes

    standing: Standing | None = None
    if options["bootstrap_server"]:
        with Cluster(
            options["bootstrap_server"], client_id="tidelog-analytics", security=environment_security()
        ) as cluster:
            standing = standing_of(cluster)
            if options["topic"] and not options["segments"]:
                cluster.topic(options["topic"])  # raises KafkaError before Spark starts
    return Wishes(
        trend_window_ms=parse_span("--window", options["window"]),
        plan_way=options["plan_way"],
        leaving=parse_ids("--without", options["without"]),
        assignment=standing.assignment if standing else None,
        racks=standing.racks if standing else None,
        span_ms=span_ms,
    )


def _prometheus_history(options: Options, start_ms: int, end_ms: int) -> PrometheusHistory:
    """Finds the history of --prometheus. Raises PipelineError, before Spark starts."""
    from tidelog.pipeline.analytics.history import find_history
    from tidelog.pipeline.analytics.prometheus import Prometheus, parse_matchers

    prometheus = Prometheus(
        options["prometheus"],
        options["remote_read"],
        parse_matchers(options["match"]),
        os.environ.get(TOKEN_VARIABLE),
    )
    step_ms = parse_span("--step", options["step"]) if options["step"] else None
    return find_history(prometheus, start_ms, end_ms, step_ms)


def _facts(
    spark: SparkSession, options: Options, found: PrometheusHistory | None, start_ms: int, end_ms: int
) -> DataFrame:
    from tidelog.pipeline.analytics import history

    if found is not None:
        return history.from_prometheus(spark, found)
    if options["segments"]:
        snapshots = history.read_snapshot_segments(spark, options["segments"], options["topic"])
    else:
        snapshots = history.read_snapshot_topic(
            spark, options["bootstrap_server"], options["topic"], start_ms, environment_properties()
        )
    return history.from_snapshots(snapshots, start_ms, end_ms)


def _write_report(path: Path, analysis: Analysis, now_ms: int) -> None:
    from tidelog.pipeline.analytics.job import load_of
    from tidelog.pipeline.analytics.report import page

    loads = [load_of(row) for row in analysis.rows["partition_loads"]]
    path.write_text(page(analysis, loads, "tidelog: lag and ISR", now_ms), "utf-8")


def _show(analysis: Analysis, output: Path) -> None:
    """Prints the worst of each kind and where to find the rest."""
    from tidelog.pipeline.analytics.report import summary
    from tidelog.pipeline.analytics.terminal import tables

    shown = list(tables(analysis))
    if output_format() is OutputFormat.JSON:
        found = [
            {"title": title, "rows": [dict(zip(columns, row, strict=True)) for row in rows]}
            for title, columns, rows in shown
        ]
        document = {"summary": summary(analysis), "report": str(output / REPORT_FILE), "tables": found}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    for title, columns, rows in shown:
        _print(title, columns, rows)
    click.echo(f"{output / REPORT_FILE}", err=True)
    click.echo(summary(analysis))


def _print(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(stderr=True, highlight=False).print(table)
