"""`tidelog cluster status`: shows the processes of a local cluster, their roles, and degraded partitions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import click

from tidelog.cli.cluster_tend import data_dir_option
from tidelog.cli.local_cluster.cluster import LocalCluster
from tidelog.cli.local_cluster.plan import BROKER, ETCD, Member
from tidelog.cli.local_cluster.readiness import etcd_serves
from tidelog.cli.local_cluster.report import ClusterReport, read_metadata
from tidelog.cli.output import OutputFormat, Shown, add_facts, counted, note, output_format, print_table
from tidelog.cli.tool_command import ToolCommand
from tidelog.metadata.coordinators import GROUP, coordinator_ids, decode_coordinator
from tidelog.metadata.entries import ALL_KEYS_PREFIX
from tidelog.metadata.store import StoreError

_YES: Final = "yes"
MAX_TROUBLED: Final = 30
"""The maximum number of partitions to show. A broken cluster may have thousands of degraded ones."""


@click.command(
    cls=ToolCommand,
    short_help="Show processes, their roles, and degraded partitions.",
    examples=("tidelog cluster status --data-dir cluster",),
)
@data_dir_option
def command(data_dir: Path) -> None:
    """Show the processes of a local cluster and its degraded partitions.

    For each process the command shows the pid, state, address and role. A partition is degraded if it has no
    leader or too few in-sync replicas.
    """
    cluster = LocalCluster.open(data_dir)
    report = _report(cluster)
    rows = [
        (
            member.name,
            cluster.processes.pid(member.name),
            _life(cluster, member.name),
            cluster.plan.address(member),
            _role(member, report) if cluster.processes.pid(member.name) is not None else "",
        )
        for member in cluster.plan.members
    ]
    print_table(("name", "#pid", "alive", "address", "role"), rows, name="processes")
    if report is None:
        note("etcd does not answer, so roles and partitions are unknown")
        return
    running = [m.number for m in cluster.plan.members if m.kind == BROKER and _life(cluster, m.name) == _YES]
    troubled = report.troubled_partitions(running)
    add_facts(partitions=len(report.states), degraded=len(troubled), degraded_partitions=[])
    if output_format() is not OutputFormat.JSON:
        click.echo()
        click.echo(f"{counted(len(report.states), 'partition')}, {len(troubled)} of them not fully in sync")
    if troubled:
        print_table(
            ("topic", "#partition", "leader", "replicas", "in sync"),
            [
                (
                    t.topic,
                    t.partition,
                    Shown("none", None) if t.leader is None else t.leader,
                    t.replicas,
                    t.in_sync,
                )
                for t in troubled[:MAX_TROUBLED]
            ],
            name="degraded_partitions",
        )
        if len(troubled) > MAX_TROUBLED:
            note(f"... and {len(troubled) - MAX_TROUBLED} more")


def _life(cluster: LocalCluster, name: str) -> str:
    if cluster.processes.pid(name) is None:
        return "no"
    return "stopped (SIGSTOP)" if cluster.processes.is_stopped(name) else _YES


def _role(member: Member, report: ClusterReport | None) -> str:
    if member.kind == ETCD:
        return "serving" if report is not None else "not responding"
    return "?" if report is None else report.role(member)


def _report(cluster: LocalCluster) -> ClusterReport | None:
    """Returns None if etcd does not answer."""
    if cluster.processes.pid("etcd-1") is None or not etcd_serves(cluster.plan.etcd_metrics_address):
        return None
    try:
        return asyncio.run(_read(cluster))
    except StoreError as error:
        note(f"etcd: {error}")
        return None


async def _read(cluster: LocalCluster) -> ClusterReport:
    from tidelog.metadata.etcd.etcd_store import EtcdMetadataStore  # loads gRPC

    store = EtcdMetadataStore(cluster.etcd_options())
    try:
        coordinators = await store.list_prefix(coordinator_ids(GROUP))
        everything = await store.list_prefix(ALL_KEYS_PREFIX)
        return read_metadata(
            everything.items, [decode_coordinator(item.key, item.value) for item in coordinators.items]
        )
    finally:
        await store.close()
