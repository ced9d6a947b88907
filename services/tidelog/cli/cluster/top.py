"""`tidelog top`: shows what the cluster does, live or once."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import Final

import click

from tidelog.cli.output import note, print_heading, print_table
from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, connect
from tidelog.observe.cluster_reader import rates_now
from tidelog.observe.rates import ClusterRates, summary_text
from tidelog.process.build import install_command

DEFAULT_INTERVAL_S: Final = 2.0
LEAST_INTERVAL_S: Final = 0.5
_UI_PACKAGE: Final = "textual"


@click.command(cls=ToolCommand, examples=("tidelog top", "tidelog top --once --interval 10"))
@click.option("--once", is_flag=True, help="Print one snapshot as tables, with the rates of one interval.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=LEAST_INTERVAL_S),
    default=DEFAULT_INTERVAL_S,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between two snapshots.",
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Show only this topic. Repeatable.")
@cluster_options
def command(once: bool, interval_s: float, topics: tuple[str, ...]) -> None:
    """Show brokers, topics and groups with their rates, missing replicas and lag, live.

    Keys: q ends it, p pauses it, and Tab goes to the next table. A snapshot takes a few requests to each
    broker, and two for each of at most 100 groups.

    The lag of a group leaves out partitions of its topics without a committed offset ("uncommitted"), and
    those whose committed offset is beyond the end of the log ("beyond end"). The max lag is negative if all
    of its partitions are beyond the end.
    """
    with connect() as cluster:
        if once:
            first = rates_now(cluster, topics)
            time.sleep(interval_s)
            _print(rates_now(cluster, topics, first))
            return
        try:
            from tidelog.cli.cluster.top_app import run_app
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != _UI_PACKAGE:
                raise
            raise ToolError(
                f"the live view needs the package textual: {install_command('top')}, or use --once"
            ) from None
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise ToolError("the live view needs a terminal for input and output; use --once")
        run_app(cluster, topics, interval_s)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _print(rates: ClusterRates) -> None:
    summary = rates.summary()
    print_heading(
        "cluster",
        f"  {summary_text(summary)}",
        summary=asdict(summary),
        omitted_groups=rates.current.omitted_groups,
    )
    print_table(
        (
            "#broker", "address", "role", "#leaders", "#replicas", "#missing", "#disk", "#records/s",
            "#bytes/s",
        ),
        [
            (
                row.broker_id,
                row.address,
                row.role or None,
                row.leaders,
                row.replicas,
                row.missing_replicas,
                row.disk_bytes,
                _rounded(row.records_per_s),
                _rounded(row.bytes_per_s),
            )
            for row in rates.brokers()
        ],
    name="brokers",
    )  # fmt: skip
    print_table(
        ("topic", "#partitions", "#missing", "#offline", "#size", "#records/s", "#bytes/s"),
        [
            (
                row.topic,
                row.partitions,
                row.missing_replicas,
                row.offline,
                row.size_bytes,
                _rounded(row.records_per_s),
                _rounded(row.bytes_per_s),
            )
            for row in rates.topics()
        ],
        name="topics",
    )
    _print_groups(rates)


def _print_groups(rates: ClusterRates) -> None:
    print_table(
        (
            "group",
            "type",
            "state",
            "#partitions",
            "#lag",
            "#max lag",
            "#uncommitted",
            "#beyond end",
            "#records/s",
            "#catch-up s",
        ),
        [
            (
                row.group,
                row.group_type or None,
                row.state,
                row.partitions,
                row.lag,
                row.max_lag,
                row.uncommitted,
                row.beyond_end,
                _rounded(row.records_per_s),
                _rounded(row.catch_up_s),
            )
            for row in rates.groups()
        ],
        name="groups",
    )
    if rates.current.omitted_groups:
        note(f"{rates.current.omitted_groups} more groups are not shown.")
