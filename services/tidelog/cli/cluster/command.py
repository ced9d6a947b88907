"""`tidelog cluster`: manages clusters of processes on this machine, and describes any cluster.

The commands for clusters on this machine are in `local_cluster`.
"""

from __future__ import annotations

from typing import Final

import click

from tidelog.cli.command_line import LazyGroup
from tidelog.cli.output import OutputFormat, add_facts, output_format, print_heading, print_table, say
from tidelog.cli.tool_command import ToolCommand, cluster_options, connect
from tidelog.observe.cluster_reader import ClusterReader
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
