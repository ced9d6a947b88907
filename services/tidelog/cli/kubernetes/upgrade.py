"""`tidelog kubernetes prepare`, `roll` and `wait-ready`: an upgrade or rollback of a release (ADR 0018).

`prepare` checks the volumes and the brokers to remove, stops the roll of an earlier upgrade, drains the
brokers to remove, grows volumes, and pauses the Deployments so that `roll` can resume them in a safe order.
All checks precede the first change, so a failed check leaves the release as it is.

`roll` replaces the pods in the order: etcd, which Kubernetes rolls by itself; controllers, the active one
last; coordinators; brokers one by one. It reads all progress from the cluster, so an interrupted roll can be
started again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import click

from tidelog.cli.cluster.rebalance import AT_ONCE, carry_out, parse_ids, planned
from tidelog.cli.kubernetes.release import (
    CONTROLLER,
    ETCD,
    GROUP_COORDINATOR,
    Entrances,
    Release,
    entrance_options,
    open_release,
    release_options,
)
from tidelog.cli.kubernetes.upgrade_plan import (
    DELETION_COST,
    Finished,
    ReleaseView,
    Replace,
    VolumeChanges,
    Wait,
    Workload,
    cost_changes,
    leaving_brokers,
    next_step,
    pending,
    plan_growth,
    refusal,
    replicas_held,
)
from tidelog.cli.output import add_facts, counted, say
from tidelog.cli.output import progress as say_progress
from tidelog.cli.tool_command import ToolCommand, ToolError, parse_assignments, sentence_of
from tidelog.client.admin.reassignments import elect_preferred_leaders, standing_of
from tidelog.client.errors import ClientError
from tidelog.model.errors import KafkaError
from tidelog.observe.cluster_reader import ClusterReader

_GONE_TIMEOUT_S: Final = 120.0
_DRAIN_ROUNDS: Final = 5
"""The maximum number of drains. Clients may create topics on the brokers that are being drained."""
LOOK_INTERVAL_S: Final = 1.0
ASK_TIMEOUT_S: Final = 5.0
DEFAULT_TIMEOUT_S: Final = 1800.0
_SECONDS = click.FloatRange(min=0, min_open=True)


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
def prepare(
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
    entrances: Entrances, leaving: Sequence[int], throttle: int | None, timeout_s: float, progress: Progress
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


timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=_SECONDS,
    default=DEFAULT_TIMEOUT_S,
    show_default=True,
    help="Seconds until the command gives up.",
)


class Progress:
    """Reports each reason for waiting once, and enforces the timeout."""

    def __init__(self, timeout_s: float) -> None:
        self._began_s = self._looked_s = time.monotonic()
        self._timeout_s = timeout_s
        self._said = ""

    def tell(self, text: str) -> None:
        say_progress(f"{self._elapsed_s():6.1f} s  {text}")
        self._said = ""

    def end(self, text: str, **facts: object) -> None:
        """Tells the result of the command."""
        elapsed_s = self._elapsed_s()
        add_facts(elapsed_s=round(elapsed_s, 1), **facts)
        say(f"{elapsed_s:6.1f} s  {text}")

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def wait(self, reason: str) -> None:
        """Waits a moment before the next check. Raises ToolError at the timeout."""
        if time.monotonic() - self._began_s > self._timeout_s:
            raise ToolError(f"not finished after {self._timeout_s:g} s: {reason}")
        if reason != self._said:
            self.tell(f"waiting: {reason}")
            self._said = reason
        time.sleep(max(LOOK_INTERVAL_S, time.monotonic() - self._looked_s))
        self._looked_s = time.monotonic()


@click.command(
    cls=ToolCommand,
    short_help="Replace pods in a safe order.",
    examples=("tidelog kubernetes roll --release tidelog -n kafka -b tidelog:9092",),
)
@release_options
@entrance_options
@timeout_option
def roll(
    release: str, namespace: str, bootstrap_server: str, plaintext_bootstrap_server: str, timeout_s: float
) -> None:
    """Update every pod of a release to the current revision.

    Brokers are replaced one at a time, and only if no partition falls below its minimum of in-sync replicas.
    """
    found = open_release(release, namespace)
    entrances = Entrances(bootstrap_server, plaintext_bootstrap_server)
    progress = Progress(timeout_s)
    wait_for(lambda: found.members(ETCD), progress)
    roll_deployments(found, CONTROLLER, progress)
    roll_deployments(found, GROUP_COORDINATOR, progress)
    count = roll_brokers(found, entrances, progress)
    if count:
        _give_back_leaders(entrances, progress)
    progress.end(
        f"rolled: {counted(count, 'broker')} replaced, all replicas are in sync", replaced_brokers=count
    )


@click.command(
    cls=ToolCommand,
    short_help="Wait until a release is ready.",
    examples=("tidelog kubernetes wait-ready --release tidelog -n kafka -b tidelog:9092",),
)
@release_options
@entrance_options
@timeout_option
def wait_ready(
    release: str, namespace: str, bootstrap_server: str, plaintext_bootstrap_server: str, timeout_s: float
) -> None:
    """Wait until every pod has the current revision and is ready, and all replicas are in sync.

    The command changes nothing.
    """
    found = open_release(release, namespace)
    entrances = Entrances(bootstrap_server, plaintext_bootstrap_server)
    progress = Progress(timeout_s)
    for component in (ETCD, CONTROLLER, GROUP_COORDINATOR):
        wait_for(partial(_workloads, found, component), progress)
    while not isinstance(step := look(found, entrances), Finished):
        reason = step.reason if isinstance(step, Wait) else f"{step.broker.name} has another revision"
        progress.wait(reason)
    progress.end("ready: all replicas are in sync")


def _workloads(release: Release, component: str) -> list[Workload]:
    return [*release.members(component), *release.deployments(component)]


def roll_deployments(release: Release, component: str, progress: Progress) -> None:
    """Lets Kubernetes roll the Deployments. The active controller is replaced last."""
    for workload in release.deployments(component):
        _mark_active(release, component)
        if workload.is_paused:
            release.pause(workload.name, False)
            progress.tell(f"deployment {workload.name} is resumed")

    def deployments() -> Sequence[Workload]:
        found = release.deployments(component)
        if any(pending(workload) for workload in found):
            _mark_active(release, component)
        return found

    wait_for(deployments, progress)


def _mark_active(release: Release, component: str) -> None:
    """Marks the active controller. The caller repeats this, because another pod may become active."""
    if component == CONTROLLER:
        for pod, cost in cost_changes(release.controller_pods()).items():
            release.annotate_pod(pod, DELETION_COST, cost)


def wait_for(workloads: Callable[[], Sequence[Workload]], progress: Progress) -> None:
    """Waits until Kubernetes has updated all of them to the current revision."""
    while reason := next(filter(None, map(pending, workloads())), ""):
        progress.wait(reason)


def roll_brokers(release: Release, entrances: Entrances, progress: Progress) -> int:
    """Replaces outdated brokers, and returns how many."""
    count = 0
    while True:
        step = look(release, entrances)
        if isinstance(step, Finished):
            return count
        if isinstance(step, Wait):
            progress.wait(step.reason)
            continue
        _tell_replacement(step, progress)
        release.delete_pod(step.broker.name, step.broker.uid)
        count += 1


def look(release: Release, entrances: Entrances) -> Finished | Wait | Replace:
    """Reads pods and partitions once, and returns the next step."""
    brokers = release.brokers()
    if any(broker.is_terminating or not broker.uid for broker in brokers):
        return next_step(ReleaseView(brokers))  # the state of the partitions does not matter
    views: list[ReleaseView] = []
    silence = ""
    for way in entrances.ways("tidelog-roll", ASK_TIMEOUT_S):
        try:
            with way() as cluster:
                views.append(ReleaseView(brokers, *ClusterReader(cluster).availability()))
        except (ClientError, KafkaError) as error:
            silence = str(error)
            continue
        if views[-1].live.issuperset(broker.broker_id for broker in brokers):
            break
    if not views:
        return next_step(ReleaseView(brokers, silence=silence))
    return next_step(max(views, key=lambda view: len(view.live)))


def _tell_replacement(step: Replace, progress: Progress) -> None:
    if step.interrupted:
        names = ", ".join(str(partition) for partition in step.interrupted[:5])
        progress.tell(
            f"{counted(len(step.interrupted), 'partition', 'needs', 'need')} "
            f"broker {step.broker.broker_id} ({names}); "
            "their clients wait until the broker is back"
        )
    progress.tell(f"replacing {step.broker.name}")


def _give_back_leaders(entrances: Entrances, progress: Progress) -> None:
    """Elects the preferred leaders, because each broker lost its leaders when it stopped."""
    try:
        with entrances.open("tidelog-roll") as cluster:
            count = elect_preferred_leaders(cluster)
        led = counted(
            count, "partition", "is led by its preferred leader", "are led by their preferred leaders"
        )
        progress.tell(f"{led} again")
    except (ClientError, KafkaError) as error:
        progress.tell(f"the preferred leaders were not elected: {sentence_of(error)}")
