"""`tidelog group reset-offsets` and `delete-offsets` (kafka-consumer-groups, kafka-share-groups).

A share group has start offsets, which other requests read, set and delete than committed offsets.
"""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from tidelog.cli.output import OutputFormat, add_facts, counted, note, output_format, print_table, say
from tidelog.cli.tool_command import (
    ToolCommand,
    ToolError,
    asks_first,
    chosen_groups,
    cluster_options,
    confirm,
    connect,
    group_options,
    read_text_file,
)
from tidelog.client.admin.groups import (
    CONSUMER_PROTOCOL,
    SHARE,
    CommittedOffset,
    Group,
    commit_offsets,
    committed_offsets,
    delete_offsets,
    describe_group,
    list_groups,
)
from tidelog.client.admin.offsets import (
    NEEDS_TIME,
    KnownOffsets,
    NewOffset,
    Reset,
    ResetError,
    ResetMethod,
    alter_share_offsets,
    delete_share_offsets,
    describe_share_offsets,
    list_offsets,
    plan_reset,
)
from tidelog.client.cluster import Cluster
from tidelog.client.errors import topic_error_of
from tidelog.model.errors import ErrorCode, KafkaError, meaning_of
from tidelog.model.protocol_values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, UNKNOWN_OFFSET
from tidelog.model.topics import TopicPartition
from tidelog.observe.cluster_reader import next_offsets

EMPTY: Final = "Empty"
_DURATION: Final = re.compile(
    r"([-+]?)P(?:([-+]?\d+)D)?(?:T(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+(?:[.,]\d{0,9})?)S)?)?",
    re.IGNORECASE,
)
_METHODS: Final = ", ".join(f"--{method.value}" for method in ResetMethod)

F = TypeVar("F", bound=Callable[..., object])
PartitionChoice = tuple[str, tuple[int, ...] | None]
"""A topic, and its chosen partitions or None for all."""


_TOPICS: Final = click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:N,...]",
    help="A topic, or some of its partitions, such as flights:0,2. Repeatable.",
)


def _method_options(function: F) -> F:
    for option in (
        click.option("--to-earliest", is_flag=True, help="Reset to the earliest offset."),
        click.option("--to-latest", is_flag=True, help="Reset to the latest offset."),
        click.option("--to-current", is_flag=True, help="Reset to the committed offset, or else the latest."),
        click.option("--to-offset", type=int, metavar="OFFSET", help="Reset to this offset."),
        click.option(
            "--shift-by", type=int, metavar="N", help="Move the committed offset by N, which may be negative."
        ),
        click.option(
            "--to-datetime",
            metavar="TIME",
            help="Reset to the first record at or after a time: YYYY-MM-DDThh:mm:ss.sss, in UTC unless it "
            "ends with a time zone.",
        ),
        click.option(
            "--by-duration",
            metavar="DURATION",
            help="Reset to the first record of the last days, hours, minutes and seconds: PnDTnHnMnS.",
        ),
        click.option(
            "--from-file",
            type=click.Path(dir_okay=False, exists=True, path_type=Path),
            metavar="FILE",
            help="Reset to the offsets in a CSV file that --export printed.",
        ),
    ):
        function = option(function)
    return function


@click.command(
    "reset-offsets",
    cls=ToolCommand,
    examples=(
        "tidelog group reset-offsets billing --topic flights --to-earliest",
        "tidelog group reset-offsets billing --topic flights:0,2 --shift-by -100 --execute",
        "tidelog group reset-offsets billing --all-topics --to-datetime 2026-01-31T08:00:00.000 --execute",
        "tidelog group reset-offsets billing --all-topics --to-current --export > offsets.csv",
        "tidelog group reset-offsets billing --from-file offsets.csv --execute",
    ),
)
@group_options
@click.option("--all-groups", is_flag=True, help="Reset all consumer groups.")
@_TOPICS
@click.option("--all-topics", is_flag=True, help="Reset all partitions for which the group has an offset.")
@_method_options
@click.option("--execute", is_flag=True, help="Commit the new offsets. By default they are only shown.")
@click.option("--dry-run", is_flag=True, help="Only show the new offsets. This is the default.")
@click.option("--export", is_flag=True, help="Print the new offsets as CSV for --from-file.")
@cluster_options
# `Any`: the options of _method_options are of different types.
def reset_offsets(
    all_groups: bool,
    topics: tuple[str, ...],
    all_topics: bool,
    execute: bool,
    dry_run: bool,
    export: bool,
    **methods: Any,
) -> None:
    """Set the committed offsets of groups without members, or the start offsets of share groups.

    Without --execute the new offsets are only shown. Offsets outside of a partition's range become its
    earliest or latest offset.
    """
    if execute and dry_run:
        raise click.UsageError("Give either --execute or --dry-run.")
    groups = chosen_groups(all_groups=all_groups)
    method = _chosen_method(methods)
    parameter = methods[method.value.replace("-", "_")]
    is_from_file = method is ResetMethod.FROM_FILE
    if is_from_file and (topics or all_topics):
        raise click.UsageError("--from-file names the partitions; give neither --topic nor --all-topics.")
    if not is_from_file and bool(topics) == all_topics:
        raise click.UsageError("Give either --topic TOPIC[:N,...] or --all-topics.")
    chosen = [parse_choice(text) for text in topics]
    rows: list[tuple[str, TopicPartition, int | None, NewOffset]] = []
    active: list[str] = []
    with connect() as cluster:
        if all_groups:
            groups = _consumer_groups(cluster)
        resets = _resets(method, parameter, groups)
        for group in groups:
            found = _group_if_any(cluster, group)
            if found is not None and found.state != EMPTY:
                active.append(f"group '{group}' is {found.state}")
                continue
            committed = next_offsets(cluster, group, is_share=_is_share(found))
            plan = _plan(cluster, group, chosen, committed, resets[group])
            for place, new in sorted(plan.items()):
                if new.warning:
                    note(f"Warning: group '{group}': {new.warning}.")
                rows.append((group, place, committed.get(place), new))
            if execute and plan:
                _set_offsets(cluster, group, found, {place: new.offset for place, new in plan.items()})
    if export and output_format() is not OutputFormat.JSON:
        has_one_group = not all_groups and len(groups) == 1
        click.echo(offsets_csv(((g, p, new.offset) for g, p, _, new in rows), has_one_group), nl=False)
    else:
        print_table(
            ("group", "topic", "#partition", "#committed", "#new offset"),
            [(group, *place, before, new.offset) for group, place, before, new in rows],
            name="offsets",
        )
        add_facts(is_executed=execute)
    if active:
        raise ToolError(f"offsets can be reset only while a group has no members: {', '.join(active)}")
    if rows and not execute:
        note("Nothing was changed. Use --execute to commit the new offsets.")


@click.command(
    "delete-offsets",
    cls=ToolCommand,
    examples=(
        "tidelog group delete-offsets billing --topic flights",
        "tidelog group delete-offsets billing --topic flights:0,2 --topic weather",
    ),
)
@group_options
@_TOPICS
@asks_first
@cluster_options
def delete_group_offsets(topics: tuple[str, ...]) -> None:
    """Delete the committed offsets of topics to which no member of the group subscribes.

    The start offsets of a share group are deleted for whole topics, while it has no members.
    On a terminal, it asks first.
    """
    groups = chosen_groups()
    if not topics:
        raise click.UsageError("Give --topic TOPIC[:N,...].")
    chosen = [parse_choice(text) for text in topics]
    confirm(f"Delete the offsets of {', '.join(groups)} in {', '.join(topics)}?")
    failed = 0
    rows: list[tuple[str, str, int, str]] = []
    with connect() as cluster:
        for group in groups:
            for place, code in sorted(_delete_offsets(cluster, group, chosen).items()):
                rows.append((group, *place, _deletion_status(code)))
                failed += code is not ErrorCode.NONE
    print_table(("group", "topic", "#partition", "status"), rows, name="partitions")
    if failed:
        raise ToolError(f"the offsets of {counted(failed, 'partition')} were not deleted")
    say(f"The offsets of {counted(len(rows), 'partition')} were deleted.")


def _delete_offsets(
    cluster: Cluster, group: str, chosen: Sequence[PartitionChoice]
) -> dict[TopicPartition, ErrorCode]:
    """Deletes offsets, and returns the result of each partition.

    Raises ToolError, KafkaError, ClientError.
    """
    if _is_share(_group_if_any(cluster, group)):
        return _delete_share_offsets(cluster, group, chosen)
    places = _existing_or_committed(cluster, chosen, committed_offsets(cluster, group))
    return delete_offsets(cluster, group, places)


def _delete_share_offsets(
    cluster: Cluster, group: str, chosen: Sequence[PartitionChoice]
) -> dict[TopicPartition, ErrorCode]:
    known = describe_share_offsets(cluster, group)
    for name, indexes in chosen:
        if indexes is not None:
            raise ToolError(
                f"offsets of share group '{group}' can be deleted only for a whole topic; give --topic {name}"
            )
        if all(place.topic != name for place in known):
            raise ToolError(
                f"share group '{group}' has no offsets of topic '{name}'; 'tidelog group describe' shows its "
                "topics"
            )
    codes = delete_share_offsets(cluster, group, {name for name, _ in chosen})
    return {place: codes[place.topic] for place in known if place.topic in codes}


def _deletion_status(code: ErrorCode) -> str:
    if code is ErrorCode.NONE:
        return "deleted"
    return f"kept, because {meaning_of(code)}"


def _chosen_method(methods: Mapping[str, object]) -> ResetMethod:
    """Raises click.UsageError unless exactly one method was given."""
    values = {method: methods[method.value.replace("-", "_")] for method in ResetMethod}
    given = [method for method, value in values.items() if value is not None and value is not False]
    if len(given) != 1:
        raise click.UsageError(f"Give one of {_METHODS}.")
    return given[0]


def _resets(method: ResetMethod, parameter: Any, groups: Collection[str]) -> dict[str, Reset]:
    """Returns the reset of each group. Raises ToolError if the parameter is invalid."""
    match method:
        case ResetMethod.TO_OFFSET | ResetMethod.SHIFT_BY:
            reset = Reset(method, number=parameter)
        case ResetMethod.TO_DATETIME:
            reset = Reset(method, timestamp_ms=parse_datetime(parameter))
        case ResetMethod.BY_DURATION:
            now_ms = time.time_ns() // 1_000_000
            reset = Reset(method, timestamp_ms=max(0, now_ms - parse_duration_ms(parameter)))
        case ResetMethod.FROM_FILE:
            by_group = parse_offsets_csv(read_text_file("--from-file", parameter), groups)
            return {group: Reset(method, offsets=by_group.get(group, {})) for group in groups}
        case _:
            reset = Reset(method)
    return dict.fromkeys(groups, reset)


def _consumer_groups(cluster: Cluster) -> list[str]:
    return [
        group.group_id
        for group in list_groups(cluster, [], [])
        if group.group_type in ("classic", "consumer") and group.protocol_type in ("", CONSUMER_PROTOCOL)
    ]


def _group_if_any(cluster: Cluster, group: str) -> Group | None:
    """Returns None for a group that does not exist: as in Kafka, a reset creates it."""
    try:
        return describe_group(cluster, group)
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        raise


def _is_share(found: Group | None) -> bool:
    return found is not None and found.group_type == SHARE


def _set_offsets(
    cluster: Cluster, group: str, found: Group | None, offsets: Mapping[TopicPartition, int]
) -> None:
    if _is_share(found):
        alter_share_offsets(cluster, group, offsets)
    else:
        commit_offsets(cluster, group, {place: CommittedOffset(offset) for place, offset in offsets.items()})


def _plan(
    cluster: Cluster,
    group: str,
    chosen: Sequence[PartitionChoice],
    committed: Mapping[TopicPartition, int],
    reset: Reset,
) -> dict[TopicPartition, NewOffset]:
    """Returns the new offsets of a group. Raises ToolError, KafkaError, ClientError."""
    places = _partitions(cluster, chosen, committed, reset)
    try:
        return plan_reset(reset, _known_offsets(cluster, places, committed, reset))
    except ResetError as error:
        raise ToolError(f"group '{group}': {error}") from None


def _partitions(
    cluster: Cluster, chosen: Sequence[PartitionChoice], committed: Mapping[TopicPartition, int], reset: Reset
) -> set[TopicPartition]:
    if reset.method is ResetMethod.FROM_FILE:
        return set(reset.offsets)
    if not chosen:
        return set(committed)
    places: set[TopicPartition] = set()
    for name, indexes in chosen:
        existing = {partition.index for partition in cluster.topic(name).partitions}
        places |= {TopicPartition(name, index) for index in (existing if indexes is None else indexes)}
    return places


def _existing_or_committed(
    cluster: Cluster, chosen: Sequence[PartitionChoice], committed: Mapping[TopicPartition, int]
) -> set[TopicPartition]:
    """Returns the chosen partitions. Those of a deleted topic are known from the group's offsets."""
    existing = cluster.topics([name for name, _ in chosen])
    places: set[TopicPartition] = set()
    for name, indexes in chosen:
        if indexes is not None:
            places |= {TopicPartition(name, index) for index in indexes}
        elif name in existing:
            places |= {TopicPartition(name, partition.index) for partition in existing[name].partitions}
        else:
            of_group = {place for place in committed if place.topic == name}
            if not of_group:
                raise topic_error_of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
            places |= of_group
    return places


def _known_offsets(
    cluster: Cluster,
    places: Collection[TopicPartition],
    committed: Mapping[TopicPartition, int],
    reset: Reset,
) -> dict[TopicPartition, KnownOffsets]:
    """Raises ToolError if a partition does not exist, KafkaError, ClientError."""
    by_topic: dict[str, list[int]] = {}
    for place in sorted(places):
        by_topic.setdefault(place.topic, []).append(place.partition)
    known: dict[TopicPartition, KnownOffsets] = {}
    for name, indexes in by_topic.items():
        topic = cluster.topic(name)
        missing = sorted(set(indexes) - {partition.index for partition in topic.partitions})
        if missing:
            raise ToolError(
                f"topic '{name}' has partitions 0 to {len(topic.partitions) - 1}, not {missing[0]}"
            )
        first = list_offsets(cluster, topic, EARLIEST_TIMESTAMP, partitions=indexes)
        following = list_offsets(cluster, topic, LATEST_TIMESTAMP, partitions=indexes)
        at_time: dict[int, int] = {}
        if reset.method in NEEDS_TIME:
            found = list_offsets(cluster, topic, reset.timestamp_ms, partitions=indexes)
            at_time = {index: at.offset for index, at in found.items() if at.offset != UNKNOWN_OFFSET}
        for index in indexes:
            place = TopicPartition(name, index)
            known[place] = KnownOffsets(
                first[index].offset, following[index].offset, committed.get(place), at_time.get(index)
            )
    return known


def parse_choice(text: str) -> PartitionChoice:
    """Parses `topic` and `topic:0,2`. Raises ToolError."""
    name, colon, numbers = text.partition(":")
    parts = [part.strip() for part in numbers.split(",")]
    if not name or (colon and not all(part.isdecimal() for part in parts)):
        raise ToolError(f"--topic {text}: expected a topic and partitions, as in flights:0,2")
    return name, tuple(map(int, parts)) if colon else None


def parse_datetime(text: str) -> int:
    """Returns milliseconds since 1970, at least 0, because ListOffsets gives negative numbers other meanings.
    A time without a zone is in UTC. Raises ToolError.
    """
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        parsed = None
    if parsed is None or "T" not in text:
        raise ToolError(
            f"--to-datetime {text}: expected YYYY-MM-DDThh:mm:ss.sss and, if it is not in UTC, a zone, "
            "such as +01:00"
        )
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    time_ms = (parsed - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if time_ms < 0:
        raise ToolError(f"--to-datetime {text}: the time must not be before 1970-01-01T00:00:00Z")
    return time_ms


def parse_duration_ms(text: str) -> int:
    """Parses an ISO 8601 duration of days, hours, minutes and seconds. Raises ToolError."""
    match = _DURATION.fullmatch(text.strip())
    parts = match.groups()[1:] if match else ()
    if match is None or all(part is None for part in parts) or text.strip()[-1:] in "tT":
        raise ToolError(f"--by-duration {text}: expected PnDTnHnMnS, such as P7D or PT1H30M")
    days, hours, minutes, seconds = (float((part or "0").replace(",", ".")) for part in parts)
    duration_ms = round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
    return -duration_ms if match.group(1) == "-" else duration_ms


def offsets_csv(rows: Iterable[tuple[str, TopicPartition, int]], has_one_group: bool) -> str:
    """Encodes offsets in the format of Kafka's tool: with the group only if there are several."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    for group, place, offset in rows:
        writer.writerow((*place, offset) if has_one_group else (group, *place, offset))
    return output.getvalue()


def parse_offsets_csv(text: str, groups: Collection[str]) -> dict[str, dict[TopicPartition, int]]:
    """Returns the offsets of these groups.

    A line is `topic,partition,offset` if there is one group, or `group,topic,partition,offset`; lines of
    other groups are left out. Raises ToolError that names the invalid line.
    """
    found: dict[str, dict[TopicPartition, int]] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        if len(cells) == 3 and len(groups) == 1:
            cells = [*groups, *cells]
        if len(cells) != 4 or not cells[2].isdecimal() or not cells[3].isdecimal():
            expected = "group,topic,partition,offset"
            if len(groups) == 1:
                expected = f"topic,partition,offset or {expected}"
            raise ToolError(f"line {number} of the file of offsets is '{','.join(row)}': expected {expected}")
        group, topic, partition, offset = cells
        place = TopicPartition(topic, int(partition))
        if group in groups and found.setdefault(group, {}).setdefault(place, int(offset)) != int(offset):
            raise ToolError(f"line {number} of the file of offsets has another offset of {place}")
    return found
