"""`tidelog plan`: states what a change of the brokers would do, and refuses what is not safe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tidelog.cli.output import OutputFormat, add_facts, counted, note, output_format, print_table, say
from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, connect
from tidelog.client.availability import PartitionView, named
from tidelog.client.change_plan import (
    ChangePlan,
    ClusterState,
    plan_add,
    plan_drain,
    plan_kill,
    plan_remove,
    plan_restart,
)
from tidelog.client.cluster import Cluster
from tidelog.client.cluster_look import look_at_cluster
from tidelog.client.log_dirs import UNKNOWN_BYTES, describe_log_dirs, partition_bytes
from tidelog.client.reassignments import standing_of
from tidelog.process.command_help import SuggestingGroup

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
def kill(broker_id: int, bootstrap_server: str, request_timeout_ms: int) -> None:
    """Plan that a broker stops and may stay away."""
    _show(bootstrap_server, request_timeout_ms, lambda state: plan_kill(state, broker_id), "")


@command.command("drain", cls=ToolCommand, examples=("tidelog plan drain 2",))
@_BROKER
@cluster_options
def drain(broker_id: int, bootstrap_server: str, request_timeout_ms: int) -> None:
    """Plan that all replicas of a broker move to the others."""
    step = f"tidelog rebalance --without {broker_id} --execute"
    _show(bootstrap_server, request_timeout_ms, lambda state: plan_drain(state, broker_id), step)


@command.command(
    "restart",
    cls=ToolCommand,
    examples=(
        "tidelog plan restart",
        "tidelog plan restart 1 2 --format json",
    ),
)
@click.argument("broker_ids", metavar="[BROKER]...", nargs=-1, type=click.IntRange(min=0))
@cluster_options
def restart(broker_ids: tuple[int, ...], bootstrap_server: str, request_timeout_ms: int) -> None:
    """Plan that brokers, by default all, restart one after the other.

    The rule is that of the chart's roll: the next broker stops only when all replicas are in sync again.
    """
    _show(
        bootstrap_server,
        request_timeout_ms,
        lambda state: plan_restart(state, broker_ids or None),
        "",
    )


@command.command("add", cls=ToolCommand, examples=("tidelog plan add 2",))
@click.argument("count", metavar="N", type=click.IntRange(min=1, max=1000))
@cluster_options
def add(count: int, bootstrap_server: str, request_timeout_ms: int) -> None:
    """Plan that N new brokers get their share of the replicas."""
    step = "start the brokers, then: tidelog rebalance --execute"
    _show(bootstrap_server, request_timeout_ms, lambda state: plan_add(state, count), step)


@command.command("remove", cls=ToolCommand, examples=("tidelog plan remove 3",))
@_BROKER
@cluster_options
def remove(broker_id: int, bootstrap_server: str, request_timeout_ms: int) -> None:
    """Plan that a broker is drained and then stops for ever."""
    step = f"tidelog rebalance --without {broker_id} --execute, then stop the broker"
    _show(bootstrap_server, request_timeout_ms, lambda state: plan_remove(state, broker_id), step)


def read_state(cluster: Cluster) -> ClusterState:
    """Reads the state of a cluster. Raises KafkaError, ClientError if a registered broker does not answer."""
    _, partitions = look_at_cluster(cluster)
    standing = standing_of(cluster)
    directories = describe_log_dirs(cluster, standing.racks)
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


def _show(
    bootstrap_server: str,
    request_timeout_ms: int,
    make: Callable[[ClusterState], ChangePlan],
    next_step: str,
) -> None:
    """Prints a plan. Raises ToolError with the reasons if it is not safe."""
    with connect(bootstrap_server, request_timeout_ms) as cluster:
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
