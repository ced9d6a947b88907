"""`tidelog rebalance`: replicas spread over the brokers there are, or taken off brokers that are to go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from tidelog.cli.output import note, print_table, say
from tidelog.cli.rebalance_run import AT_ONCE, carry_out, remove_throttle
from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, connect
from tidelog.client.cluster import Cluster
from tidelog.client.reassignments import Standing, alter_reassignments, list_reassignments, standing_of
from tidelog.client.rebalance_plan import (
    Move,
    PlanError,
    after_moves,
    plan_json,
    plan_moves,
    replica_counts,
)

_DEFAULT_TIMEOUT_S: Final = 86_400.0


@click.command(cls=ToolCommand, short_help="Spread replicas over brokers, new or leaving.")
@click.option("--without", metavar="ID,...", help="Brokers that are to hold nothing any more.")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; repeatable.")
@click.option("--execute", is_flag=True, help="Carry the plan out; without it the plan is only shown.")
@click.option("--verify", is_flag=True, help="Show what is under way; when nothing is, remove the throttle.")
@click.option("--cancel", is_flag=True, help="End what is under way; replicas stay where they were.")
@click.option(
    "--throttle",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Bytes a second that each broker may copy for this, either way; without it, as fast as it goes.",
)
@click.option(
    "--at-once",
    type=click.IntRange(min=1),
    default=AT_ONCE,
    show_default=True,
    help="How many partitions move at the same time.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=_DEFAULT_TIMEOUT_S,
    show_default=True,
    help="Seconds to wait for the end; what was started goes on.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the plan as kafka-reassign-partitions reads it.",
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
    """Propose where replicas should be, with the least of them moved; --execute moves them.

    Partitions stay on as many racks as there are, topics and leaders become even.
    """
    if execute + verify + cancel > 1:
        raise click.UsageError("one of --execute, --verify, --cancel, please.")
    leaving = parse_ids("--without", without)
    with connect(bootstrap_server, request_timeout_ms) as cluster:
        if verify:
            _verify(cluster)
            return
        if cancel:
            _cancel(cluster)
            return
        standing = standing_of(cluster, topics)
        moves = planned(standing, leaving)
        _show(standing, moves)
        if output is not None:
            _write(output, moves)
        if not execute:
            if moves:
                note("Nothing was moved; --execute does it.")
            return
        if standing.under_way:
            raise ToolError(
                f"{len(standing.under_way)} partitions are moving already; "
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
    say(f"{len(moves)} partitions are where they should be.")


def planned(standing: Standing, leaving: Sequence[int], *, evens_out: bool = True) -> list[Move]:
    """Raises ToolError."""
    try:
        return plan_moves(standing.assignment, standing.racks, leaving, evens_out=evens_out)
    except PlanError as error:
        raise ToolError(f"no plan: {error}") from error


def parse_ids(option: str, text: str | None) -> tuple[int, ...]:
    """`3,4`. Raises ToolError."""
    try:
        return tuple(sorted({int(part) for part in (text or "").split(",") if part.strip()}))
    except ValueError:
        raise ToolError(f"{option} {text}: broker ids are numbers, with `,` between them") from None


def _show(standing: Standing, moves: Sequence[Move]) -> None:
    if not moves:
        say("All replicas are where they should be.")
        return
    rows = [(m.topic, m.partition, _ids(m.before), _ids(m.after)) for m in moves]
    print_table(("topic", "#partition", "replicas", "planned"), rows)
    before = replica_counts(standing.assignment, standing.racks)
    after = replica_counts(after_moves(standing.assignment, moves), standing.racks)
    copies = sum(len(move.adding) for move in moves)
    note(f"{copies} replicas are copied, {sum(not move.adding for move in moves)} partitions only reordered")
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
            (topic, index, _ids(move.replicas), _ids(move.adding), _ids(move.removing))
            for (topic, index), move in sorted(under_way.items())
        ]
        print_table(("topic", "#partition", "replicas", "adding", "removing"), rows)
        raise ToolError(f"{len(under_way)} partitions are moving; the throttle stays until they have arrived")
    count = remove_throttle(cluster, cluster.topics())
    say(f"No partition is moving; {f'{count} throttles removed' if count else 'nothing is throttled'}.")


def _cancel(cluster: Cluster) -> None:
    under_way = list_reassignments(cluster)
    alter_reassignments(cluster, dict.fromkeys(under_way))
    remove_throttle(cluster, cluster.topics())
    say(f"{len(under_way)} moves cancelled; the throttle is off.")


def _ids(broker_ids: tuple[int, ...]) -> str:
    return ",".join(map(str, broker_ids))
