"""`tidelog offsets`: shows the first and next offsets of partitions, or the offsets of a time
(kafka-get-offsets).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import click

from tidelog.cli.output import OutputFormat, output_format, print_table
from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, connect
from tidelog.client.admin.topics import list_offsets
from tidelog.client.cluster import Topic
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    UNKNOWN_OFFSET,
)
from tidelog.settings.setting import LONG_MAX

SPECIAL_TIMES: Final[Mapping[str, int]] = {
    "latest": LATEST_TIMESTAMP,
    "earliest": EARLIEST_TIMESTAMP,
    "max-timestamp": MAX_TIMESTAMP,
    "earliest-local": EARLIEST_LOCAL_TIMESTAMP,
    "latest-tiered": LATEST_TIERED_TIMESTAMP,
}


@click.command(
    cls=ToolCommand,
    is_watchable=True,
    examples=(
        "tidelog offsets flights",
        "tidelog offsets --topic 'flights.*' --time earliest",
    ),
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
def command(
    topic_name: str | None,
    topic_option: str | None,
    partitions: str | None,
    time_text: str | None,
    exclude_internal_topics: bool,
    bootstrap_server: str,
    request_timeout_ms: int,
) -> None:
    """Show the first and next offset of each partition, or the offset of a time."""
    timestamp = None if time_text is None else parse_time(time_text)
    wanted = None if partitions is None else parse_partitions(partitions)
    pattern = topic_name or topic_option
    rows: list[tuple[str, int, int, int, int]] = []
    of_time: list[tuple[str, int, int | None, int | None]] = []
    with connect(bootstrap_server, request_timeout_ms) as cluster:
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
