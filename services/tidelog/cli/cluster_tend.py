"""`tidelog cluster down`, `kill`, `start` and `renew-certificates`: control a local cluster."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Final

import click

from tidelog.cli.local_cluster.cluster import STOP_TIMEOUT_S, LocalCluster
from tidelog.cli.local_cluster.plan import BROKER
from tidelog.cli.output import note, say
from tidelog.cli.tool_command import ToolCommand, ToolError

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
