"""`tidelog plan`: states what a change of the brokers would do, and refuses what is not safe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from tidelog.cli.output import OutputFormat, add_facts, counted, note, output_format, print_table, say
from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, connect
from tidelog.client.admin.brokers import UNKNOWN_BYTES, partition_bytes
from tidelog.client.admin.reassignments import Assignment, Move, PlanError, plan_moves, standing_of
from tidelog.client.cluster import Cluster
from tidelog.model.topics import TopicPartition
from tidelog.observe.availability import (
    PartitionView,
    endangered,
    interrupted,
    leaderless,
    named,
    needed_reason,
    out_of_sync,
)
from tidelog.observe.cluster_reader import ClusterReader
from tidelog.process.command_help import SuggestingGroup


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The live state of a cluster.

    `racks` maps the live brokers to their racks. `replica_bytes` has the size of each partition, and
    `usable_bytes` the free bytes of each broker that reports them. `under_way` are running moves.
    """

    racks: Mapping[int, str | None]
    partitions: Sequence[PartitionView]
    replica_bytes: Mapping[TopicPartition, int]
    usable_bytes: Mapping[int, int]
    assignment: Assignment
    under_way: Collection[TopicPartition] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan.

    `tightest` is the partition that the step leaves with the fewest in-sync replicas above its minimum, None
    without partitions. `unavailable` can't be written during the step.
    """

    action: str
    tightest: PartitionView | None
    unavailable: tuple[PartitionView, ...] = ()
    moved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reason why a plan is not safe. It names the first `partitions`."""

    reason: str
    partitions: tuple[PartitionView, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """The steps, and the reasons against them. The plan is safe if there are none."""

    steps: tuple[Step, ...]
    refusals: tuple[Refusal, ...] = ()
    moves: tuple[Move, ...] = ()

    @property
    def is_safe(self) -> bool:
        return not self.refusals


def plan_kill(state: ClusterState, broker_id: int) -> ChangePlan:
    """Plans that a broker stops and may stay away."""
    if broker_id not in state.racks:
        return ChangePlan((), (_unknown(state, broker_id),))
    refusals: list[Refusal] = []
    waiting = interrupted(state.partitions, broker_id)
    if waiting:
        reason = (
            f"partitions without a spare replica can't be written while broker {broker_id} is away: "
            f"{named(waiting)}"
        )
        refusals.append(Refusal(reason, tuple(waiting)))
    return ChangePlan((_stop(state.partitions, broker_id),), (*refusals, *_needed(state, broker_id)))


def plan_restart(state: ClusterState, broker_ids: Sequence[int] | None = None) -> ChangePlan:
    """Plans that brokers, by default all of them, restart one after the other as in the chart's roll."""
    chosen = sorted(state.racks) if broker_ids is None else broker_ids
    unknown = [each for each in chosen if each not in state.racks]
    if unknown:
        return ChangePlan((), tuple(_unknown(state, each) for each in unknown))
    refusals: list[Refusal] = []
    steps: list[Step] = []
    lacking = out_of_sync(state.partitions)
    if lacking:
        refusals.append(Refusal(f"replicas out of sync: {named(lacking)}", tuple(lacking)))
    unled = leaderless(state.partitions)
    if unled:
        refusals.append(Refusal(f"partitions without a leader: {named(unled)}", tuple(unled)))
    for broker_id in chosen:
        refusals += _needed(state, broker_id)
        steps.append(replace(_stop(state.partitions, broker_id), action=f"restart broker {broker_id}"))
    return ChangePlan(tuple(steps), tuple(refusals))


def plan_drain(state: ClusterState, broker_id: int) -> ChangePlan:
    """Plans that all replicas of a broker move to the others. New replicas are in sync before old ones go."""
    is_held = any(broker_id in replicas for replicas in state.assignment.values())
    if not is_held and broker_id not in state.racks:
        return ChangePlan((), (_unknown(state, broker_id),))
    return _plan_moves(state, state.racks, (broker_id,), f"move the replicas of broker {broker_id}")


def plan_remove(state: ClusterState, broker_id: int) -> ChangePlan:
    """Plans that a broker is drained and then stops for ever."""
    drained = plan_drain(state, broker_id)
    if not drained.is_safe:
        return drained
    after = {(move.topic, move.partition): move.after for move in drained.moves}
    partitions = [
        replace(p, replicas=after[p.topic, p.index], isr=frozenset(after[p.topic, p.index]))
        if (p.topic, p.index) in after
        else p
        for p in state.partitions
    ]
    stop = replace(_stop(partitions, broker_id), action=f"stop broker {broker_id} and remove it")
    return replace(drained, steps=(*drained.steps, stop))


def plan_add(state: ClusterState, count: int) -> ChangePlan:
    """Plans that new brokers get their share of the replicas. They have the ids after the highest one."""
    first = max((*state.racks, *(b for held in state.assignment.values() for b in held)), default=0) + 1
    added = range(first, first + count)
    new = ("broker " if count == 1 else "brokers ") + ", ".join(map(str, added))
    start = Step(f"start {new}", _tightest(state.partitions))
    racks = {**state.racks, **dict.fromkeys(added)}
    moved = _plan_moves(state, racks, (), f"move replicas to {new}")
    return replace(moved, steps=(start, *moved.steps))


def _plan_moves(
    state: ClusterState, racks: Mapping[int, str | None], leaving: Collection[int], action: str
) -> ChangePlan:
    if state.under_way:
        moving = named([TopicPartition(*key) for key in sorted(state.under_way)])
        partitions = counted(len(state.under_way), "partition", "is", "are")
        return ChangePlan((), (Refusal(f"{partitions} already moving: {moving}"),))
    try:
        moves = plan_moves(state.assignment, racks, leaving, evens_out=not leaving)
    except PlanError as error:
        return ChangePlan((), (Refusal(str(error)),))
    copied = {(move.topic, move.partition): len(move.adding) for move in moves if move.adding}
    refusals: list[Refusal] = []
    lost = [p for p in leaderless(state.partitions) if (p.topic, p.index) in copied]
    if lost:
        reason = f"partitions without a leader can't be copied: {named(lost)}"
        refusals.append(Refusal(reason, tuple(lost)))
    incoming: Counter[int] = Counter()
    for move in moves:
        for broker_id in move.adding:
            incoming[broker_id] += state.replica_bytes.get(move.place, 0)
    for broker_id, size in sorted(incoming.items()):
        usable = state.usable_bytes.get(broker_id)
        if usable is not None and size > usable:
            of_it = tuple(
                p
                for p in state.partitions
                if any((m.topic, m.partition) == (p.topic, p.index) and broker_id in m.adding for m in moves)
            )
            reason = f"broker {broker_id} would receive {size} bytes of {named(of_it)}, and has {usable} free"
            refusals.append(Refusal(reason, of_it))
    replicas = sum(copied.values())
    under_min = tuple(p for p in state.partitions if p.is_under_min_isr)
    step = Step(
        f"{action}: {counted(replicas, 'replica')}",
        _tightest(state.partitions),
        under_min,
        sum(incoming.values()),
    )
    return ChangePlan((step,), tuple(refusals), tuple(moves))


def _unknown(state: ClusterState, broker_id: int) -> Refusal:
    known = ", ".join(map(str, sorted(state.racks)))
    return Refusal(f"broker {broker_id} is not registered; the live brokers are {known}")


def _needed(state: ClusterState, broker_id: int) -> list[Refusal]:
    needing = endangered(state.partitions, broker_id)
    return [Refusal(needed_reason(broker_id, needing), tuple(needing))] if needing else []


def _stop(partitions: Iterable[PartitionView], broker_id: int) -> Step:
    """Returns the step in which a broker is away."""
    left = [replace(p, isr=p.isr - {broker_id}) for p in partitions]
    unavailable = tuple(p for p in left if p.is_under_min_isr)
    return Step(f"stop broker {broker_id}", _tightest(left), unavailable)


def _tightest(partitions: Iterable[PartitionView]) -> PartitionView | None:
    return min(partitions, key=lambda p: (len(p.isr) - p.needed_isr, len(p.isr), str(p)), default=None)


_BROKER = click.argument("broker_id", metavar="BROKER", type=click.IntRange(min=0))


@click.group(cls=SuggestingGroup)
def command() -> None:
    """Show what a change of the brokers would do, without changing anything.

    For each step, a plan shows the partition with the fewest in-sync replicas to spare, the partitions that
    can't be written, and the bytes that move. The exit code is 1 if the plan is not safe.
    """


@command.command("kill", cls=ToolCommand, examples=("tidelog plan kill 2",))
@_BROKER
@cluster_options
def kill(broker_id: int) -> None:
    """Plan that a broker stops and may stay away."""
    _show(lambda state: plan_kill(state, broker_id), "")


@command.command("drain", cls=ToolCommand, examples=("tidelog plan drain 2",))
@_BROKER
@cluster_options
def drain(broker_id: int) -> None:
    """Plan that all replicas of a broker move to the others."""
    step = f"tidelog rebalance --without {broker_id} --execute"
    _show(lambda state: plan_drain(state, broker_id), step)


@command.command(
    "restart", cls=ToolCommand, examples=("tidelog plan restart", "tidelog plan restart 1 2 --format json")
)
@click.argument("broker_ids", metavar="[BROKER]...", nargs=-1, type=click.IntRange(min=0))
@cluster_options
def restart(broker_ids: tuple[int, ...]) -> None:
    """Plan that brokers, by default all, restart one after the other.

    The rule is that of the chart's roll: the next broker stops only when all replicas are in sync again.
    """
    _show(lambda state: plan_restart(state, broker_ids or None), "")


@command.command("add", cls=ToolCommand, examples=("tidelog plan add 2",))
@click.argument("count", metavar="N", type=click.IntRange(min=1, max=1000))
@cluster_options
def add(count: int) -> None:
    """Plan that N new brokers get their share of the replicas."""
    step = "start the brokers, then: tidelog rebalance --execute"
    _show(lambda state: plan_add(state, count), step)


@command.command("remove", cls=ToolCommand, examples=("tidelog plan remove 3",))
@_BROKER
@cluster_options
def remove(broker_id: int) -> None:
    """Plan that a broker is drained and then stops for ever."""
    step = f"tidelog rebalance --without {broker_id} --execute, then stop the broker"
    _show(lambda state: plan_remove(state, broker_id), step)


def read_state(cluster: Cluster) -> ClusterState:
    """Reads the state of a cluster. Raises KafkaError, ClientError if a registered broker does not answer."""
    reader = ClusterReader(cluster)
    _, partitions = reader.availability()
    standing = standing_of(cluster)
    directories = reader.log_dirs()
    usable: dict[int, int] = {}
    for directory in directories:
        if directory.usable_bytes != UNKNOWN_BYTES:
            usable[directory.broker_id] = usable.get(directory.broker_id, 0) + directory.usable_bytes
    return ClusterState(
        standing.racks,
        partitions,
        partition_bytes(directories),
        usable,
        standing.assignment,
        tuple(standing.under_way),
    )


def _show(make: Callable[[ClusterState], ChangePlan], next_step: str) -> None:
    """Prints a plan. Raises ToolError with the reasons if it is not safe."""
    with connect() as cluster:
        plan = make(read_state(cluster))
    if output_format() is OutputFormat.JSON:
        add_facts(**_as_object(plan))
    elif plan.steps:
        print_table(
            ("#step", "action", "fewest in sync", "can't be written", "#bytes moved"),
            [
                (
                    number,
                    step.action,
                    _in_sync_text(step.tightest),
                    named(step.unavailable) or "nothing",
                    step.moved_bytes,
                )
                for number, step in enumerate(plan.steps, 1)
            ],
        )
    if not plan.is_safe:
        raise ToolError("not safe: " + "; ".join(refusal.reason for refusal in plan.refusals))
    if output_format() is not OutputFormat.JSON:
        interrupted = {str(p) for step in plan.steps for p in step.unavailable}
        if interrupted:
            waiting = counted(len(interrupted), "partition")
            note(f"The clients of {waiting} have to wait while their broker is away.")
        say("The plan is safe." + (f" To carry it out: {next_step}" if next_step else ""))


def _in_sync_text(partition: PartitionView | None) -> str:
    if partition is None:
        return ""
    return f"{partition}: {len(partition.isr)} of {len(partition.replicas)}, needs {partition.needed_isr}"


def _as_object(plan: ChangePlan) -> dict[str, Any]:
    return {
        "is_safe": plan.is_safe,
        "refusals": [
            {"reason": refusal.reason, "partitions": [str(p) for p in refusal.partitions]}
            for refusal in plan.refusals
        ],
        "steps": [
            {
                "action": step.action,
                "fewest_in_sync": None
                if step.tightest is None
                else {
                    "partition": str(step.tightest),
                    "in_sync": len(step.tightest.isr),
                    "needed": step.tightest.needed_isr,
                },
                "unavailable": [str(p) for p in step.unavailable],
                "moved_bytes": step.moved_bytes,
            }
            for step in plan.steps
        ],
        "moves": [
            {"topic": m.topic, "partition": m.partition, "before": m.before, "after": m.after}
            for m in plan.moves
        ],
    }
