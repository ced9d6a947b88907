"""The commands for replicas: where they are, where they move, and which one leads.

- `tidelog reassign` moves replicas as a JSON file says (kafka-reassign-partitions)
- `tidelog elect-leaders` elects preferred leaders, or unclean ones (kafka-leader-election)
- `tidelog log-dirs` shows the sizes of log directories and of their replicas (kafka-log-dirs)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import click

from tidelog.cli.cluster.rebalance import parse_ids, planned, print_running, remove_throttle, set_throttle
from tidelog.cli.output import OutputFormat, add_facts, counted, note, output_format, print_table, say
from tidelog.cli.tool_command import (
    ProtocolInt,
    ToolCommand,
    ToolError,
    cluster_options,
    connect,
    parse_partition_rows,
    parse_rows,
    read_text_file,
)
from tidelog.client.admin.brokers import UNKNOWN_BYTES, LogDir, describe_log_dirs
from tidelog.client.admin.reassignments import (
    PREFERRED,
    UNCLEAN,
    Assignment,
    Election,
    PlanError,
    Progress,
    Standing,
    after_moves,
    alter_reassignments,
    assignment_json,
    elect_leaders,
    list_reassignments,
    progress_of,
    requested_moves,
    running_moves,
    standing_of,
)
from tidelog.client.cluster import RETRY_BACKOFF_S, Cluster
from tidelog.model.errors import ErrorCode, meaning_of
from tidelog.model.topics import TopicPartition
from tidelog.observe.cluster_reader import existing_topics
from tidelog.settings.setting import INT_MAX

_FILE: Final = "--reassignment-json-file"
_TOPICS_FILE: Final = "--topics-to-move-json-file"
_ANY_DIRECTORY: Final = "any"
_METADATA_WAIT_S: Final = 2.0
_EXISTING_FILE: Final = click.Path(dir_okay=False, exists=True, path_type=Path)

F = TypeVar("F", bound=Callable[..., object])
_TYPES: Final = {"preferred": PREFERRED, "unclean": UNCLEAN}


def _actions(function: F) -> F:
    for name, text in (
        ("list", "Show all running moves."),
        ("cancel", "Cancel running moves of the file. The replicas stay where they were."),
        ("verify", "Show the progress of the file's moves. If none is running, remove the throttle."),
        ("execute", "Start the moves of the file."),
        ("generate", "Print an assignment of topics to brokers, for a file."),
    ):
        function = click.option(f"--{name}", f"is_{name}", is_flag=True, help=text)(function)
    return function


@click.command(
    cls=ToolCommand,
    examples=(
        "tidelog reassign --generate --topics-to-move-json-file topics.json --broker-list 1,2,3",
        "tidelog reassign --execute --reassignment-json-file moves.json --throttle 50000000",
        "tidelog reassign --verify --reassignment-json-file moves.json",
        "tidelog reassign --cancel --reassignment-json-file moves.json",
    ),
)
@_actions
@click.option(
    _FILE,
    "file",
    type=_EXISTING_FILE,
    metavar="FILE",
    help='The moves: {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}.',
)
@click.option(
    _TOPICS_FILE,
    "topics_file",
    type=_EXISTING_FILE,
    metavar="FILE",
    help='With --generate, the topics: {"version": 1, "topics": [{"topic": "t"}]}.',
)
@click.option("--broker-list", metavar="ID,...", help="With --generate, the brokers that get the replicas.")
@click.option("--disable-rack-aware", is_flag=True, help="With --generate, ignore the racks of the brokers.")
@click.option(
    "--throttle",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="With --execute, the maximum bytes per second that each broker sends and receives for the moves.  "
    "[default: no limit]",
)
@click.option("--additional", is_flag=True, help="With --execute, start although other moves are running.")
@click.option("--preserve-throttles", is_flag=True, help="With --verify and --cancel, keep the throttle.")
@cluster_options
def reassign_command(
    is_generate: bool,
    is_execute: bool,
    is_verify: bool,
    is_cancel: bool,
    is_list: bool,
    file: Path | None,
    topics_file: Path | None,
    broker_list: str | None,
    disable_rack_aware: bool,
    throttle: int | None,
    additional: bool,
    preserve_throttles: bool,
) -> None:
    """Move replicas to the brokers that a file names.

    `tidelog rebalance` computes the moves itself and waits for them.
    """
    if is_generate + is_execute + is_verify + is_cancel + is_list != 1:
        raise click.UsageError("Give one of --generate, --execute, --verify, --cancel and --list.")
    if is_generate and (topics_file is None or not broker_list):
        raise click.UsageError(f"--generate requires {_TOPICS_FILE} and --broker-list.")
    if (is_execute or is_verify or is_cancel) and file is None:
        raise click.UsageError(f"--execute, --verify and --cancel require {_FILE}.")
    wanted: Assignment = {}
    if file is not None:
        wanted = parse_reassignment(read_text_file(_FILE, file), f"{_FILE} {file}")
    with connect() as cluster:
        if is_generate:
            assert topics_file is not None
            topics = parse_topics(read_text_file(_TOPICS_FILE, topics_file), f"{_TOPICS_FILE} {topics_file}")
            _generate(cluster, topics, parse_ids("--broker-list", broker_list), disable_rack_aware)
        elif is_execute:
            _execute(cluster, wanted, throttle, is_additional=additional)
        elif is_verify:
            _verify(cluster, wanted, preserve_throttles)
        elif is_cancel:
            _cancel(cluster, wanted, preserve_throttles)
        else:
            print_running(list_reassignments(cluster))


def parse_reassignment(text: str, source: str) -> Assignment:
    """Returns the replicas of each partition in Kafka's JSON. Raises ToolError."""
    found: dict[TopicPartition, tuple[int, ...]] = {}
    for place, row in parse_partition_rows(text, source).items():
        replicas = row.get("replicas")
        if not isinstance(replicas, list) or not all(type(broker) is int for broker in replicas):
            raise ToolError(f'{source}: {place} has no list of broker ids "replicas"')
        directories = row.get("log_dirs", [])
        if not isinstance(directories, list) or any(path != _ANY_DIRECTORY for path in directories):
            raise ToolError(
                f'{source}: the "log_dirs" of {place} must be "{_ANY_DIRECTORY}", because a broker chooses '
                "the directory"
            )
        if directories and len(directories) != len(replicas):
            raise ToolError(
                f'{source}: {place} has {len(replicas)} replicas, but {len(directories)} "log_dirs"'
            )
        found[place] = tuple(replicas)
    return found


def parse_topics(text: str, source: str) -> list[str]:
    """Returns the topics in Kafka's JSON. Raises ToolError."""
    names = [row.get("topic") for row in parse_rows(text, source, "topics")]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ToolError(f'{source} must name a "topic" in each entry of "topics"')
    if len(set(names)) < len(names):
        raise ToolError(f"{source} names a topic twice")
    return [str(name) for name in names]


def _generate(cluster: Cluster, topics: Sequence[str], brokers: Sequence[int], ignores_racks: bool) -> None:
    standing = standing_of(cluster, topics)
    _check_live("--broker-list", brokers, standing.racks)
    racks = dict.fromkeys(standing.racks) if ignores_racks else standing.racks
    held = {broker for replicas in standing.assignment.values() for broker in replicas}
    leaving = (held | set(racks)) - set(brokers)
    moves = planned(replace(standing, racks=racks), sorted(leaving))
    proposed = assignment_json(after_moves(standing.assignment, moves))
    current = assignment_json(standing.assignment)
    if output_format() is OutputFormat.JSON:
        add_facts(current=json.loads(current), proposed=json.loads(proposed), moves=len(moves))
        return
    note("The current assignment, which undoes the moves:")
    note(current.rstrip())
    note(f"The proposed assignment, which moves {counted(len(moves), 'partition')}:")
    click.echo(proposed, nl=False)


def _check_live(source: str, broker_ids: Iterable[int], live: Collection[int]) -> None:
    missing = [broker_id for broker_id in broker_ids if broker_id not in live]
    if missing:
        raise ToolError(
            f"{source}: the cluster has no live broker {missing[0]}; "
            "'tidelog cluster describe' shows the brokers"
        )


def _execute(cluster: Cluster, wanted: Assignment, throttle: int | None, *, is_additional: bool) -> None:
    standing = standing_of(cluster)
    if standing.under_way and not is_additional:
        raise ToolError(
            f"{counted(len(standing.under_way), 'partition', 'is', 'are')} already moving, as --list shows; "
            "--additional starts more moves"
        )
    try:
        moves = requested_moves(standing.assignment, wanted, standing.racks)
    except PlanError as error:
        raise ToolError(str(error)) from error
    note("The current assignment, which undoes the moves:")
    before = {move.place: move.before for move in moves}
    note(assignment_json(before).rstrip())
    if throttle is not None:
        others = {key: move for key, move in standing.under_way.items() if key not in wanted}
        set_throttle(cluster, [*moves, *running_moves(others)], throttle)
    alter_reassignments(cluster, wanted)
    say(f"Started {counted(len(moves), 'move')}.", moves=len(moves))
    if throttle is not None:
        note("Run --verify until the moves are finished: it removes the throttle.")


def _verify(cluster: Cluster, wanted: Assignment, keeps_throttle: bool) -> None:
    standing, found = _progress(cluster, wanted)
    print_table(
        ("topic", "#partition", "replicas", "requested", "state"),
        [(*key, standing.assignment.get(key, ()), wanted[key], state.value) for key, state in found.items()],
    )
    if standing.under_way:
        moving = sum(1 for state in found.values() if state is Progress.MOVING)
        others = len(standing.under_way) - moving
        of_file = f"{counted(moving, 'partition')} of the file"
        note(f"{of_file} and {counted(others, 'other')} are moving; the throttle remains.")
    else:
        _remove_throttle(cluster, wanted, standing, keeps_throttle)
    left = sum(1 for state in found.values() if state is not Progress.FINISHED)
    if left:
        raise ToolError(f"{counted(left, 'partition', 'does', 'do')} not have the requested replicas")


def _progress(cluster: Cluster, wanted: Assignment) -> tuple[Standing, dict[TopicPartition, Progress]]:
    """Returns the progress. It waits for a while if a broker has not heard yet that a move has ended."""
    deadline_s = time.monotonic() + _METADATA_WAIT_S
    while True:
        standing = standing_of(cluster)
        found = progress_of(wanted, standing.assignment, standing.under_way.keys())
        if Progress.DIFFERENT not in found.values() or time.monotonic() > deadline_s:
            return standing, found
        time.sleep(RETRY_BACKOFF_S)


def _cancel(cluster: Cluster, wanted: Assignment, keeps_throttle: bool) -> None:
    standing = standing_of(cluster)
    running = sorted(wanted.keys() & standing.under_way.keys())
    alter_reassignments(cluster, dict.fromkeys(running))
    if running:
        say(f"{counted(len(running), 'move', 'was', 'were')} cancelled.", cancelled=len(running))
    else:
        say("None of the moves is running.", cancelled=0)
    if standing.under_way.keys() <= wanted.keys():
        _remove_throttle(cluster, wanted, standing, keeps_throttle)
    else:
        note("Other partitions are moving; the throttle remains.")


def _remove_throttle(cluster: Cluster, wanted: Assignment, standing: Standing, keeps_throttle: bool) -> None:
    if keeps_throttle:
        return
    existing = {topic for topic, _ in standing.assignment}
    count = remove_throttle(cluster, sorted({topic for topic, _ in wanted} & existing))
    if count:
        note(f"{count} throttles were removed.")


@click.command(
    cls=ToolCommand,
    examples=(
        "tidelog elect-leaders --election-type preferred --all-topic-partitions",
        "tidelog elect-leaders --election-type unclean --topic flights --partition 0",
    ),
)
@click.option(
    "--election-type",
    type=click.Choice(list(_TYPES), case_sensitive=False),
    required=True,
    help="preferred elects the first replica. unclean elects any live replica of a partition without a "
    "leader, and may lose records.",
)
@click.option("--topic", metavar="TOPIC", help="The topic, with --partition.")
@click.option("--partition", type=ProtocolInt(INT_MAX, min=0), help="The partition, with --topic.")
@click.option(
    "--path-to-json-file",
    "file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help='Several partitions: {"partitions": [{"topic": "t", "partition": 0}]}.',
)
@click.option("--all-topic-partitions", "all_partitions", is_flag=True, help="All partitions.")
@cluster_options
def elect_leaders_command(
    election_type: str, topic: str | None, partition: int | None, file: Path | None, all_partitions: bool
) -> None:
    """Elect the leaders of partitions."""
    if (topic is not None) + (file is not None) + all_partitions != 1:
        raise click.UsageError("Give one of --topic, --path-to-json-file and --all-topic-partitions.")
    if (topic is None) != (partition is None):
        raise click.UsageError("Give --topic and --partition together.")
    places: list[TopicPartition] | None = None
    if topic is not None and partition is not None:
        places = [TopicPartition(topic, partition)]
    elif file is not None:
        text = read_text_file("--path-to-json-file", file)
        places = list(parse_partition_rows(text, f"--path-to-json-file {file}"))
    with connect() as cluster:
        results = sorted(elect_leaders(cluster, _TYPES[election_type.lower()], places).items())
    if not results:
        note("No partition needs an election.")
    print_table(("topic", "#partition", "result"), [(*place, outcome(found)) for place, found in results])
    failed = sum(
        1 for _, found in results if found.code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
    )
    if failed:
        raise ToolError(f"{counted(failed, 'partition', 'has', 'have')} no new leader")


def outcome(election: Election) -> str:
    """Returns the result in one phrase."""
    if election.code is ErrorCode.NONE:
        return "elected"
    if election.code is ErrorCode.ELECTION_NOT_NEEDED:
        return "not needed"
    return f"failed: {election.message or meaning_of(election.code)}"


@click.command(
    cls=ToolCommand,
    is_watchable=True,
    examples=("tidelog log-dirs", "tidelog log-dirs --describe --topic-list flights --broker-list 1,2"),
)
@click.option("--broker-list", metavar="ID,...", help="Show only these brokers.")
@click.option("--topic-list", metavar="TOPIC,...", help="Show only replicas of these topics.")
@click.option("--describe", "shows_replicas", is_flag=True, help="Show each replica.")
@cluster_options
def log_dirs_command(broker_list: str | None, topic_list: str | None, shows_replicas: bool) -> None:
    """Show the size, replicas and lag of each broker's log directories, or of each replica.

    Sizes are in bytes. The lag of a replica is the number of records that it misses.
    """
    brokers = parse_ids("--broker-list", broker_list)
    names = [name.strip() for name in (topic_list or "").split(",") if name.strip()]
    with connect() as cluster:
        live = {broker.broker_id for broker in cluster.describe().brokers}
        _check_live(f"--broker-list {broker_list}", brokers, live)
        topics = existing_topics(cluster, names) if names else None
        found = describe_log_dirs(cluster, brokers or live, None if topics is None else topics.values())
    if shows_replicas:
        _show_replicas(found)
    else:
        _show_directories(found)


def _show_replicas(found: list[LogDir]) -> None:
    print_table(
        ("#broker", "directory", "topic", "#partition", "#size", "#lag", "state"),
        [
            (
                directory.broker_id,
                directory.path,
                *replica.place,
                replica.size_bytes,
                replica.lag,
                "future" if replica.is_future else None,
            )
            for directory in found
            for replica in directory.replicas
        ],
    )


def _show_directories(found: list[LogDir]) -> None:
    print_table(
        ("#broker", "directory", "#replicas", "#size", "#max lag", "#volume", "#usable", "error"),
        [
            (
                directory.broker_id,
                directory.path,
                len(directory.replicas),
                directory.size_bytes,
                directory.max_lag,
                _known(directory.total_bytes),
                _known(directory.usable_bytes),
                None if directory.error is ErrorCode.NONE else meaning_of(directory.error),
            )
            for directory in found
        ],
    )


def _known(size_bytes: int) -> int | None:
    return None if size_bytes == UNKNOWN_BYTES else size_bytes
