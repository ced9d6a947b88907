"""`tidelog pipeline analytics`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from tidelog.client.cluster import Cluster
from tidelog.client.reassignments import Standing, standing_of
from tidelog.pipeline.commands.spans import parse_ids, parse_moment, parse_span
from tidelog.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tidelog.pipeline.analytics.job import Analysis, Wishes

TOKEN_VARIABLE: Final = "TIDELOG_PROMETHEUS_TOKEN"
REPORT_FILE: Final = "report.html"


@click.command("analytics")
@click.option("--prometheus", metavar="URL", help="Where the history is: http://HOST:PORT[/PATH].")
@click.option(
    "--remote-read", is_flag=True, help="By remote read (samples as scraped), not by range queries."
)
@click.option("--match", metavar='NAME="VALUE",...', default="", help="Only series with these labels.")
@click.option("--topic", metavar="TOPIC", help="Instead: the topic that 'tidelog pipeline scrape' fills.")
@click.option("--segments", metavar="PATH", help="Read that topic from segment files, without the brokers.")
@click.option(
    "--bootstrap-server", metavar="HOST:PORT[,...]", help="The cluster: for --topic, and for the plan."
)
@click.option(
    "--since", default="6h", show_default=True, metavar="SPAN|TIME", help="90s, 30m, 6h, 7d or a time."
)
@click.option("--until", default="now", show_default=True, metavar="TIME", help="The history's end.")
@click.option("--step", metavar="SPAN", help="Of range queries; without it, as often as was scraped.")
@click.option("--window", default="30m", show_default=True, metavar="SPAN", help="What trends are made of.")
@click.option("--plan", "plan_way", type=click.Choice(["load", "count"]), default="load", show_default=True,
              help="What the plan evens out: bytes stored and written, or replicas.")  # fmt: skip
@click.option("--without", metavar="ID,...", help="Brokers that are to hold nothing any more.")
@click.option("--output", required=True, type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="For the report, the plan and the tables.")  # fmt: skip
@click.option("--table-format", type=click.Choice(["delta", "parquet"]), default="delta", show_default=True)
@click.option("--master", metavar="URL", help="Spark's; local[*] without it.")
def command(**options: Any) -> None:
    """ISR episodes, lag and when it is gone, retention, skew and a plan against it: tables and a report.

    The plan is the JSON that kafka-reassign-partitions takes. With --bootstrap-server the cluster is asked
    where replicas are; without, the metrics tell. A bearer token for Prometheus: TIDELOG_PROMETHEUS_TOKEN.
    """
    if (options["prometheus"] is None) == (options["topic"] is None):
        raise click.UsageError("one of --prometheus URL and --topic TOPIC, please.")
    if options["topic"] and not (options["bootstrap_server"] or options["segments"]):
        raise click.UsageError("--topic needs --bootstrap-server or --segments.")
    now_ms = time.time_ns() // 1_000_000
    end_ms = parse_moment("--until", options["until"], now_ms)
    start_ms = parse_moment("--since", options["since"], end_ms)
    if start_ms >= end_ms:
        raise PipelineError(f"--since {options['since']} is not before --until {options['until']}")
    wishes = _wishes(options, end_ms - start_ms)
    from rich.console import Console
    from tidelog.pipeline.analytics.job import analyse, write_plan, write_tables
    from tidelog.pipeline.session import spark_session

    output: Path = options["output"]
    output.mkdir(parents=True, exist_ok=True)
    with Console(stderr=True).status("starting Spark") as status:
        spark = spark_session("tidelog analytics", master=options["master"])
        facts = _facts(spark, options, start_ms, end_ms)
        analysis = analyse(facts, wishes, status.update)
        status.update("writing tables")
        write_tables(spark, analysis, str((output / "tables").resolve()), options["table_format"])
        if analysis.proposal.refused is None:
            write_plan(analysis.proposal, output / "reassignment.json")
        status.update("writing the report")
        _write_report(output / REPORT_FILE, analysis, now_ms)
    _show(analysis, output)


def _wishes(options: dict[str, Any], span_ms: int) -> Wishes:
    from tidelog.pipeline.analytics.job import Wishes

    standing: Standing | None = None
    if options["bootstrap_server"]:
        with Cluster(options["bootstrap_server"], client_id="tidelog-analytics") as cluster:
            standing = standing_of(cluster)
    return Wishes(
        trend_window_ms=parse_span("--window", options["window"]),
        plan_way=options["plan_way"],
        leaving=parse_ids("--without", options["without"]),
        assignment=standing.assignment if standing else None,
        racks=standing.racks if standing else None,
        span_ms=span_ms,
    )


def _facts(spark: SparkSession, options: dict[str, Any], start_ms: int, end_ms: int) -> DataFrame:
    from tidelog.pipeline.analytics import history
    from tidelog.pipeline.analytics.prometheus import Prometheus, parse_matchers

    if options["prometheus"]:
        prometheus = Prometheus(
            options["prometheus"],
            options["remote_read"],
            parse_matchers(options["match"]),
            os.environ.get(TOKEN_VARIABLE),
        )
        step_ms = parse_span("--step", options["step"]) if options["step"] else None
        return history.from_prometheus(spark, prometheus, start_ms, end_ms, step_ms)
    if options["segments"]:
        snapshots = history.read_snapshot_segments(spark, options["segments"], options["topic"])
    else:
        snapshots = history.read_snapshot_topic(
            spark, options["bootstrap_server"], options["topic"], start_ms, {}
        )
    return history.from_snapshots(snapshots, start_ms, end_ms)


def _write_report(path: Path, analysis: Analysis, now_ms: int) -> None:
    from tidelog.pipeline.analytics.job import load_of
    from tidelog.pipeline.analytics.report import page

    loads = [load_of(row) for row in analysis.rows["partition_loads"]]
    path.write_text(page(analysis, loads, "tidelog: lag and ISR", now_ms), "utf-8")


def _show(analysis: Analysis, output: Path) -> None:
    """The worst of each, and where the rest is."""
    from tidelog.pipeline.analytics.report import summary
    from tidelog.pipeline.analytics.terminal import tables

    for title, columns, rows in tables(analysis):
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
