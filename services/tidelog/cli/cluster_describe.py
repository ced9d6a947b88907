"""`tidelog cluster describe`: shows the brokers, the controller, and the APIs that a broker serves."""

from __future__ import annotations

import click

from tidelog.cli.output import OutputFormat, add_facts, output_format, print_heading, print_table
from tidelog.cli.tool_command import ToolCommand, cluster_options, connect
from tidelog.wire.api_keys import find_api_spec


@click.command(
    "describe",
    cls=ToolCommand,
    is_watchable=True,
    examples=(
        "tidelog cluster describe",
        "tidelog cluster describe --api-versions",
    ),
)
@click.option("--api-versions", is_flag=True, help="Show the APIs and versions that a broker serves.")
@cluster_options
def command(api_versions: bool, bootstrap_server: str, request_timeout_ms: int) -> None:
    """Show the cluster id, the brokers and the controller."""
    with connect(bootstrap_server, request_timeout_ms) as cluster:
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
        view = cluster.describe()
    if output_format() is OutputFormat.TABLE:
        print_heading(view.cluster_id or "", "  cluster id")
    add_facts(cluster_id=view.cluster_id, controller_id=view.controller_id)
    print_table(
        ("#broker", "address", "rack", "role"),
        [
            (b.broker_id, b.address, b.rack, "controller" if b.broker_id == view.controller_id else None)
            for b in view.brokers
        ],
        name="brokers",
    )
