"""`tidelog rebalance`: distributes replicas over the brokers, or moves them off brokers.

`execute` also runs the plans of `tidelog reassign`, with a throttle (KIP-73) and a limit of concurrent moves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import click

from tidelog.cli.output import add_facts, counted, note, print_table, say
from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, connect, write_text_file
from tidelog.client.admin.reassignments import (
    Move,
    PlanError,
    Reassignment,
    Standing,
    after_moves,
    alter_reassignments,
    elect_preferred_leaders,
    list_reassignments,
    plan_json,
    plan_moves,
    replica_counts,
    standing_of,
)
from tidelog.client.admin.topics import ConfigChange, ConfigResource, alter_configs, describe_configs
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.model.errors import KafkaError
from tidelog.model.protocol_values import ConfigOperation, ConfigResourceType
from tidelog.model.topics import TopicPartition

_DEFAULT_TIMEOUT_S: Final = 86_400.0
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
POLL_INTERVAL_S: Final = 1.0
AT_ONCE: Final = 50
T = TypeVar("T")


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
) -> None:
    """Propose an even distribution of replicas and leaders with the fewest moves, and execute it.

    Without --execute the plan is only shown. Each partition stays on as many racks as possible.
    """
    if execute + verify + cancel > 1:
        raise click.UsageError("Give only one of --execute, --verify and --cancel.")
    leaving = parse_ids("--without", without)
    with connect() as cluster:
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
            write_text_file(output, plan_json(moves))
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
            cluster, moves, throttle_bytes_per_s=throttle, at_once=at_once, timeout_s=timeout_s, tell=note
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


def _verify(cluster: Cluster) -> None:
    under_way = list_reassignments(cluster)
    if under_way:
        print_running(under_way, name="moving")
        raise ToolError(
            f"{counted(len(under_way), 'partition', 'is', 'are')} moving; "
            "the throttle remains until they are finished"
        )
    count = remove_throttle(cluster, cluster.topics())
    add_facts(moving=[])
    removed = f"{counted(count, 'throttle', 'was', 'were')} removed" if count else "there is no throttle"
    say(f"No partition is moving; {removed}.", throttles_removed=count)


def print_running(under_way: Mapping[TopicPartition, Reassignment], name: str | None = None) -> None:
    """Prints the running moves."""
    print_table(
        ("topic", "#partition", "replicas", "adding", "removing"),
        [(*key, move.replicas, move.adding, move.removing) for key, move in sorted(under_way.items())],
        name=name,
    )


def _cancel(cluster: Cluster) -> None:
    under_way = list_reassignments(cluster)
    alter_reassignments(cluster, dict.fromkeys(under_way))
    remove_throttle(cluster, cluster.topics())
    say(
        f"{counted(len(under_way), 'move', 'was', 'were')} cancelled, and the throttle was removed.",
        cancelled=len(under_way),
    )


def throttled_replicas(moves: Iterable[Move]) -> dict[str, tuple[str, str]]:
    """Returns for each topic the values of its two throttle settings: for existing and for new replicas."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for move in moves:
        if not move.adding:
            continue
        leaders.setdefault(move.topic, []).extend(f"{move.partition}:{broker}" for broker in move.before)
        followers.setdefault(move.topic, []).extend(f"{move.partition}:{broker}" for broker in move.adding)
    return {topic: (",".join(leaders[topic]), ",".join(followers[topic])) for topic in leaders}


def set_throttle(cluster: Cluster, moves: Sequence[Move], bytes_per_s: int) -> None:
    """Raises KafkaError, ClientError."""
    brokers = sorted({broker for move in moves for broker in (*move.before, *move.after) if move.adding})
    alive = {broker.broker_id for broker in cluster.describe().brokers}
    for broker in brokers:
        if broker in alive:
            resource = ConfigResource(ConfigResourceType.BROKER, str(broker))
            _set(cluster, resource, {LEADER_RATE: str(bytes_per_s), FOLLOWER_RATE: str(bytes_per_s)})
    for topic, (leaders, followers) in throttled_replicas(moves).items():
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        _set(cluster, resource, {LEADER_REPLICAS: leaders, FOLLOWER_REPLICAS: followers})


def remove_throttle(cluster: Cluster, topics: Iterable[str]) -> int:
    """Removes the throttle from all live brokers and these topics, and returns how many had one.

    Raises KafkaError, ClientError.
    """
    count = 0
    resources = [
        (ConfigResource(ConfigResourceType.BROKER, str(broker.broker_id)), (LEADER_RATE, FOLLOWER_RATE))
        for broker in cluster.describe().brokers
    ]
    for topic in topics:
        names = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
        resources.append((ConfigResource(ConfigResourceType.TOPIC, topic), names))
    for resource, names in resources:
        found = describe_configs(cluster, resource, list(names))
        changes = [ConfigChange(entry.name, ConfigOperation.DELETE) for entry in found if entry.is_dynamic]
        if changes:
            alter_configs(cluster, resource, changes)
            count += 1
    return count


def _set(cluster: Cluster, resource: ConfigResource, values: Mapping[str, str]) -> None:
    changes = [ConfigChange(name, ConfigOperation.SET, value) for name, value in values.items()]
    alter_configs(cluster, resource, changes)


def carry_out(
    cluster: Cluster,
    moves: Sequence[Move],
    *,
    throttle_bytes_per_s: int | None,
    at_once: int,
    timeout_s: float,
    tell: Callable[[str], None],
) -> None:
    """Executes the moves until the last replica is in sync, and removes the throttle.

    Raises ToolError at the timeout (the moves continue), KafkaError, ClientError.
    """
    deadline_s = time.monotonic() + timeout_s
    if throttle_bytes_per_s is not None:
        set_throttle(cluster, moves, throttle_bytes_per_s)
    waiting = list(moves)
    said = -1
    while True:
        under_way = _asked(lambda: list_reassignments(cluster), deadline_s)
        room = at_once - len(under_way)
        if waiting and room > 0:
            batch, waiting = waiting[:room], waiting[room:]
            wanted = {move.place: move.after for move in batch}
            _asked(partial(alter_reassignments, cluster, wanted), deadline_s)
            continue
        left = len(waiting) + len(under_way)
        if left != said:
            tell(
                f"{len(moves) - min(left, len(moves))} of "
                f"{counted(len(moves), 'partition', 'is', 'are')} finished"
            )
            said = left
        if not left:
            break
        if time.monotonic() > deadline_s:
            raise ToolError(
                f"{counted(left, 'partition', 'is', 'are')} not finished after {timeout_s:g} s. "
                "Started moves continue: "
                "'tidelog rebalance --verify' shows them and finally removes the throttle"
            )
        time.sleep(POLL_INTERVAL_S)
    if throttle_bytes_per_s is not None:
        remove_throttle(cluster, sorted({move.topic for move in moves}))
    elect_preferred_leaders(cluster)


def _asked(question: Callable[[], T], deadline_s: float) -> T:
    """Repeats a request, because brokers and controllers may change while replicas move."""
    while True:
        try:
            return question()
        except (ClientError, KafkaError) as error:
            if (isinstance(error, KafkaError) and not error.is_retriable) or time.monotonic() > deadline_s:
                raise
            time.sleep(POLL_INTERVAL_S)
