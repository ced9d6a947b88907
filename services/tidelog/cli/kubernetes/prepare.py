"""`tidelog kubernetes prepare`: prepares a release for an upgrade or rollback (ADR 0018).

The steps are: check the volumes and the brokers to remove, stop the roll of an earlier upgrade, drain the
brokers to remove, grow volumes, and pause the Deployments so that `tidelog kubernetes roll` can resume them
in a safe order. All checks precede the first change, so a failed check leaves the release as it is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import click

from tidelog.cli.kubernetes.entrances import Entrances, entrance_options
from tidelog.cli.kubernetes.release import CONTROLLER, GROUP_COORDINATOR, Release
from tidelog.cli.kubernetes.release_options import open_release, release_options
from tidelog.cli.kubernetes.roll import Progress
from tidelog.cli.kubernetes.scale_in import leaving_brokers, refusal, replicas_held
from tidelog.cli.kubernetes.volume_growth import VolumeChanges, plan_growth
from tidelog.cli.output import add_facts, counted
from tidelog.cli.rebalance import AT_ONCE, carry_out, parse_ids, planned
from tidelog.cli.tool_command import ToolCommand, ToolError, parse_assignments
from tidelog.client.admin.reassignments import standing_of

_GONE_TIMEOUT_S: Final = 120.0
_DRAIN_ROUNDS: Final = 5
"""The maximum number of drains. Clients may create topics on the brokers that are being drained."""


@click.command(
    cls=ToolCommand,
    short_help="Prepare an upgrade: drain, grow volumes, pause Deployments.",
    examples=(
        "tidelog kubernetes prepare --release tidelog -n kafka -b tidelog:9092 --brokers 1,2,3 --drain",
    ),
)
@release_options
@entrance_options
@click.option(
    "--brokers", required=True, metavar="ID,...", help="Brokers that the release has after the upgrade."
)
@click.option(
    "--drain",
    is_flag=True,
    help="Drain brokers that will be removed. Otherwise the command fails if they hold replicas.",
)
@click.option(
    "--drain-throttle",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Maximum bytes per second and broker while draining.",
)
@click.option(
    "--volume",
    "volumes",
    multiple=True,
    metavar="COMPONENT=SIZE",
    help="New size of the volumes of broker or etcd. Repeatable.",
)
@click.option("--roll-job", help="Job of an earlier roll, which the command stops.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=3600.0,
    show_default=True,
    help="Seconds until draining fails.",
)
def command(
    release: str,
    namespace: str,
    bootstrap_server: str,
    plaintext_bootstrap_server: str,
    brokers: str,
    drain: bool,
    drain_throttle: int | None,
    volumes: tuple[str, ...],
    roll_job: str | None,
    timeout_s: float,
) -> None:
    """Prepare a release for an upgrade or rollback. If a check fails, nothing is changed."""
    found = open_release(release, namespace)
    entrances = Entrances(bootstrap_server, plaintext_bootstrap_server)
    progress = Progress(timeout_s)
    staying = parse_ids("--brokers", brokers)
    existing = found.broker_ids()
    changes = _checked_changes(found, parse_assignments("--volume", volumes))
    leaving = leaving_brokers(existing, staying)
    if leaving and not drain:
        refuse_unless_empty(entrances, leaving)
    if roll_job and found.delete_job(roll_job):
        progress.tell(f"job {roll_job} stopped")
    if leaving:
        drain_brokers(entrances, leaving, drain_throttle, timeout_s, progress)
    for size, change in changes:
        _grow(found, size, change, progress)
    paused: list[str] = []
    for component in (CONTROLLER, GROUP_COORDINATOR):
        for workload in found.deployments(component):
            found.pause(workload.name, True)
            progress.tell(f"deployment {workload.name} is paused")
            paused.append(workload.name)
    add_facts(brokers=sorted(staying), drained_brokers=list(leaving), paused_deployments=paused)


def refuse_unless_empty(entrances: Entrances, leaving: Sequence[int]) -> None:
    """Raises ToolError if one of the brokers holds replicas."""
    with entrances.open("tidelog-scale-in") as cluster:
        held = replicas_held(standing_of(cluster).assignment, leaving)
    if held:
        raise ToolError(refusal(held, leaving))


def drain_brokers(
    entrances: Entrances,
    leaving: Sequence[int],
    throttle: int | None,
    timeout_s: float,
    progress: Progress,
) -> None:
    """Moves all replicas off the brokers. Raises ToolError if some remain."""
    deadline_s = time.monotonic() + timeout_s
    ids = ", ".join(map(str, leaving))
    with entrances.open("tidelog-scale-in") as cluster:
        for _ in range(_DRAIN_ROUNDS):
            standing = standing_of(cluster)
            held = replicas_held(standing.assignment, leaving)
            if not held:
                progress.tell(f"brokers {ids} hold no replicas and can be removed")
                return
            progress.tell(f"brokers {ids} hold {counted(sum(held.values()), 'replica')}: draining")
            carry_out(
                cluster,
                planned(standing, leaving, evens_out=False),
                throttle_bytes_per_s=throttle,
                at_once=AT_ONCE,
                timeout_s=max(0.0, deadline_s - time.monotonic()),
                tell=progress.tell,
            )
    raise ToolError(f"brokers {ids} still receive new replicas; nothing else was changed")


def _checked_changes(release: Release, sizes: dict[str, str]) -> list[tuple[str, VolumeChanges]]:
    """Checks whether the claims can grow, without changing them. Raises ToolError."""
    changes = []
    for component, size in sizes.items():
        try:
            change = plan_growth(release.volumes(component), size)
        except ValueError as error:
            raise ToolError(f"--volume {component}={size}: {error}") from error
        for claim in change.grown:
            release.grow_claim(claim.name, size, only_ask=True)
        changes.append((size, change))
    return changes


def _grow(release: Release, size: str, change: VolumeChanges, progress: Progress) -> None:
    for claim in change.kept:
        progress.tell(f"claim {claim.name} stays at {claim.size}: volumes can't shrink")
    for claim in change.grown:
        release.grow_claim(claim.name, size)
        progress.tell(f"claim {claim.name} grows from {claim.size} to {size}")
    for name in change.recreated:
        release.orphan_stateful_set(name, _GONE_TIMEOUT_S)
        progress.tell(f"statefulset {name} is deleted without its pods; Helm creates it again")
