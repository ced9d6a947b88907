"""`tidelog cluster up`: a cluster of real processes on this machine."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import click
from tidelog.cli.etcd_binary import EtcdNotFoundError, find_etcd
from tidelog.cli.local_cluster.cluster import LocalCluster
from tidelog.cli.local_cluster.plan import (
    BROKER,
    ETCD,
    HOST,
    PLAN_FILE,
    ClusterPlan,
)
from tidelog.cli.output import note
from tidelog.cli.tool_command import ToolCommand, ToolError, parse_assignments
from tidelog.runtime.broker_settings import BrokerSettings
from tidelog.runtime.setting import SettingError

FIRST_INTERNAL_PORT: Final = 20
"""How far above the base port it is looked for ports of etcd's and the brokers' own: beside the brokers'."""
MAX_PORT: Final = 65_535


@click.command(cls=ToolCommand)
@click.option("--brokers", type=click.IntRange(1), default=3, show_default=True, help="How many brokers.")
@click.option(
    "--controllers", type=click.IntRange(1), default=1, show_default=True, help="Of them, one is in office."
)
@click.option(
    "--coordinators", type=click.IntRange(0), default=1, show_default=True, help="Group coordinators."
)
@click.option(
    "--base-port",
    type=click.IntRange(1, MAX_PORT),
    default=9092,
    show_default=True,
    metavar="P",
    help="The first broker listens here, the next one port further, and so on.",
)
@click.option(
    "--data-dir",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where everything is kept: brokers' logs, etcd's data, configuration, pids.",
)
@click.option(
    "--first-id", type=click.IntRange(0), default=1, show_default=True, help="The first broker's id."
)
@click.option(
    "--advertised-base-port",
    type=click.IntRange(1, MAX_PORT),
    metavar="P",
    help="Tell clients to come to these ports (a proxy's, say); brokers then have a listener of their own.",
)
@click.option("--rack-prefix", metavar="PREFIX", help="Give each broker a rack: PREFIX and its id.")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of every process, by Kafka's name; repeatable.",
)
def command(
    brokers: int,
    controllers: int,
    coordinators: int,
    base_port: int,
    data_dir: Path,
    first_id: int,
    advertised_base_port: int | None,
    rack_prefix: str | None,
    assignments: tuple[str, ...],
) -> None:
    """Start etcd, controllers, a group coordinator and brokers in the background.

    Prints `ready: HOST:PORT,...` once every broker serves. With a directory that was used before, its data
    is there again.
    """
    directory = data_dir.absolute()
    taken: Collection[int] = ()
    before = _refuse_a_running_one(directory)
    own_count = ClusterPlan.internal_port_count(brokers, has_own_listener=advertised_base_port is not None)
    for base in (base_port, advertised_base_port):
        if base is not None:
            taken = {*taken, *range(base, base + brokers)}
    plan = ClusterPlan(
        brokers=brokers,
        controllers=controllers,
        coordinators=coordinators,
        base_port=base_port,
        internal_ports=_internal_ports(before, own_count, base_port, taken),
        first_id=first_id,
        advertised_base_port=advertised_base_port,
        rack_prefix=rack_prefix,
        settings=parse_assignments("--set", assignments),
    )
    _check(plan, directory)
    start(LocalCluster.create(directory, plan))


def start(cluster: LocalCluster) -> None:
    """Everything, and wait until it serves; if it can't, nothing is left running."""
    plan = cluster.plan
    try:
        for kinds in ((ETCD,), None):
            members = [m for m in plan.members if (m.kind in kinds if kinds else m.kind != ETCD)]
            for member in members:
                cluster.spawn(member)
            cluster.wait_until_serving(members)
        cluster.wait_until_brokers_know_each_other()
    except BaseException:
        note("stopping what was started ...")
        cluster.stop_all()
        raise
    click.echo("ready: " + ",".join(plan.broker_address(broker_id) for broker_id in plan.broker_ids))


def _refuse_a_running_one(directory: Path) -> ClusterPlan | None:
    """The plan of the cluster that was there before, if any."""
    if not (directory / PLAN_FILE).exists():
        return None
    cluster = LocalCluster.open(directory)
    running = cluster.running()
    if running:
        raise ToolError(
            f"--data-dir {directory}: a cluster runs there already ({', '.join(running)}); "
            "'tidelog cluster down' stops it"
        )
    return cluster.plan


def _internal_ports(
    before: ClusterPlan | None, count: int, base_port: int, taken: Collection[int]
) -> tuple[int, ...]:
    """Those of before, where that is possible: etcd's data holds the address it was made with."""
    found = [port for port in (before.internal_ports if before else ()) if port not in taken][:count]
    candidates: Iterable[int] = range(base_port + FIRST_INTERNAL_PORT, MAX_PORT + 1)
    for port in candidates:
        if len(found) == count:
            break
        if port not in taken and port not in found and _is_free(port):
            found.append(port)
    if len(found) < count:
        raise ToolError(f"--base-port {base_port}: there are no free ports above it")
    return tuple(found)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _check(plan: ClusterPlan, directory: Path) -> None:
    """What would only be found out by processes that die, said at once."""
    try:
        find_etcd()
    except EtcdNotFoundError as error:
        raise ToolError(str(error)) from error
    for base in (plan.base_port, plan.advertised_base_port):
        if base is not None and base + plan.brokers - 1 > MAX_PORT:
            raise ToolError(f"{base} and the ports of {plan.brokers} brokers reach beyond {MAX_PORT}")
    for member in plan.members:
        if member.kind == ETCD:
            continue
        try:
            BrokerSettings.parse(plan.properties(member, directory))
        except SettingError as error:
            raise ToolError(f"--set {error}") from error
        if member.kind == BROKER and not _is_free(plan.base_port + member.number - plan.first_id):
            raise ToolError(
                f"--base-port {plan.base_port}: {plan.broker_address(member.number)} is in use by another "
                "process"
            )
