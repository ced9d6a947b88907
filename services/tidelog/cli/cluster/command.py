"""`tidelog cluster` and `tidelog top`: show a cluster, and what it does.

The commands of `tidelog cluster` for clusters of processes on this machine are in `local_cluster`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import Final

import click

from tidelog.cli.command_line import LazyGroup
from tidelog.cli.output import OutputFormat, add_facts, note, output_format, print_heading, print_table, say
from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, connect
from tidelog.observe.cluster_reader import ClusterReader, rates_now
from tidelog.observe.rates import COLUMNS, ClusterRates, summary_text
from tidelog.process.build import install_command
from tidelog.wire.api_keys import find_api_spec

_COMMANDS: Final = {
    "check": "tidelog.cli.cluster.check:command",
    "describe": "tidelog.cli.cluster.command:describe",
    "down": "tidelog.cli.local_cluster.commands:down",
    "kill": "tidelog.cli.local_cluster.commands:kill",
    "renew-certificates": "tidelog.cli.local_cluster.commands:renew_certificates",
    "recover": "tidelog.cli.local_cluster.recover:recover",
    "start": "tidelog.cli.local_cluster.commands:start",
    "status": "tidelog.cli.local_cluster.commands:status",
    "up": "tidelog.cli.local_cluster.commands:up",
}

DEFAULT_INTERVAL_S: Final = 2.0
LEAST_INTERVAL_S: Final = 0.5
_UI_PACKAGE: Final = "textual"


@click.group(cls=LazyGroup, places=_COMMANDS)
def command() -> None:
    """Manage clusters on this machine, and describe any cluster."""


@click.command(
    "describe",
    cls=ToolCommand,
    is_watchable=True,
    examples=("tidelog cluster describe", "tidelog cluster describe --api-versions"),
)
@click.option("--api-versions", is_flag=True, help="Show the APIs and versions that a broker serves.")
@cluster_options
def describe(api_versions: bool) -> None:
    """Show the cluster id, the controllers and the brokers.

    A broker is down if it has replicas and is not registered. The ids of controllers are not those of
    brokers, unless a process is both. Group coordinators and etcd are unknown to clients.
    """
    with connect() as cluster:
        if api_versions:
            served = sorted(cluster.any_broker().served.items())
            rows = [
                (
                    key,
                    spec.name if (spec := find_api_spec(key)) else "",
                    versions.min_version,
                    versions.max_version,
                )
                for key, versions in served
            ]
            print_table(("#key", "API", "#from", "#to"), rows)
            return
        state = ClusterReader(cluster).state()
    view, quorum = state.view, state.quorum
    if output_format() is OutputFormat.TABLE:
        print_heading(view.cluster_id or "", "  cluster id")
        if quorum.unknown:
            say(f"The controllers are unknown: {quorum.unknown}.")
        say("Group coordinators and etcd are unknown to clients; see 'tidelog doctor'.")
    add_facts(cluster_id=view.cluster_id, controller_id=quorum.active_id)
    if not quorum.unknown:
        print_table(
            ("#controller", "state"),
            [(each, "active" if each == quorum.active_id else "standby") for each in quorum.controller_ids],
            name="controllers",
        )
    alive = state.alive
    brokers: list[tuple[object, ...]] = []
    for broker_id in sorted(alive.keys() | state.down):
        broker = alive.get(broker_id)
        address, rack = (None, None) if broker is None else (broker.address, broker.rack)
        brokers.append((broker_id, address, rack, "down" if broker is None else "up"))
    print_table(("#broker", "address", "rack", "state"), brokers, name="brokers")


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
def top(once: bool, interval_s: float, topics: tuple[str, ...]) -> None:
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


def _print(rates: ClusterRates) -> None:
    summary = rates.summary()
    print_heading(
        "cluster",
        f"  {summary_text(summary)}",
        summary=asdict(summary),
        omitted_groups=rates.current.omitted_groups,
    )
    for name, rows in rates.tables().items():
        rounded = [[round(cell, 1) if isinstance(cell, float) else cell for cell in row] for row in rows]
        print_table(COLUMNS[name], rounded, name=name)
    if rates.current.omitted_groups:
        note(f"{rates.current.omitted_groups} more groups are not shown.")
