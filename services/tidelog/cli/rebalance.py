"""`tidelog rebalance`: distributes replicas over the brokers, or moves them off brokers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from tidelog.cli.output import add_facts, counted, note, print_table, say
from tidelog.cli.rebalance_run import AT_ONCE, carry_out, remove_throttle
from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, connect
from tidelog.client.admin.reassignments import (
    Move,
    PlanError,
    Standing,
    after_moves,
    alter_reassignments,
    list_reassignments,
    plan_json,
    plan_moves,
    replica_counts,
    standing_of,
)
from tidelog.client.cluster import Cluster

_DEFAULT_TIMEOUT_S: Final = 86_400.0


@click.command(
    cls=ToolCommand,
    short_help="Distribute replicas over the brokers.",
    examples=(
        "tidelog rebalance",
        "tidelog rebalance --without 3 --execute --throttle 50000000",
        "tidelog rebalance --verify",
    ),
)
@click.option("--without", metavar="ID,...", help="Move all replicas off these brokers.")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Move only this topic. Repeatable.")
@click.option("--execute", is_flag=True, help="Execute the plan. By default the plan is only shown.")
@click.option("--verify", is_flag=True, help="Show running moves. If there are none, remove the throttle.")
@click.option("--cancel", is_flag=True, help="Cancel running moves. The replicas stay where they were.")
@click.option(
    "--throttle",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Maximum bytes per second that each broker sends and receives for the moves.  [default: no limit]",
)
@click.option(
    "--at-once",
    type=click.IntRange(min=1),
    default=AT_ONCE,
    show_default=True,
    help="Maximum number of partitions that move at the same time.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=_DEFAULT_TIMEOUT_S,
    show_default=True,
    help="Seconds to wait for the moves. Started moves continue afterwards.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the plan to a file in the format of kafka-reassign-partitions.",
)
@cluster_options
def command(
    without: str | None,
    topics: tuple[str, ...],
    execute: bool,
    verify: bool,
    cancel: bool,
    throttle: int | None,
    at_once: int,
    timeout_s: float,
    output: Path | None,
    bootstrap_server: str,
    request_timeout_ms: int,
) -> None:
    """Propose an even distribution of replicas and leaders with the fewest moves, and execute it.

    Without --execute the plan is only shown. Each partition stays on as many racks as possible.
    """
    if execute + verify + cancel > 1:
        raise click.UsageError("Give only one of --execute, --verify and --cancel.")
    leaving = parse_ids("--without", without)
    with connect(bootstrap_server, request_timeout_ms) as cluster:
        if verify:
            _verify(cluster)
            return
        if cancel:
            _cancel(cluster)
            return
        standing = standing_of(cluster, topics)
        _check_brokers("--without", leaving, standing)
        moves = planned(standing, leaving)
        _show(standing, moves)
        if output is not None:
            _write(output, moves)
        if not execute:
            if moves:
                note("Nothing was moved. Use --execute to execute the plan.")
            return
        if standing.under_way:
            raise ToolError(
                f"{counted(len(standing.under_way), 'partition', 'is', 'are')} already moving; "
                "'tidelog rebalance --verify' shows them"
            )
        carry_out(
            cluster,
            moves,
            throttle_bytes_per_s=throttle,
            at_once=at_once,
            timeout_s=timeout_s,
            tell=note,
        )
    say(f"{counted(len(moves), 'partition', 'has', 'have')} the planned replicas.")


def planned(standing: Standing, leaving: Sequence[int], *, evens_out: bool = True) -> list[Move]:
    """Returns the moves of the plan. Raises ToolError if no plan is possible."""
    try:
        return plan_moves(standing.assignment, standing.racks, leaving, evens_out=evens_out)
    except PlanError as error:
        raise ToolError(f"no plan is possible: {error}") from error


def parse_ids(option: str, text: str | None) -> tuple[int, ...]:
    """Parses broker ids, such as `3,4`. Raises ToolError."""
    try:
        return tuple(sorted({int(part) for part in (text or "").split(",") if part.strip()}))
    except ValueError:
        raise ToolError(f"{option} {text}: expected broker ids separated by `,`") from None


def _check_brokers(option: str, broker_ids: Sequence[int], standing: Standing) -> None:
    """Raises ToolError for an id of a broker that is neither registered nor has a replica."""
    known = {*standing.racks, *(broker for replicas in standing.assignment.values() for broker in replicas)}
    unknown = [broker for broker in broker_ids if broker not in known]
    if unknown:
        raise ToolError(
            f"{option} {unknown[0]}: no broker has this id; the brokers are "
            f"{', '.join(map(str, sorted(known)))}"
        )


def _show(standing: Standing, moves: Sequence[Move]) -> None:
    if not moves:
        say("All replicas are where they should be.")
        add_facts(moves=[])
        return
    rows = [(m.topic, m.partition, m.before, m.after) for m in moves]
    print_table(("topic", "#partition", "replicas", "planned"), rows, name="moves")
    before = replica_counts(standing.assignment, standing.racks)
    after = replica_counts(after_moves(standing.assignment, moves), standing.racks)
    copies = sum(len(move.adding) for move in moves)
    reordered = sum(not move.adding for move in moves)
    note(f"The plan copies {counted(copies, 'replica')} and reorders {counted(reordered, 'partition')}.")
    for broker, (replicas, leaders) in after.items():
        had_replicas, had_leaders = before.get(broker, (0, 0))
        note(
            f"broker {broker}: replicas {had_replicas} -> {replicas}, "
            f"preferred leaders {had_leaders} -> {leaders}"
        )


def _write(output: Path, moves: Sequence[Move]) -> None:
    try:
        output.write_text(plan_json(moves), "utf-8")
    except OSError as error:
        raise ToolError(f"--output {output}: {error.strerror}") from error


def _verify(cluster: Cluster) -> None:
    under_way = list_reassignments(cluster)
    if under_way:
        rows = [
            (topic, index, move.replicas, move.adding, move.removing)
            for (topic, index), move in sorted(under_way.items())
        ]
        print_table(("topic", "#partition", "replicas", "adding", "removing"), rows, name="moving")
        raise ToolError(
            f"{counted(len(under_way), 'partition', 'is', 'are')} moving; "
            "the throttle remains until they are finished"
        )
    count = remove_throttle(cluster, cluster.topics())
    add_facts(moving=[])
    removed = f"{counted(count, 'throttle', 'was', 'were')} removed" if count else "there is no throttle"
    say(
        f"No partition is moving; {removed}.",
        throttles_removed=count,
    )


def _cancel(cluster: Cluster) -> None:
    under_way = list_reassignments(cluster)
    alter_reassignments(cluster, dict.fromkeys(under_way))
    remove_throttle(cluster, cluster.topics())
    say(
        f"{counted(len(under_way), 'move', 'was', 'were')} cancelled, and the throttle was removed.",
        cancelled=len(under_way),
    )
