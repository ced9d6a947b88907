"""The commands for a local cluster: `tidelog cluster up`, `down`, `kill`, `start`, `status` and
`renew-certificates`.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from tidelog.cli.local_cluster.cluster import STOP_TIMEOUT_S, LocalCluster, etcd_serves
from tidelog.cli.local_cluster.plan import (
    BROKER,
    ETCD,
    HOST,
    PLAN_FILE,
    ClusterPlan,
    ClusterReport,
    Member,
    read_metadata,
)
from tidelog.cli.local_cluster.processes import EtcdNotFoundError, find_etcd
from tidelog.cli.output import (
    OutputFormat,
    Shown,
    add_facts,
    counted,
    note,
    output_format,
    print_table,
    progress,
    say,
)
from tidelog.cli.tool_command import ToolCommand, ToolError, parse_assignments
from tidelog.metadata.coordinators import GROUP, coordinator_ids, decode_coordinator
from tidelog.metadata.entries import ALL_KEYS_PREFIX
from tidelog.metadata.store import StoreError
from tidelog.model.brokers import MAX_PORT
from tidelog.model.text import JsonObject
from tidelog.process.startup import keep_files_private
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.setting import SettingError

LOOK_S: Final = 60
"""The time between two looks whether certificates are due, and whether the cluster still runs."""
_ENDING: Final = (signal.SIGKILL,)

data_dir_option = click.option(
    "--data-dir",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The --data-dir of 'tidelog cluster up'.",
)
FIRST_INTERNAL_PORT: Final = 20
"""The distance from the base port at which the search for free ports for etcd and the brokers' own listeners
starts.
"""
_YES: Final = "yes"
MAX_TROUBLED: Final = 30
"""The maximum number of partitions to show. A broken cluster may have thousands of degraded ones."""


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
def up(data_dir: Path, assignments: tuple[str, ...], **options: Any) -> None:
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
    start_all(LocalCluster.create(directory, plan))


def start_all(cluster: LocalCluster) -> None:
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


@click.command(
    cls=ToolCommand,
    short_help="Stop a local cluster and keep its data.",
    examples=("tidelog cluster down --data-dir cluster",),
)
@data_dir_option
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0),
    default=STOP_TIMEOUT_S,
    show_default=True,
    help="Seconds until brokers, and then the other processes, are killed if they have not ended.",
)
def down(data_dir: Path, timeout_s: float) -> None:
    """Stop a local cluster and keep its data.

    Brokers stop first, and etcd stops last.
    """
    cluster = LocalCluster.open(data_dir)
    running = cluster.running()
    killed = cluster.stop_all(timeout_s)
    for name in killed:
        note(f"{name} did not end within {timeout_s:g} s and was killed; see {cluster.log_path(name)}")
    say(f"stopped: {', '.join(running)}" if running else "nothing was running", stopped=running)


@click.command(
    cls=ToolCommand,
    short_help="Send a signal to a process.",
    examples=(
        "tidelog cluster kill broker-2 --data-dir cluster",
        "tidelog cluster kill broker-2 --signal STOP --data-dir cluster",
    ),
)
@click.argument("name")
@click.option(
    "--signal",
    "signal_name",
    default="KILL",
    show_default=True,
    metavar="S",
    help="The signal's name or number: KILL, TERM, STOP, CONT, ...",
)
@data_dir_option
def kill(name: str, signal_name: str, data_dir: Path) -> None:
    """Send a signal to the process NAME (broker-1, controller-1, etcd-1, ...)."""
    cluster = LocalCluster.open(data_dir)
    cluster.member(name)
    number = _signal_number(signal_name)
    if not cluster.processes.signal(name, number):
        raise ToolError(f"{name} is not running; 'tidelog cluster start {name}' starts it")
    if number in _ENDING:
        cluster.processes.wait_until_gone([name], STOP_TIMEOUT_S)
    say(f"{name}: {signal.Signals(number).name} sent", process=name, signal=signal.Signals(number).name)


@click.command(
    cls=ToolCommand,
    short_help="Start a process again.",
    examples=("tidelog cluster start broker-2 --data-dir cluster",),
)
@click.argument("name")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the process serves.")
@data_dir_option
def start(name: str, wait: bool, data_dir: Path) -> None:
    """Start the process NAME after it was killed or has ended."""
    cluster = LocalCluster.open(data_dir)
    member = cluster.member(name)
    if cluster.processes.pid(name) is not None:
        raise ToolError(f"{name} is already running")
    cluster.renew_certificates()
    cluster.spawn(member)
    if wait:
        cluster.wait_until_serving([member])
    if wait and member.kind == BROKER:
        address = cluster.plan.broker_address(member.number)
        say(f"ready: {address}", process=name, address=address)
    else:
        say(f"{name} started", process=name)


@click.command(
    cls=ToolCommand,
    short_help="Renew the certificates of a local cluster.",
    examples=("tidelog cluster renew-certificates --all --data-dir cluster",),
)
@click.option("--all", "even_if_not_due", is_flag=True, help="Renew also those that are not due yet.")
@click.option(
    "--watch",
    "is_watching",
    is_flag=True,
    help="Stay while the cluster runs, and renew certificates when they are due. "
    "'tidelog cluster up' starts this.",
)
@data_dir_option
def renew_certificates(even_if_not_due: bool, is_watching: bool, data_dir: Path) -> None:
    """Renew the certificates that the services show to each other, if two thirds of their validity are over.

    Running services use the new certificates without a restart.
    """
    renewed = LocalCluster.open(data_dir).renew_certificates(even_if_not_due=even_if_not_due)
    say(f"renewed: {', '.join(renewed)}" if renewed else "no certificate is due", renewed=renewed)
    while is_watching:
        time.sleep(LOOK_S)
        try:
            cluster = LocalCluster.open(data_dir)
            if not cluster.running():
                return
            renewed = cluster.renew_certificates()
        except ToolError as error:
            if not data_dir.exists():
                return
            note(str(error))  # for example because the disk is full; the next look may succeed
            continue
        if renewed:
            note(f"renewed: {', '.join(renewed)}")


def _signal_number(text: str) -> int:
    """Returns the number of a signal. Raises ToolError."""
    name = text.strip().upper()
    try:
        if name.isdecimal():
            return signal.Signals(int(name))
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except (KeyError, ValueError):
        raise ToolError(f"--signal {text}: unknown signal") from None


@click.command(
    cls=ToolCommand,
    short_help="Show processes, their roles, and degraded partitions.",
    examples=("tidelog cluster status --data-dir cluster",),
)
@data_dir_option
def status(data_dir: Path) -> None:
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
