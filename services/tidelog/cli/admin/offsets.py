"""`tidelog offsets` shows the first and next offsets of partitions, or the offsets of a time
(kafka-get-offsets). `tidelog delete-records` deletes the oldest records up to an offset or a time
(kafka-delete-records).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from tidelog.cli.admin.group_offsets import parse_datetime
from tidelog.cli.output import OutputFormat, counted, output_format, print_table
from tidelog.cli.tool_command import (
    ProtocolInt,
    ToolCommand,
    ToolError,
    asks_first,
    chosen_topic,
    cluster_options,
    confirm,
    connect,
    given_name,
    parse_partition_rows,
    read_text_file,
    topic_option,
)
from tidelog.client.admin.offsets import list_offsets
from tidelog.client.admin.topics import delete_records, places_by_leader
from tidelog.client.cluster import Cluster, Topic
from tidelog.model.errors import ErrorCode, KafkaError, meaning_of
from tidelog.model.protocol_values import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    UNKNOWN_OFFSET,
    UP_TO_HIGH_WATERMARK,
)
from tidelog.model.topics import TopicPartition
from tidelog.settings.setting import INT_MAX, LONG_MAX

SPECIAL_TIMES: Final[Mapping[str, int]] = {
    "latest": LATEST_TIMESTAMP,
    "earliest": EARLIEST_TIMESTAMP,
    "max-timestamp": MAX_TIMESTAMP,
    "earliest-local": EARLIEST_LOCAL_TIMESTAMP,
    "latest-tiered": LATEST_TIERED_TIMESTAMP,
}
_REASONS: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset is higher than the latest one",
    ErrorCode.POLICY_VIOLATION: "the topic's cleanup.policy is only compact",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "the topic is internal",
    ErrorCode.REQUEST_TIMED_OUT: "a replica has not deleted the records in time; it will do so later",
}


@click.command(
    cls=ToolCommand,
    is_watchable=True,
    examples=("tidelog offsets flights", "tidelog offsets --topic 'flights.*' --time earliest"),
)
@click.argument("topic_name", metavar="[TOPIC]", required=False)
@click.option(
    "--topic",
    "topic_option",
    metavar="REGEX",
    help="Show topics whose whole name matches. The default is all topics.",
)
@click.option("--partitions", metavar="N,N-N,...", help="Show only these partitions.")
@click.option(
    "--time",
    "time_text",
    metavar="TIME",
    help=f"Print the offset of this time (in plain format as TOPIC:PARTITION:OFFSET): "
    f"{', '.join(SPECIAL_TIMES)}, or milliseconds since 1970.",
)
@click.option("--exclude-internal-topics", is_flag=True, help="Leave out internal topics.")
@cluster_options
def offsets_command(
    topic_name: str | None,
    topic_option: str | None,
    partitions: str | None,
    time_text: str | None,
    exclude_internal_topics: bool,
) -> None:
    """Show the first and next offset of each partition, or the offset of a time."""
    timestamp = None if time_text is None else parse_time(time_text)
    wanted = None if partitions is None else parse_partitions(partitions)
    pattern = topic_name or topic_option
    rows: list[tuple[str, int, int, int, int]] = []
    of_time: list[tuple[str, int, int | None, int | None]] = []
    with connect() as cluster:
        for topic in _matching(cluster.topics(), pattern, exclude_internal_topics):
            indexes = [
                p.index for p in topic.partitions if wanted is None or any(p.index in part for part in wanted)
            ]
            if timestamp is not None:
                for index, found in list_offsets(cluster, topic, timestamp, partitions=indexes).items():
                    of_time.append((topic.name, index, _known(found.offset), _known(found.timestamp)))
                continue
            first = list_offsets(cluster, topic, EARLIEST_TIMESTAMP, partitions=indexes)
            following = list_offsets(cluster, topic, LATEST_TIMESTAMP, partitions=indexes)
            rows += [
                (topic.name, i, first[i].offset, following[i].offset, following[i].offset - first[i].offset)
                for i in indexes
            ]
    if timestamp is None:
        print_table(("topic", "#partition", "#earliest", "#latest", "#offsets"), rows)
    elif output_format() is OutputFormat.PLAIN:
        for name, index, offset, _ in of_time:
            click.echo(f"{name}:{index}:{'' if offset is None else offset}")
    else:
        print_table(("topic", "#partition", "#offset", "#timestamp"), of_time)


def _known(number: int) -> int | None:
    return None if number == UNKNOWN_OFFSET else number


def _matching(topics: Mapping[str, Topic], pattern: str | None, excludes_internal: bool) -> list[Topic]:
    """Returns the matching topics.

    Raises KafkaError if none matches, ToolError if the pattern is not a regular expression.
    """
    if pattern is None:
        return [topic for topic in topics.values() if not (excludes_internal and topic.is_internal)]
    if pattern in topics:
        return [topics[pattern]]
    try:
        expression = re.compile("|".join(pattern.split(",")))
    except re.error as error:
        raise ToolError(f"--topic {pattern}: not a regular expression ({error})") from error
    found = [
        topic
        for topic in topics.values()
        if expression.fullmatch(topic.name) and not (excludes_internal and topic.is_internal)
    ]
    if not found:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic matches '{pattern}'")
    return found


def parse_time(text: str) -> int:
    """Parses a name or milliseconds since 1970; -1 and -2 are Kafka's old names. Raises ToolError."""
    if text in SPECIAL_TIMES:
        return SPECIAL_TIMES[text]
    try:
        time_ms: int | None = int(text)
    except ValueError:
        time_ms = None
    if time_ms is not None and (time_ms in SPECIAL_TIMES.values() or 0 <= time_ms <= LONG_MAX):
        return time_ms
    raise ToolError(f"--time {text}: expected {', '.join(SPECIAL_TIMES)}, or milliseconds since 1970")


def parse_partitions(text: str) -> list[range]:
    """Parses numbers and ranges: `0,3-5` means 0, 3, 4, 5. Raises ToolError."""
    ranges: list[range] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ToolError(f"--partitions {text}: expected numbers and ranges, as in 0,3-5")
        ranges.append(range(int(first), int(last or first) + 1))
    return ranges


@click.command(
    cls=ToolCommand,
    examples=(
        "tidelog delete-records flights --partition 0 --offset 5000",
        "tidelog delete-records flights --to-datetime 2026-01-31T08:00:00.000",
        "tidelog delete-records --offset-json-file offsets.json",
    ),
)
@topic_option
@click.option(
    "--partition", type=ProtocolInt(INT_MAX, min=0), help="The partition. --to-datetime means all without it."
)
@click.option(
    "--offset",
    type=ProtocolInt(LONG_MAX, min=UP_TO_HIGH_WATERMARK),
    help="Delete the records before this offset; -1 deletes all.",
)
@click.option(
    "--to-datetime",
    metavar="TIME",
    help="Delete the records before the first one at or after a time: YYYY-MM-DDThh:mm:ss.sss, in UTC unless "
    "it ends with a time zone.",
)
@click.option(
    "--offset-json-file",
    "file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help='Several partitions: {"partitions": [{"topic": "t", "partition": 0, "offset": 9}], "version": 1}.',
)
@asks_first
@cluster_options
def delete_records_command(
    partition: int | None, offset: int | None, to_datetime: str | None, file: Path | None
) -> None:
    """Delete all records before an offset or a time. They can't be restored.

    On a terminal, it asks first.
    """
    offsets: dict[TopicPartition, int] = {}
    if file is not None:
        if given_name("topic") or any(each is not None for each in (partition, offset, to_datetime)):
            raise click.UsageError(
                "Give either --offset-json-file, or a topic and --to-datetime, or a topic, --partition and "
                "--offset."
            )
        source = f"--offset-json-file {file}"
        rows = parse_partition_rows(read_text_file("--offset-json-file", file), source, ("offset",))
        offsets = {place: row["offset"] for place, row in rows.items()}
    else:
        name = chosen_topic()
        if (offset is None) == (to_datetime is None) or (partition is None and offset is not None):
            raise click.UsageError("Give either --partition and --offset, or --to-datetime.")
        if partition is not None and offset is not None:
            offsets = {TopicPartition(name, partition): offset}
    time_ms = None if to_datetime is None else parse_datetime(to_datetime)
    with connect() as cluster:
        if time_ms is not None:
            offsets = _offsets_at(cluster, name, partition, time_ms)
        confirm(_question(offsets))
        results = sorted(delete_records(cluster, offsets).items())
    print_table(
        ("topic", "#partition", "#earliest", "error"),
        [
            (
                *place,
                None if result.error else result.low_watermark,
                _REASONS.get(result.error, meaning_of(result.error)) if result.error else None,
            )
            for place, result in results
        ],
    )
    failed = sum(1 for _, result in results if result.error is not ErrorCode.NONE)
    if failed:
        raise ToolError(f"the records of {counted(failed, 'partition')} were not deleted")


def _question(offsets: Mapping[TopicPartition, int]) -> str:
    if len(offsets) != 1:
        return f"Delete the records of {counted(len(offsets), 'partition')} before these places?"
    ((place, offset),) = offsets.items()
    if offset == UP_TO_HIGH_WATERMARK:
        return f"Delete all records of {place}?"
    return f"Delete the records of {place} before offset {offset}?"


def _offsets_at(
    cluster: Cluster, name: str, partition: int | None, time_ms: int
) -> dict[TopicPartition, int]:
    """Returns the offset of the first record at or after a time, by partition. Where there is none, it is the
    end, as it was before the search, so that no newer record is deleted. Raises KafkaError, ClientError, and
    ToolError if no record of a partition has a known time: they are not older than any time.
    """
    if partition is not None:
        places_by_leader(cluster, [TopicPartition(name, partition)])  # raises KafkaError if it does not exist
    topic = cluster.topic(name)
    wanted = None if partition is None else [partition]
    ends = list_offsets(cluster, topic, LATEST_TIMESTAMP, partitions=wanted)
    found = list_offsets(cluster, topic, time_ms, partitions=wanted)
    older = [index for index in ends if found[index].offset < 0]
    if older:
        newest = list_offsets(cluster, topic, MAX_TIMESTAMP, partitions=older)
        starts = list_offsets(cluster, topic, EARLIEST_TIMESTAMP, partitions=older)
        timeless = [i for i in older if newest[i].timestamp < 0 and starts[i].offset < ends[i].offset]
        if timeless:
            raise ToolError(
                f"the records of {name}-{timeless[0]} have no known time, so it is unknown which of them are "
                "older; nothing was deleted. Give --partition and --offset instead."
            )
    return {
        TopicPartition(name, index): end.offset if found[index].offset < 0 else found[index].offset
        for index, end in ends.items()
    }
