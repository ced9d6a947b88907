"""`tidelog cluster up`: starts a cluster of real processes on this machine."""

from __future__ import annotations

import socket
from dataclasses import replace
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
from tidelog.cli.output import add_facts, note, progress, say
from tidelog.cli.tool_command import ToolCommand, ToolError, parse_assignments
from tidelog.model.brokers import MAX_PORT
from tidelog.model.text import JsonObject
from tidelog.process.private_files import keep_files_private
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.setting import SettingError

FIRST_INTERNAL_PORT: Final = 20
"""The distance from the base port at which the search for free ports for etcd and the brokers' own listeners
starts.
"""


@click.command(
    cls=ToolCommand,
    short_help="Start a cluster of real processes on this machine.",
    examples=(
        "tidelog cluster up --data-dir cluster",
        "tidelog cluster up --data-dir cluster --brokers 5 --secure",
    ),
)
@click.option("--brokers", type=click.IntRange(1), help="Number of brokers.  [default: 3]")
@click.option(
    "--controllers",
    type=click.IntRange(1),
    help="Number of controllers, of which one is active.  [default: 1]",
)
@click.option("--coordinators", type=click.IntRange(0), help="Number of group coordinators.  [default: 1]")
@click.option(
    "--base-port",
    type=click.IntRange(1, MAX_PORT),
    metavar="P",
    help="Port of the first broker. The next brokers use the following ports.  [default: 9092]",
)
@click.option(
    "--data-dir",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Directory for the brokers' logs, etcd's data, the configuration and the pids.",
)
@click.option("--first-id", type=click.IntRange(0), help="Id of the first broker.  [default: 1]")
@click.option(
    "--advertised-base-port",
    type=click.IntRange(1, MAX_PORT),
    metavar="P",
    help="First port that brokers advertise to clients, for example a proxy's. "
    "The brokers then use a separate listener among themselves.",
)
@click.option("--rack-prefix", metavar="PREFIX", help="Set each broker's rack to PREFIX and its id.")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a setting, by Kafka's name, in every process. Repeatable.",
)
@click.option(
    "--secure",
    "is_secure",
    is_flag=True,
    default=None,
    help="Require TLS and a login. Creates certificates and the user admin; client.properties in the data "
    "directory contains its password.",
)
def command(data_dir: Path, assignments: tuple[str, ...], **options: Any) -> None:
    """Start etcd, controllers, a group coordinator and brokers in the background.

    Prints `ready: HOST:PORT,...` when every broker serves. If the directory was used before, the cluster
    starts with its data, and options that are not given keep their previous values.
    """
    # `Any`: click has checked the types of `options`.
    directory = data_dir.resolve()
    before = _refuse_a_running_one(directory)
    settings = {**(before.settings if before else {}), **parse_assignments("--set", assignments)}
    wanted: JsonObject = {
        "brokers": 3,
        "controllers": 1,
        "coordinators": 1,
        "base_port": 9092,
        "first_id": 1,
        "advertised_base_port": None,
        "rack_prefix": None,
        "is_secure": False,
    }
    for name in wanted:
        if options[name] is not None:
            wanted[name] = options[name]
        elif before is not None:
            wanted[name] = getattr(before, name)
    for option in ("base_port", "advertised_base_port"):
        if (wanted[option] or 0) + wanted["brokers"] - 1 > MAX_PORT:
            name = "--" + option.replace("_", "-")
            raise ToolError(
                f"{name} {wanted[option]}: the ports of {wanted['brokers']} brokers would exceed {MAX_PORT}; "
                "choose a lower port"
            )
    plan = ClusterPlan(**wanted, internal_ports=(), settings=settings)
    plan = replace(plan, internal_ports=_internal_ports(before, plan))
    _check(plan, directory)
    start(LocalCluster.create(directory, plan))


def start(cluster: LocalCluster) -> None:
    """Starts all processes and waits until they serve. If this fails, the started processes are stopped."""
    plan = cluster.plan
    keep_files_private(cluster.directory)
    try:
        for kinds in ((ETCD,), None):
            members = [m for m in plan.members if (m.kind in kinds if kinds else m.kind != ETCD)]
            for member in members:
                cluster.spawn(member)
            cluster.wait_until_serving(members)
            if kinds is not None:
                cluster.ensure_etcd_users()
                if plan.is_secure:
                    properties = cluster.ensure_admin()
                    progress(f"clients: --command-config {properties}")
                    add_facts(command_config=str(properties))
        cluster.wait_until_brokers_know_each_other()
        cluster.start_renewals()
    except BaseException:
        note("stopping the started processes ...")
        cluster.stop_all()
        raise
    addresses = [plan.broker_address(broker_id) for broker_id in plan.broker_ids]
    say("ready: " + ",".join(addresses), bootstrap_servers=addresses, data_dir=str(cluster.directory))


def _refuse_a_running_one(directory: Path) -> ClusterPlan | None:
    """Returns the plan of the directory's previous cluster, or None. Raises ToolError if it is running."""
    if not (directory / PLAN_FILE).exists():
        return None
    cluster = LocalCluster.open(directory)
    running = cluster.running()
    if running:
        raise ToolError(
            f"--data-dir {directory}: a cluster is already running there ({', '.join(running)}); "
            "'tidelog cluster down' stops it"
        )
    return cluster.plan


def _internal_ports(before: ClusterPlan | None, plan: ClusterPlan) -> tuple[int, ...]:
    """Returns free ports, and the previous ones if possible, because etcd's data contains its address."""
    base_port = plan.base_port
    taken = set(range(base_port, base_port + plan.brokers))
    if plan.advertised_base_port is not None:
        taken |= set(range(plan.advertised_base_port, plan.advertised_base_port + plan.brokers))
    count = ClusterPlan.internal_port_count(plan.brokers, has_own_listener=plan.has_own_listener)
    found = [port for port in (before.internal_ports if before else ()) if port not in taken][:count]
    for port in range(base_port + FIRST_INTERNAL_PORT, MAX_PORT + 1):
        if len(found) == count:
            break
        if port not in taken and port not in found and _is_free(port):
            found.append(port)
    if len(found) < count:
        raise ToolError(f"--base-port {base_port}: no free ports above it were found")
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
    """Raises ToolError for problems that the processes would otherwise find only after their start."""
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
