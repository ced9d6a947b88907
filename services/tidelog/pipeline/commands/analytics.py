"""`tidelog pipeline analytics`."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidelog.client.admin.reassignments import Standing, plan_json, standing_of
from tidelog.client.cluster import Cluster
from tidelog.client.security import environment_security
from tidelog.pipeline.commands.options import Options, parse_ids, parse_moment, parse_span
from tidelog.pipeline.errors import PipelineError
from tidelog.process.command_help import DescribedCommand, OutputFormat, output_format, with_format

if TYPE_CHECKING:
    from tidelog.pipeline.analytics.job import Analysis

TOKEN_VARIABLE: Final = "TIDELOG_PROMETHEUS_TOKEN"
_MOST_ROWS: Final = 10
_EXAMPLE: Final = "tidelog pipeline analytics --prometheus http://localhost:9090 --output skew"
_Shown = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""The title, the columns and the rows of a table."""


@click.command("analytics", cls=DescribedCommand, examples=(_EXAMPLE,))
@click.option(
    "--prometheus", required=True, metavar="URL", help="The address of the history: http://HOST:PORT[/PATH]."
)
@click.option("--match", metavar='NAME="VALUE",...', default="", help="Use only series with these labels.")
@click.option(
    "--bootstrap-server",
    metavar="HOST:PORT[,...]",
    help="The cluster, which knows the placement of all replicas.",
)
@click.option(
    "--since", default="6h", show_default=True, metavar="SPAN|TIME", help="90s, 30m, 6h, 7d or a time."
)
@click.option("--until", default="now", show_default=True, metavar="TIME", help="The end of the history.")
@click.option("--step", metavar="SPAN", help="Read one value for each step; default: each sample.")
@click.option(
    "--window",
    default="30m",
    show_default=True,
    metavar="SPAN",
    help="The last part of the history, from which rates are computed.",
)
@click.option("--without", metavar="ID,...", help="Brokers that must not hold any replica.")
@click.option("--output", required=True, type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="The directory for the plan and the tables.")  # fmt: skip
@click.option("--table-format", type=click.Choice(["delta", "parquet"]), default="delta", show_default=True)
@click.option("--master", metavar="URL", help="Spark's master; default: local[*].")
@with_format
def command(**options: Any) -> None:  # see Options
    """Make tables of the metrics' history, of ISR episodes and of skew, and a plan that removes the skew.

    The plan is the JSON that kafka-reassign-partitions takes. With --bootstrap-server, the placement of
    replicas comes from the cluster; without it, from the metrics. TIDELOG_PROMETHEUS_TOKEN holds a bearer
    token for Prometheus.
    """
    end_ms = parse_moment("--until", options["until"], time.time_ns() // 1_000_000)
    start_ms = parse_moment("--since", options["since"], end_ms)
    if start_ms >= end_ms:
        raise PipelineError(f"--since {options['since']} is not before --until {options['until']}")
    window_ms = parse_span("--window", options["window"])
    leaving = parse_ids("--without", options["without"])
    from tidelog.pipeline.analytics.job import Wishes, analyse, write_tables
    from tidelog.pipeline.analytics.prometheus import Prometheus, find_history, from_prometheus
    from tidelog.pipeline.session import spark_session

    standing = _standing(options)
    prometheus = Prometheus(options["prometheus"], options["match"], os.environ.get(TOKEN_VARIABLE))
    step_ms = parse_span("--step", options["step"]) if options["step"] else None
    found = find_history(prometheus, start_ms, end_ms, step_ms)
    wishes = Wishes(
        interval_ms=found.interval_ms,
        span_ms=end_ms - start_ms,
        trend_window_ms=window_ms,
        leaving=leaving,
        assignment=standing.assignment if standing else None,
        racks=standing.racks if standing else None,
    )
    output: Path = options["output"]
    output.mkdir(parents=True, exist_ok=True)
    with Console(stderr=True).status("starting Spark") as status:
        spark = spark_session("tidelog analytics", master=options["master"])
        facts = from_prometheus(spark, found).persist()
        analysis = analyse(facts, wishes, status.update)
        status.update("writing tables")
        write_tables(spark, facts, analysis, str((output / "tables").resolve()), options["table_format"])
        facts.unpersist()
    if analysis.proposal.refused is None:
        (output / "reassignment.json").write_text(plan_json(analysis.proposal.moves), "utf-8")
    _show(analysis, output)


def _standing(options: Options) -> Standing | None:
    if not options["bootstrap_server"]:
        return None
    with Cluster(
        options["bootstrap_server"], client_id="tidelog-analytics", security=environment_security()
    ) as cluster:
        return standing_of(cluster)


def _show(analysis: Analysis, output: Path) -> None:
    """Prints the worst of each kind and where to find the rest."""
    shown = [table for table in (_episodes(analysis), _skews(analysis), _brokers(analysis)) if table[2]]
    if output_format() is OutputFormat.JSON:
        tables = [
            {"title": title, "rows": [dict(zip(columns, row, strict=True)) for row in rows]}
            for title, columns, rows in shown
        ]
        document = {"summary": summary(analysis), "directory": str(output), "tables": tables}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    for title, columns, rows in shown:
        table = Table(
            title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
        )
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        Console(stderr=True, highlight=False).print(table)
    click.echo(f"{output}", err=True)
    click.echo(summary(analysis))


def summary(analysis: Analysis) -> str:
    """Returns the summary line of a run."""
    episodes, proposal = analysis.rows["isr_episodes"], analysis.proposal
    open_count = sum(row["is_open"] for row in episodes)
    uneven = sum(skew.rate_over_mean >= 2 for skew in analysis.skews)
    plan = f"no plan: {proposal.refused}"
    if proposal.refused is None:
        plan = f"{len(proposal.moves)} moves proposed, {_bytes(proposal.copied_bytes)} copied"
        if proposal.left_out:
            plan += f" ({proposal.left_out} partitions left out: use --bootstrap-server)"
    return (
        f"{analysis.facts:,} samples; {len(episodes)} ISR episodes ({open_count} open); "
        f"{uneven} of {len(analysis.skews)} topics with a partition at twice the mean rate; {plan}"
    )


def _episodes(analysis: Analysis) -> _Shown:
    rows = sorted(analysis.rows["isr_episodes"], key=lambda row: (not row["is_open"], -row["seconds"]))
    shown: list[tuple[str, ...]] = [
        (
            f"{row['topic']}-{row['partition']}",
            datetime.fromtimestamp(row["began_ms"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S"),
            f"{row['seconds']:,.0f} s{', not over' if row['is_open'] else ''}",
            f"{row['least_in_sync']} of {row['replicas']}",
            ", ".join(map(str, row["silent_brokers"])) or "-",
        )
        for row in rows[:_MOST_ROWS]
    ]
    return f"ISR episodes: {len(rows)}", ("partition", "began", "lasted", "in sync", "silent brokers"), shown


def _skews(analysis: Analysis) -> _Shown:
    shown: list[tuple[str, ...]] = [
        (
            skew.topic,
            str(skew.partitions),
            _bytes(skew.bytes),
            f"{skew.records_per_s:,.1f}",
            f"{skew.bytes_over_mean:.2f}",
            f"{skew.rate_over_mean:.2f}",
            str(skew.hottest_partition),
        )
        for skew in analysis.skews[:_MOST_ROWS]
    ]
    columns = ("topic", "partitions", "bytes", "records / s", "bytes / mean", "rate / mean", "hottest")
    return f"Skew: {len(analysis.skews)} topics", columns, shown


def _brokers(analysis: Analysis) -> _Shown:
    planned = {load.broker: load for load in analysis.proposal.after}
    shown: list[tuple[str, ...]] = [
        (
            str(now.broker),
            f"{now.replicas} -> {then.replicas}",
            f"{now.leaders} -> {then.leaders}",
            f"{_bytes(now.bytes)} -> {_bytes(then.bytes)}",
            f"{_bytes(now.led_bytes_per_s)} -> {_bytes(then.led_bytes_per_s)}",
        )
        for now in analysis.proposal.before
        if (then := planned.get(now.broker)) is not None
    ]
    plan = analysis.proposal.refused or f"{len(analysis.proposal.moves)} partitions"
    return f"Plan: {plan}", ("broker", "replicas", "preferred leaders", "stored", "led a second"), shown


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:,.4g} TiB"
