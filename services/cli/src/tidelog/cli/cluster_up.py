"""`tidelog cluster up`: a cluster of real processes on this machine."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Final

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


@click.command(cls=ToolCommand, short_help="Start a cluster of real processes on this machine.")
@click.option("--brokers", type=click.IntRange(1), help="How many brokers.  [default: 3]")
@click.option(
    "--controllers", type=click.IntRange(1), help="Of them, one is in office at a time.  [default: 1]"
)
@click.option("--coordinators", type=click.IntRange(0), help="Group coordinators.  [default: 1]")
@click.option(
    "--base-port",
    type=click.IntRange(1, MAX_PORT),
    metavar="P",
    help="The first broker listens here, the next one port further, and so on.  [default: 9092]",
)
@click.option(
    "--data-dir",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where everything is kept: brokers' logs, etcd's data, configuration, pids.",
)
@click.option("--first-id", type=click.IntRange(0), help="The first broker's id.  [default: 1]")
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
def command(data_dir: Path, assignments: tuple[str, ...], **options: Any) -> None:
    """Start etcd, controllers, a group coordinator and brokers in the background.

    Prints `ready: HOST:PORT,...` once every broker serves. With a directory that was used before, its data
    is there again, and what isn't given is as it was.
    """
    directory = data_dir.absolute()
    before = _refuse_a_running_one(directory)
    settings = {**(before.settings if before else {}), **parse_assignments("--set", assignments)}
    wanted: dict[str, Any] = {
        "brokers": 3,
        "controllers": 1,
        "coordinators": 1,
        "base_port": 9092,
        "first_id": 1,
        "advertised_base_port": None,
        "rack_prefix": None,
    }
    for name in wanted:
        if options[name] is not None:
            wanted[name] = options[name]
        elif before is not None:
            wanted[name] = getattr(before, name)
    for option in ("base_port", "advertised_base_port"):
        if (wanted[option] or 0) + wanted["brokers"] - 1 > MAX_PORT:
            name = "--" + option.replace("_", "-")
            raise ToolError(f"{name} {wanted[option]}: {wanted['brokers']} brokers reach beyond {MAX_PORT}")
    ports = _internal_ports(before, wanted["brokers"], wanted["base_port"], wanted["advertised_base_port"])
    plan = ClusterPlan(**wanted, internal_ports=ports, settings=settings)
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
    before: ClusterPlan | None, brokers: int, base_port: int, advertised_base_port: int | None
) -> tuple[int, ...]:
    """Those of before, where that is possible: etcd's data holds the address it was made with."""
    taken = set(range(base_port, base_port + brokers))
    if advertised_base_port is not None:
        taken |= set(range(advertised_base_port, advertised_base_port + brokers))
    count = ClusterPlan.internal_port_count(brokers, has_own_listener=advertised_base_port is not None)
    found = [port for port in (before.internal_ports if before else ()) if port not in taken][:count]
    for port in range(base_port + FIRST_INTERNAL_PORT, MAX_PORT + 1):
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
